//! Tests of who may ask while most callers give up, and that no caller is worse off because others wait here.
//! The clock is paused. [`settle`] runs everything that must not wait for a timer.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{advance, sleep, timeout};

use super::*;
use crate::options::ManagerOptions;
use crate::tests::scripted_store;
use crate::tests::scripted_store::Scripted;
use crate::{Lock, LockGuard, LockManager, MemoryStore, Owner};

const MS: Duration = Duration::from_millis(1);

/// A state that most of the last callers have given up, in which so many ask.
fn overloaded(asking: u64) -> State {
    let mut state = State::new();
    all_give_up(&mut state);
    state.asking = (0..asking).map(|number| (u64::MAX - number, (None, 1))).collect();
    state
}

fn all_give_up(state: &mut State) {
    for _ in 0..100 {
        state.ended(true);
    }
}

/// Callers with these bounds come and wait. Returns the receiving ends of their slots.
fn come(state: &mut State, bounds: &[Option<Instant>]) -> Vec<oneshot::Receiver<Result<Slot>>> {
    let come = bounds.iter().map(|until| {
        let (admit, admitted) = oneshot::channel();
        let (until, weight) = (*until, 1);
        state
            .waiting
            .insert(state.arrivals, Waiting { until, weight, admit });
        state.arrivals += 1;
        admitted
    });
    come.collect()
}

/// The numbers of those that have a place next, if each of them asks until then, and of those too late.
fn next(state: &mut State) -> (Vec<u64>, usize) {
    let (mut admitted, mut late) = (Vec::new(), 0);
    while let Some((number, _, is_in_time)) = state.next(Instant::now()) {
        if is_in_time {
            admitted.push(number);
            state.asking.clear();
        } else {
            late += 1;
        }
    }
    (admitted, late)
}

#[tokio::test(start_paused = true)]
async fn all_may_ask_as_long_as_most_are_served() {
    let mut state = State::new();
    for n in 0..10_000 {
        assert!(state.has_place(Instant::now()));
        state.asking.insert(n, (None, 1));
        state.ended(n % 3 == 0);
    }
}

#[tokio::test(start_paused = true)]
async fn while_most_give_up_only_so_many_ask_as_keep_the_lock_busy() {
    let now = Instant::now();
    assert!(overloaded(2).has_place(now));
    let mut state = overloaded(3);
    let _waiting = come(&mut state, &[None]);
    assert!(!state.has_place(now) && state.next(now).is_none());
    // One whose bound is over takes no place.
    state.asking.insert(0, (Some(now), 1));
    state.asking.pop_last();
    assert!(state.has_place(now));
}

