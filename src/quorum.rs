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

pub(crate) mod ballot;
#[cfg(test)]
mod tests;
pub(crate) mod votes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::AbortHandle;

use self::ballot::{Ballot, Wanted};
use self::votes::Votes;
use crate::engine::shared::Shared;
use crate::error::Result;
use crate::fence::Fence;
use crate::time::clock::Clock;
use crate::time::server_time::{ServerTime, Ticket};

/// The clients of all servers of a quorum. They have one id, so that servers that queue two clients under one
/// ticket agree which of them is first.
#[derive(Debug)]
pub(crate) struct Quorum {
    servers: Vec<Arc<Shared>>,
    last_ticket: AtomicU64,
}

impl Quorum {
    pub(crate) fn new(servers: Vec<Arc<Shared>>) -> Quorum {
        Quorum {
            servers,
            last_ticket: AtomicU64::new(0),
        }
    }

    /// How many servers are a majority.
    fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// A ticket that is later than all tickets of this client before. Among clients it is the time of the
    /// request, by the median of the servers' clocks, so that a minority of wrong clocks moves nobody.
    fn next_ticket(&self) -> Ticket {
        let times = self.times();
        let now_us = 1000 * times[(times.len() - 1) / 2].ms();
        let next = |last: u64| Some(now_us.max(last + 1));
        let last = self
            .last_ticket
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Ticket(now_us.max(last.unwrap_or_else(|last| last) + 1))
    }

    /// The least fence of a grant: the latest of the servers' clocks. It is larger than the fences that a
    /// server has forgotten, as long as the clocks agree. All servers are given the same one, so that they
    /// grant under the same fence.
    fn floor(&self) -> Result<Fence> {
        let latest = self.times().last().map_or(0, |time| 1000 * time.ms());
        Fence::try_from(latest)
    }

    /// The local clock, which all clients share.
    fn clock(&self) -> Clock {
        self.servers[0].client().store.clock()
    }

    /// Waits for the lock in the queues of all servers, until a majority of them have granted it under one
    /// fence.
    pub(crate) async fn acquire(self: &Arc<Self>, wanted: Wanted) -> Result<Majority> {
        let mut ballot = Ballot::new(self, wanted)?;
        let fence = ballot.decided().await?;
        let votes = Arc::clone(ballot.votes());
        let keeping = tokio::spawn(ballot.keep()).abort_handle();
        Ok(Majority {
            fence,
            votes,
            keeping,
        })
    }

    /// The times of all servers now, as far as their clients know them, the earliest first.
    fn times(&self) -> Vec<ServerTime> {
        let mut times: Vec<_> = (self.servers.iter())
            .map(|server| server.client().server_time())
            .collect();
        times.sort_unstable();
        times
    }
}

/// A lock that is held on a majority of the servers. Dropping it releases it there.
#[derive(Debug)]
pub(crate) struct Majority {
    pub(crate) fence: Fence,
    votes: Arc<Votes>,
    /// The task that keeps the votes together.
    keeping: AbortHandle,
}

impl Majority {
    pub(crate) fn votes(&self) -> &Arc<Votes> {
        &self.votes
    }

    /// Releases the lock, and returns when a majority of the servers have confirmed it.
    pub(crate) async fn release(self) -> Result<()> {
        self.keeping.abort();
        self.votes.release().await
    }
}

impl Drop for Majority {
    fn drop(&mut self) {
        self.keeping.abort();
        drop(self.votes.end());
    }
}
