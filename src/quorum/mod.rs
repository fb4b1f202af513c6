//! A lock on a majority of independent servers. It is a lock over locks: one complete client for each server,
//! and above them a [ballot](ballot) that asks all servers at once and counts their holds as votes.
//!
//! - A client *holds* the lock while it has holds of a majority of the servers, of which a majority had one
//!   fence when it began. Two majorities share a server, and a server has one holder, under a fence that only
//!   grows. So there is one holder at a time, and fences increase.
//! - All servers queue a request under one ticket. A ballot with too few votes gives each of them up for an
//!   earlier request, and comes back behind it. So the earliest request gets all votes.
//!
//! `tests/model/src/quorum/` explores this protocol, and shows what breaks without each of its rules.

mod answers;
mod ballot;
mod operator;
#[cfg(test)]
mod tests;
mod votes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::task::yield_now;
use tokio::time::Instant;

pub(crate) use self::answers::{majority_of, no_majority};
#[cfg(feature = "redis")]
pub(crate) use self::answers::{next_until, stragglers_until};
use self::ballot::Ballot;
pub(crate) use self::votes::{Majority, Votes};
use crate::engine::acquire::{AcquireParams, Arrival, Tried, replies_read, timed_out};
use crate::engine::client::Client;
use crate::engine::counters::Counters;
use crate::engine::floor::QuorumClocks;
use crate::engine::shared::Shared;
use crate::engine::waitlist::registry::Permit;
use crate::protocol::ids::ClientId;
use crate::protocol::keys::Keys;
use crate::sync::locked;
use crate::time::clock::{Clock, LocalTime};
use crate::time::server_time::Ticket;
use crate::types::error::{Error, Result};
use crate::types::fence::Fence;
use crate::types::owner::Owner;

/// How far a client's tickets may run ahead of the time. Estimates of the servers' clocks differ by less from
/// one call to the next.
const MOST_AHEAD_US: u64 = 10_000_000;

/// The clients of all servers of a quorum. They have one id, so that servers that queue two clients under one
/// ticket agree which of them is first.
#[derive(Debug)]
pub(crate) struct QuorumClient {
    pub(crate) servers: Vec<Arc<Shared>>,
    /// Counts calls, holds, and what becomes of votes. The servers' clients count what happens at each
    /// server.
    pub(crate) counters: Counters,
    pub(crate) clocks: Arc<QuorumClocks>,
    last_ticket: AtomicU64,
    last_ballot: AtomicU64,
    /// The holds whose guards live, by their ballots.
    held: Mutex<BTreeMap<u64, Arc<Votes>>>,
}

impl QuorumClient {
    pub(crate) fn new(servers: Vec<Arc<Shared>>) -> QuorumClient {
        let clocks = servers.iter().map(|server| Arc::clone(&server.client().clocks));
        QuorumClient {
            clocks: Arc::new(QuorumClocks::new(clocks.collect())),
            counters: Counters::of_quorum(servers[0].client().store.clock()),
            servers,
            last_ticket: AtomicU64::new(0),
            last_ballot: AtomicU64::new(0),
            held: Mutex::default(),
        }
    }

    /// One of the clients. All have the same id and the same settings. It also counts the callers that wait.
    pub(crate) fn client(&self) -> &Arc<Client> {
        self.servers[0].client()
    }

    /// How many servers are a majority.
    pub(crate) fn majority(&self) -> usize {
        majority_of(self.servers.len())
    }

    /// Starts the background tasks of all clients.
    pub(crate) fn start(&self) {
        self.servers.iter().for_each(|server| server.start());
    }

    fn next_ballot(&self) -> u64 {
        self.last_ballot.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The owner of the holds of one ballot. Each of its requests has an id of its own.
    fn owner_of(&self, client: &ClientId, ballot: u64) -> Owner {
        Owner::from_wire(&format!("{client}:{ballot}"))
    }

    /// A ticket that is later than all tickets of this client before. Among clients it is the time of the
    /// request, by the median of the servers' clocks, so that a minority of wrong clocks moves nobody. If the
    /// clocks of most servers are set back, the order begins again: a client would else come behind all
    /// newer clients until the clocks have caught up.
    fn next_ticket(&self) -> Ticket {
        let now_us = self.clocks.median_us();
        let after = |last: u64| match last.checked_sub(now_us) {
            Some(ahead) if ahead < MOST_AHEAD_US => last + 1,
            _ => now_us,
        };
        let next = |last| Some(after(last));
        let last = (self.last_ticket).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Ticket(after(last.unwrap_or_else(|last| last)))
    }

    /// The local clock, which all clients share.
    fn clock(&self) -> Clock {
        self.servers[0].client().store.clock()
    }

    /// The arrival of a caller, now.
    pub(crate) fn arrival(&self) -> Arrival {
        Arrival {
            at: self.client().now(),
            ticket: Some(self.next_ticket()),
        }
    }

    /// Counts a caller that waits, unless there are too many.
    pub(crate) fn count_caller(&self) -> Result<Permit> {
        self.servers[0].waitlists().count_caller()
    }

    /// Waits for the lock in the queues of all servers, until a majority of them have granted it under one
    /// fence.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        params: AcquireParams,
        arrival: Arrival,
        until: Option<Instant>,
    ) -> Result<Majority> {
        let mut ballot = Ballot::new(self, params, arrival, until)?;
        let fence = self.client().runtime.hosts(ballot.decided()).await?;
        Ok(ballot.begin_hold(fence))
    }

