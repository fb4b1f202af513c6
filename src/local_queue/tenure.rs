//! How a tenure is asked for: by a task, so that it outlives the waiter that caused it.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::LocalQueue;
use crate::error::{Error, Result};
use crate::place::held::Held;
use crate::sync::locked;

/// A tenure that is asked for. Dropping this gives it up.
#[derive(Debug)]
pub(super) struct Asked {
    id: u64,
    call: Arc<Call>,
    _asks: oneshot::Sender<Infallible>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.call.give_up();
    }
}

/// The call that asks. The task polls it, and whoever gives it up drops it. So its request is withdrawn
/// before the tenure that has just ended is released.
#[derive(Default)]
struct Call(Mutex<Option<BoxFuture<'static, Result<Held>>>>);

impl Call {
    fn begin(&self, call: BoxFuture<'static, Result<Held>>) {
        *locked(&self.0) = Some(call);
    }

    /// Waits for the answer. Never returns once the call is given up.
    async fn answer(&self) -> Result<Held> {
        poll_fn(|context| {
            let mut call = locked(&self.0);
            let answer = call.as_mut().map(|call| call.as_mut().poll(context));
            let answered = call.take_if(|_| answer.as_ref().is_some_and(Poll::is_ready));
            drop(call);
            drop(answered);
            answer.unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Never waits. If the task polls the call at this moment, it drops the call itself, once it is told.
    fn give_up(&self) {
        let call = self.0.try_lock().ok().and_then(|mut call| call.take());
        drop(call);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

/// The work of asking for tenures, one after the other. If it is dropped midway, because the runtime ends,
/// the waiters are told.
#[derive(Debug)]
pub(super) struct Ask {
    id: u64,
    call: Arc<Call>,
    given_up: oneshot::Receiver<Infallible>,
    queue: Arc<LocalQueue>,
}

pub(super) fn of(id: u64, queue: &Arc<LocalQueue>) -> (Asked, Ask) {
    let (asks, given_up) = oneshot::channel();
    let call = Arc::<Call>::default();
    let ask = Ask {
        id,
        call: Arc::clone(&call),
        given_up,
        queue: Arc::clone(queue),
    };
    (
        Asked {
            id,
            call,
            _asks: asks,
        },
        ask,
    )
}

impl Ask {
    /// Asks for tenures until nobody waits for one any more.
    pub(super) async fn run(mut self) {
        let queue = Arc::clone(&self.queue);
        loop {
            let asking = Arc::clone(&queue);
            self.call.begin(Box::pin(async move {
                asking.all.gate().acquire(&asking.tenure.hold, None).await
            }));
            let held = tokio::select! {
                biased;
                _ = &mut self.given_up => return,
                held = self.call.answer() => held,
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
