//! Tests of who may ask while callers give up, and that no caller is worse off because others wait here.
//! The clock is paused. [`settle`] runs everything that must not wait for a timer.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{advance, sleep, timeout};

use super::*;
use crate::engine::options::ManagerOptions;
use crate::tests::scripted_store;
use crate::tests::scripted_store::Scripted;
use crate::{Lock, LockGuard, LockManager, MemoryStore, Owner};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// An overloaded state whose callers were granted the lock once per millisecond, until so long ago.
fn busy_until(ago: Duration) -> State {
    let mut state = State::new(ago);
    (state.turn, state.is_overloaded) = (0.001, true);
    state
}

fn busy() -> State {
    busy_until(Duration::ZERO)
}

/// Callers with these bounds, counted from now, come. Returns which of them ask, and the others, which wait.
fn come(
    state: &mut State,
    bounds: &[Option<u32>],
) -> (Vec<usize>, Vec<oneshot::Receiver<Result<Admission>>>) {
    let (mut asking, mut waiting) = (Vec::new(), Vec::new());
    for (n, ms) in bounds.iter().enumerate() {
        let now = Instant::now();
        match state.enter(ms.map(|ms| now + ms * MS), now) {
            Ok(_) => asking.push(n),
            Err((_, admitted)) => waiting.push(admitted),
        }
    }
    (asking, waiting)
}

/// The numbers of those that have a place next, if nobody else asks.
fn next(state: &mut State) -> Vec<u64> {
    let next = std::iter::from_fn(|| {
        state.asking.clear();
        state.next(Instant::now()).map(|(key, _)| key.unwrap().1)
    });
    next.collect()
}

#[tokio::test(start_paused = true)]
async fn all_may_ask_as_long_as_most_are_served() {
    let mut state = busy_until(SECOND);
    state.is_overloaded = false;
    for n in 0..1000 {
        assert_eq!(come(&mut state, &[Some(1)]).0, [0]);
        state.ended(n % 3 == 0);
    }
    (0..64).for_each(|_| state.ended(true));
    assert_eq!(come(&mut state, &[Some(1)]).0, [0; 0]);
    (0..64).for_each(|_| state.ended(false));
    assert_eq!(come(&mut state, &[Some(1)]).0, [0; 1]);
}

