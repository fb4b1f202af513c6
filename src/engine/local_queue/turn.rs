//! A turn: what one guard has of a tenure.

use std::sync::Arc;

use super::source::{OneServer, Source, Tenure};
use super::{HoldOf, LocalQueue};
use crate::engine::background::Background;
use crate::engine::counters::{End, How};
use crate::engine::hold::turns::HasTurns;
use crate::fence::Fence;

/// The lock, for one guard. When it is dropped, the next waiter here has its turn, or the tenure is released.
#[derive(Debug)]
pub(crate) struct Turn<S: Source> {
    /// `None` once the turn is over.
    held: Option<S::Tenure>,
    hold: Arc<HoldOf<S>>,
    fence: Fence,
    queue: Arc<LocalQueue<S>>,
}

impl<S: Source> Turn<S> {
    pub(super) fn new(held: S::Tenure, fence: Fence, queue: Arc<LocalQueue<S>>) -> Turn<S> {
        Turn {
            hold: Arc::clone(held.hold()),
            held: Some(held),
            fence,
            queue,
        }
    }

    /// The hold of the tenure.
    pub(crate) fn hold(&self) -> &Arc<HoldOf<S>> {
        &self.hold
    }

    pub(crate) fn fence(&self) -> Fence {
        self.fence
    }

    pub(crate) fn how(&self) -> How {
        if self.hold.turns().is_some_and(|turns| turns.is_later(self.fence)) {
            How::LocalHandoff
        } else {
            self.hold.how()
        }
    }

    /// Ends the turn. The next waiter here has its turn, or the tenure is returned, and must be released.
    pub(crate) fn release(mut self) -> Option<S::Tenure> {
        self.end(End::Released)
    }

    /// Takes back a turn that nobody has read.
    pub(super) fn into_held(mut self) -> Option<S::Tenure> {
        self.held.take()
    }

    /// Passes the turn on. Returns the tenure if it must be released instead.
    fn end(&mut self, end: End) -> Option<S::Tenure> {
        self.queue.pass_on(self.held.take()?, end)
    }
}

impl Turn<OneServer> {
    pub(crate) fn background(&self) -> &Arc<Background> {
        self.queue.source.background()
    }
}

impl<S: Source> Drop for Turn<S> {
    fn drop(&mut self) {
        if self.held.is_some() {
            // A tenure that is dropped is released in the background.
            drop(self.end(End::Dropped));
        }
    }
}
