//! Tests of which requests are added to the withdrawals, and which calls follow.

use futures_util::FutureExt;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::*;
use crate::engine::background::MOST_PENDING;
use crate::engine::shared::Shared;
use crate::protocol::{ConnectionId, ServerId, Stamp};
use crate::sync::outstanding::Outstanding;
use crate::tests::scripted_store;
use crate::tests::scripted_store::Fate;
use crate::time::clock_offset::Sample;
use crate::time::deadline_queue::GivesUp;
use crate::types::error::{Error, ServerError};
use crate::{Lock, LockManager, MemoryStore};

const LEASE: Duration = Duration::from_secs(1);

/// The connection on which withdrawals are answered, and the previous one.
const CONNECTION: ConnectionId = connection(2);
const ANOTHER: ConnectionId = connection(1);

const fn connection(number: u64) -> ConnectionId {
    ConnectionId {
        server: ServerId(0),
        number,
    }
}

struct Fixture {
    locks: LockManager,
    keys: Arc<Keys>,
    outstanding: Arc<Outstanding>,
    withdrawals: Withdrawals,
    requests: u64,
}

impl Fixture {
    fn new() -> Fixture {
        let (locks, _) = scripted_store::client(&MemoryStore::new(), &[]);
        Fixture {
            keys: keys("a"),
            outstanding: Arc::default(),
            withdrawals: Withdrawals::new(Arc::clone(locks.shared().client())),
            locks,
            requests: 0,
        }
    }

    fn shared(&self) -> &Shared {
        self.locks.shared()
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId::new(&self.shared().client().id, LEASE, self.requests, None)
    }

    fn add(&mut self, keys: &Arc<Keys>, at_once: bool, calls: &Arc<PendingCalls>) -> RequestId {
        let request = self.request();
        let withdrawal = Withdrawal {
            request: request.clone(),
            calls: Arc::clone(calls),
            at_once,
            _unconfirmed: Unconfirmed {
                _pending: self.shared().client().counters.metrics.pending(),
                _running: Outstanding::begin(&self.outstanding),
            },
        };
        self.withdrawals.add(keys, withdrawal);
        request
    }

    /// Adds a withdrawal that is due.
    fn one(&mut self) -> RequestId {
        let keys = Arc::clone(&self.keys);
        self.add(&keys, true, &PendingCalls::new(LEASE, GivesUp::Unknown, None))
    }

    /// Adds a withdrawal of a request whose call was written, and is not answered.
    fn one_unanswered(&mut self, at_once: bool, on: ConnectionId) -> Arc<PendingCalls> {
        let keys = Arc::clone(&self.keys);
        let calls = PendingCalls::new(LEASE, GivesUp::Unknown, None);
        let clocks = &self.shared().client().clocks;
        PendingCalls::begin(&calls, clocks).written(on);
        self.add(&keys, at_once, &calls);
        calls
    }

    fn answer(&self, more: bool) -> Result<Answer<Withdrawn>, Failure> {
        let client = self.shared().client();
        let at = Sample {
            sent: client.now(),
            received: client.now(),
            now: client.clocks.server_time(ServerId::default()).unwrap(),
        };
        Ok(Answer {
            on: CONNECTION,
            at,
            reply: Withdrawn { more },
        })
    }

    /// How many are not done.
    fn outstanding(&mut self) -> usize {
        self.withdrawals.take_done();
        self.outstanding.count()
    }

    fn failed(&mut self, batch: Batch) {
        let failure = Failure::Unknown(ServerError::new("lost"));
        self.withdrawals.answered(batch, &Err(failure));
    }

    fn done(&mut self, batch: Batch) {
        let answer = self.answer(false);
        self.withdrawals.answered(batch, &answer);
    }
}

fn keys(name: &str) -> Arc<Keys> {
    Arc::new(Keys::new("fairlock", name).unwrap())
}

fn requests(batch: Option<&Batch>) -> Vec<RequestId> {
    batch
        .map(|batch| batch.call(LocalTime::ZERO).requests)
        .unwrap_or_default()
}

