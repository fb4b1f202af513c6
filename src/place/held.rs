//! A lock that is held: on one server, or on a majority of several.

use std::pin::pin;
use std::sync::Arc;

use crate::engine::client::Client;
use crate::engine::counters::{Counters, Holding, How};
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::hold::turns::Turns;
use crate::error::{Lost, LostReason, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::owner::Owner;
use crate::quorum::{Majority, Votes};
use crate::time::clock::LocalTime;

/// A lock with an owner in this process. It is released when it is dropped.
#[derive(Debug)]
pub(crate) enum Held {
    One(OwnedHold),
    /// Boxed, because it is larger, and any lock that is held is moved often.
    Majority(Box<Majority>),
}

impl Held {
    pub(crate) fn hold(&self) -> HoldRef<'_> {
        match self {
            Held::One(held) => HoldRef::One(held.hold()),
            Held::Majority(majority) => HoldRef::Majority(majority.votes()),
        }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        match self {
            Held::One(held) => held.background().client(),
            Held::Majority(majority) => majority.votes().client(),
        }
    }

    /// The fence under which the lock was granted, also if it was passed on since.
    pub(crate) fn fence(&self) -> Fence {
        match self {
            Held::One(held) => held.hold().fence(),
            Held::Majority(majority) => majority.fence,
        }
    }

    /// How it was acquired.
    pub(crate) fn how(&self) -> How {
        match self {
            Held::One(held) => held.hold().how(),
            Held::Majority(majority) => majority.how(),
        }
    }

    /// A guard has it from now on, and uses it.
    pub(crate) fn mark_used(&self) {
        // A majority is used since it was decided.
        if let Held::One(held) = self {
            held.hold().mark_used();
        }
    }

    pub(crate) async fn renew(&self) -> Result<()> {
        match self {
            Held::One(held) => Ok(held.background().renew(held.hold(), true).await?),
            Held::Majority(majority) => Box::pin(majority.votes().renew()).await,
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Held::One(held) => held.release().await,
            Held::Majority(majority) => Box::pin(majority.release()).await,
        }
    }
}

/// The hold of a lock, without its owner.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HoldRef<'a> {
    One(&'a Arc<Hold>),
    Majority(&'a Arc<Votes>),
}

impl<'a> HoldRef<'a> {
    pub(crate) fn name(self) -> &'a Arc<str> {
        match self {
            HoldRef::One(hold) => &hold.keys.name,
            HoldRef::Majority(votes) => &votes.name,
        }
    }

    pub(crate) fn owner(self) -> &'a Owner {
        match self {
            HoldRef::One(hold) => &hold.owner,
            HoldRef::Majority(votes) => &votes.owner,
        }
    }

    /// How many servers' holds these are, in a quorum.
    pub(crate) fn votes(self) -> Option<usize> {
        match self {
            HoldRef::One(_) => None,
            HoldRef::Majority(votes) => Some(votes.count()),
        }
    }

    /// Counts the guard that begins now.
    pub(crate) fn begin_guard(self, counters: &Counters, holding: Holding) {
        match self {
            HoldRef::One(hold) => hold.begin_guard(counters, holding),
            HoldRef::Majority(votes) => votes.begin_guard(counters, holding),
        }
    }

    /// Takes out what the guard holds, since its turn is over.
    pub(crate) fn end_guard(self) -> Option<Holding> {
        match self {
            HoldRef::One(hold) => hold.end_guard(),
            HoldRef::Majority(votes) => votes.end_guard(),
        }
    }

    pub(crate) fn lease(self) -> Lease {
        match self {
            HoldRef::One(hold) => hold.lease(),
            HoldRef::Majority(votes) => votes.lease(),
        }
    }

    /// Checks by the local clock that the lease lasts. A turn that was passed on is not looked for.
    pub(crate) fn check(self) -> Result<(), Lost> {
        match self {
            HoldRef::One(hold) => hold.check(),
            HoldRef::Majority(votes) => votes.check().map(drop),
        }
    }

    pub(crate) fn is(self, other: HoldRef<'_>) -> bool {
        match (self, other) {
            (HoldRef::One(a), HoldRef::One(b)) => Arc::ptr_eq(a, b),
            (HoldRef::Majority(a), HoldRef::Majority(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    pub(crate) fn share(self) -> SharedHold {
        match self {
            HoldRef::One(hold) => SharedHold::One(Arc::clone(hold)),
            HoldRef::Majority(votes) => SharedHold::Majority(Arc::clone(votes)),
        }
    }

    /// `None` if there is one turn.
    pub(crate) fn turns(self) -> Option<&'a Turns> {
        match self {
            HoldRef::One(hold) => hold.turns(),
            HoldRef::Majority(votes) => votes.turns(),
        }
    }

    /// Ends the present turn and begins another one now. Returns the fence of the new turn, or `None` if the
    /// present turn is the last one: the hold must be released then. The hold cannot end meanwhile: its
    /// release tells the last fence.
    ///
    /// Only the code that has the present turn calls this.
    pub(crate) fn next_turn(self, now: LocalTime) -> Option<Fence> {
        let turns = self.turns()?;
        let next = turns.next(now)?;
        let begun = match self {
            HoldRef::One(hold) => hold.begin_turn(turns, next, now),
            HoldRef::Majority(votes) => votes.begin_turn(turns, next, now),
        };
        begun.then_some(next)
    }

    /// Waits until the turn with this fence is over, because it was passed on, or because the hold is over.
    pub(crate) async fn turn_over(self, fence: Fence) -> Lost {
        let Some(turns) = self.turns() else {
            return self.lost().await;
        };
        loop {
            let ended = turns.ended();
            if turns.fence() != fence {
                return Lost::new(Arc::clone(self.name()), LostReason::Released);
            }
            tokio::select! {
                biased;
                () = ended => {}
                lost = self.lost() => return lost,
            }
        }
    }

    /// Waits until the hold is over.
    async fn lost(self) -> Lost {
        match self {
            HoldRef::One(hold) => hold.lost().await,
            HoldRef::Majority(votes) => votes.lost().await,
        }
    }
}

/// The same, for those that outlive the owner.
#[derive(Clone, Debug)]
pub(crate) enum SharedHold {
    One(Arc<Hold>),
    Majority(Arc<Votes>),
}

impl SharedHold {
    pub(crate) fn as_ref(&self) -> HoldRef<'_> {
        match self {
            SharedHold::One(hold) => HoldRef::One(hold),
            SharedHold::Majority(votes) => HoldRef::Majority(votes),
        }
    }
}

/// Reports the end of a guard's lease, and does not keep the lock.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    hold: SharedHold,
    /// The fence of the turn.
    fence: Fence,
    client: Arc<Client>,
}

impl Watched {
    pub(crate) fn new(hold: SharedHold, fence: Fence, client: &Arc<Client>) -> Watched {
        let client = Arc::clone(client);
        Watched { hold, fence, client }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Checks by the local clock that the lease lasts. A turn that was passed on is not looked for.
    pub(crate) fn check(&self) -> Result<(), Lost> {
        self.hold.as_ref().check()
    }

    /// Waits until the lease is over, or the turn was passed on.
    pub(crate) async fn lost(self) -> Lost {
        let lost = pin!(self.hold.as_ref().turn_over(self.fence));
        self.client.runtime.serves(lost).await
    }
}
