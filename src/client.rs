//! What all parts of one client share: its id, its store, its runtime, its counters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Handle};

use crate::clock::{Clock, Tick};
use crate::error::{Error, Invalid, ServerError};
use crate::key::{ClientId, Keys, Owner, Request};
use crate::lease::{NOT_AFTER, Terms, over_everywhere};
use crate::options::ManagerOptions;
use crate::pending_calls::PendingCall;
use crate::server_clocks::ServerClocks;
use crate::store::{
    Acquire, Acquired, Answer, Failure, Release, Released, Renew, Renewed, Store, Withdraw, Withdrawn,
};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) options: ManagerOptions,
    pub(crate) counters: Counters,
    pub(crate) clocks: Arc<ServerClocks>,
    requests: AtomicU64,
    losses: AtomicU64,
    /// By the names of their locks: when the leases of this client are over on the server that run out without a release.
    lapses: Mutex<HashMap<Arc<str>, Tick>>,
    runtime: OnceLock<Handle>,
    closed: AtomicBool,
}

impl Client {
    pub(crate) fn new(
        id: ClientId,
        store: Arc<dyn Store>,
        options: ManagerOptions,
        first: &Answer<()>,
    ) -> Client {
        Client {
            id,
            clock: store.clock(),
            clocks: Arc::new(ServerClocks::new(store.clock(), first)),
            store,
            options,
            counters: Counters::default(),
            requests: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            lapses: Mutex::default(),
            runtime: OnceLock::new(),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn next_request(&self, terms: &Terms, owner: Option<&Owner>) -> Request {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        Request::new(&self.id, terms.grant(), n, owner)
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Makes an acquire call, of which this is the stamp too. One that came late has failed.
    pub(crate) async fn acquire(
        &self,
        call: Acquire,
        pending: &PendingCall,
    ) -> Result<Answer<Acquired>, Failure> {
        let answer = self.noted(self.store.acquire(call).await);
        pending.answered(&answer);
        match answer {
            Ok(Answer {
                reply: Acquired::Late,
                ..
            }) => {
                count(&self.counters.late);
                Err(Failure::NotExecuted(ServerError::new(format!(
                    "the call came to the server after its caller gave up, or more than {NOT_AFTER:?} after it was sent"
                ))))
            }
            answer => answer,
        }
    }

    pub(crate) async fn release(&self, call: Release) -> Result<Answer<Released>, Failure> {
        self.noted(self.store.release(call).await)
    }

    pub(crate) async fn withdraw(&self, call: Withdraw) -> Result<Answer<Withdrawn>, Failure> {
        self.noted(self.store.withdraw(call).await)
    }

    pub(crate) async fn renew(&self, call: Renew) -> Result<Answer<Renewed>, Failure> {
        self.noted(self.store.renew(call).await)
    }

    fn noted<T>(&self, answer: Result<Answer<T>, Failure>) -> Result<Answer<T>, Failure> {
        if let Ok(answer) = &answer {
            self.clocks.record(answer.on.server, answer.at);
        }
        answer
    }

    /// Sets the runtime that everything in the background lives on, unless it is set. Returns whether this did.
    pub(crate) fn settle_on(&self, runtime: Handle) -> bool {
        self.runtime.set(runtime).is_ok()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.runtime.get().is_some()
    }

    /// Has what is polled now run in the client's runtime, wherever that is.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        self.runtime.get().map(Handle::enter)
    }

    /// Starts a task on the client's runtime, whichever its caller lives on.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime.get() {
            #[cfg(test)]
            let task = crate::tests::simulation::process::inherit(task);
            runtime.spawn(task);
        }
    }

    /// How often this client may have lost its records, with a connection, or was told that one is gone.
    /// The next request of a room opens one again when the number has changed.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    pub(crate) fn note_loss(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    /// A lease of that length, which is over here at its `deadline`, runs out on the server without a release. The next script that
    /// finds it so takes this client for dead, and its record of that lock away.
    pub(crate) fn note_lapse(&self, keys: &Keys, deadline: Tick, lease: Duration) {
        let end = over_everywhere(deadline, lease);
        let mut lapses = locked(&self.lapses);
        if lapses.len() == lapses.capacity() {
            let now = self.now();
            // No record is relied on for longer than that.
            lapses.retain(|_, end| end.after(self.options.question_interval()) > now);
            // So that as many come as are left before they are looked through again: all leases of a client can run out at once.
            let left = lapses.len();
            lapses.reserve(left + 1);
        }
        let latest = lapses.entry(Arc::clone(&keys.name)).or_insert(end);
        *latest = end.max(*latest);
    }

