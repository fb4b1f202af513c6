//! The promises of local hand-off, on locks in memory. The clock is paused. [`settle`] runs everything that
//! must not wait for a timer.

mod endings;
mod retention;

use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{advance, sleep};

use super::*;
use crate::engine::options::ManagerOptions;
use crate::tests::scripted_store;
use crate::tests::scripted_store::Scripted;
use crate::{HoldEnd, LeaseState, Lock, LockGuard, LockManager, MemoryStore};

const MS: Duration = Duration::from_millis(1);
const TURNS: u32 = 4;

/// One process.
struct Process {
    locks: LockManager,
    seen: Arc<Scripted>,
    lock: Lock,
}

type Waiter = JoinHandle<LockGuard>;

impl Process {
    fn of(store: &MemoryStore) -> Process {
        Process::with(store, TURNS)
    }

    fn with(store: &MemoryStore, local_handoffs: u32) -> Process {
        let options = ManagerOptions {
            local_handoffs,
            ..ManagerOptions::default()
        };
        store.knows("fairlock:{a}");
        let (locks, seen) = scripted_store::client_with(options, store, &[]);
        Process {
            lock: locks.lock("a"),
            locks,
            seen,
        }
    }

    fn queues(&self) -> &Arc<LocalQueues> {
        self.locks.queues()
    }

    async fn acquire(&self) -> LockGuard {
        let guard = self.lock.acquire().await.unwrap();
        settle().await;
        guard
    }

    /// Starts so many waiters, and returns when their calls have been made.
    async fn wait(&self, waiters: usize) -> Vec<Waiter> {
        let mut all = Vec::new();
        for _ in 0..waiters {
            let wait = self.lock.acquire();
            all.push(tokio::spawn(async move { wait.await.unwrap() }));
            settle().await;
        }
        all
    }

    /// Checks that nothing is left of all calls, here and on the server.
    async fn is_left_clean(&self) {
        settle().await;
        assert_eq!(self.queues().len(), 0);
        assert_eq!((self.locks.stats().held, self.locks.stats().waiting), (0, 0));
        let status = self.lock.status().await.unwrap();
        assert_eq!((status.holder.is_none(), status.waiting), (true, 0));
    }
}

/// Lets everything happen that needs no time.
async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

/// The guard of the waiter whose turn it is. It is the only one.
async fn turn(waiters: &mut Vec<Waiter>) -> LockGuard {
    settle().await;
    let ready: Vec<_> = (0..waiters.len()).filter(|n| waiters[*n].is_finished()).collect();
    assert_eq!(ready, [0], "of {}", waiters.len());
    waiters.remove(0).await.unwrap()
}

fn fence(guard: &LockGuard) -> u64 {
    guard.fence().get()
}

