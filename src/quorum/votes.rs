//! A hold of a majority: the holds of its servers, and what they are together.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::error::{Error, Lost, LostReason, Result};
use crate::fence::Fence;
use crate::sync::locked;
use crate::time::clock::{Clock, LocalTime};

/// The votes of one request. They are a hold as long as the leases of a majority last.
#[derive(Debug)]
pub(crate) struct Votes {
    name: Arc<str>,
    majority: usize,
    clock: Clock,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// By server.
    votes: Vec<Option<OwnedHold>>,
    /// Why the hold is over. It never comes back.
    over: Option<LostReason>,
}

impl Votes {
    pub(super) fn new(name: &Arc<str>, servers: usize, majority: usize, clock: Clock) -> Votes {
        let mut votes = Vec::new();
        votes.resize_with(servers, || None);
        Votes {
            name: Arc::clone(name),
            majority,
            clock,
            state: Mutex::new(State { votes, over: None }),
            changed: Notify::new(),
        }
    }

    /// Counts a vote from now on. There was none of this server.
    pub(super) fn put(&self, server: usize, vote: OwnedHold) {
        locked(&self.state).votes[server] = Some(vote);
        self.changed.notify_waiters();
    }

    /// Stops counting a vote.
    pub(super) fn take(&self, server: usize) -> Option<OwnedHold> {
        let vote = locked(&self.state).votes[server].take();
        self.changed.notify_waiters();
        vote
    }

    /// The holds that count as votes, with the numbers of their servers.
    pub(super) fn holds(&self) -> Vec<(usize, Arc<Hold>)> {
        let state = locked(&self.state);
        let votes = state.votes.iter().enumerate();
        votes
            .filter_map(|(server, vote)| Some((server, Arc::clone(vote.as_ref()?.hold()))))
            .collect()
    }

    /// The servers whose votes are missing.
    pub(super) fn missing(&self) -> Vec<usize> {
        let state = locked(&self.state);
        let votes = state.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| vote.is_none())
            .map(|(server, _)| server)
            .collect()
    }

    /// Whether this hold counts as the vote of this server.
    pub(super) fn counts(&self, server: usize, hold: &Arc<Hold>) -> bool {
        let state = locked(&self.state);
        let vote = state.votes[server].as_ref();
        vote.is_some_and(|vote| Arc::ptr_eq(vote.hold(), hold))
    }

    pub(super) fn are_too_few(&self) -> bool {
        locked(&self.state).votes.iter().flatten().count() < self.majority
    }

    /// The fence that a majority of the votes have, if they agree on one. A vote whose lease is over may still
    /// be here, but does not count.
    pub(super) fn agreed(&self) -> Option<Fence> {
        let state = locked(&self.state);
        let live = state.votes.iter().flatten().map(OwnedHold::hold);
        let fences: Vec<_> = live
            .filter(|hold| hold.check().is_ok())
            .map(|hold| hold.fence())
            .collect();
        let has_majority =
            |fence: &Fence| fences.iter().filter(|other| *other == fence).count() >= self.majority;
        fences.iter().copied().find(has_majority)
    }

    /// When too few leases are left, by the local clock: the deadline of the last vote that a majority needs.
    fn deadline(&self, state: &State) -> LocalTime {
        let votes = state.votes.iter().flatten().map(OwnedHold::hold);
        let mut deadlines: Vec<_> = votes
            .filter(|hold| hold.check().is_ok())
            .map(|hold| hold.deadline())
            .collect();
        deadlines.sort_unstable();
        let last = deadlines.len().checked_sub(self.majority);
        last.map_or(LocalTime::ZERO, |last| deadlines[last])
    }

    /// Checks by the local clock that a majority of the leases last. Returns when that ends.
    pub(crate) fn check(&self) -> Result<LocalTime, Lost> {
        let mut state = locked(&self.state);
        if let Some(reason) = state.over {
            return Err(Lost::new(Arc::clone(&self.name), reason));
        }
        let deadline = self.deadline(&state);
        if self.clock.now() < deadline {
            return Ok(deadline);
        }
        state.over = Some(LostReason::Expired);
        Err(Lost::new(Arc::clone(&self.name), LostReason::Expired))
    }

    /// Waits until too few leases are left. Does not depend on the network.
    pub(crate) async fn lost(&self) -> Lost {
        loop {
            let changed = self.changed.notified();
            match self.check() {
                Err(lost) => return lost,
                Ok(deadline) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = self.clock.sleep_until(deadline) => {}
                },
            }
        }
    }

    /// Ends the hold, and takes all votes. Fails if the hold was over before.
    pub(super) fn end(&self) -> (Result<(), Lost>, Vec<OwnedHold>) {
        let before = self.check().map(drop);
        let mut state = locked(&self.state);
        state.over = state.over.or(Some(LostReason::Released));
        let votes = state.votes.iter_mut().filter_map(Option::take).collect();
        drop(state);
        self.changed.notify_waiters();
        (before, votes)
    }

    /// Releases all votes, and returns when a majority of the servers have confirmed it. The background tasks
    /// do what is left, also if this is dropped midway.
    pub(crate) async fn release(&self) -> Result<()> {
        let (before, votes) = self.end();
        let mut releases: FuturesUnordered<_> = votes.into_iter().map(OwnedHold::release).collect();
        let (mut confirmed, mut failed) = (0, None);
        while let Some(released) = releases.next().await {
            match released {
                // A server that has nothing of the vote any more needs no release.
                Ok(()) | Err(Error::Lost(_)) => confirmed += 1,
                Err(error) => failed = Some(error),
            }
            if confirmed == self.majority {
                break;
            }
        }
        before?;
        match failed {
            Some(error) if confirmed < self.majority => Err(error),
            _ => Ok(()),
        }
    }
}