    /// Takes the lock if a majority of the servers grant it at once. Of several tries at the same time, each
    /// may get too few votes.
    pub(crate) async fn try_acquire(self: &Arc<Self>, params: AcquireParams) -> Result<Tried<Majority>> {
        // The tasks of holds that have just been dropped withdraw what is on its way to a server. A try that
        // is sent before finds the lock held there.
        yield_now().await;
        let mut ballot = Ballot::new(self, params, self.arrival(), None)?;
        let tried = self.client().runtime.hosts(ballot.tried()).await?;
        Ok(tried.map(|fence| ballot.begin_hold(fence)))
    }

    /// The holds whose guards live, unless they are lost.
    pub(crate) fn held(&self) -> Vec<(Arc<str>, Fence)> {
        let held: Vec<_> = locked(&self.held).values().cloned().collect();
        let live = held.into_iter().filter(|votes| votes.end_if_over().is_ok());
        live.filter_map(|votes| Some((Arc::clone(&votes.name), votes.fence()?)))
            .collect()
    }

    /// How many callers wait.
    pub(crate) fn waiting(&self) -> usize {
        self.servers[0].waitlists().waiting()
    }

    /// How many outgoing messages the servers have not confirmed.
    pub(crate) fn pending(&self) -> usize {
        self.servers
            .iter()
            .map(|server| server.background().pending())
            .sum()
    }

    /// Waits for the releases that dropped guards left, once the clients are closed, until a majority of the
    /// servers have confirmed all of theirs. Returns how many are left where most servers have fewer.
    pub(crate) async fn drained(&self) -> usize {
        let drained: FuturesUnordered<_> = (self.servers.iter())
            .map(|server| server.background().drained())
            .collect();
        let drained = drained.take(self.majority()).for_each(async |()| {});
        let unconfirmed = if self.client().within_server_timeout(drained).await {
            0
        } else {
            let pending = self.servers.iter().map(|server| server.background().pending());
            let mut pending: Vec<_> = pending.collect();
            pending.sort_unstable();
            pending[self.majority() - 1]
        };
        for server in &self.servers {
            server.background().wake_if_closing();
        }
        unconfirmed
    }

    /// The error of a wait whose bound has passed, once the replies that have come are read.
    pub(super) async fn bound_over(&self, keys: &Keys, channel: &str, arrived: LocalTime) -> Error {
        let over = || self.over(keys, channel, arrived);
        replies_read(|| !matches!(over(), Error::Timeout { .. })).await;
        over()
    }

    /// The error of a wait that has ended, from what all servers have said since it began.
    pub(crate) fn over(&self, keys: &Keys, channel: &str, arrived: LocalTime) -> Error {
        let errors =
            (0..self.servers.len()).filter_map(|server| self.unheard(server, keys, channel, arrived));
        self.timed_out(&errors.collect::<Vec<_>>(), arrived, self.free_in(channel))
    }

    /// Why a server has said nothing about a lock since this time, if it has not.
    pub(super) fn unheard(
        &self,
        server: usize,
        keys: &Keys,
        channel: &str,
        since: LocalTime,
    ) -> Option<Error> {
        let failure = self.servers[server].waitlists().why_unheard(keys, channel, since);
        failure.map(Error::from)
    }

    /// The error of a wait whose bound has passed. If too many servers have only failed, with these errors,
    /// nobody knows whether the lock is free.
    pub(super) fn timed_out(&self, errors: &[Error], arrived: LocalTime, free_in: Duration) -> Error {
        let answering = self.servers.len() - errors.len();
        if answering < self.majority() {
            return no_majority(self.servers.len(), answering, errors);
        }
        timed_out(self.client(), arrived, free_in)
    }

    /// The time until a majority of the servers is expected to be free.
    pub(crate) fn free_in(&self, channel: &str) -> Duration {
        let left = (self.servers.iter()).map(|server| server.waitlists().free_in(channel));
        let mut left: Vec<_> = left.collect();
        left.sort_unstable();
        left[self.majority() - 1].max(Duration::from_millis(1))
    }
}