/// Race: Waits are given up while the server is away, and their withdrawals pile up.
#[tokio::test(start_paused = true)]
async fn withdrawals_added_during_a_call_go_with_the_next_one() {
    let mut fixture = Fixture::new();
    let first = fixture.one();
    let batch = fixture.withdrawals.next(false);
    assert_eq!(requests(batch.as_ref()), [first]);
    let later: Vec<_> = (0..MAX_WITHDRAWN - 1).map(|_| fixture.one()).collect();
    assert!(fixture.withdrawals.next(false).is_none());
    let of_another_lock = fixture.add(
        &keys("b"),
        true,
        &PendingCalls::new(LEASE, GivesUp::Unknown, None),
    );
    assert_eq!(
        requests(fixture.withdrawals.next(false).as_ref()),
        [of_another_lock]
    );

    fixture.done(batch.unwrap());
    let batch = fixture.withdrawals.next(false);
    assert_eq!(requests(batch.as_ref()), later);
}

#[tokio::test(start_paused = true)]
async fn withdrawals_that_wait_are_written_before_a_call_that_must_find_nothing_of_them() {
    let mut fixture = Fixture::new();
    let (here, elsewhere) = (Arc::clone(&fixture.keys), keys("b"));
    assert!(fixture.withdrawals.next_of(&here).is_none());
    for _ in 1..MOST_UNDER_WAY {
        let request = fixture.one();
        assert!(fixture.withdrawals.next_of(&elsewhere).is_none());
        let batch = fixture.withdrawals.next_of(&here);
        assert_eq!(requests(batch.as_ref()), [request]);
    }
    let repeated = fixture.one();
    let last = fixture.withdrawals.next_of(&here).unwrap();
    assert_eq!(requests(Some(&last)), std::slice::from_ref(&repeated));
    let later = fixture.one();
    assert!(
        fixture.withdrawals.next_of(&here).is_none(),
        "enough are under way"
    );
    fixture.failed(last);
    assert!(fixture.withdrawals.next_of(&here).is_none(), "not before a pause");
    sleep(Duration::from_millis(20)).await;
    let batch = fixture.withdrawals.next_of(&here);
    assert_eq!(requests(batch.as_ref()), [repeated, later]);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_is_due_is_for_whoever_adds_it_to_write() {
    let mut fixture = Fixture::new();
    let other = fixture.add(
        &keys("b"),
        true,
        &PendingCalls::new(LEASE, GivesUp::Unknown, None),
    );
    let (request, id) = (fixture.one(), fixture.keys.id());
    let batch = fixture.withdrawals.due_of(&id, false);
    assert_eq!(requests(batch.as_ref()), [request]);
    fixture.one();
    assert!(
        fixture.withdrawals.due_of(&id, false).is_none(),
        "one is under way"
    );
    assert_eq!(requests(fixture.withdrawals.next(false).as_ref()), [other]);
    assert!(fixture.withdrawals.next(false).is_none());
}

/// Race: Waits are given up while the server is away, and their withdrawals pile up.
#[tokio::test(start_paused = true)]
async fn full_batches_of_withdrawals_wait_for_no_other_call() {
    let mut fixture = Fixture::new();
    fixture.one();
    let first = fixture.withdrawals.next(false).unwrap();
    let later: Vec<_> = (0..2 * MAX_WITHDRAWN + 1).map(|_| fixture.one()).collect();
    let [second, third] = [0, 1].map(|n| {
        let batch = fixture.withdrawals.next(false);
        let full = n * MAX_WITHDRAWN..(n + 1) * MAX_WITHDRAWN;
        assert_eq!(requests(batch.as_ref()), later[full]);
        batch.unwrap()
    });
    assert!(
        fixture.withdrawals.next(false).is_none(),
        "a single request waits"
    );
    fixture.done(second);
    fixture.done(first);
    assert!(
        fixture.withdrawals.next(false).is_none(),
        "until all calls are answered"
    );
    fixture.failed(third);
    assert!(
        fixture.withdrawals.next(false).is_none(),
        "a failure delays all that wait"
    );
    sleep(Duration::from_millis(20)).await;
    let counts = [0, 1].map(|_| requests(fixture.withdrawals.next(false).as_ref()).len());
    assert_eq!(counts, [MAX_WITHDRAWN, 0]);
    let last = Vec::from_iter(fixture.withdrawals.locks.values());
    assert_eq!((last.len(), last[0].waiting.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn calls_failing_together_are_repeated_as_soon_as_a_single_one() {
    let mut fixture = Fixture::new();
    for _ in 0..30 * MAX_WITHDRAWN {
        fixture.one();
    }
    let batches = Vec::from_iter(std::iter::from_fn(|| fixture.withdrawals.next(false)));
    assert_eq!(batches.len(), 30);
    for batch in batches {
        fixture.failed(batch);
    }
    sleep(Duration::from_millis(20)).await;
    assert!(fixture.withdrawals.next(false).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_not_forgotten_while_a_call_of_it_is_under_way() {
    let mut fixture = Fixture::new();
    fixture.one();
    let first = fixture.withdrawals.next(false).unwrap();
    let later: Vec<_> = (0..MAX_WITHDRAWN).map(|_| fixture.one()).collect();
    let second = fixture.withdrawals.next(false).unwrap();
    fixture.done(second);
    fixture.failed(first);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(requests(fixture.withdrawals.next(false).as_ref()).len(), 1);
    assert_eq!(later.len(), MAX_WITHDRAWN);
}

#[tokio::test(start_paused = true)]
async fn finished_withdrawal_leaves_nothing_outstanding() {
    let mut fixture = Fixture::new();
    fixture.one();
    let batch = fixture.withdrawals.next(false).unwrap();
    assert_eq!(fixture.outstanding(), 1);
    fixture.done(batch);
    assert_eq!(fixture.outstanding(), 0);
    assert!(fixture.withdrawals.locks.is_empty() && fixture.withdrawals.due().is_none());
}

#[tokio::test(start_paused = true)]
async fn failed_withdrawal_is_repeated_after_a_pause_together_with_newer_ones() {
    let mut fixture = Fixture::new();
    let first = fixture.one();
    let batch = fixture.withdrawals.next(false).unwrap();
    fixture.failed(batch);
    let second = fixture.one();
    assert!(fixture.withdrawals.next(false).is_none(), "not before a pause");
    sleep(Duration::from_millis(20)).await;
    let batch = fixture.withdrawals.next(false);
    assert_eq!(requests(batch.as_ref()), [first, second]);
    fixture.failed(batch.unwrap());
    sleep(Duration::from_millis(15)).await;
    assert!(
        fixture.withdrawals.next(false).is_none(),
        "the second pause is longer"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_withdrawal_is_not_repeated() {
    let mut fixture = Fixture::new();
    fixture.one();
    let batch = fixture.withdrawals.next(false).unwrap();
    let refused = Failure::Refused(ServerError::new("NOPERM"));
    fixture.withdrawals.answered(batch, &Err(refused));
    assert_eq!(fixture.outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn incomplete_withdrawal_is_repeated_at_once() {
    let mut fixture = Fixture::new();
    let request = fixture.one();
    let batch = fixture.withdrawals.next(false).unwrap();
    let answer = fixture.answer(true);
    fixture.withdrawals.answered(batch, &answer);
    assert_eq!(requests(fixture.withdrawals.next(false).as_ref()), [request]);
}

/// Race: A call runs after the withdrawal of its request was answered.
#[tokio::test(start_paused = true)]
async fn withdrawal_is_repeated_once_an_unanswered_call_cannot_run_any_more() {
    for at_once in [true, false] {
        let mut fixture = Fixture::new();
        let calls = fixture.one_unanswered(at_once, ANOTHER);
        if at_once {
            let batch = fixture.withdrawals.next(false).unwrap();
            fixture.done(batch);
        }
        assert!(fixture.withdrawals.next(false).is_none());
        sleep(NOT_AFTER).await;
        assert!(
            fixture.withdrawals.next(false).is_none(),
            "the call can still run"
        );
        sleep(2 * PRECISION).await;
        let batch = fixture.withdrawals.next(false).unwrap();
        // As far as is known, the call can still run in this very millisecond.
        let mut answer = fixture.answer(false);
        answer.as_mut().unwrap().at.now = calls.unanswered().unwrap();
        fixture.withdrawals.answered(batch, &answer);
        assert!(fixture.outstanding() > 0);
        sleep(2 * PRECISION).await;
        let batch = fixture.withdrawals.next(false).unwrap();
        fixture.done(batch);
        assert_eq!(fixture.outstanding(), 0);
    }
}

/// Race: A call runs after the withdrawal of its request was answered.
#[tokio::test(start_paused = true)]
async fn request_needs_no_second_withdrawal_after_its_calls_have_run() {
    let mut fixture = Fixture::new();
    fixture.one_unanswered(true, CONNECTION);
    let batch = fixture.withdrawals.next(false).unwrap();
    fixture.done(batch);
    assert_eq!(fixture.outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn request_needs_no_second_withdrawal_after_its_call_was_answered() {
    let mut fixture = Fixture::new();
    let calls = PendingCalls::new(LEASE, GivesUp::Unknown, None);
    let pending = PendingCalls::begin(&calls, &fixture.shared().client().clocks);
    pending.written(ConnectionId::default());
    let keys = Arc::clone(&fixture.keys);
    fixture.add(&keys, false, &calls);
    pending.answered(&Ok(()));
    sleep(NOT_AFTER + 2 * PRECISION).await;
    assert!(fixture.withdrawals.next(false).is_none());
    assert_eq!(fixture.outstanding(), 0);
}

/// Race: Waits are given up while the server is away, and their withdrawals pile up.
#[tokio::test(start_paused = true)]
async fn withdrawal_of_an_old_request_is_forgotten_if_that_is_asked_for() {
    let mut fixture = Fixture::new();
    fixture.one();
    let began = fixture.shared().client().now();
    while let Some(due) = fixture.withdrawals.due() {
        fixture.shared().client().clock.sleep_until(due).await;
        if let Some(batch) = fixture.withdrawals.next(true) {
            fixture.failed(batch);
        }
    }
    assert_eq!(fixture.outstanding(), 0);
    let lasted = fixture.shared().client().now().since(began);
    // A call of the request can run for so long, and its hold lasts, and the server keeps the keys.
    let of_use = NOT_AFTER + LEASE + KEPT;
    assert!(
        lasted >= of_use && lasted < of_use + Duration::from_secs(2),
        "{lasted:?}"
    );
}

/// Has the background withdraw this many requests.
fn withdraw(shared: &Shared, count: usize) {
    for n in 0..count as u64 {
        let calls = PendingCalls::new(LEASE, GivesUp::Unknown, None);
        let pending = PendingCalls::begin(&calls, &shared.client().clocks);
        pending.written(ConnectionId::default());
        pending.answered(&Ok(()));
        let request = RequestId::new(&shared.client().id, LEASE, n, None);
        shared.background().withdraw(&keys("a"), &request, true, &calls);
    }
}

/// Race: Waits are given up while the server is away, and their withdrawals pile up.
#[tokio::test(start_paused = true)]
async fn thousands_of_requests_that_are_given_up_at_once_cost_few_calls() {
    let (locks, seen) = scripted_store::client(&MemoryStore::new(), &[Fate::AnsweredLate; 8]);
    withdraw(locks.shared(), 5 * MAX_WITHDRAWN);
    locks.shared().background().drained().await;
    let calls = seen.withdrawn();
    assert_eq!(calls.iter().sum::<usize>(), 5 * MAX_WITHDRAWN);
    assert!(calls.len() <= 7, "{calls:?}");
}

/// The same lock in two clients. In the first one, the answers to withdrawals and releases come late, so all
/// withdrawals after the first wait.
fn here_and_there() -> [Lock; 2] {
    let store = MemoryStore::new();
    let (here, _) = scripted_store::client(&store, &[Fate::AnsweredLate; 8]);
    let (there, _) = scripted_store::client(&store, &[]);
    [here, there].map(|locks| locks.lock("a"))
}

/// So many callers wait for the lock until they are in the queue, and give up.
async fn waits_are_dropped(lock: &Lock, count: u64) {
    let mut waits: Vec<_> = (0..count).map(|_| Box::pin(lock.acquire())).collect();
    for _ in 0..5 {
        for wait in &mut waits {
            assert!(wait.now_or_never().is_none());
        }
        yield_now().await;
    }
    assert_eq!(lock.status().await.unwrap().waiting, count);
}

/// Race: A task gives up waits, drops its guard, and takes the lock again.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_is_no_longer_in_the_queue() {
    let [here, there] = here_and_there();
    let guard = there.acquire().await.unwrap();
    waits_are_dropped(&here, 1).await;
    drop(guard);
    drop(there.try_acquire().await.expect("nobody has it"));
}

/// Race: A task gives up waits, drops its guard, and takes the lock again.
#[tokio::test(start_paused = true)]
async fn a_release_hands_the_lock_to_nobody_that_has_given_up() {
    let [here, there] = here_and_there();
    let guard = here.acquire().await.unwrap();
    waits_are_dropped(&here, 3).await;
    drop(guard);
    drop(there.try_acquire().await.expect("nobody has it"));
}

/// Race: A task gives up waits, drops its guard, and takes the lock again.
#[tokio::test(start_paused = true)]
async fn a_try_finds_no_request_of_its_client_that_was_given_up() {
    let [here, there] = here_and_there();
    let guard = there.acquire().await.unwrap();
    waits_are_dropped(&here, 3).await;
    drop(guard);
    drop(here.try_acquire().await.expect("nobody has it"));
}

/// Withdraws three requests with a client whose next withdrawal call has this `fate`. Returns the sizes of
/// its calls.
async fn withdrawn(fate: Fate) -> Vec<usize> {
    let (locks, seen) = scripted_store::client(&MemoryStore::new(), &[fate]);
    withdraw(locks.shared(), 3);
    locks.shared().background().drained().await;
    seen.withdrawn()
}

/// For minutes, no withdrawal gets through. Returns whether one does after that, and by which time nothing is
/// left of them.
async fn withdrawn_late(count: usize, is_closed: bool) -> (bool, Duration) {
    let failures = vec![Fate::NotExecuted; count.max(2000)];
    let (locks, seen) = scripted_store::client(&MemoryStore::new(), &failures);
    let (shared, began) = (locks.shared(), tokio::time::Instant::now());
    withdraw(shared, count);
    if is_closed {
        locks.close().await.unwrap_err();
    }
    shared.background().drained().await;
    (seen.withdrawn().len() > failures.len(), began.elapsed())
}

/// Race: A client that is cut off gives up waits, others keep the queue in use, and the client comes back.
#[tokio::test(start_paused = true)]
async fn withdrawal_that_gets_through_after_minutes_is_made_unless_the_client_is_closed() {
    let minutes = Duration::from_secs(200);
    let (is_made, lasted) = withdrawn_late(1, false).await;
    assert!(is_made && lasted > minutes, "{lasted:?}");
    let (is_made, lasted) = withdrawn_late(1, true).await;
    assert!(!is_made && lasted < minutes, "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn withdrawals_of_old_requests_are_forgotten_if_there_are_too_many() {
    let (is_made, lasted) = withdrawn_late(MOST_PENDING + 1, false).await;
    assert!(!is_made && lasted < Duration::from_secs(200), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn background_withdraws_all_requests_given_to_it() {
    let counted = |calls: Vec<usize>| calls.into_iter().sum::<usize>();
    assert_eq!(counted(withdrawn(Fate::AnsweredLate).await), 3);
    assert_eq!(counted(withdrawn(Fate::Refused).await), 3);
    assert!(
        counted(withdrawn(Fate::ReplyLost).await) > 3,
        "the request whose reply was lost is withdrawn once more"
    );
}

#[tokio::test(start_paused = true)]
async fn answered_calls_need_no_withdrawal() {
    let (locks, seen) = scripted_store::client(&MemoryStore::new(), &[]);
    let lock = locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    assert!(matches!(lock.try_acquire().await, Err(Error::Busy { .. })));
    guard.release().await.unwrap();
    locks.close().await.unwrap();
    assert!(seen.withdrawn().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unwritten_request_is_not_withdrawn() {
    let (locks, seen) = scripted_store::client(&MemoryStore::new(), &[]);
    let shared = locks.shared();
    let request = RequestId::new(&shared.client().id, LEASE, 1, None);
    let calls = PendingCalls::new(LEASE, GivesUp::Unknown, None);
    drop(PendingCalls::begin(&calls, &shared.client().clocks));
    shared.background().withdraw(&keys("a"), &request, true, &calls);
    assert_eq!(shared.background().pending(), 0);
    assert!(seen.withdrawn().is_empty());
}
