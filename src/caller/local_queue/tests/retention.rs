//! The promises of retention.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const R: Duration = Duration::from_millis(20);

impl Process {
    /// A process that retains the lock, and listens already.
    async fn retaining(store: &MemoryStore) -> Process {
        let mut process = Process::with(store, 1);
        process.lock = process.lock.retain(R);
        process.use_once().await;
        settle().await;
        process
    }

    async fn use_once(&self) -> u64 {
        let guard = self.lock.acquire().await.unwrap();
        let fence = fence(&guard);
        guard.release().await.unwrap();
        fence
    }

    fn calls(&self) -> usize {
        self.seen.acquires() + self.seen.releases()
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_nobody_else_wants_is_used_again_without_a_call() {
    let process = Process::retaining(&MemoryStore::new()).await;
    let first = process.use_once().await;
    let calls = process.calls();
    for n in 1..100 {
        assert_eq!(process.use_once().await, first + n);
    }
    let guard = process.lock.try_acquire().await.unwrap();
    assert_eq!(fence(&guard), first + 100);
    drop(guard);
    assert_eq!((process.calls(), process.locks.stats().retained), (calls, 100));
    assert_eq!(process.locks.stats().held, 0);
    sleep(R).await;
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_retained_lock_is_given_back_as_soon_as_another_process_wants_it() {
    let store = MemoryStore::new();
    let (process, other) = (Process::retaining(&store).await, Process::of(&store));
    let last = process.use_once().await;
    let guard = other.lock.acquire().now_or_never();
    assert!(guard.is_none());
    let waits = other.wait(1).await.remove(0);
    assert!(waits.is_finished(), "it waits for a timer");
    let guard = waits.await.unwrap();
    assert!(fence(&guard) > last);
    guard.release().await.unwrap();
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn no_turn_begins_once_the_lock_is_wanted() {
    let store = MemoryStore::new();
    let (process, other) = (Process::retaining(&store).await, Process::of(&store));
    process.use_once().await;
    let guard = process.lock.acquire().await.unwrap();
    let waits = other.wait(1).await.remove(0);
    assert!(!waits.is_finished());
    guard.release().await.unwrap();
    settle().await;
    assert!(waits.is_finished(), "the release hands it over");
    let again = process.wait(1).await.remove(0);
    assert!(!again.is_finished(), "it has no further turn");
    waits.await.unwrap().release().await.unwrap();
    again.await.unwrap().release().await.unwrap();
    sleep(R).await;
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_try_of_another_process_has_a_retained_lock_given_back() {
    let store = MemoryStore::new();
    let (process, other) = (Process::retaining(&store).await, Process::of(&store));
    process.use_once().await;
    assert!(matches!(other.lock.try_acquire().await, Err(Error::Busy { .. })));
    settle().await;
    other.lock.try_acquire().await.unwrap().release().await.unwrap();
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_retained_for_so_long_after_its_grant_whatever_is_heard() {
    let store = MemoryStore::new();
    let process = Process::retaining(&store).await;
    process.use_once().await;
    let began = Instant::now();
    let calls = process.calls();
    while began.elapsed() + MS < R {
        sleep(MS).await;
        process.use_once().await;
        assert_eq!(process.calls(), calls);
    }
    sleep(2 * MS).await;
    settle().await;
    assert_eq!(process.calls(), calls + 1, "it was released");
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_grant_is_not_retained_because_nothing_would_be_heard() {
    let store = MemoryStore::new();
    let mut process = Process::with(&store, 1);
    process.lock = process.lock.retain(R);
    let guard = process.lock.acquire().await.unwrap();
    settle().await;
    guard.release().await.unwrap();
    settle().await;
    assert!(process.lock.status().await.unwrap().holder.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_handed_over_is_not_retained() {
    let store = MemoryStore::new();
    let (process, other) = (Process::retaining(&store).await, Process::with(&store, 1));
    sleep(R).await;
    let held = other.acquire().await;
    let waits = process.wait(1).await.remove(0);
    // It is no longer the first in the queue when the lock is granted, so no message tells of it.
    let behind = other.wait(1).await.remove(0);
    held.release().await.unwrap();
    settle().await;
    waits.await.unwrap().release().await.unwrap();
    settle().await;
    assert!(behind.is_finished());
    behind.await.unwrap().release().await.unwrap();
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_the_same_process_ends_the_retention() {
    let store = MemoryStore::new();
    let process = Process::retaining(&store).await;
    process.use_once().await;
    let guard = process.lock.acquire().await.unwrap();
    let waits = process.wait(1).await.remove(0);
    guard.release().await.unwrap();
    settle().await;
    waits.await.unwrap().release().await.unwrap();
    sleep(R).await;
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_reaches_a_client_that_retains_the_lock() {
    let store = MemoryStore::new();
    let (process, other) = (Process::retaining(&store).await, Process::of(&store));
    let fence = process.use_once().await;
    let holder = other.lock.status().await.unwrap().holder.unwrap();
    assert_eq!(holder.fence.get(), fence);
    assert!(other.lock.force_release(holder.fence).await.unwrap());
    settle().await;
    let held = other.acquire().await;
    let waits = process.wait(1).await.remove(0);
    assert!(!waits.is_finished(), "it has a turn of a hold that is gone");
    held.release().await.unwrap();
    waits.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_release_of_a_guard_whose_lease_is_lost_says_so_though_the_lock_is_retained() {
    let store = MemoryStore::new();
    let process = Process::retaining(&store).await;
    process.use_once().await;
    let guard = process.lock.acquire().await.unwrap();
    assert_eq!(process.locks.stats().retained, 1);
    store.flush();
    store.knows("fairlock:{a}");
    assert!(matches!(guard.renew().await, Err(Error::Lost(_))));
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
}

#[tokio::test(start_paused = true)]
async fn a_token_ends_with_its_guard_though_the_lock_is_retained() {
    let process = Process::retaining(&MemoryStore::new()).await;
    let guard = process.lock.acquire().await.unwrap();
    let (token, watched) = (guard.token(), guard.token());
    let watching = tokio::spawn(async move { watched.lost().await });
    settle().await;
    guard.release().await.unwrap();
    assert!(token.check().is_err());
    settle().await;
    assert!(watching.is_finished(), "it waits for the end of the retention");
    assert_eq!(watching.await.unwrap(), HoldEnd::Released);
    process.use_once().await;
    assert!(token.check().is_err());
    sleep(R).await;
    process.is_left_clean().await;
}

#[tokio::test]
async fn other_tasks_run_beside_retained_turns_that_never_wait() {
    // A thread that stands still has no turns for as long. It does not do so each time.
    for _ in 0..100 {
        let process = Process::retaining(&MemoryStore::new()).await;
        let ticks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&ticks);
        let ticker = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
            }
        });
        let began = std::time::Instant::now();
        while began.elapsed() < R / 2 {
            drop(process.lock.acquire().await.unwrap());
        }
        ticker.abort();
        if ticks.load(Ordering::SeqCst) > 1 {
            return;
        }
    }
    panic!("no other task has run");
}

/// Race: A server loses a lock that a client retains, and grants it to the same client again.
#[tokio::test(start_paused = true)]
async fn a_tenure_that_was_ended_on_the_server_has_no_turn_beside_the_next_one() {
    let store = MemoryStore::new();
    let process = Process::retaining(&store).await;
    process.use_once().await;
    store.flush();
    store.knows("fairlock:{a}");
    let queues = process.queues();
    let tenure = queues.queues.iter().next().expect("a queue").tenure.clone();
    let listening = queues.place().listen(&tenure.hold);
    let Ok(Tried::Held(held)) = queues.place().try_acquire(tenure.hold.clone()).await else {
        panic!("it is free");
    };
    let turn = queues.first_turn(&tenure, held, listening);
    assert!(matches!(
        process.lock.try_acquire().await,
        Err(Error::Busy { .. })
    ));
    drop(turn);
}

#[tokio::test(start_paused = true)]
async fn callers_of_all_processes_are_served_in_arrival_order() {
    let store = MemoryStore::new();
    let (process, other) = (Process::retaining(&store).await, Process::with(&store, 1));
    let guard = process.lock.acquire().await.unwrap();
    let first = process.wait(1).await.remove(0);
    let second = process.wait(1).await.remove(0);
    let third = other.wait(1).await.remove(0);
    guard.release().await.unwrap();
    first.await.unwrap().release().await.unwrap();
    settle().await;
    assert!(!third.is_finished(), "it came last");
    second.await.unwrap().release().await.unwrap();
    third.await.unwrap().release().await.unwrap();
    sleep(R).await;
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn closing_gives_back_what_is_retained() {
    let store = MemoryStore::new();
    let (process, other) = (Process::retaining(&store).await, Process::of(&store));
    process.use_once().await;
    process.locks.close().await.unwrap();
    other.lock.try_acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_lock_of_the_same_name_takes_a_retained_one() {
    let store = MemoryStore::new();
    let process = Process::retaining(&store).await;
    process.use_once().await;
    let plain = process.locks.lock("a").acquire();
    let guard = tokio::time::timeout(MS, plain).await.expect("at once").unwrap();
    guard.release().await.unwrap();
    process.is_left_clean().await;
}
