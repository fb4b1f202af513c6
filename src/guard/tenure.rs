//! What a guard holds: one server's hold, or those of a majority.

use std::sync::Arc;

use crate::engine::hold::owned::OwnedHold;
use crate::error::{Lost, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::owner::Owner;
use crate::quorum::Majority;

#[derive(Debug)]
pub(crate) enum Tenure {
    One(OwnedHold),
    Quorum(Majority),
}

impl Tenure {
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Tenure::One(held) => &held.hold().keys.name,
            Tenure::Quorum(majority) => majority.name(),
        }
    }

    pub(super) fn owner(&self) -> &Owner {
        match self {
            Tenure::One(held) => &held.hold().owner,
            Tenure::Quorum(majority) => &majority.owner,
        }
    }

    pub(crate) fn fence(&self) -> Fence {
        match self {
            Tenure::One(held) => held.hold().fence(),
            Tenure::Quorum(majority) => majority.fence,
        }
    }

    /// How many servers' holds these are.
    pub(crate) fn votes(&self) -> usize {
        match self {
            Tenure::One(_) => 1,
            Tenure::Quorum(majority) => majority.votes().count(),
        }
    }

    pub(super) fn lease(&self) -> Lease {
        match self {
            Tenure::One(held) => held.hold().lease(),
            Tenure::Quorum(majority) => majority.lease(),
        }
    }

    pub(super) fn check(&self) -> Result<(), Lost> {
        match self {
            Tenure::One(held) => held.hold().check(),
            Tenure::Quorum(majority) => majority.votes().check().map(drop),
        }
    }

    pub(super) fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let watched = match self {
            Tenure::One(held) => Ok(Arc::clone(held.hold())),
            Tenure::Quorum(majority) => Err(Arc::clone(majority.votes())),
        };
        async move {
            match watched {
                Ok(hold) => hold.lost().await,
                Err(votes) => votes.lost().await,
            }
        }
    }

    pub(super) async fn renew(&self) -> Result<()> {
        match self {
            Tenure::One(held) => Ok(held.background().renew(held.hold()).await?),
            Tenure::Quorum(majority) => Box::pin(majority.votes().renew()).await,
        }
    }

    pub(super) async fn release(self) -> Result<()> {
        match self {
            Tenure::One(held) => held.release().await,
            Tenure::Quorum(majority) => Box::pin(majority.release()).await,
        }
    }

    pub(super) fn forget(self) {
        match self {
            Tenure::One(held) => held.forget(),
            Tenure::Quorum(majority) => majority.forget(),
        }
    }
}
