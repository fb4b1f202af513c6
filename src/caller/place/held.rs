//! A lock that is held: on one server, or on a majority of several.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::counters::{Counters, Holding, How};
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::quorum::{Majority, Votes};
use crate::time::clock::LocalTime;
use crate::types::error::{Error, Invalid, Lost, Result};
use crate::types::fence::Fence;
use crate::types::lease::Lease;
use crate::types::owner::Owner;
use crate::types::permits::Permits;

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

    /// The last fence that a turn of it may have.
    pub(crate) fn last_reserved(&self) -> Fence {
        match self {
            Held::One(held) => held.hold().last_reserved(),
            Held::Majority(majority) => majority.last_reserved(),
        }
    }

    /// How it was acquired.
    pub(crate) fn how(&self) -> How {
        match self {
            Held::One(held) => held.hold().how(),
            Held::Majority(majority) => majority.how(),
        }
    }

    /// A caller has it from now on, and uses it.
    pub(crate) fn mark_used(&self) {
        // In a quorum, no release keeps the lock taken.
        if let Held::One(held) = self {
            held.hold().mark_used();
        }
    }

    /// Has the release keep the lock taken until so long after now.
    pub(crate) fn keep_for(&self, at_least: Option<Duration>) -> Result<(), Invalid> {
        match self {
            Held::One(held) => held.hold().keep_for(at_least),
            Held::Majority(_) => at_least.map_or(Ok(()), |_| Err(not_kept_in_a_quorum())),
        }
    }

    pub(crate) async fn renew(&self) -> Result<()> {
        if self.hold().is_fixed() {
            return Err(Invalid::new("renew: must not be called if the lock has `renew(false)`").into());
        }
        match self {
            Held::One(held) => Ok(held.background().renew(held.hold(), true).await?),
            Held::Majority(majority) => Box::pin(majority.votes().renew()).await,
        }
    }

    /// Makes a writer's hold a reader's.
    pub(crate) async fn downgrade(&self) -> Result<()> {
        match self {
            Held::One(held) if held.hold().is_of_a_writer() => held.shrink(Permits::READER.weight).await,
            _ => Err(not_a_writer()),
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Held::One(held) => held.release().await,
            Held::Majority(majority) => Box::pin(majority.release()).await,
        }
    }
}

/// The error of a lock of a quorum that is to stay taken after its release.
pub(crate) fn not_kept_in_a_quorum() -> Invalid {
    Invalid::new("at_least: must not be set in a quorum; keep the guard for that long, or use one server")
}

/// The error of a downgrade of what no writer has.
pub(crate) fn not_a_writer() -> Error {
    Invalid::new("downgrade: only the guard of a writer can become that of a reader").into()
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

    pub(crate) fn slot(self) -> Option<u32> {
        match self {
            HoldRef::One(hold) => hold.slot,
            HoldRef::Majority(_) => None,
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

    /// Checks by the local clock that the lease lasts.
    pub(crate) fn check(self) -> Result<(), Lost> {
        match self {
            HoldRef::One(hold) => hold.check(),
            HoldRef::Majority(votes) => votes.end_if_over().map(drop),
        }
    }

    /// Whether the lease is never extended beyond its length.
    fn is_fixed(self) -> bool {
        match self {
            HoldRef::One(hold) => hold.is_fixed(),
            HoldRef::Majority(votes) => votes.is_fixed(),
        }
    }

    pub(crate) fn share(self) -> SharedHold {
        match self {
            HoldRef::One(hold) => SharedHold::One(Arc::clone(hold)),
            HoldRef::Majority(votes) => SharedHold::Majority(Arc::clone(votes)),
        }
    }

    /// Begins the turn with this fence, if the hold lasts long enough from now on. Returns whether it did.
    pub(crate) fn begin_turn(self, next: Fence, now: LocalTime) -> bool {
        match self {
            HoldRef::One(hold) => hold.begin_turn(next, now),
            HoldRef::Majority(votes) => votes.begin_turn(next, now),
        }
    }

    /// Waits until the hold is over.
    pub(crate) async fn lost(self) -> Lost {
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
