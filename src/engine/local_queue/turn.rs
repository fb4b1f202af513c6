//! A turn: what one guard has of a tenure.

use std::sync::Arc;

use super::LocalQueue;
use crate::engine::background::Background;
use crate::engine::counters::{End, How};
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::fence::Fence;

/// The lock, for one guard. When it is dropped, the next waiter here has its turn, or the tenure is released.
#[derive(Debug)]
pub(crate) struct Turn {
    /// `None` once the turn is over.
    held: Option<OwnedHold>,
    hold: Arc<Hold>,
    fence: Fence,
    queue: Arc<LocalQueue>,
}

impl Turn {
    pub(super) fn new(held: OwnedHold, fence: Fence, queue: Arc<LocalQueue>) -> Turn {
        Turn {
            hold: Arc::clone(held.hold()),
            held: Some(held),
            fence,
            queue,
        }
    }

    /// The hold of the tenure.
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn background(&self) -> &Arc<Background> {
        self.queue.queues.waitlists().background()
    }

    pub(crate) fn fence(&self) -> Fence {
        self.fence
    }

    pub(crate) fn how(&self) -> How {
        // Another turn of the tenure came before this one.
        if self.fence != self.hold.fence() {
            How::LocalHandoff
        } else {
            self.hold.how()
        }
    }

    /// Ends the turn. The next waiter here has its turn, or the tenure is returned, and must be released.
    pub(crate) fn release(mut self) -> Option<OwnedHold> {
        self.end(End::Released)
    }

    /// Lets the lease of the tenure expire. Those that wait here wait for the next tenure.
    pub(crate) fn forget(mut self) {
        if let Some(held) = self.held.take() {
            self.queue.end(&held);
            held.forget();
        }
    }

    /// Takes back a turn that nobody has read.
    pub(super) fn into_held(mut self) -> Option<OwnedHold> {
        self.held.take()
    }

    /// Passes the turn on. Returns the tenure if it must be released instead.
    fn end(&mut self, end: End) -> Option<OwnedHold> {
        self.queue.pass_on(self.held.take()?, end)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.held.is_some() {
            // An `OwnedHold` that is dropped is released in the background.
            drop(self.end(End::Dropped));
        }
    }
}
