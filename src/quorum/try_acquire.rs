//! An attempt to take the lock of a quorum without waiting for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Quorum;
use super::answers::{next_until, no_majority, stragglers_until};
use super::ballot::{Ballot, Event};
use super::majority::Majority;
use crate::engine::acquire;
use crate::engine::acquire::{AcquireParams, Tried};
use crate::error::{Error, Result};
use crate::fence::Fence;

/// What a try knows of a lock that it did not get.
#[derive(Debug)]
struct Occupied {
    /// The time until a majority can be free at the earliest, if nobody releases it.
    ttl: Duration,
    /// The largest number of requests that a server has queued.
    waiting: u64,
}

impl Quorum {
    /// Takes the lock if a majority of the servers grant it at once. Of several tries at the same time, each
    /// may get too few votes.
    pub(crate) async fn try_acquire(self: &Arc<Self>, params: AcquireParams) -> Result<Tried<Majority>> {
        let mut ballot = Ballot::new(self, params, self.arrival(), None)?;
        Ok(match self.client().runtime.hosts(ballot.tried()).await? {
            Ok(fence) => Tried::Held(Majority::begin(ballot, fence)),
            Err(Occupied { ttl, waiting }) => Tried::Busy { ttl, ahead: waiting },
        })
    }
}

impl Ballot {
    /// Asks each server once, and returns when the ballot is decided or can no longer be. If a majority of
    /// the servers have answered, and it depends on the others, it does not wait for those that are much
    /// slower: its votes would keep the lock from all others meanwhile.
    async fn tried(&mut self) -> Result<Result<Fence, Occupied>> {
        let servers = self.quorum.servers.len();
        let (began, mut until) = (Instant::now(), None);
        for server in 0..servers {
            let params = self.next_params(server);
            let waitlists = Arc::clone(self.quorum.servers[server].waitlists());
            self.pending.push(Box::pin(async move {
                let tried = acquire::try_acquire(waitlists, params).await;
                (server, Event::Tried(tried))
            }));
        }
        let (mut ttls, mut waiting, mut errors) = (Vec::new(), 0, Vec::new());
        let mut outstanding = servers;
        loop {
            let answered = servers - outstanding - errors.len();
            let is_majority_away = errors.len() > servers - self.quorum.majority();
            // Too few may be left although most have not answered: then it is not known yet whether the lock
            // is busy, or the servers are away.
            let is_known = answered >= self.quorum.majority() || is_majority_away;
            if is_known && self.votes().count() + outstanding < self.quorum.majority() {
                break;
            }
            if !self.votes().are_too_few() {
                if let Some(fence) = self.decide() {
                    return Ok(Ok(fence));
                }
            }
            if answered >= self.quorum.majority() {
                until.get_or_insert_with(|| stragglers_until(began));
            }
            let until = until.filter(|_| self.votes().are_too_few());
            let Some((server, event)) = next_until(&mut self.pending, until).await else {
                // A server that may be away does not count as free.
                outstanding = 0;
                break;
            };
            outstanding -= usize::from(matches!(event, Event::Tried(_)));
            match event {
                Event::Tried(Ok(Tried::Busy { ttl, ahead })) => {
                    ttls.push(ttl);
                    waiting = waiting.max(ahead);
                }
                Event::Tried(Err(error)) => errors.push(error),
                Event::Looked {
                    hold,
                    earlier: Err(error @ Error::Refused(_)),
                } if self.votes().counts(server, &hold) => {
                    drop(self.votes().take(server));
                    errors.push(error);
                }
                event => self.on(server, event)?,
            }
        }
        if errors.len() > servers - self.quorum.majority() {
            let answering = servers - outstanding - errors.len();
            return Err(no_majority(servers, answering, &errors));
        }
        if let Some(closed) = errors.into_iter().find(|error| matches!(error, Error::Closed)) {
            return Err(closed);
        }
        // The servers that granted the lock count as free, and those that have not answered may be.
        ttls.resize(ttls.len() + self.votes().count() + outstanding, Duration::ZERO);
        ttls.sort_unstable();
        let last = ttls.len().min(self.quorum.majority()).saturating_sub(1);
        Ok(Err(Occupied {
            ttl: ttls.get(last).copied().unwrap_or_default(),
            waiting,
        }))
    }
}
