//! A lock that is held: on one server, or on a majority of several.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::any_hold::{AnyHold, Watched};
use crate::engine::client::Client;
use crate::engine::counters::How;
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::quorum::{Majority, Votes};
use crate::types::error::{Invalid, Result};
use crate::types::fence::Fence;

/// A lock with an owner in this process. It is released when it is dropped.
#[derive(Debug)]
pub(crate) enum Held {
    One(OwnedHold),
    /// Boxed, because it is larger, and any lock that is held is moved often.
    Majority(Box<Majority>),
}

impl Held {
    pub(crate) fn hold(&self) -> &dyn AnyHold {
        match self {
            Held::One(held) => &**held.hold(),
            Held::Majority(majority) => &**majority.votes(),
        }
    }

    /// The hold, for those that outlive its owner.
    pub(crate) fn share(&self) -> Arc<dyn AnyHold> {
        match self {
            Held::One(held) => Arc::<Hold>::clone(held.hold()),
            Held::Majority(majority) => Arc::<Votes>::clone(majority.votes()),
        }
    }

    pub(crate) fn watched(&self) -> Arc<dyn Watched> {
        match self {
            Held::One(held) => Arc::<Hold>::clone(held.hold()),
            Held::Majority(majority) => Arc::<Votes>::clone(majority.votes()),
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

    /// Whether nobody else was queued when it was granted. Of a quorum, that is not known.
    pub(crate) fn is_alone(&self) -> bool {
        match self {
            Held::One(held) => held.hold().is_alone,
            Held::Majority(_) => false,
        }
    }

    /// A caller has it from now on, and uses it.
    pub(crate) fn mark_used(&self) {
        // In a quorum, no release keeps the lock taken.
        if let Held::One(held) = self {
            held.hold().mark_used();
        }
    }

    /// Has the release keep the lock taken until this long after now.
    pub(crate) fn keep_for(&self, at_least: Option<Duration>) -> Result<(), Invalid> {
        match self {
            Held::One(held) => held.hold().keep_for(at_least),
            Held::Majority(_) => at_least.map_or(Ok(()), |_| Err(not_kept_in_a_quorum())),
        }
    }

    pub(crate) async fn renew(&self) -> Result<()> {
        if self.hold().is_fixed() {
            return Err(Invalid::new("renew: must not be called if the lock has `auto_renew(false)`").into());
        }
        match self {
            Held::One(held) => Ok(held.background().renew(held.hold(), true).await?),
            Held::Majority(majority) => Box::pin(majority.votes().renew()).await,
        }
    }

    /// How many permits were granted. A quorum has plain locks alone.
    pub(crate) fn permits(&self) -> u32 {
        match self {
            Held::One(held) => held.hold().permits(),
            Held::Majority(_) => 1,
        }
    }

    /// Gives back permits, and keeps this number of them.
    pub(crate) async fn shrink(&self, permits: u32) -> Result<()> {
        match self {
            Held::One(held) => held.shrink(permits).await,
            Held::Majority(_) => Ok(()),
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
