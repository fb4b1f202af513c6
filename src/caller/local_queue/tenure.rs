//! How a tenure is asked for: by a task, so that it outlives the waiter that caused it.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::LocalQueue;
use crate::caller::place::held::Held;
use crate::sync::locked;
use crate::types::error::{Error, Result};

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
struct Call(Mutex<Asking>);

#[derive(Default)]
enum Asking {
    #[default]
    NotYet,
    Now(BoxFuture<'static, Result<Held>>),
    GivenUp,
}

impl Call {
    /// Begins a call, unless this is given up.
    fn begin(&self, call: BoxFuture<'static, Result<Held>>) {
        let mut asking = locked(&self.0);
        if let Asking::NotYet = *asking {
            *asking = Asking::Now(call);
        }
    }

    /// Waits for the answer. Never returns once the call is given up.
    async fn answer(&self) -> Result<Held> {
        poll_fn(|context| {
            let mut asking = locked(&self.0);
            let Asking::Now(call) = &mut *asking else {
                return Poll::Pending;
            };
            let answer = call.as_mut().poll(context);
            let answered = answer.is_ready().then(|| std::mem::take(&mut *asking));
            drop(asking);
            drop(answered);
            answer
        })
        .await
    }

    /// If the task polls the call at this moment, this waits for the end of that poll: what the poll wrote
    /// must be withdrawn before the caller goes on.
    fn give_up(&self) {
        let given_up = std::mem::replace(&mut *locked(&self.0), Asking::GivenUp);
        drop(given_up);
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
pub(super) struct TenureTask {
    id: u64,
    call: Arc<Call>,
    given_up: oneshot::Receiver<Infallible>,
    queue: Arc<LocalQueue>,
}

pub(super) fn of(id: u64, queue: &Arc<LocalQueue>) -> (Asked, TenureTask) {
    let (asks, given_up) = oneshot::channel();
    let call = Arc::<Call>::default();
    let task = TenureTask {
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
        task,
    )
}

impl TenureTask {
    /// Asks for tenures until nobody waits for one any more.
    pub(super) async fn run(mut self) {
        let queue = Arc::clone(&self.queue);
        loop {
            let listening = queue.place().listen(&queue.tenure.hold);
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
                Ok(held) => queue.begin(held, listening),
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

impl Drop for TenureTask {
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

#[cfg(test)]
mod tests {
    use std::future;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_call_that_is_given_up_before_it_begins_never_begins() {
        let call = Call::default();
        call.give_up();
        call.begin(Box::pin(async { panic!("this was polled") }));
        assert!(call.answer().now_or_never().is_none());
    }

    #[test]
    fn a_call_that_is_given_up_while_it_is_polled_is_dropped_before_the_caller_goes_on() {
        let (call, (polls, polled), dropped) = (Call::default(), mpsc::channel(), Arc::new(()));
        let is_held = Arc::clone(&dropped);
        call.begin(Box::pin(future::poll_fn(move |_| {
            let _until_the_end = &is_held;
            polls.send(()).unwrap();
            thread::sleep(Duration::from_millis(50));
            Poll::Pending
        })));
        thread::scope(|scope| {
            scope.spawn(|| call.answer().now_or_never());
            polled.recv().unwrap();
            call.give_up();
            assert_eq!(Arc::strong_count(&dropped), 1);
        });
    }
}
