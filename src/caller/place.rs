//! Where a lock is: on one server, or on a majority of several. Locks, guards and local queues are the same
//! for both.

pub(crate) mod held;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use self::held::Held;
use crate::engine::acquire;
use crate::engine::acquire::{AcquireParams, Arrival, Tried, bound, timed_out};
use crate::engine::client::Client;
use crate::engine::counters::Counters;
use crate::engine::heard::Listening;
use crate::engine::operator::{self, Seen};
use crate::engine::shared::Shared;
use crate::engine::waitlist::registry::Permit;
use crate::protocol::ids::ClientId;
use crate::protocol::keys::Keys;
use crate::quorum::QuorumClient;
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;
use crate::types::error::{Error, Result};
use crate::types::fence::Fence;

/// The servers of a manager, and its clients there.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// One server, or a cluster, or a server in memory.
    One(Arc<Shared>),
    Quorum(Arc<QuorumClient>),
}

impl From<Shared> for Place {
    fn from(shared: Shared) -> Place {
        Place::One(Arc::new(shared))
    }
}

impl From<QuorumClient> for Place {
    fn from(quorum: QuorumClient) -> Place {
        Place::Quorum(Arc::new(quorum))
    }
}

impl Place {
    /// A client of the place. All clients of a quorum have the same id and the same settings.
    pub(crate) fn client(&self) -> &Arc<Client> {
        match self {
            Place::One(shared) => shared.client(),
            Place::Quorum(quorum) => quorum.client(),
        }
    }

    pub(crate) fn clients(&self) -> Vec<Arc<Client>> {
        match self {
            Place::One(shared) => vec![Arc::clone(shared.client())],
            Place::Quorum(quorum) => {
                let clients = quorum.servers.iter().map(|server| server.client());
                clients.cloned().collect()
            }
        }
    }