#[tokio::test(start_paused = true)]
async fn fewer_ask_when_those_give_up_too_and_one_at_least() {
    let places = |state: &State| {
        (0..9)
            .take_while(|asking| (*asking as f64) < state.places.floor())
            .count()
    };
    let mut state = overloaded(0);
    state.asked(1.0, true);
    assert_eq!(places(&state), 2);
    for _ in 0..100 {
        state.asked(1.0, true);
    }
    assert_eq!(places(&state), 1);
    let after_grants = [(); 5].map(|()| {
        state.asked(1.0, false);
        places(&state)
    });
    assert_eq!(after_grants, [2, 2, 2, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn as_many_ask_for_permits_as_take_three_times_the_capacity() {
    let now = Instant::now();
    let mut state = overloaded(29);
    state.capacity = 10;
    assert!(state.has_place(now));
    state.asking.insert(0, (None, 5));
    assert!(!state.has_place(now));
    let mut small = overloaded(0);
    small.asked(0.1, true);
    assert!(small.places > 2.9, "one of ten permits is no whole place");
}

#[tokio::test(start_paused = true)]
async fn each_fourth_place_is_for_the_oldest_and_the_others_are_for_the_newest() {
    let mut state = overloaded(0);
    let _waiting = come(&mut state, &[None; 10]);
    assert_eq!(next(&mut state).0, [9, 8, 7, 0, 6, 5, 4, 1, 3, 2]);
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_come_by_their_arrival_once_most_are_served_again() {
    let mut state = overloaded(0);
    let _waiting = come(&mut state, &[None; 5]);
    for _ in 0..100 {
        state.ended(false);
    }
    assert_eq!(next(&mut state).0, [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_bound_is_over_has_no_place() {
    let mut state = overloaded(0);
    let now = Instant::now();
    let _waiting = come(&mut state, &[Some(now), None, Some(now + MS), Some(now)]);
    assert_eq!(next(&mut state), (vec![2, 1], 2));
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
    /// Those that ask.
    asking: Vec<JoinHandle<LockGuard>>,
}

impl Fixture {
    /// The other client holds the lock, which is overloaded.
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
            asking: Vec::new(),
        };
        fixture.fill().await;
        fixture
    }

    /// So many give up that there is no place beside those that ask.
    async fn fill(&mut self) {
        for _ in 0..32 {
            self.lock.acquire_timeout(10 * MS).await.unwrap_err();
        }
        for callers in &self.gate().locks {
            locked(&callers.0).places = f64::from(PLACES);
        }
        for _ in 0..3 {
            let caller = self.waits().await;
            self.asking.push(caller);
        }
        assert_eq!(self.queued().await, 3);
    }

    fn gate(&self) -> &Gate {
        self.locks.queues().gate()
    }

    /// Another caller, which has arrived.
    async fn waits(&self) -> JoinHandle<LockGuard> {
        waits(&self.lock).await
    }

    /// How many requests are in the server's queue.
    async fn queued(&self) -> u64 {
        self.other.status().await.unwrap().waiting
    }

    /// All that ask have their turns.
    async fn serve_those_that_ask(&mut self) {
        for caller in std::mem::take(&mut self.asking) {
            self.serve(caller).await;
        }
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

async fn waits(lock: &Lock) -> JoinHandle<LockGuard> {
    let wait = lock.acquire();
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
    let waits = fixture.waits().await;
    assert_eq!(fixture.queued().await, 3);
    waits.abort();
    let error = fixture.lock.acquire_timeout(10 * MS).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { ttl, .. } if ttl > 1000 * MS));
    settle().await;
    fixture.serve_those_that_ask().await;
    fixture.release().await;
    fixture.nothing_is_left().await;
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_here_come_before_later_ones_of_other_clients() {
    let mut fixture = Fixture::full().await;
    sleep(10 * MS).await;
    let here = fixture.waits().await;
    sleep(10 * MS).await;
    let there = waits(&fixture.other).await;
    assert_eq!(fixture.queued().await, 4, "one waits in the client");
    fixture.serve_those_that_ask().await;
    fixture.serve(here).await;
    fixture.serve(there).await;
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn owner_with_a_possible_hold_is_not_delayed() {
    let mut fixture = Fixture::full().await;
    let owner = Owner::new();
    let outer = waits(&fixture.lock.clone().owner(&owner)).await;
    fixture.serve_those_that_ask().await;
    fixture.serve(outer).await;
    let _full = [(); 3].map(|()| tokio::spawn(fixture.lock.acquire()));
    settle().await;
    let inner = fixture.lock.clone().owner(&owner).acquire_timeout(10 * MS);
    drop(inner.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_here_are_told_that_the_server_is_away() {
    let fixture = Fixture::full().await;
    let waits = tokio::spawn(fixture.lock.acquire());
    settle().await;
    fixture.seen.lose_calls(u32::MAX);
    let options = &fixture.locks.place().client().options;
    sleep(options.poll_interval() + 2 * options.server_timeout).await;
    assert!(waits.is_finished());
    assert!(matches!(waits.await.unwrap(), Err(Error::Unavailable(_))));
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_here_are_told_that_the_client_is_closed() {
    let mut fixture = Fixture::full().await;
    // Those that ask are not polled.
    fixture.asking.clear();
    let waits = tokio::spawn(fixture.lock.acquire());
    settle().await;
    fixture.locks.close().await.unwrap();
    assert!(matches!(waits.await.unwrap(), Err(Error::Closed)));
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn caller_that_gets_its_place_as_its_time_ends_delays_no_other() {
    let mut fixture = Fixture::full().await;
    let gives_up = tokio::spawn(fixture.lock.acquire_timeout(100 * MS));
    settle().await;
    let next = fixture.waits().await;
    // The caller is polled again only when there is a place and its time is over.
    assert!(advance(100 * MS).now_or_never().is_none());
    let caller = fixture.asking.remove(0);
    fixture.serve(caller).await;
    gives_up.await.unwrap().unwrap_err();
    fixture.serve_those_that_ask().await;
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
    for caller in fixture.asking.drain(..) {
        caller.abort();
    }
    settle().await;
    assert_eq!(fixture.queued().await, 0, "nobody asks whose bound is over");
    let newcomer = fixture.waits().await;
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
        let mut dropped = Box::pin(fixture.lock.acquire());
        assert!(dropped.as_mut().now_or_never().is_none());
        let caller = fixture.asking.remove(0);
        fixture.serve(caller).await;
        if asks {
            assert!(dropped.as_mut().now_or_never().is_none());
        }
        drop(dropped);
        settle().await;
        assert_eq!(fixture.queued().await, 2);
        fixture.serve_those_that_ask().await;
        fixture.release().await;
        fixture.nothing_is_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn once_most_are_served_again_all_are_in_the_queue() {
    let mut fixture = Fixture::full().await;
    let mut callers = Vec::new();
    for _ in 0..100 {
        callers.push(fixture.waits().await);
    }
    assert_eq!(fixture.queued().await, 3);
    fixture.serve_those_that_ask().await;
    while !callers.is_empty() {
        fixture.release().await;
        settle().await;
        let ready = callers.iter().position(JoinHandle::is_finished).unwrap();
        fixture.guard = Some(callers.remove(ready).await.unwrap());
        let queued = if callers.len() > 62 {
            3
        } else {
            callers.len() as u64
        };
        assert!(fixture.queued().await >= queued.min(3));
        if callers.len() == 40 {
            assert_eq!(fixture.queued().await, 40);
        }
    }
}

/// A caller that was told of an error, and is dropped long after that, takes nobody else out.
#[tokio::test(start_paused = true)]
async fn caller_that_leaves_after_an_overload_of_long_ago_takes_no_other_out() {
    let mut fixture = Fixture::full().await;
    let mut told = Box::pin(fixture.lock.acquire());
    assert!(told.as_mut().now_or_never().is_none());
    fixture.gate().refuse_all(&Error::Closed);
    fixture.serve_those_that_ask().await;
    fixture.release().await;
    sleep(2 * WAITLIST_KEPT).await;
    fixture.guard = Some(fixture.other.acquire().await.unwrap());
    fixture.fill().await;
    let waits = fixture.waits().await;
    drop(told);
    settle().await;
    fixture.serve_those_that_ask().await;
    fixture.serve(waits).await;
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
    for n in 0..2 * MAX_WAITLISTS_KEPT {
        let lock = locks.lock(name(n));
        let _guard = lock.acquire().await.unwrap();
        assert!(timeout(Duration::ZERO, lock.acquire()).await.is_err());
    }
    assert!(
        gate.len() > 0 && gate.len() <= MAX_WAITLISTS_KEPT + 1,
        "{}",
        gate.len()
    );
}