#[tokio::test(start_paused = true)]
async fn as_many_ask_as_are_expected_to_be_served_in_time() {
    for (ms, expected) in [(1, 1), (2, 1), (6, 4), (20, 16), (30, 25), (110, 100)] {
        let mut state = busy();
        let (asking, _waiting) = come(&mut state, &vec![Some(ms); 200]);
        assert_eq!(asking.len(), expected, "{ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_without_a_bound_always_ask_and_others_wait_for_them() {
    let mut state = busy();
    let (asking, waiting) = come(
        &mut state,
        &[vec![None; 100], vec![Some(111), Some(112)]].concat(),
    );
    assert_eq!((asking.len(), waiting.len()), (101, 1));
    state.unbounded -= 1;
    assert!(state.next(Instant::now()).is_none(), "one has come instead");
    state.unbounded -= 3;
    assert!(state.next(Instant::now()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_long_turn_is_expected_to_last_as_long_again() {
    let mut state = busy_until(101 * MS);
    let (asking, _waiting) = come(&mut state, &[Some(10), Some(103), Some(104), Some(1000)]);
    assert_eq!(asking, [0, 2, 3], "one always asks");
}

#[tokio::test(start_paused = true)]
async fn the_first_that_can_be_served_in_time_has_the_next_place() {
    let mut state = busy_until(100 * MS);
    let bounds = [1, 98, 50, 97, 99].map(Some);
    let (asking, _waiting) = come(&mut state, &bounds);
    assert_eq!(asking, [0]);
    advance(MS).await;
    // Nobody can be: the last one has the best chance.
    assert_eq!(state.numbers(), [3, 4, 2, 5]);
    state.asking.clear();
    assert_eq!(state.next(Instant::now()).unwrap().0.unwrap().1, 5);
    state.granted(Instant::now());
    state.turn = 0.001;
    assert_eq!(next(&mut state), [3, 4, 2]);
}

impl State {
    /// The numbers of those that wait here, in the order of their bounds.
    fn numbers(&self) -> Vec<u64> {
        self.waiting.keys().map(|(_, number)| *number).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_bound_is_over_has_no_place_and_takes_none() {
    let mut state = busy_until(20 * MS);
    let (asking, _waiting) = come(&mut state, &[Some(10), Some(5), Some(10), Some(15)]);
    assert_eq!(asking, [0]);
    assert!(state.next(Instant::now()).is_none());
    advance(10 * MS).await;
    // The first one is not polled, and so is still there.
    assert_eq!(state.next(Instant::now()).unwrap().0.unwrap().1, 4);
    state.asking.clear();
    assert!(state.next(Instant::now()).is_none(), "all others are late");
}

#[tokio::test(start_paused = true)]
async fn the_pace_is_that_of_the_last_grants() {
    let mut state = State::new(Duration::ZERO);
    let _asking = come(&mut state, &[None]);
    for _ in 0..300 {
        advance(10 * MS).await;
        state.granted(Instant::now());
    }
    assert!((state.turn - 0.01).abs() < 0.001);
    for _ in 0..300 {
        advance(MS).await;
        state.granted(Instant::now());
    }
    assert!((state.turn - 0.001).abs() < 0.0002);
}

#[tokio::test(start_paused = true)]
async fn time_in_which_nobody_waits_does_not_count() {
    let callers = Arc::new(Callers(Mutex::new(State::new(Duration::ZERO))));
    for _ in 0..300 {
        let entered = callers.enter(None);
        advance(MS).await;
        locked(&callers.0).granted(Instant::now());
        drop(entered);
        advance(SECOND).await;
    }
    assert!((locked(&callers.0).turn - 0.001).abs() < 0.0001);
    advance(IDLE_LIMIT).await;
    let _asks = callers.enter(None);
    assert!(locked(&callers.0).turn == 0.0, "that was long ago");
}

/// Two clients of one store.
struct Fixture {
    /// The lock in the client that holds it while the other client waits.
    other: Lock,
    locks: LockManager,
    /// The store as that client sees it.
    seen: Arc<Scripted>,
    lock: Lock,
    guard: Option<LockGuard>,
    /// The one that asks.
    asks: Option<JoinHandle<LockGuard>>,
}

impl Fixture {
    /// The other client has held the lock for a second, in which callers gave up. One of them asks.
    async fn full() -> Fixture {
        let store = MemoryStore::new();
        let (other, _) = scripted_store::client_with(ManagerOptions::default(), &store, &[]);
        let (locks, seen) = scripted_store::client_with(ManagerOptions::default(), &store, &[]);
        let other = other.lock("a");
        let guard = Some(other.acquire().await.unwrap());
        let lock = locks.lock("a");
        let mut fixture = Fixture {
            other,
            locks,
            seen,
            lock,
            guard,
            asks: None,
        };
        fixture.fill().await;
        fixture
    }

    async fn fill(&mut self) {
        self.lock.acquire_timeout(SECOND).await.unwrap_err();
        for _ in 0..32 {
            self.lock.acquire_timeout(MS).await.unwrap_err();
        }
        self.asks = Some(waits(self.lock.acquire()).await);
        assert_eq!(self.queued().await, 1);
    }

    fn gate(&self) -> &Gate {
        self.locks.queues().gate()
    }

    /// A caller that does not have the time to wait for another second, and so waits here.
    async fn waits_here(&self) -> JoinHandle<LockGuard> {
        waits(self.lock.acquire_timeout(SECOND / 2)).await
    }

    /// How many requests are in the server's queue.
    async fn queued(&self) -> u64 {
        self.other.status().await.unwrap().waiting
    }

    /// The one that asks has its turn.
    async fn serve_the_one_that_asks(&mut self) {
        let asks = self.asks.take().unwrap();
        self.serve(asks).await;
    }

    /// Releases the lock, which goes to this caller at once.
    async fn serve(&mut self, caller: JoinHandle<LockGuard>) {
        self.release().await;
        settle().await;
        assert!(caller.is_finished(), "it is not its turn");
        self.guard = Some(caller.await.unwrap());
    }

    async fn release(&mut self) {
        self.guard.take().unwrap().release().await.unwrap();
    }

    async fn nothing_is_left(&self) {
        settle().await;
        assert_eq!(self.queued().await, 0);
        assert_eq!(self.locks.shared().background().pending(), 0);
        assert!(self.gate().is_idle());
    }
}

/// Another caller, which has arrived.
async fn waits(wait: impl Future<Output = Result<LockGuard>> + Send + 'static) -> JoinHandle<LockGuard> {
    let caller = tokio::spawn(async move { wait.await.unwrap() });
    settle().await;
    assert!(!caller.is_finished());
    caller
}

/// Lets everything happen that needs no time.
async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_here_is_not_in_the_queue_and_leaves_nothing() {
    let mut fixture = Fixture::full().await;
    let waits = fixture.waits_here().await;
    assert_eq!(fixture.queued().await, 1);
    waits.abort();
    let error = fixture.lock.acquire_timeout(10 * MS).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { ttl, .. } if ttl > 1000 * MS));
    settle().await;
    fixture.serve_the_one_that_asks().await;
    fixture.release().await;
    fixture.nothing_is_left().await;
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_here_come_before_later_ones_of_other_clients() {
    let mut fixture = Fixture::full().await;
    sleep(10 * MS).await;
    let here = fixture.waits_here().await;
    sleep(10 * MS).await;
    let there = waits(fixture.other.acquire()).await;
    assert_eq!(fixture.queued().await, 2, "one waits in the client");
    fixture.serve_the_one_that_asks().await;
    fixture.serve(here).await;
    fixture.serve(there).await;
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn owner_with_a_possible_hold_is_not_delayed() {
    let mut fixture = Fixture::full().await;
    let owner = Owner::new();
    let outer = waits(fixture.lock.clone().owner(&owner).acquire()).await;
    fixture.serve_the_one_that_asks().await;
    fixture.serve(outer).await;
    let _asks = waits(fixture.lock.acquire()).await;
    let inner = fixture.lock.clone().owner(&owner).acquire_timeout(10 * MS);
    drop(inner.await.unwrap());
}

/// Race: Those who give up leave the others behind newcomers for as long as they keep coming.
#[tokio::test(start_paused = true)]
async fn a_patient_caller_waits_here_for_as_long_as_others_did_and_a_quarter_more() {
    for patience in [100 * MS, 20 * MS] {
        let mut fixture = Fixture::full().await;
        for _ in 0..300 {
            assert!(timeout(patience, fixture.lock.acquire()).await.is_err());
        }
        settle().await;
        let patient = waits(fixture.lock.acquire()).await;
        let bound = waits(fixture.lock.acquire_timeout(20 * SECOND)).await;
        assert_eq!(fixture.queued().await, 1);
        sleep(patience).await;
        assert_eq!(fixture.queued().await, 1);
        sleep(patience / 3).await;
        assert_eq!(fixture.queued().await, 3);
        fixture.serve_the_one_that_asks().await;
        fixture.serve(patient).await;
        fixture.serve(bound).await;
    }
}

#[tokio::test(start_paused = true)]
async fn patience_is_that_of_the_last_callers_that_were_dropped() {
    let mut fixture = Fixture::full().await;
    // The first one asks.
    assert!(timeout(SECOND / 2, fixture.lock.acquire()).await.is_err());
    for _ in 0..300 {
        assert!(timeout(20 * MS, fixture.lock.acquire()).await.is_err());
    }
    fixture.lock.acquire_timeout(MS).await.unwrap_err();
    let patient = waits(fixture.lock.acquire()).await;
    sleep(30 * MS).await;
    assert_eq!(fixture.queued().await, 2);
    fixture.serve_the_one_that_asks().await;
    fixture.serve(patient).await;
}

/// Race: A caller that cannot wait any longer fails those that can.
#[tokio::test(start_paused = true)]
async fn a_bound_that_ends_while_the_server_is_away_fails_nobody_else() {
    let mut fixture = Fixture::full().await;
    let asks = fixture.asks.take().unwrap();
    asks.abort();
    settle().await;
    fixture.seen.lose_calls(u32::MAX);
    let short = tokio::spawn(fixture.lock.acquire_timeout(50 * MS));
    settle().await;
    let long = waits(fixture.lock.acquire_timeout(30 * SECOND)).await;
    let patient = waits(fixture.lock.acquire()).await;
    let error = short.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    sleep(50 * MS).await;
    fixture.seen.lose_calls(0);
    fixture.release().await;
    let serve = |caller: JoinHandle<LockGuard>| async { caller.await.unwrap().release().await.unwrap() };
    for served in [long, patient].map(|caller| tokio::spawn(serve(caller))) {
        timeout(10 * SECOND, served).await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_here_are_told_that_the_server_is_away() {
    let mut fixture = Fixture::full().await;
    fixture.asks.take().unwrap().abort();
    settle().await;
    fixture.seen.lose_calls(u32::MAX);
    let unheard = tokio::spawn(fixture.lock.acquire_timeout(400 * MS));
    settle().await;
    let here = tokio::spawn(fixture.lock.acquire_timeout(500 * MS));
    let options = &fixture.locks.place().client().options;
    let longer = options.server_timeout + options.poll_interval();
    let patient = tokio::spawn(fixture.lock.acquire_timeout(2 * longer));
    sleep(2 * longer).await;
    for caller in [unheard, here, patient] {
        assert!(caller.is_finished());
        assert!(matches!(caller.await.unwrap(), Err(Error::Unavailable(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_here_are_told_that_the_client_is_closed() {
    let mut fixture = Fixture::full().await;
    fixture.serve_the_one_that_asks().await;
    let there = waits(fixture.other.acquire()).await;
    fixture.serve(there).await;
    // The one that asks is not polled again, and so stays.
    let mut asks = pin!(fixture.lock.acquire());
    assert!(asks.as_mut().now_or_never().is_none());
    sleep(SECOND).await;
    let here = tokio::spawn(fixture.lock.acquire_timeout(SECOND / 2));
    settle().await;
    assert_eq!(fixture.queued().await, 1);
    fixture.locks.close().await.unwrap();
    assert!(matches!(here.await.unwrap(), Err(Error::Closed)));
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn callers_that_come_at_once_are_served_in_their_order() {
    let mut fixture = Fixture::full().await;
    let first = waits(fixture.lock.acquire_timeout(SECOND * 3 / 4)).await;
    let last = waits(fixture.lock.acquire_timeout(SECOND / 2)).await;
    assert_eq!(fixture.queued().await, 1, "both wait in the client");
    // The last one has a place first, since it leaves first.
    fixture.serve_the_one_that_asks().await;
    assert_eq!(fixture.queued().await, 2);
    fixture.serve(first).await;
    fixture.serve(last).await;
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn caller_that_gets_its_place_as_its_time_ends_delays_no_other() {
    let mut fixture = Fixture::full().await;
    let gives_up = tokio::spawn(fixture.lock.acquire_timeout(100 * MS));
    settle().await;
    let next = fixture.waits_here().await;
    // The caller is polled again only when there is a place and its time is over.
    assert!(advance(100 * MS).now_or_never().is_none());
    fixture.serve_the_one_that_asks().await;
    gives_up.await.unwrap().unwrap_err();
    fixture.serve(next).await;
    fixture.release().await;
    fixture.nothing_is_left().await;
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn newcomer_may_ask_though_others_stay_past_their_bounds() {
    let mut fixture = Fixture::full().await;
    let mut stalled: Vec<_> = (1..=3)
        .map(|n| Box::pin(fixture.lock.acquire_timeout(10 * n * MS)))
        .collect();
    for stalled in &mut stalled {
        assert!(stalled.now_or_never().is_none());
    }
    assert!(advance(30 * MS).now_or_never().is_none());
    fixture.asks.take().unwrap().abort();
    settle().await;
    assert_eq!(fixture.queued().await, 0, "nobody asks whose bound is over");
    let newcomer = fixture.waits_here().await;
    fixture.serve(newcomer).await;
    for stalled in stalled {
        assert!(matches!(stalled.await, Err(Error::Timeout { .. })));
    }
    fixture.release().await;
    fixture.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn caller_that_is_dropped_as_it_gets_its_place_leaves_nothing() {
    for asks in [false, true] {
        let mut fixture = Fixture::full().await;
        let mut dropped = Box::pin(fixture.lock.acquire_timeout(SECOND / 2));
        assert!(dropped.as_mut().now_or_never().is_none());
        assert_eq!(fixture.queued().await, 1);
        fixture.serve_the_one_that_asks().await;
        if asks {
            assert!(dropped.as_mut().now_or_never().is_none());
            settle().await;
            assert_eq!(fixture.queued().await, 1);
        }
        drop(dropped);
        fixture.nothing_is_left().await;
        fixture.release().await;
        fixture.nothing_is_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn once_turns_are_short_again_all_are_in_the_queue() {
    let mut fixture = Fixture::full().await;
    let mut callers = Vec::new();
    for _ in 0..50 {
        callers.push(fixture.waits_here().await);
    }
    assert_eq!(fixture.queued().await, 1);
    fixture.serve_the_one_that_asks().await;
    while !callers.is_empty() {
        sleep(MS).await;
        fixture.release().await;
        settle().await;
        let ready = callers.iter().position(JoinHandle::is_finished).unwrap();
        fixture.guard = Some(callers.remove(ready).await.unwrap());
        settle().await;
        assert!(callers.is_empty() || fixture.queued().await >= 1);
        if callers.len() == 15 {
            assert_eq!(fixture.queued().await, 15);
        }
    }
}

/// A caller that was told of an error, and is dropped long after that, takes nobody else out.
#[tokio::test(start_paused = true)]
async fn caller_that_leaves_after_an_overload_of_long_ago_takes_no_other_out() {
    let mut fixture = Fixture::full().await;
    let mut told = Box::pin(fixture.lock.acquire_timeout(SECOND / 2));
    assert!(told.as_mut().now_or_never().is_none());
    fixture.gate().refuse_all(&Error::Closed);
    fixture.serve_the_one_that_asks().await;
    fixture.release().await;
    sleep(2 * IDLE_LIMIT).await;
    fixture.guard = Some(fixture.other.acquire().await.unwrap());
    fixture.fill().await;
    let here = fixture.waits_here().await;
    drop(told);
    settle().await;
    fixture.serve_the_one_that_asks().await;
    fixture.serve(here).await;
}

/// A lock that nobody has given up on costs nothing here.
#[tokio::test(start_paused = true)]
async fn only_locks_on_which_callers_gave_up_are_remembered() {
    let locks = LockManager::in_memory();
    let gate = locks.queues().gate();
    let name = |n: usize| n.to_string();
    for n in 0..10 {
        locks
            .lock(name(n))
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(gate.len(), 0);
    for n in 0..2 * MAX_IDLE_WAITLISTS {
        let lock = locks.lock(name(n));
        let _guard = lock.acquire().await.unwrap();
        lock.acquire_timeout(MS).await.unwrap_err();
    }
    assert!(
        gate.len() > 0 && gate.len() <= MAX_IDLE_WAITLISTS + 1,
        "{}",
        gate.len()
    );
}

/// Callers of many locks give up, and all locks have other callers.
#[tokio::test(start_paused = true)]
async fn locks_that_are_in_use_are_looked_through_only_once_in_a_while() {
    let locks = LockManager::in_memory();
    let gate = locks.queues().gate();
    let channel = |n: usize| Arc::<str>::from(n.to_string());
    let unused: Arc<str> = "unused".into();
    let mut scans = 0;
    for n in 0..20 * MAX_IDLE_WAITLISTS {
        gate.locks
            .entry(Arc::clone(&unused))
            .or_insert_with(|| Arc::new(Callers(Mutex::new(State::new(Duration::ZERO)))));
        drop(gate.callers_with(&channel(n), Duration::ZERO));
        scans += usize::from(!gate.locks.contains_key(&unused));
        assert!(scans <= 6, "{scans} with {n} locks");
        std::mem::forget(gate.callers(&channel(n)).unwrap().enter(None));
    }
    assert_eq!(gate.len(), 20 * MAX_IDLE_WAITLISTS + 1);
}