#[tokio::test(start_paused = true)]
async fn waiters_of_a_process_have_their_turns_in_arrival_order_without_a_call() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let first = fence(&guard);
    let mut waiters = process.wait(3).await;
    // The second tenure is asked for, and then nothing.
    let calls = process.seen.acquires();
    guard.release().await.unwrap();
    for n in 1..=3 {
        let guard = turn(&mut waiters).await;
        assert_eq!(fence(&guard), first + n);
        guard.release().await.unwrap();
    }
    assert_eq!(process.seen.acquires(), calls);
    assert_eq!(process.seen.releases(), 1);
    assert_eq!(process.locks.stats().local_handoffs, 3);
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn next_tenure_takes_its_place_when_the_first_waiter_comes() {
    let store = MemoryStore::new();
    let [one, two] = [Process::of(&store), Process::of(&store)];
    let guard = one.acquire().await;
    let mut waiters = one.wait(1).await;
    let mut others = two.wait(2).await;
    waiters.extend(one.wait(6).await);
    assert_eq!(one.lock.status().await.unwrap().waiting, 2);
    guard.release().await.unwrap();
    // The rest of the first tenure, and the second one, which was before that of the other process.
    let mut last = 0;
    for _ in 0..7 {
        assert!(others.iter().all(|other| !other.is_finished()));
        let guard = turn(&mut waiters).await;
        assert!(fence(&guard) > last);
        last = fence(&guard);
        guard.release().await.unwrap();
    }
    for _ in 0..2 {
        let guard = turn(&mut others).await;
        assert!(fence(&guard) > last);
        last = fence(&guard);
        guard.release().await.unwrap();
    }
    one.is_left_clean().await;
    two.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn other_processes_wait_for_no_more_turns_than_allowed() {
    let store = MemoryStore::new();
    let [one, two] = [Process::of(&store), Process::of(&store)];
    let guard = one.acquire().await;
    let mut others = two.wait(1).await;
    let mut waiters = one.wait(5).await;
    guard.release().await.unwrap();
    for _ in 1..TURNS {
        assert!(!others[0].is_finished());
        drop(turn(&mut waiters).await);
    }
    let guard = turn(&mut others).await;
    assert!(!waiters[0].is_finished());
    guard.release().await.unwrap();
    drop(turn(&mut waiters).await);
    drop(turn(&mut waiters).await);
    one.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn no_turn_begins_later_than_10_ms_after_the_grant() {
    let store = MemoryStore::new();
    let [one, two] = [Process::of(&store), Process::of(&store)];
    let guard = one.acquire().await;
    let mut others = two.wait(1).await;
    let mut waiters = one.wait(2).await;
    advance(9 * MS).await;
    guard.release().await.unwrap();
    let guard = turn(&mut waiters).await;
    advance(MS).await;
    guard.release().await.unwrap();
    drop(turn(&mut others).await);
    drop(turn(&mut waiters).await);
}

#[tokio::test(start_paused = true)]
async fn process_with_one_turn_at_a_time_goes_side_by_side_with_tenures() {
    let store = MemoryStore::new();
    let [one, two] = [Process::of(&store), Process::with(&store, 1)];
    let guard = one.acquire().await;
    let mut others = two.wait(2).await;
    let mut waiters = one.wait(4).await;
    drop(guard);
    for _ in 1..TURNS {
        drop(turn(&mut waiters).await);
    }
    for _ in 0..2 {
        let guard = turn(&mut others).await;
        assert!(!waiters[0].is_finished());
        drop(guard);
    }
    drop(turn(&mut waiters).await);
    assert_eq!(two.locks.stats().local_handoffs, 0);
    one.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn locks_with_other_terms_go_their_own_way() {
    let process = Process::of(&MemoryStore::new());
    let lock = || process.lock.clone();
    let owner = crate::Owner::new();
    // With the number of local queues while both wait.
    let others = [
        (lock().owner(&owner), 1),
        (lock().lease(1000 * MS).auto_renew(false), 1),
        (lock().max_hold(1000 * MS), 1),
        (lock().local_handoffs(1), 1),
        (lock().lease(1000 * MS), 2),
        (lock().local_handoffs(TURNS + 1), 2),
    ];
    for (other, queues) in others {
        let guard = process.acquire().await;
        let mut waiter = process.wait(1).await;
        let other = tokio::spawn(other.acquire());
        settle().await;
        assert_eq!(process.queues().len(), queues);
        assert!(guard.release().await.is_ok());
        drop(turn(&mut waiter).await);
        settle().await;
        assert!(other.is_finished());
        drop(other.await.unwrap().unwrap());
        process.is_left_clean().await;
    }
    let owned = lock().owner(&owner).acquire().await.unwrap();
    assert_eq!(owned.owner(), &owner);
}

/// The lease is the tenure's, and goes on when the turn is over.
#[tokio::test(start_paused = true)]
async fn a_token_ends_with_its_turn_and_not_with_the_tenure() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let mut waiters = process.wait(1).await;
    let token = guard.token();
    assert!(token.check().is_ok());
    drop(guard);
    let next = turn(&mut waiters).await;
    assert_eq!(fence(&next), token.fence().get() + 1, "it was passed on");
    assert!(matches!(token.check(), Err(Error::Lost(lost)) if lost.reason == HoldEnd::Released));
    assert_eq!(token.lost().await, HoldEnd::Released);
    let late = token.run(async { panic!("begun after the turn") }).await;
    assert!(late.is_err());
    assert!(next.token().check().is_ok());
    drop(next);
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_try_never_overtakes_and_makes_no_call_while_the_lock_is_wanted_here() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.lock.try_acquire().await.unwrap();
    let mut waiters = process.wait(2).await;
    let calls = process.seen.acquires();
    let Err(Error::Busy { ttl, waiting, .. }) = process.lock.try_acquire().await else {
        panic!("the lock is held");
    };
    assert_eq!(waiting, 2);
    assert!(ttl > 20_000 * MS, "{ttl:?}");
    let error = process.lock.acquire_timeout(Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(process.seen.acquires(), calls);
    // A guard of a try hands over like any other.
    let first = fence(&guard);
    guard.release().await.unwrap();
    let guard = turn(&mut waiters).await;
    assert_eq!(fence(&guard), first + 1);
    drop(guard);
    drop(turn(&mut waiters).await);
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_try_that_finds_nobody_here_asks_the_server() {
    let store = MemoryStore::new();
    let [one, two] = [Process::of(&store), Process::of(&store)];
    let guard = one.acquire().await;
    assert!(matches!(two.lock.try_acquire().await, Err(Error::Busy { .. })));
    drop(guard);
    settle().await;
    assert!(two.lock.try_acquire().await.is_ok());
    two.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_the_local_queue_ends_at_its_bound_and_costs_no_call_of_its_own() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let mut calls = None;
    for _ in 0..10 {
        let error = process.lock.acquire_timeout(50 * MS).await.unwrap_err();
        let Error::Timeout { waited, ttl, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(waited, 50 * MS);
        assert!(ttl > 20_000 * MS, "{ttl:?}");
        // The first one had the next tenure asked for, and the others find it so.
        assert_eq!(
            *calls.get_or_insert(process.seen.acquires()),
            process.seen.acquires()
        );
    }
    assert!(process.seen.withdrawn().is_empty());
    assert_eq!(process.locks.stats().timed_out, 10);
    drop(guard);
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn next_tenure_has_a_larger_fence_than_all_turns_of_the_last_one() {
    let process = Process::with(&MemoryStore::new(), 1000);
    let guard = process.acquire().await;
    let mut waiters = process.wait(100).await;
    drop(guard);
    let mut last = 0;
    while !waiters.is_empty() {
        let guard = turn(&mut waiters).await;
        last = fence(&guard);
        guard.release().await.unwrap();
    }
    process.is_left_clean().await;
    assert!(fence(&process.acquire().await) > last);
}

#[tokio::test(start_paused = true)]
async fn the_guard_of_a_turn_behaves_as_any_other() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let mut waiters = process.wait(2).await;
    let first = guard.lost();
    guard.release().await.unwrap();
    assert_eq!(first.await, HoldEnd::Released);

    let guard = turn(&mut waiters).await;
    assert_eq!(guard.name(), "a");
    assert_eq!(
        guard.owner(),
        &process.lock.status().await.unwrap().holder.unwrap().owner
    );
    assert_eq!(guard.lease().state, LeaseState::Held);
    assert!(!guard.is_lost() && guard.check().is_ok());
    assert_eq!(guard.renew().await.unwrap().length, 30_000 * MS);
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
    let mut second = Box::pin(guard.lost());
    assert!(second.as_mut().now_or_never().is_none());
    drop(guard);
    assert_eq!(second.await, HoldEnd::Released);
    let counters = process.locks.place().counters();
    assert_eq!(counters.holds_ended(GuardEnd::Dropped), 1);

    // The last turn is released to the server.
    let guard = turn(&mut waiters).await;
    let third = guard.lost();
    guard.release().await.unwrap();
    assert_eq!(third.await, HoldEnd::Released);
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn max_waiters_counts_those_that_wait_locally() {
    let options = ManagerOptions {
        local_handoffs: TURNS,
        max_waiters: 2,
        ..ManagerOptions::default()
    };
    let store = MemoryStore::new();
    let (locks, _) = scripted_store::client_with(options, &store, &[]);
    let guard = locks.lock("a").acquire().await.unwrap();
    let waits = [(); 2].map(|()| tokio::spawn(locks.lock("a").acquire()));
    settle().await;
    assert_eq!(locks.stats().waiting, 2);
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert!(
        matches!(error, Error::QueueFull { max_waiters: 2, .. }),
        "{error}"
    );
    drop(guard);
    for wait in waits {
        drop(wait.await.unwrap().unwrap());
    }
}

/// Race: A server loses a lock, and grants it again, while the former holder passes turns on.
#[tokio::test(start_paused = true)]
async fn no_turn_has_a_fence_of_a_hold_that_began_after_the_lock_was_lost() {
    let store = MemoryStore::new();
    let processes = [(); 4].map(|()| Process::with(&store, 1000));
    let (mut last, mut held) = (0, Vec::new());
    for process in &processes {
        let mut guard = process.acquire().await;
        assert!(fence(&guard) > last, "{} after {last}", fence(&guard));
        let mut waiters = process.wait(8).await;
        while !waiters.is_empty() {
            drop(guard);
            guard = turn(&mut waiters).await;
        }
        last = fence(&guard);
        held.push(guard);
        store.flush();
    }
}
