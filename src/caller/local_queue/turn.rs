//! A turn: what one guard has of a tenure.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::LocalQueue;
use super::turns::Turns;
use crate::caller::place::held::Held;
use crate::engine::any_hold::{AnyHold, Watched};
use crate::engine::client::Client;
use crate::engine::counters::{GuardEnd, How};
use crate::types::error::{Lost, Result};
use crate::types::fence::Fence;

/// The lock, for one guard. When it is dropped, the next waiter here has its turn, or the tenure is released.
#[derive(Debug)]
pub(crate) struct Turn {
    /// `None` once the turn has ended.
    held: Option<Held>,
    turns: Arc<Turns>,
    fence: Fence,
    how: How,
    queue: Arc<LocalQueue>,
}

impl Turn {
    pub(super) fn new(held: Held, turns: Arc<Turns>, fence: Fence, how: How, queue: Arc<LocalQueue>) -> Turn {
        Turn {
            held: Some(held),
            turns,
            fence,
            how,
            queue,
        }
    }

    /// The hold of the tenure.
    pub(crate) fn hold(&self) -> &dyn AnyHold {
        self.turns.hold()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.queue.client()
    }

    pub(crate) fn fence(&self) -> Fence {
        self.fence
    }

    pub(crate) fn how(&self) -> How {
        self.how
    }

    /// The turn, for those that outlive the guard.
    pub(crate) fn watched(&self) -> Arc<dyn Watched> {
        Arc::new(SharedTurn {
            turns: Arc::clone(&self.turns),
            fence: self.fence,
        })
    }

    pub(crate) async fn renew(&self) -> Result<()> {
        match &self.held {
            Some(held) => held.renew().await,
            None => Ok(()),
        }
    }

    /// Ends the turn. The next waiter here has its turn, or the tenure is returned, and must be released.
    pub(crate) fn release(mut self) -> Option<Held> {
        self.end(GuardEnd::Released)
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Takes back a turn that nobody has read.
    pub(super) fn into_held(mut self) -> Option<Held> {
        self.held.take()
    }

    /// Passes the turn on. Returns the tenure if it must be released instead.
    fn end(&mut self, end: GuardEnd) -> Option<Held> {
        self.queue.pass_on(self.held.take()?, &self.turns, end)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.held.is_some() {
            // A tenure that is dropped is released in the background.
            drop(self.end(GuardEnd::Dropped));
        }
    }
}

/// A turn, without its owner.
#[derive(Debug)]
struct SharedTurn {
    turns: Arc<Turns>,
    fence: Fence,
}

impl Watched for SharedTurn {
    fn check(&self) -> Result<(), Lost> {
        self.turns.check(self.fence)
    }

    fn lost(&self) -> BoxFuture<'_, Lost> {
        Box::pin(self.turns.over(self.fence))
    }
}
