//! A lock that is held on a majority of the servers, with an owner in this process. It is released when the
//! owner drops it.

use std::sync::Arc;

use super::Quorum;
use super::ballot::Ballot;
use super::votes::Votes;
use crate::engine::counters::{End, How};
use crate::error::Result;
use crate::fence::Fence;
use crate::store::RESERVED;
use crate::sync::locked;

#[derive(Debug)]
pub(crate) struct Majority {
    pub(crate) fence: Fence,
    quorum: Arc<Quorum>,
    ballot: u64,
    votes: Arc<Votes>,
    how: How,
}

impl Majority {
    /// The hold of a ballot that was decided under this fence.
    pub(super) fn begin(mut ballot: Box<Ballot>, fence: Fence) -> Majority {
        let (quorum, votes) = (Arc::clone(&ballot.quorum), Arc::clone(ballot.votes()));
        let majority = Majority {
            fence,
            ballot: ballot.number,
            how: votes.how(),
            votes,
            quorum: Arc::clone(&quorum),
        };
        majority.votes.begin_hold(fence);
        locked(&quorum.held).insert(ballot.number, Arc::clone(&majority.votes));
        ballot.begin_hold(fence);
        quorum.client().spawn(ballot.keep());
        majority
    }

    pub(crate) fn votes(&self) -> &Arc<Votes> {
        &self.votes
    }

    /// The last fence that a turn of it may have.
    pub(crate) fn last_reserved(&self) -> Fence {
        self.fence.plus(RESERVED)
    }

    /// How most of the votes were got.
    pub(crate) fn how(&self) -> How {
        self.how
    }

    /// Releases the lock, and returns when a majority of the servers have confirmed it, or no slower one
    /// matters.
    pub(crate) async fn release(self) -> Result<()> {
        self.leave();
        self.votes.release().await
    }

    /// Takes the hold out of those whose guards live.
    fn leave(&self) {
        let left = locked(&self.quorum.held).remove(&self.ballot);
        drop(left);
    }
}

impl Drop for Majority {
    fn drop(&mut self) {
        self.leave();
        let (_, holding, votes) = self.votes.end_to_release();
        if let Some(holding) = holding {
            holding.ended(&self.quorum.counters, End::Dropped);
        }
        drop(votes);
    }
}
