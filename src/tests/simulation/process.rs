//! A process that can be stopped, as by SIGSTOP. While it is stopped, none of its tasks runs and no message
//! to it is read, but time goes on. When it resumes, it sees everything that arrived in the meantime.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use tokio::task::JoinHandle;

use crate::sync::locked;

pub(super) struct Process {
    state: Mutex<State>,
}

struct State {
    stopped: bool,
    killed: bool,
    /// Wakers of tasks that were woken while the process was stopped.
    wakers: Vec<Waker>,
    /// Messages that arrived while the process was stopped.
    unread: VecDeque<Message>,
    rng: Rng,
    /// How often, of 256 times, a task that could run lets others run first.
    yield_rate: u8,
}

type Message = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The process whose task is being polled.
    static CURRENT: RefCell<Option<Arc<Process>>> = const { RefCell::new(None) };
}

impl Process {
    pub(super) fn new(rng: Rng, yield_rate: u8) -> Arc<Process> {
        let state = State {
            stopped: false,
            killed: false,
            wakers: Vec::new(),
            unread: VecDeque::new(),
            rng,
            yield_rate,
        };
        Arc::new(Process {
            state: Mutex::new(state),
        })
    }

    /// Runs a task in this process. The tasks that its clients spawn also run in this process.
    pub(super) fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        tokio::spawn(self.run(task))
    }

    fn run<F: Future>(self: &Arc<Self>, task: F) -> InProcess<F> {
        InProcess {
            process: Some(Arc::clone(self)),
            task: Box::pin(task),
        }
    }

    /// Handles a message to this process now, or once the process resumes.
    pub(super) fn deliver(self: &Arc<Self>, message: impl FnOnce() + Send + 'static) {
        let mut state = locked(&self.state);
        if state.stopped || !state.unread.is_empty() {
            state.unread.push_back(Box::new(message));
        } else {
            drop(state);
            self.enter(message);
        }
    }

    pub(super) fn stop(&self) {
        locked(&self.state).stopped = true;
    }

    /// Stops the process for good.
    pub(super) fn kill(&self) {
        let mut state = locked(&self.state);
        state.stopped = true;
        state.killed = true;
    }

    /// Resumes the process. Chance decides whether its tasks run before or after it reads the waiting
    /// messages.
    pub(super) fn resume(self: &Arc<Self>) {
        let mut state = locked(&self.state);
        if state.killed {
            return;
        }
        state.stopped = false;
        let wakers = std::mem::take(&mut state.wakers);
        let reads_first = state.rng.bool();
        drop(state);
        if reads_first {
            self.read();
        } else {
            let process = Arc::clone(self);
            tokio::spawn(async move { process.read() });
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Drops the messages that were never read, and the references by which they keep this process alive.
    pub(super) fn end(&self) {
        let unread = std::mem::take(&mut locked(&self.state).unread);
        drop(unread);
    }

    fn read(self: &Arc<Self>) {
        loop {
            let mut state = locked(&self.state);
            if state.stopped {
                return;
            }
            let Some(message) = state.unread.pop_front() else {
                return;
            };
            drop(state);
            self.enter(message);
        }
    }

    /// Whether a task may run now. A task that may not is woken later.
    fn admits(&self, context: &Context<'_>) -> bool {
        let mut state = locked(&self.state);
        if state.stopped {
            state.wakers.push(context.waker().clone());
            return false;
        }
        let later = state.yield_rate > 0 && state.rng.u8(..) < state.yield_rate;
        if later {
            context.waker().wake_by_ref();
        }
        !later
    }

    fn enter<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(Some(Arc::clone(self)));
        let done = work();
        CURRENT.set(before);
        done
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

/// Runs a task in the process of the client that spawns it, if there is one.
pub(crate) fn inherit<F: Future>(task: F) -> InProcess<F> {
    InProcess {
        process: CURRENT.with_borrow(Option::clone),
        task: Box::pin(task),
    }
}

/// A task that runs only while its process does.
pub(crate) struct InProcess<F> {
    process: Option<Arc<Process>>,
    task: Pin<Box<F>>,
}

impl<F: Future> Future for InProcess<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(process) = self.process.clone() else {
            return self.task.as_mut().poll(context);
        };
        if !process.admits(context) {
            return Poll::Pending;
        }
        process.enter(|| self.task.as_mut().poll(context))
    }
}
