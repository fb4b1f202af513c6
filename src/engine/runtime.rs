//! Where a client runs: the runtime of its first call, or a thread of its own.
//!
//! A client with a thread of its own also connects there, and its background task keeps the thread. A call is
//! polled in the task of its caller all the same, but each poll enters the runtime of that thread. So the
//! caller's executor needs no timers, and nothing on which a lease depends waits for the caller's threads.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll};
use std::thread;

#[cfg(feature = "redis")]
use tokio::runtime::EnterGuard;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::sync::locked;
use crate::types::error::{Error, Result, ServerError};

/// The runtime on which a client has its timers, connections and tasks.
#[derive(Debug)]
pub(crate) struct ClientRuntime {
    /// Set from the beginning if the client has a thread of its own.
    handle: OnceLock<Handle>,
    has_own_thread: bool,
    /// The thread, until the background task keeps it.
    thread: Mutex<Option<OwnThread>>,
    is_started: OnceLock<()>,
    /// While this is locked for reading, the runtime does not end.
    lasts: RwLock<bool>,
}

impl ClientRuntime {
    pub(super) fn new(thread: Option<OwnThread>) -> ClientRuntime {
        let handle = thread.as_ref().map(|thread| thread.handle.clone());
        ClientRuntime {
            has_own_thread: handle.is_some(),
            handle: handle.map(OnceLock::from).unwrap_or_default(),
            thread: Mutex::new(thread),
            is_started: OnceLock::new(),
            lasts: RwLock::new(true),
        }
    }

    /// Panics where a call cannot be polled, as Tokio's timers do.
    pub(crate) fn check(&self) {
        if !self.has_own_thread {
            current();
        }
    }

    /// Whether nothing can be waited for here.
    pub(crate) fn is_outside(&self) -> bool {
        !self.has_own_thread && Handle::try_current().is_err()
    }

    /// Returns whether this is the first call. Its runtime is that of the client from then on.
    pub(super) fn start(&self) -> bool {
        if !self.has_own_thread {
            let runtime = current();
            // The first one counts.
            let _ = self.handle.set(runtime);
        }
        self.is_started.set(()).is_ok()
    }

    pub(super) fn is_started(&self) -> bool {
        self.is_started.get().is_some()
    }

    /// The thread, which the background task keeps from now on.
    pub(super) fn take_thread(&self) -> Option<OwnThread> {
        locked(&self.thread).take()
    }

    /// Starts a task, whichever runtime the caller uses.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.handle.get() {
            #[cfg(test)]
            let task = crate::tests::simulation::process::inherit(task);
            runtime.spawn(task);
        }
    }

    /// Keeps the runtime from ending, or returns `None` if it ends. A timer that is polled after that panics.
    /// Never waits.
    fn kept(&self) -> Option<RwLockReadGuard<'_, bool>> {
        self.lasts.try_read().ok().filter(|lasts| **lasts)
    }

    /// Polls once on this thread, with timers of the runtime, unless that ends.
    pub(super) fn poll<W: Future + ?Sized>(
        &self,
        work: Pin<&mut W>,
        context: &mut Context<'_>,
    ) -> Poll<W::Output> {
        match self.kept() {
            Some(_kept) => self.poll_within(work, context),
            None => Poll::Pending,
        }
    }

    /// Does the work in the task of the caller, but with timers of the client's runtime. Parts of it that go
    /// on in other tasks outlive the caller's.
    pub(crate) async fn hosts<W: Future>(&self, work: W) -> W::Output {
        let (runtime, work) = (Some(self), pin!(work));
        Served { runtime, work }.await
    }

    fn poll_within<W: Future + ?Sized>(
        &self,
        work: Pin<&mut W>,
        context: &mut Context<'_>,
    ) -> Poll<W::Output> {
        let _runtime = self.handle.get().map(Handle::enter);
        work.poll(context)
    }

    /// Does the work of a call, in the task of the caller. If the client has a thread of its own, any
    /// executor can poll that task.
    #[inline]
    pub(crate) fn serves<W: Future + Unpin>(&self, work: W) -> Served<'_, W> {
        let runtime = self.has_own_thread.then_some(self);
        Served { runtime, work }
    }

    /// The runtime is about to end. Waits until no thread is in it.
    pub(super) fn ends(&self) {
        *self.lasts.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// The work of a call. By hand, since an `async fn` would copy what the work results in.
pub(crate) struct Served<'a, W> {
    /// Whose timers the work has, if not those of its caller.
    runtime: Option<&'a ClientRuntime>,
    work: W,
}

impl<W: Future + Unpin> Future for Served<'_, W> {
    type Output = W::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<W::Output> {
        let runtime = self.runtime;
        let work = Pin::new(&mut self.work);
        let Some(runtime) = runtime else {
            return work.poll(context);
        };
        // Once that has ended, the client is closed, so the work has its result without waiting for a timer.
        let _kept = runtime.kept();
        runtime.poll_within(work, context)
    }
}

/// The runtime in which this is polled. Timers and connections need one.
fn current() -> Handle {
    Handle::try_current().unwrap_or_else(|_| {
        panic!(
            "this was called outside of a Tokio runtime: it needs one with timers and I/O, or a manager with \
             own_thread"
        )
    })
}

/// A thread with a runtime on it. It ends, with all its tasks, when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct OwnThread {
    handle: Handle,
    /// The thread waits for its end.
    _lives: Arc<oneshot::Sender<Infallible>>,
}

impl OwnThread {
    /// Does the work of making a manager, on a thread of its own if that is `wanted`.
    pub(crate) async fn run_if<T, W>(wanted: bool, work: impl FnOnce(Option<OwnThread>) -> W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        if !wanted {
            current();
            return work(None).await;
        }
        let thread = OwnThread::start()?;
        let work = work(Some(thread.clone()));
        thread.run(work).await
    }

    /// Enters the runtime of the thread. Without one, this must be called in a runtime, or it panics.
    #[cfg(feature = "redis")]
    pub(crate) fn enter(thread: Option<&OwnThread>) -> Option<EnterGuard<'_>> {
        if thread.is_none() {
            current();
        }
        thread.map(|thread| thread.handle.enter())
    }

    /// Starts a thread, if it is `wanted`.
    pub(crate) fn start_if(wanted: bool) -> Result<Option<OwnThread>> {
        wanted.then(OwnThread::start).transpose()
    }

    fn start() -> Result<OwnThread> {
        let failed = |error: std::io::Error| {
            Error::Unavailable(ServerError::new(format!(
                "own_thread: no thread could be started: {error}"
            )))
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (lives, ended) = oneshot::channel::<Infallible>();
        let thread = thread::Builder::new().name("fairlock".to_owned());
        thread
            .spawn(move || {
                let _ = runtime.block_on(ended);
            })
            .map_err(failed)?;
        Ok(OwnThread {
            handle,
            _lives: Arc::new(lives),
        })
    }

    /// Does the work on this thread, for a caller in any executor. Ends it if the caller gives up.
    async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let mut task = AbortOnDrop(self.handle.spawn(work));
        match (&mut task.0).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The thread lives for as long as `self`, and only dropping `task` aborts it.
                Err(error) => unreachable!("{error}"),
            },
        }
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