    /// Starts the background tasks, on the runtime of the first call.
    pub(crate) fn start(&self) {
        match self {
            Place::One(shared) => shared.start(),
            Place::Quorum(quorum) => quorum.start(),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        match self {
            Place::One(shared) => &shared.client().counters,
            Place::Quorum(quorum) => &quorum.counters,
        }
    }

    /// The locks that are held, and whose guards live, with their fences.
    pub(crate) fn held(&self) -> Vec<(Arc<str>, Fence)> {
        match self {
            Place::One(shared) => shared.held(),
            Place::Quorum(quorum) => quorum.held(),
        }
    }

    /// Closes the clients, and ends the waits on the servers.
    pub(crate) fn end_waits(&self) {
        match self {
            Place::One(shared) => shared.end_waits(),
            Place::Quorum(quorum) => quorum.servers.iter().for_each(|server| server.end_waits()),
        }
    }

    /// Waits for the releases that dropped guards left. Returns how many of them were not confirmed in time.
    pub(crate) async fn drained(&self) -> usize {
        match self {
            Place::One(shared) => shared.drained().await,
            Place::Quorum(quorum) => quorum.drained().await,
        }
    }

    /// Counts a caller that waits, unless there are too many.
    pub(crate) fn count_caller(&self) -> Result<Permit> {
        match self {
            Place::One(shared) => shared.waitlists().count_caller(),
            Place::Quorum(quorum) => quorum.count_caller(),
        }
    }

    /// Listens to a lock that may be retained. `None` for all others, in a quorum, and if the channel is not
    /// subscribed to yet.
    pub(crate) fn listen(&self, params: &AcquireParams) -> Option<Listening> {
        params.retain_ms?;
        match self {
            Place::One(shared) => shared.waitlists().listen(&params.keys, &params.channel),
            Place::Quorum(_) => None,
        }
    }

    /// The arrival of a caller, now. The servers of a quorum must know its place. One server gives it one.
    pub(crate) fn arrival(&self) -> Arrival {
        match self {
            Place::One(shared) => Arrival {
                at: shared.client().now(),
                ticket: None,
            },
            Place::Quorum(quorum) => quorum.arrival(),
        }
    }

    /// Gives a caller that has arrived now, and asks later, its place by its arrival.
    pub(crate) fn keep_order(&self, params: &AcquireParams, arrival: Arrival) -> Arrival {
        let ticket = match self {
            Place::One(shared) => shared.waitlists().next_ticket(&params.keys, &params.channel),
            Place::Quorum(_) => return arrival,
        };
        Arrival { ticket, ..arrival }
    }

    /// Waits in queue order for the lock, until `until` if there is a bound.
    pub(crate) async fn acquire(
        &self,
        params: &AcquireParams,
        arrival: Arrival,
        until: Option<Instant>,
    ) -> Result<Held> {
        match self {
            Place::One(shared) => {
                let held = acquire::acquire(shared.waitlists(), params, arrival, until).await?;
                Ok(Held::One(held))
            }
            Place::Quorum(quorum) => {
                let majority = Box::pin(quorum.acquire(params.clone(), arrival, until)).await?;
                Ok(Held::Majority(Box::new(majority)))
            }
        }
    }

    /// Takes the lock if it is free and no reachable request is queued for it.
    pub(crate) async fn try_acquire(&self, params: AcquireParams) -> Result<Tried<Held>> {
        match self {
            Place::One(shared) => {
                let tried = acquire::try_acquire(Arc::clone(shared.waitlists()), params).await?;
                Ok(tried.map(Held::One))
            }
            Place::Quorum(quorum) => {
                let tried = Box::pin(quorum.try_acquire(params)).await?;
                Ok(tried.map(|majority| Held::Majority(Box::new(majority))))
            }
        }
    }

    /// Who holds the lock, and how many requests wait for it.
    pub(crate) async fn inspect(&self, keys: &Arc<Keys>, terms: &LeaseTerms) -> Result<Seen> {
        match self {
            Place::One(shared) => {
                let answer = operator::inspect(shared.client(), keys, terms).await?;
                Ok(Seen::on_one(keys.kind, answer))
            }
            Place::Quorum(quorum) => Box::pin(quorum.inspect(keys, terms)).await,
        }
    }

    /// The label of a client.
    pub(crate) fn label_of(&self, client: &ClientId) -> BoxFuture<'static, Option<String>> {
        match self {
            Place::One(shared) => operator::label_of(shared.client(), client),
            Place::Quorum(quorum) => quorum.label_of(client),
        }
    }

    /// Takes the lock away from the holder with this fence. Returns whether it was held under that fence.
    pub(crate) async fn force_release(
        &self,
        keys: &Arc<Keys>,
        terms: &LeaseTerms,
        fence: Fence,
    ) -> Result<bool> {
        match self {
            Place::One(shared) => operator::force_release(shared.client(), keys, terms, fence, None).await,
            Place::Quorum(quorum) => Box::pin(quorum.force_release(keys, terms, fence)).await,
        }
    }

    /// How long the lock is expected to be held without a renewal.
    pub(crate) fn free_in(&self, channel: &str) -> Duration {
        match self {
            Place::One(shared) => shared.waitlists().free_in(channel),
            Place::Quorum(quorum) => quorum.free_in(channel),
        }
    }

    /// Waits until the bound of a wait that began then, and for the replies that have come by then.
    pub(crate) async fn bound(&self, params: &AcquireParams, began: LocalTime, until: Option<Instant>) {
        bound(until, || {
            !matches!(self.timed_out(params, began), Error::Timeout { .. })
        })
        .await;
    }

    /// The error of a wait that began then, and whose bound has passed.
    pub(crate) fn timed_out(&self, params: &AcquireParams, began: LocalTime) -> Error {
        match self {
            Place::One(shared) => {
                let waitlists = shared.waitlists();
                match waitlists.why_unheard(&params.keys, &params.channel, began) {
                    Some(failure) => failure.into(),
                    None => timed_out(shared.client(), began, waitlists.free_in(&params.channel)),
                }
            }
            Place::Quorum(quorum) => quorum.over(&params.keys, &params.channel, began),
        }
    }
}