    /// When the last lease of this lock is over, or was, that ran out lately.
    pub(crate) fn lapse(&self, keys: &Keys) -> Option<Tick> {
        locked(&self.lapses).get(&keys.name).copied()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// From now on there are no new requests.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }
}

/// The runtime that this is polled in. Timers and connections need one.
pub(crate) fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        Invalid::new("this was polled outside of a Tokio runtime: it needs one with timers and I/O").into()
    })
}

/// What a failure is to a caller, once retrying is over.
pub(crate) fn as_error(failure: Failure) -> Error {
    match failure {
        Failure::Unknown(e) | Failure::NotExecuted(e) => Error::Unavailable(e),
        Failure::Refused(e) => Error::Refused(e),
        Failure::Closed => Error::Closed,
    }
}

/// Counts of what has happened since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) acquired: AtomicU64,
    pub(crate) handed_over: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) released_by_drop: AtomicU64,
    pub(crate) late: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A panic of another thread leaves no half-done state behind these locks: nothing panics while one is held.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::MemoryStore;
    use crate::admission_queue::GivesUp;
    use crate::lease::ServerTime;
    use crate::options::LockOptions;
    use crate::pending_calls::PendingCalls;
    use crate::store::{Listener, Mode, ServerId};

    #[derive(Debug)]
    struct Deaf;

    impl Listener for Deaf {
        fn pushed(&self, _: ServerId, _: &str, _: &str) {}
        fn replaced(&self, _: ServerId) {}
        fn reconnected(&self, _: ServerId) {}
    }

    fn client() -> Client {
        let listener: Arc<dyn Listener> = Arc::new(Deaf);
        let store = MemoryStore::new().connect(Arc::downgrade(&listener));
        let first = store.time().now_or_never().unwrap().unwrap();
        Client::new(ClientId::from_number(1), store, ManagerOptions::default(), &first)
    }

    /// So it is repeated with pauses, and not for ever.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_came_too_late_has_failed() {
        let client = client();
        let lease = Duration::from_secs(1);
        let terms = LockOptions::default().terms(&client.options).unwrap();
        let pending = PendingCalls::begin(&PendingCalls::new(lease, GivesUp::Unknown), &client.clocks);
        let call = Acquire {
            keys: Arc::new(Keys::new("fairlock", "a").unwrap()),
            request: client.next_request(&terms, None),
            mode: Mode::Try,
            lease,
            not_after: Arc::new(ServerTime::from_ms(1)),
            ticket: None,
            heartbeat: lease,
        };
        let answer = client.acquire(call, &pending).await;
        assert!(matches!(answer, Err(Failure::NotExecuted(_))), "{answer:?}");
        assert_eq!(client.counters.late.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn of_leases_of_one_lock_that_run_out_the_last_one_counts() {
        let client = client();
        let keys = Keys::new("fairlock", "a").unwrap();
        let [soon, late] = [5, 30].map(|seconds| client.now().after(Duration::from_secs(seconds)));
        for end in [soon, late, soon] {
            client.note_lapse(&keys, end, Duration::ZERO);
        }
        assert_eq!(client.lapse(&keys), Some(over_everywhere(late, Duration::ZERO)));
    }

    #[tokio::test(start_paused = true)]
    async fn leases_that_ran_out_long_ago_are_forgotten() {
        let client = client();
        let before = client.now();
        tokio::time::sleep(2 * client.options.question_interval()).await;
        for n in 0..1_000 {
            let keys = Keys::new("fairlock", &format!("{n}")).unwrap();
            client.note_lapse(&keys, before, Duration::ZERO);
        }
        let lately = Keys::new("fairlock", "lately").unwrap();
        let now = client.now();
        client.note_lapse(&lately, now, Duration::ZERO);
        assert_eq!(client.lapse(&lately), Some(over_everywhere(now, Duration::ZERO)));
        assert!(locked(&client.lapses).len() < 10);
    }
}
