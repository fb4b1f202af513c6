//! Where tenures come from: one server, or the servers of a quorum.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::registry::LocalQueues;
use crate::engine::acquire;
use crate::engine::acquire::{AcquireParams, Tried, timed_out};
use crate::engine::background::Background;
use crate::engine::client::Client;
use crate::engine::counters::Counters;
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::hold::turns::HasTurns;
use crate::engine::waitlist::registry::Waitlists;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::time::clock::LocalTime;

/// What grants tenures.
pub(crate) trait Source: Debug + Send + Sync + Sized + 'static {
    type Tenure: Tenure;

    fn local_queues(&self) -> &LocalQueues<Self>;

    fn client(&self) -> &Arc<Client>;

    fn counters(&self) -> &Counters;

    /// Counts a caller that waits, unless there are too many.
    fn admit(&self) -> Result<impl Send>;

    /// Waits for a tenure. Those that wait for it are counted, and it is not.
    fn acquire(self: &Arc<Self>, params: &AcquireParams)
    -> impl Future<Output = Result<Self::Tenure>> + Send;

    fn try_acquire(
        self: &Arc<Self>,
        params: AcquireParams,
    ) -> impl Future<Output = Result<Tried<Self::Tenure>>> + Send;

    /// Until when the lock can be held without a renewal, as far as is known.
    fn free_in(&self, channel: &str) -> Duration;

    /// The error of a wait whose bound is over, and during which nobody here had the lock.
    fn timed_out(&self, params: &AcquireParams, began: LocalTime) -> Error;
}

/// A hold with an owner in this process, in which turns can follow one another. It is released when it is
/// dropped.
pub(crate) trait Tenure: Debug + Send + Sized + 'static {
    /// What its guards share.
    type Hold: HasTurns;

    fn hold(&self) -> &Arc<Self::Hold>;

    /// The fence of the first turn.
    fn fence(&self) -> Fence;
}

/// The tenures of one server.
#[derive(Debug)]
pub(crate) struct OneServer {
    waitlists: Arc<Waitlists>,
    local_queues: LocalQueues<OneServer>,
}

impl OneServer {
    pub(in crate::engine) fn new(waitlists: Arc<Waitlists>) -> OneServer {
        OneServer {
            waitlists,
            local_queues: LocalQueues::default(),
        }
    }

    pub(super) fn background(&self) -> &Arc<Background> {
        self.waitlists.background()
    }
}

impl Source for OneServer {
    type Tenure = OwnedHold;

    fn local_queues(&self) -> &LocalQueues<OneServer> {
        &self.local_queues
    }

    fn client(&self) -> &Arc<Client> {
        self.waitlists.client()
    }

    fn counters(&self) -> &Counters {
        &self.client().counters
    }

    fn admit(&self) -> Result<impl Send> {
        self.waitlists.admit()
    }

    async fn acquire(self: &Arc<Self>, params: &AcquireParams) -> Result<OwnedHold> {
        acquire::acquire(&self.waitlists, params, None).await
    }

    async fn try_acquire(self: &Arc<Self>, params: AcquireParams) -> Result<Tried<OwnedHold>> {
        acquire::try_acquire(Arc::clone(&self.waitlists), params).await
    }

    fn free_in(&self, channel: &str) -> Duration {
        self.waitlists.free_in(channel)
    }

    fn timed_out(&self, params: &AcquireParams, began: LocalTime) -> Error {
        match self.waitlists.why_unheard(&params.keys, &params.channel, began) {
            Some(failure) => failure.into(),
            None => timed_out(self.client(), began, self.free_in(&params.channel)),
        }
    }
}

impl Tenure for OwnedHold {
    type Hold = Hold;

    fn hold(&self) -> &Arc<Hold> {
        self.hold()
    }

    fn fence(&self) -> Fence {
        self.hold().fence()
    }
}
