//! What becomes of the local queue when waits, tenures and processes end before their time.

use super::*;
use crate::tests::scripted_store::Fate;
use crate::types::error::ServerError;

type Wait = Pin<Box<dyn Future<Output = Result<LockGuard>> + Send>>;

impl Process {
    /// A wait that is polled by the test alone.
    fn polled(&self) -> Wait {
        let mut wait: Wait = Box::pin(self.lock.acquire());
        assert!(wait.as_mut().now_or_never().is_none());
        wait
    }

    fn tenure(&self) -> TenureParams {
        let queue = self.queues().queues.iter().next().expect("a queue");
        queue.tenure.clone()
    }

    /// Checks that another waiter gets the lock at once.
    async fn passes_on(&self) {
        settle().await;
        let guard = self.lock.acquire_timeout(MS).await.unwrap();
        guard.release().await.unwrap();
        self.is_left_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_after_any_step_leaves_nothing() {
    for steps in 0..40 {
        let store = MemoryStore::new();
        let [one, two] = [Process::of(&store), Process::of(&store)];
        let held = two.acquire().await;
        let waits = [one.polled(), one.polled()];
        for _ in 0..steps {
            yield_now().await;
        }
        drop(waits);
        settle().await;
        assert_eq!(two.lock.status().await.unwrap().waiting, 0, "{steps}");
        drop(held);
        one.passes_on().await;
        two.passes_on().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_while_its_waiter_goes_passes_on() {
    for steps in 0..40 {
        let store = MemoryStore::new();
        let [one, two] = [Process::of(&store), Process::of(&store)];
        let held = two.acquire().await;
        let waits = [one.polled(), one.polled()];
        settle().await;
        let mut others = two.wait(1).await;
        drop(held);
        for _ in 0..steps {
            yield_now().await;
        }
        drop(waits);
        drop(turn(&mut others).await);
        one.passes_on().await;
    }
}

/// Race: A tenure is taken away by force, and the next one of the same process begins before its guard knows.
#[tokio::test(start_paused = true)]
async fn a_tenure_that_was_taken_away_passes_no_turn_on_beside_the_next_one() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let mut waiters = process.wait(2).await;
    assert!(process.lock.force_release(guard.fence()).await.unwrap());
    let next = turn(&mut waiters).await;
    drop(guard);
    settle().await;
    assert!(!waiters[0].is_finished(), "two of one process hold");
    drop(next);
    drop(turn(&mut waiters).await);
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_nobody_reads_passes_on() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let first = fence(&guard);
    let unread = [process.polled(), process.polled()];
    let mut waiters = process.wait(1).await;
    drop(guard);
    settle().await;
    assert!(!waiters[0].is_finished());
    drop(unread);
    // Each of them had a fence, which nobody else gets.
    let guard = turn(&mut waiters).await;
    assert_eq!(fence(&guard), first + 3);
    drop(guard);
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_tenure_that_nobody_waits_for_any_more_is_given_up() {
    let store = MemoryStore::new();
    let [one, two] = [Process::of(&store), Process::of(&store)];
    let held = two.acquire().await;
    let waiters = one.wait(3).await;
    assert_eq!(two.lock.status().await.unwrap().waiting, 1);
    for (left, waiter) in waiters.into_iter().enumerate().rev() {
        waiter.abort();
        settle().await;
        assert_eq!(two.lock.status().await.unwrap().waiting, u64::from(left > 0));
    }
    drop(held);
    one.is_left_clean().await;

    // The last waiter of a tenure that has begun leaves. The next tenure is given up at its end.
    let guard = one.acquire().await;
    let waiters = one.wait(1).await;
    waiters[0].abort();
    settle().await;
    drop(guard);
    one.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_passed_on_outside_of_a_runtime() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let mut waiters = process.wait(2).await;
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let guard = turn(&mut waiters).await;
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let guard = turn(&mut waiters).await;
    std::thread::spawn(move || drop(guard)).join().unwrap();
    process.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn guard_is_told_of_a_lost_tenure_and_the_waiters_wait_on() {
    let store = MemoryStore::new();
    let [one, two] = [Process::of(&store), Process::of(&store)];
    let guard = one.acquire().await;
    let mut waiters = one.wait(2).await;
    drop(guard);
    let guard = turn(&mut waiters).await;
    let taken = two.lock.status().await.unwrap().holder.unwrap().fence;
    one.seen.swallow_renewals();
    let lost = guard.lost().await;
    assert_eq!(lost, HoldEnd::Expired);
    sleep(100 * MS).await;
    // The lease ran out on the server too, and the next tenure has begun.
    let next = turn(&mut waiters).await;
    assert!(next.check().is_ok());
    assert!(fence(&next) >= taken.get() + u64::from(TURNS), "{next:?}");
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    next.release().await.unwrap();
    one.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn taken_by_force_a_tenure_ends_with_all_of_its_turns() {
    let store = MemoryStore::new();
    let [one, two] = [Process::of(&store), Process::of(&store)];
    let guard = one.acquire().await;
    let mut waiters = one.wait(1).await;
    let mut others = two.wait(1).await;
    drop(guard);
    let guard = turn(&mut waiters).await;
    let seen = two.lock.status().await.unwrap().holder.unwrap();
    assert!(seen.fence < guard.fence());
    assert!(two.lock.force_release(seen.fence).await.unwrap());
    settle().await;
    let next = loop {
        settle().await;
        if others[0].is_finished() {
            break turn(&mut others).await;
        }
        // The next tenure of the first process was before it, and nobody waits for that.
        sleep(MS).await;
    };
    assert!(fence(&next) >= seen.fence.get() + u64::from(TURNS));
    assert!(guard.renew().await.is_err());
    drop((guard, next));
    one.is_left_clean().await;
}

#[tokio::test(start_paused = true)]
async fn close_ends_the_waits_and_passes_no_turn_on() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let waits = [(); 2].map(|()| tokio::spawn(process.lock.acquire()));
    settle().await;
    let unreleased = process.locks.close().await.unwrap_err();
    assert_eq!(unreleased.held, [("a".into(), guard.fence())]);
    guard.release().await.unwrap();
    for wait in waits {
        let outcome = wait.await.unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    assert_eq!(process.queues().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_ends_as_the_client_closes_goes_to_nobody() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let wait = tokio::spawn(process.lock.acquire());
    settle().await;
    // The waiter has not been told yet.
    let mut close = Box::pin(process.locks.close());
    drop(close.as_mut().now_or_never());
    drop(guard);
    let outcome = wait.await.unwrap();
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn close_names_the_turns_still_held_with_their_fences() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let mut waiters = process.wait(1).await;
    drop(guard);
    let guard = turn(&mut waiters).await;
    let unreleased = process.locks.close().await.unwrap_err();
    assert_eq!(unreleased.held, [("a".into(), guard.fence())]);
}

#[test]
fn waiters_of_a_runtime_that_lives_on_are_told_that_that_of_the_tenures_is_gone() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let store = MemoryStore::new();
    let tenures = runtime();
    let process = tenures.block_on(async { Process::of(&store) });
    let guard = tenures.block_on(process.acquire());
    let lives_on = runtime();
    let wait = lives_on.spawn(process.lock.acquire());
    lives_on.block_on(settle());
    drop(tenures);
    drop(guard);
    let outcome = lives_on.block_on(wait).unwrap();
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn server_that_does_not_answer_is_reported_to_all_that_wait_here_at_once() {
    let start = Instant::now();
    let store = MemoryStore::new();
    let process = Process::of(&store);
    process.seen.lose_calls(u32::MAX);
    let waits = [(); 3].map(|()| tokio::spawn(process.lock.acquire()));
    for wait in waits {
        let outcome = wait.await.unwrap();
        assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    }
    // One server_timeout, and not one for each.
    assert!(start.elapsed() < 15_000 * MS, "{:?}", start.elapsed());
    process.seen.lose_calls(0);
    process.passes_on().await;
}

#[tokio::test(start_paused = true)]
async fn grant_that_is_not_confirmed_costs_one_waiter_its_turn() {
    let process = Process::of(&MemoryStore::new());
    let guard = process.acquire().await;
    let mut waits: Vec<_> = (0..2).map(|_| process.polled()).collect();
    let (place, _) = process.queues().with(&process.tenure(), LocalQueue::join);
    let not_replicated = Error::NotReplicated {
        name: "a".into(),
        wanted: 1,
        got: 0,
    };
    place.queue.fail(&not_replicated);
    let outcome = waits.remove(0).await;
    assert!(matches!(outcome, Err(Error::NotReplicated { .. })), "{outcome:?}");
    let refused = Error::Refused(ServerError::new("as scripted"));
    assert!(waits[0].as_mut().now_or_never().is_none());
    place.queue.fail(&refused);
    let outcome = waits.remove(0).await;
    assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
    drop((guard, place));
    process.passes_on().await;
}

#[tokio::test(start_paused = true)]
async fn release_whose_reply_is_lost_tells_the_last_fence_all_the_same() {
    let store = MemoryStore::new();
    let options = ManagerOptions {
        local_handoffs: TURNS,
        ..ManagerOptions::default()
    };
    let (locks, _) = scripted_store::client_with(options, &store, &[Fate::ReplyLost]);
    let lock = locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    let waiter = tokio::spawn(lock.acquire());
    settle().await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let last = fence(&guard);
    guard.release().await.unwrap();
    assert!(fence(&lock.acquire().await.unwrap()) > last);
}
