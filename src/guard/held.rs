//! What a guard holds: one server's hold, the holds of a majority, or a turn of either.

use std::pin::pin;
use std::sync::Arc;

use crate::engine::client::Client;
use crate::engine::counters::{Counters, Holding, How};
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::hold::turns::HasTurns;
use crate::engine::local_queue::source::OneServer;
use crate::engine::local_queue::turn::Turn;
use crate::error::{Lost, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::owner::Owner;
use crate::quorum::{Majority, Quorum, Votes};

#[derive(Debug)]
pub(super) enum Held {
    One(OwnedHold),
    /// Boxed, as a majority is, because it is larger, and any guard is moved often.
    Turn(Box<Turn<OneServer>>),
    Quorum(Box<Majority>),
    QuorumTurn(Box<Turn<Quorum>>),
}

impl Held {
    pub(super) fn client(&self) -> &Arc<Client> {
        match self {
            Held::One(held) => held.background().client(),
            Held::Turn(turn) => turn.background().client(),
            Held::Quorum(majority) => majority.votes().client(),
            Held::QuorumTurn(turn) => turn.hold().client(),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Held::One(held) => &held.hold().keys.name,
            Held::Turn(turn) => &turn.hold().keys.name,
            Held::Quorum(majority) => &majority.votes().name,
            Held::QuorumTurn(turn) => &turn.hold().name,
        }
    }

    pub(super) fn owner(&self) -> &Owner {
        match self {
            Held::One(held) => &held.hold().owner,
            Held::Turn(turn) => &turn.hold().owner,
            Held::Quorum(majority) => &majority.votes().owner,
            Held::QuorumTurn(turn) => &turn.hold().owner,
        }
    }

    pub(super) fn fence(&self) -> Fence {
        match self {
            Held::One(held) => held.hold().fence(),
            Held::Turn(turn) => turn.fence(),
            Held::Quorum(majority) => majority.fence,
            Held::QuorumTurn(turn) => turn.fence(),
        }
    }

    /// How many servers' holds these are, in a quorum.
    pub(super) fn votes(&self) -> Option<usize> {
        match self {
            Held::One(_) | Held::Turn(_) => None,
            Held::Quorum(majority) => Some(majority.votes().count()),
            Held::QuorumTurn(turn) => Some(turn.hold().count()),
        }
    }

    #[inline]
    pub(super) fn how(&self) -> How {
        match self {
            Held::One(held) => held.hold().how(),
            Held::Turn(turn) => turn.how(),
            Held::Quorum(majority) => majority.how(),
            Held::QuorumTurn(turn) => turn.how(),
        }
    }

    pub(super) fn begin(&self, counters: &Counters, holding: Holding) {
        match self {
            Held::One(held) => held.hold().begin_guard(counters, holding),
            Held::Turn(turn) => turn.hold().begin_guard(counters, holding),
            Held::Quorum(majority) => majority.votes().begin_guard(counters, holding),
            Held::QuorumTurn(turn) => turn.hold().begin_guard(counters, holding),
        }
    }

    pub(super) fn lease(&self) -> Lease {
        match self {
            Held::One(held) => held.hold().lease(),
            Held::Turn(turn) => turn.hold().lease(),
            Held::Quorum(majority) => majority.votes().lease(),
            Held::QuorumTurn(turn) => turn.hold().lease(),
        }
    }

    pub(super) fn check(&self) -> Result<(), Lost> {
        match self {
            Held::One(held) => held.hold().check(),
            Held::Turn(turn) => turn.hold().check(),
            Held::Quorum(majority) => majority.votes().check().map(drop),
            Held::QuorumTurn(turn) => turn.hold().check().map(drop),
        }
    }

    pub(super) fn watched(&self) -> Watched {
        let (hold, fence) = match self {
            Held::One(held) => (Watchable::Hold(Arc::clone(held.hold())), held.hold().fence()),
            Held::Turn(turn) => (Watchable::Hold(Arc::clone(turn.hold())), turn.fence()),
            Held::Quorum(majority) => (Watchable::Votes(Arc::clone(majority.votes())), majority.fence),
            Held::QuorumTurn(turn) => (Watchable::Votes(Arc::clone(turn.hold())), turn.fence()),
        };
        Watched {
            hold,
            fence,
            client: Arc::clone(self.client()),
        }
    }

    pub(super) async fn renew(&self) -> Result<()> {
        match self {
            Held::One(held) => Ok(held.background().renew(held.hold(), true).await?),
            Held::Turn(turn) => Ok(turn.background().renew(turn.hold(), true).await?),
            Held::Quorum(majority) => Box::pin(majority.votes().renew()).await,
            Held::QuorumTurn(turn) => Box::pin(turn.hold().renew()).await,
        }
    }
}

/// Reports the end of a guard's lease, and does not keep the lock.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    hold: Watchable,
    /// The fence of the turn.
    fence: Fence,
    client: Arc<Client>,
}

#[derive(Clone, Debug)]
enum Watchable {
    Hold(Arc<Hold>),
    Votes(Arc<Votes>),
}

impl Watched {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Checks by the local clock that the lease lasts. A turn that was passed on is not looked for.
    pub(crate) fn check(&self) -> Result<(), Lost> {
        match &self.hold {
            Watchable::Hold(hold) => hold.check(),
            Watchable::Votes(votes) => votes.check().map(drop),
        }
    }

    /// Waits until the lease is over, or the turn was passed on.
    pub(crate) async fn lost(self) -> Lost {
        let lost = pin!(async {
            match &self.hold {
                Watchable::Hold(hold) => hold.turn_over(self.fence).await,
                Watchable::Votes(votes) => votes.turn_over(self.fence).await,
            }
        });
        self.client.runtime.serves(lost).await
    }
}
