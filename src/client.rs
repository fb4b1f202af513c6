//! What all parts of one client share: its id, its store, what it knows of the server's clock, its counters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::anchors::Anchors;
use crate::clock::{Clock, Tick};
use crate::error::Error;
use crate::key::{ClientId, Keys, Owner, Request};
use crate::lease::{Exchange, NOT_AFTER, ServerTime, Terms, over_everywhere};
use crate::options::ManagerOptions;
use crate::store::{Acquire, Acquired, Answer, Failure, Release, Released, Renew, Renewed, ServerId, Store};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) options: ManagerOptions,
    pub(crate) counters: Counters,
    clocks: Mutex<Clocks>,
    requests: AtomicU64,
    losses: AtomicU64,
    /// By the names of their locks: when the leases of this client are over on the server that run out without a release.
    lapses: Mutex<HashMap<Arc<str>, Tick>>,
    runtime: OnceLock<Handle>,
    closed: AtomicBool,
}

/// What is known of the servers' clocks. No deadline of one server is ever reckoned by the clock of another.
#[derive(Debug)]
struct Clocks {
    known: HashMap<ServerId, Known>,
    /// The newest exchange with any of them, for the first call to one that nothing is known of: with a clock too far
    /// ahead it does nothing, and its answer tells the time.
    newest: Exchange,
}

#[derive(Debug)]
struct Known {
    anchors: Anchors,
    /// The newest exchange, kept over a reconnect: good enough for a `not_after`, which is no promise to anybody.
    newest: Exchange,
}

impl Clocks {
    fn record(&mut self, from: ServerId, exchange: Exchange) {
        let known = self.known.entry(from).or_insert_with(|| Known {
            anchors: Anchors::default(),
            newest: exchange,
        });
        known.anchors.record(exchange);
        known.newest = exchange;
        self.newest = exchange;
    }
}

impl Client {
    pub(crate) fn new(
        id: ClientId,
        store: Arc<dyn Store>,
        options: ManagerOptions,
        first: &Answer<()>,
    ) -> Client {
        let mut clocks = Clocks {
            known: HashMap::new(),
            newest: first.at,
        };
        clocks.record(first.from, first.at);
        Client {
            id,
            clock: store.clock(),
            store,
            options,
            counters: Counters::default(),
            clocks: Mutex::new(clocks),
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

    /// The server time past which an acquire of this lock that is sent now must do nothing.
    pub(crate) fn not_after(&self, keys: &Keys) -> ServerTime {
        self.server_time(keys).after(NOT_AFTER)
    }

    /// The time of the lock's server now, or a little later.
    pub(crate) fn server_time(&self, keys: &Keys) -> ServerTime {
        let server = self.store.server_of(keys);
        let now = self.now();
        let clocks = locked(&self.clocks);
        let known = clocks.known.get(&server);
        known
            .and_then(|known| known.anchors.server_time(now))
            .unwrap_or_else(|| {
                let newest = known.map_or(clocks.newest, |known| known.newest);
                newest.now.after(now.since(newest.sent))
            })
    }

    /// A local time at which this server's deadline, of something that lasts for `span`, has not passed yet; `None` while
    /// nothing links the clocks.
    pub(crate) fn local(&self, server: ServerId, deadline: ServerTime, span: Duration) -> Option<Tick> {
        let now = self.now();
        let clocks = locked(&self.clocks);
        clocks.known.get(&server)?.anchors.local(deadline, now, span)
    }

    /// A connection to this server was replaced: the next one under its address may have another clock.
    pub(crate) fn forget_anchors(&self, server: ServerId) {
        if let Some(known) = locked(&self.clocks).known.get_mut(&server) {
            known.anchors.clear();
        }
    }

    pub(crate) async fn acquire(&self, call: Acquire) -> Result<Answer<Acquired>, Failure> {
        self.noted(self.store.acquire(call).await)
    }

    pub(crate) async fn release(&self, call: Release) -> Result<Answer<Released>, Failure> {
        self.noted(self.store.release(call).await)
    }

    pub(crate) async fn renew(&self, call: Renew) -> Result<Answer<Renewed>, Failure> {
        self.noted(self.store.renew(call).await)
    }

    fn noted<T>(&self, answer: Result<Answer<T>, Failure>) -> Result<Answer<T>, Failure> {
        if let Ok(answer) = &answer {
            locked(&self.clocks).record(answer.from, answer.at);
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

    /// Starts a task on the client's runtime, whichever its caller lives on.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime.get() {
            #[cfg(test)]
            let task = crate::simulation::process::inherit(task);
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
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The acquire calls of one request that nobody has answered. Any of them may still run, until its `not_after`;
/// so once the request's use is over, an `out` must follow. One that is answered only then may have run after that `out`: it was
/// taken down as sent, and then another thread was faster. So another one must follow its answer.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    open: AtomicU32,
    latest_not_after_ms: AtomicU64,
    ended: AtomicBool,
}

impl Trail {
    /// A call goes out. If it is dropped before it is answered, it stays unanswered.
    pub(crate) fn sent(&self, not_after: ServerTime) {
        self.latest_not_after_ms
            .fetch_max(not_after.ms(), Ordering::AcqRel);
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    /// A reply came, or one that says that the call was not executed and will not be.
    pub(crate) fn answered<T>(&self, answer: &Result<T, Failure>) {
        if !matches!(answer, Err(Failure::Unknown(_) | Failure::Closed)) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The use of the request is over. Said before it is asked what is unanswered: so a call is either answered by then, or its
    /// answer finds that this was said.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn was_sent(&self) -> bool {
        self.latest_not_after_ms.load(Ordering::Acquire) > 0
    }

    /// The server time past which none of the unanswered calls can run; `None` when all were answered.
    pub(crate) fn unanswered(&self) -> Option<ServerTime> {
        (self.open.load(Ordering::SeqCst) > 0)
            .then(|| ServerTime::from_ms(self.latest_not_after_ms.load(Ordering::Acquire)))
    }
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
    use crate::store::Listener;

    #[derive(Debug)]
    struct Deaf;

    impl Listener for Deaf {
        fn pushed(&self, _: ServerId, _: &str, _: &str) {}
        fn replaced(&self, _: ServerId) {}

        fn reconnected(&self, _: ServerId) {}
    }

    /// A client in memory, and the first answer that it had.
    fn client() -> (Client, Answer<()>) {
        let listener: Arc<dyn Listener> = Arc::new(Deaf);
        let store = MemoryStore::new().connect(Arc::downgrade(&listener));
        let first = store.time().now_or_never().unwrap().unwrap();
        let client = Client::new(ClientId::from_number(1), store, ManagerOptions::default(), &first);
        (client, first)
    }

    #[test]
    fn after_a_reconnect_no_deadline_is_reckoned_by_the_clock_of_before() {
        let (client, first) = client();
        let server = first.from;
        let span = Duration::from_secs(5);
        let deadline = first.at.now.after(span);
        assert!(client.local(server, deadline, span).is_some());
        client.forget_anchors(server);
        assert_eq!(client.local(server, deadline, span), None);
    }

    #[tokio::test(start_paused = true)]
    async fn leases_that_ran_out_long_ago_are_forgotten() {
        let (client, _) = client();
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

    #[test]
    fn no_deadline_is_reckoned_by_the_clock_of_another_server() {
        let (client, first) = client();
        let span = Duration::from_secs(5);
        let deadline = first.at.now.after(span);
        assert_eq!(client.local(ServerId(first.from.0 + 1), deadline, span), None);
    }
}
