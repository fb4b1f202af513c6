//! How a tenure is asked for: by a task, so that it outlives the waiter that caused it.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::LocalQueue;
use crate::error::Error;
use crate::sync::locked;

/// A tenure that is asked for. Dropping this gives it up.
#[derive(Debug)]
pub(super) struct Asked {
    id: u64,
    _asks: oneshot::Sender<Infallible>,
}

/// The work of asking for tenures, one after the other. If it is dropped midway, because the runtime ends,
/// the waiters are told.
#[derive(Debug)]
pub(super) struct Ask {
    id: u64,
    given_up: oneshot::Receiver<Infallible>,
    queue: Arc<LocalQueue>,
}

pub(super) fn of(id: u64, queue: &Arc<LocalQueue>) -> (Asked, Ask) {
    let (asks, given_up) = oneshot::channel();
    let ask = Ask {
        id,
        given_up,
        queue: Arc::clone(queue),
    };
    (Asked { id, _asks: asks }, ask)
}

impl Ask {
    /// Asks for tenures until nobody waits for one any more.
    pub(super) async fn run(mut self) {
        let queue = Arc::clone(&self.queue);
        loop {
            let held = tokio::select! {
                biased;
                _ = &mut self.given_up => return,
                held = queue.all.gate().acquire(&queue.tenure.hold, None) => held,
            };
            match held {
                Ok(held) => queue.begin(held),
                Err(error) => queue.fail(&error),
            }
            if !self.is_wanted_again() {
                return;
            }
            // The turn that has just begun goes first: the others of this process, and then those of all
            // processes, wait for it.
            tokio::task::yield_now().await;
        }
    }

    /// Whether somebody waits for another tenure, and nobody else asks for that.
    fn is_wanted_again(&self) -> bool {
        let mut state = locked(&self.queue.state);
        let is_wanted = !state.waiters.is_empty();
        let asked = state.asked.take_if(|asked| asked.id == self.id && !is_wanted);
        let is_mine = state.asked.as_ref().is_some_and(|asked| asked.id == self.id);
        drop(state);
        drop(asked);
        is_mine
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        let mut state = locked(&self.queue.state);
        let asked = state.asked.take_if(|asked| asked.id == self.id);
        drop(state);
        if asked.is_some() {
            self.queue.fail(&Error::Closed);
        }
        self.queue.all.discard(&self.queue);
    }
}
