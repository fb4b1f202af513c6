//! Calls that are dropped halfway leave nothing behind, and hold up no other caller.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::task::Poll;
use std::time::Duration;

use fairlock::spin::SpinLock;
use fairlock::{Lock, LockManager, LockSet};
use fairlock_testkit::eventually;
use futures_util::FutureExt;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use crate::backend::{
    Backend, in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, on_each_backend_in_parallel,
    with_local_handoffs,
};

on_each_backend! {
    an_acquire_dropped_at_any_poll_leaves_no_holder,
    a_try_dropped_at_any_poll_leaves_no_holder,
    a_wait_dropped_at_any_poll_leaves_no_queue_entry,
    a_bounded_wait_dropped_at_any_poll_leaves_no_queue_entry,
    a_wait_dropped_at_any_poll_of_its_grant_passes_the_lock_on,
    unread_grant_goes_to_the_next_waiter,
    a_release_dropped_at_any_poll_ends_released,
    a_task_that_drops_its_guard_finds_the_lock_free,
    a_task_that_drops_its_waits_and_its_guard_finds_the_lock_free,
    with_dropped_midway_drops_the_work_and_releases,
    a_wait_that_is_dropped_loses_its_place,
}

// Not here: tests that count the requests on the server, where each process waits once, or that need one
// order over all processes.
with_local_handoffs! {
    an_acquire_dropped_at_any_poll_leaves_no_holder,
    a_try_dropped_at_any_poll_leaves_no_holder,
    a_wait_dropped_at_any_poll_leaves_no_queue_entry,
    a_bounded_wait_dropped_at_any_poll_leaves_no_queue_entry,
    a_wait_dropped_at_any_poll_of_its_grant_passes_the_lock_on,
    unread_grant_goes_to_the_next_waiter,
    a_release_dropped_at_any_poll_ends_released,
    a_task_that_drops_its_guard_finds_the_lock_free,
    a_task_that_drops_its_waits_and_its_guard_finds_the_lock_free,
    with_dropped_midway_drops_the_work_and_releases,
}

in_a_quorum! {
    an_acquire_dropped_at_any_poll_leaves_no_holder,
    a_try_dropped_at_any_poll_leaves_no_holder,
    a_wait_dropped_at_any_poll_leaves_no_queue_entry,
    a_bounded_wait_dropped_at_any_poll_leaves_no_queue_entry,
    a_wait_dropped_at_any_poll_of_its_grant_passes_the_lock_on,
    unread_grant_goes_to_the_next_waiter,
    a_release_dropped_at_any_poll_ends_released,
    a_task_that_drops_its_guard_finds_the_lock_free,
    a_task_that_drops_its_waits_and_its_guard_finds_the_lock_free,
    with_dropped_midway_drops_the_work_and_releases,
    a_wait_that_is_dropped_loses_its_place,
}

local_handoffs_in_a_quorum! {
    an_acquire_dropped_at_any_poll_leaves_no_holder,
    a_try_dropped_at_any_poll_leaves_no_holder,
    a_wait_dropped_at_any_poll_leaves_no_queue_entry,
    a_bounded_wait_dropped_at_any_poll_leaves_no_queue_entry,
    a_wait_dropped_at_any_poll_of_its_grant_passes_the_lock_on,
    unread_grant_goes_to_the_next_waiter,
    a_release_dropped_at_any_poll_ends_released,
    a_task_that_drops_its_waits_and_its_guard_finds_the_lock_free,
    a_task_that_drops_its_guard_finds_the_lock_free,
    with_dropped_midway_drops_the_work_and_releases,
}

on_each_backend_in_parallel! {
    a_guard_dropped_by_another_thread_leaves_the_lock_free,
    guards_dropped_while_their_runtime_ends_or_later_do_no_harm,
    waits_dropped_at_the_moment_of_a_release_leave_the_lock_to_others,
    a_guard_dropped_outside_a_runtime_is_released,
    a_wait_dropped_outside_a_runtime_leaves_nothing,
    a_call_polled_outside_a_runtime_panics_and_leaves_nothing,
    a_manager_closed_outside_a_runtime_is_closed_without_a_wait,
}

/// Much shorter than a lease, a claim window or a waitlist's timer, so a test that had to wait for one of
/// those fails.
const SOON: Duration = Duration::from_millis(1500);
/// A future that is not polled for this long is not polled again.
const QUIET: Duration = Duration::from_millis(60);

#[derive(Debug)]
enum Ended<T> {
    Finished(T),
    Dropped,
    /// The future was polled fewer times than requested.
    Quiet,
}

/// Drops a future right after its `last` poll.
async fn dropped_at_poll<F: Future>(last: usize, future: F) -> Ended<F::Output> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    let polled = poll_fn(|context| {
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Ended::Finished(output)),
            Poll::Pending if polls == last => Poll::Ready(Ended::Dropped),
            Poll::Pending => Poll::Pending,
        }
    });
    timeout(QUIET, polled).await.unwrap_or(Ended::Quiet)
}

/// Checks that the lock can be acquired at once, and leaves it free.
async fn assert_free(client: &LockManager, name: &str) {
    let guard = timeout(SOON, client.lock(name).acquire())
        .await
        .expect("free")
        .unwrap();
    guard.release().await.unwrap();
    let status = client.lock(name).status().await.unwrap();
    assert_eq!((status.holder, status.waiting), (None, 0));
}

async fn assert_queue_empties(lock: &Lock) {
    eventually("an empty queue", SOON, async || {
        lock.status().await.unwrap().waiting == 0
    })
    .await;
}

async fn an_acquire_dropped_at_any_poll_leaves_no_holder(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for poll in 1.. {
        let name = format!("a{poll}");
        let ended = dropped_at_poll(poll, here.lock(&name).acquire()).await;
        let finished = matches!(ended, Ended::Finished(_));
        drop(ended);
        assert_eq!((here.stats().waiting, here.stats().held), (0, 0));
        assert_free(&there, &name).await;
        if finished {
            return;
        }
    }
}

async fn a_try_dropped_at_any_poll_leaves_no_holder(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for poll in 1.. {
        let name = format!("a{poll}");
        let ended = dropped_at_poll(poll, here.lock(&name).try_acquire()).await;
        let finished = matches!(ended, Ended::Finished(_));
        drop(ended);
        assert_free(&there, &name).await;
        if finished {
            return;
        }
    }
}

async fn a_wait_dropped_at_any_poll_leaves_no_queue_entry(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for poll in 1.. {
        let lock = here.lock(format!("a{poll}"));
        let guard = there.lock(lock.name()).acquire().await.unwrap();
        let ended = dropped_at_poll(poll, lock.acquire()).await;
        assert_eq!(here.stats().waiting, 0);
        assert_queue_empties(&lock).await;
        guard.release().await.unwrap();
        assert_free(&there, lock.name()).await;
        match ended {
            Ended::Finished(_) => panic!("two holders at once"),
            Ended::Dropped => {}
            Ended::Quiet => return,
        }
    }
}

async fn a_bounded_wait_dropped_at_any_poll_leaves_no_queue_entry(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for poll in 1.. {
        let lock = here.lock(format!("a{poll}"));
        let guard = there.lock(lock.name()).acquire().await.unwrap();
        let ended = dropped_at_poll(poll, lock.acquire_timeout(QUIET / 2)).await;
        assert_queue_empties(&lock).await;
        guard.release().await.unwrap();
        assert_free(&there, lock.name()).await;
        if let Ended::Finished(ended) = ended {
            assert!(ended.is_err(), "two holders at once");
            return;
        }
    }
}

/// Polls a wait until its request is queued, and then a given number of times after the release.
///
/// Race: A waiter is cancelled as it is granted the lock.
async fn a_wait_dropped_at_any_poll_of_its_grant_passes_the_lock_on(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for poll in 1.. {
        let lock = here.lock(format!("a{poll}"));
        let guard = there.lock(lock.name()).acquire().await.unwrap();
        let mut wait = Box::pin(lock.acquire());
        tokio::select! {
            biased;
            early = &mut wait => panic!("two holders at once: {early:?}"),
            () = backend.queued(&lock, 1, 1) => {}
        }
        let next = tokio::spawn(there.lock(lock.name()).acquire());
        tokio::select! {
            biased;
            early = &mut wait => panic!("two holders at once: {early:?}"),
            () = backend.queued(&lock, 2, 1) => {}
        }
        let (released, ended) = tokio::join!(guard.release(), dropped_at_poll(poll, wait));
        released.unwrap();
        let finished = matches!(ended, Ended::Finished(_));
        drop(ended);
        let next = timeout(SOON, next)
            .await
            .expect("the next waiter is served")
            .unwrap()
            .unwrap();
        next.release().await.unwrap();
        assert_free(&there, lock.name()).await;
        if finished {
            return;
        }
    }
}

/// Race: A waiter is cancelled as it is granted the lock.
async fn unread_grant_goes_to_the_next_waiter(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a");
    let guard = there.lock("a").acquire().await.unwrap();
    let mut wait = Box::pin(lock.acquire());
    tokio::select! {
        biased;
        early = &mut wait => panic!("two holders at once: {early:?}"),
        () = backend.queued(&lock, 1, 1) => {}
    }
    guard.release().await.unwrap();
    let fence = async || lock.status().await.unwrap().holder.map(|holder| holder.fence);
    // The request holds the lock now, but its caller does not know, because its future is not polled. In a
    // quorum it is the future that counts the grants.
    eventually("granted", SOON, async || {
        fence().await.is_some() && (backend.is_a_quorum() || here.stats().held == 1)
    })
    .await;
    let next = tokio::spawn(there.lock("a").acquire());
    backend.queued(&lock, 1, 1).await;
    drop(wait);
    let next = timeout(SOON, next)
        .await
        .expect("the next waiter is served")
        .unwrap()
        .unwrap();
    next.release().await.unwrap();
    assert_eq!(here.stats().held, 0);
    assert_eq!(fence().await, None);
}

async fn a_release_dropped_at_any_poll_ends_released(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for poll in 1.. {
        let name = format!("a{poll}");
        let guard = here.lock(&name).acquire().await.unwrap();
        let lost = guard.lost();
        let ended = dropped_at_poll(poll, guard.release()).await;
        assert!(timeout(SOON, lost).await.is_ok(), "the watcher is notified");
        assert_free(&there, &name).await;
        if let Ended::Finished(released) = ended {
            released.unwrap();
            return;
        }
    }
}

/// Race: A task drops its guard, and takes the lock again.
async fn a_task_that_drops_its_guard_finds_the_lock_free(backend: Backend) {
    let lock = backend.client().await.lock("a");
    for _ in 0..50 {
        drop(lock.acquire().await.unwrap());
        let guard = lock.try_acquire().await;
        drop(guard.expect("the release is written before the try"));
    }
}

/// Race: A task gives up waits, drops its guard, and takes the lock again.
async fn a_task_that_drops_its_waits_and_its_guard_finds_the_lock_free(backend: Backend) {
    let locks = backend.client().await;
    let mut kinds = vec![LockSet::from(locks.lock("a"))];
    if !backend.is_a_quorum() {
        kinds.push(locks.semaphore("a", 4).permits(3).into());
        kinds.push(locks.rw_lock("a").write().into());
    }
    for (lock, waits, polls) in kinds.iter().flat_map(|lock| {
        let cases = [(1, 1), (1, 2), (1, 5), (3, 1), (3, 5), (30, 3)];
        cases.map(|(waits, polls)| (lock, waits, polls))
    }) {
        for _ in 0..5 {
            let guard = lock.acquire().await.unwrap();
            let mut waiting: Vec<_> = (0..waits).map(|_| Box::pin(lock.acquire())).collect();
            for _ in 0..polls {
                for wait in &mut waiting {
                    drop(wait.now_or_never());
                }
                yield_now().await;
            }
            drop(waiting);
            drop(guard);
            let tried = lock.try_acquire().await;
            drop(tried.unwrap_or_else(|error| panic!("{lock:?} after {waits} waits: {error}")));
        }
    }
}

/// Race: A task drops its guard, and takes the lock again.
async fn a_guard_dropped_by_another_thread_leaves_the_lock_free(backend: Backend) {
    let lock = backend.client().await.lock("a");
    for _ in 0..50 {
        let guard = lock.acquire().await.unwrap();
        std::thread::spawn(move || drop(guard)).join().unwrap();
        let guard = lock.try_acquire().await;
        drop(guard.expect("the release is written before the try"));
    }
}

/// Race: A guard is dropped outside of a runtime, or at shutdown.
async fn guards_dropped_while_their_runtime_ends_or_later_do_no_harm(backend: Backend) {
    let (guards, later) = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut guards = runtime.block_on(async {
            let locks = backend.client().await;
            let acquired = (0..200).map(|name| locks.lock(format!("a{name}")).acquire());
            futures_util::future::try_join_all(acquired).await.unwrap()
        });
        let later = guards.split_off(100);
        let dropping = std::thread::spawn(move || {
            for guard in guards {
                drop(guard);
                std::thread::yield_now();
            }
        });
        runtime.shutdown_background();
        (dropping.join(), later)
    })
    .join()
    .unwrap();
    guards.expect("no panic");
    drop(later);
}

async fn with_dropped_midway_drops_the_work_and_releases(backend: Backend) {
    struct Work<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Work<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let (here, there) = (backend.client().await, backend.client().await);
    let dropped = std::sync::atomic::AtomicBool::new(false);
    let lock = here.lock("a");
    let work = lock.with(async |_| {
        let _work = Work(&dropped);
        std::future::pending::<()>().await;
    });
    assert!(timeout(QUIET, work).await.is_err());
    assert!(dropped.load(std::sync::atomic::Ordering::Relaxed));
    assert_free(&there, "a").await;
}

async fn a_wait_that_is_dropped_loses_its_place(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let first = tokio::spawn(there.lock("a").acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    let second = tokio::spawn(there.lock("a").acquire());
    backend.queued(&here.lock("a"), 2, 1).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    eventually("one request in the queue", SOON, async || {
        here.lock("a").status().await.unwrap().waiting == 1
    })
    .await;
    let again = tokio::spawn(there.lock("a").acquire());
    eventually("both waiters wait", SOON, async || there.stats().waiting == 2).await;
    guard.release().await.unwrap();
    let second = timeout(SOON, second)
        .await
        .expect("the turn of this waiter")
        .unwrap()
        .unwrap();
    assert!(!again.is_finished());
    second.release().await.unwrap();
    drop(
        timeout(SOON, again)
            .await
            .expect("the turn of this waiter")
            .unwrap()
            .unwrap(),
    );
}

async fn waits_dropped_at_the_moment_of_a_release_leave_the_lock_to_others(backend: Backend) {
    let clients = backend.clients(3).await;
    for round in 0..60u32 {
        let guard = clients[0].lock("a").acquire().await.unwrap();
        let dropped = tokio::spawn(clients[1].lock("a").acquire());
        backend.queued(&clients[0].lock("a"), 1, 1).await;
        let next = tokio::spawn(clients[2].lock("a").acquire());
        backend.queued(&clients[0].lock("a"), 2, 2).await;
        let released = tokio::spawn(guard.release());
        for _ in 0..round * 3 {
            yield_now().await;
        }
        dropped.abort();
        released.await.unwrap().unwrap();
        // This waiter may still have been served in time.
        drop(dropped.await);
        let next = timeout(SOON, next)
            .await
            .expect("the next waiter is served")
            .unwrap()
            .unwrap();
        next.release().await.unwrap();
    }
    assert_free(&clients[0], "a").await;
}

/// Race: A guard is dropped outside of a runtime, or at shutdown.
async fn a_guard_dropped_outside_a_runtime_is_released(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let guard = timeout(SOON, waiter).await.expect("released").unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(here.stats().held, 0);
}

async fn a_wait_dropped_outside_a_runtime_leaves_nothing(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a");
    let guard = lock.acquire().await.unwrap();
    let mut wait = Box::pin(there.lock("a").acquire());
    tokio::select! {
        early = &mut wait => panic!("two holders at once: {early:?}"),
        () = backend.queued(&lock, 1, 1) => {}
    }
    std::thread::spawn(move || drop(wait)).join().unwrap();
    assert_queue_empties(&lock).await;
    guard.release().await.unwrap();
    assert_free(&here, "a").await;
    std::thread::spawn(move || drop(there)).join().unwrap();
}

/// Whether a call panics at its first poll.
fn panics<T>(call: impl Future<Output = T>) -> bool {
    std::panic::catch_unwind(AssertUnwindSafe(|| call.now_or_never())).is_err()
}

/// Race: A call is polled outside of a runtime.
async fn a_call_polled_outside_a_runtime_panics_and_leaves_nothing(backend: Backend) {
    let locks = backend.client().await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let there = locks.clone();
    let outside = std::thread::spawn(move || {
        let lock = there.lock("b");
        assert!(panics(lock.acquire()));
        assert!(panics(lock.acquire_timeout(SOON)));
        assert!(panics(lock.try_acquire()));
        assert!(panics(lock.status()));
        assert!(panics(lock.force_release(guard.fence())));
        assert!(panics(lock.with(async |_| ())));
        assert!(panics(there.ping()));
        assert!(panics(SpinLock::new(&there, "b").try_lock(SOON, SOON)));
        assert!(panics(SpinLock::new(&there, "b").unlock()));
        assert!(panics(guard.run(async {})));
        assert!(panics(guard.renew()));
        assert!(panics(guard.token().run(async {})));
        assert!(panics(there.leadership("b").run(async |_| ())));
        assert!(panics(lock.watch(SOON).next()));
        assert!(guard.check().is_ok());
        assert!(panics(guard.release()));
    });
    outside.join().unwrap();
    assert_free(&locks, "a").await;
    assert_free(&locks, "b").await;
}

async fn a_manager_closed_outside_a_runtime_is_closed_without_a_wait(backend: Backend) {
    let locks = backend.client().await;
    let (guard, dropped) = (locks.lock("a").acquire().await, locks.lock("b").acquire().await);
    let there = locks.clone();
    let outside = std::thread::spawn(move || {
        let guard = guard.unwrap();
        drop(dropped);
        let closed = there.close().now_or_never().expect("no wait");
        assert!(
            closed
                .unwrap_err()
                .to_string()
                .contains(&guard.fence().to_string())
        );
        assert!(there.is_closed());
    });
    outside.join().unwrap();
    let other = backend.client().await;
    assert_free(&other, "a").await;
    assert_free(&other, "b").await;
}

mod on_a_real_server {
    use super::*;

    #[tokio::test]
    async fn dropped_waits_leave_one_subscription_and_a_closed_client_none() {
        let backend = Backend::on_a_server().await;
        let (here, there) = (backend.client().await, backend.client().await);
        let _guard = here.lock("a").acquire().await.unwrap();
        for round in 0..50 {
            let wait = there.lock("a").acquire();
            drop(timeout(Duration::from_millis(round % 4), wait).await);
        }
        assert_queue_empties(&here.lock("a")).await;
        assert!(
            backend.subscriptions().await <= 1,
            "one subscription is kept for the next waiter"
        );
        there.close().await.unwrap();
        eventually("no subscription", SOON, async || {
            backend.subscriptions().await == 0
        })
        .await;
    }

    #[tokio::test]
    async fn number_of_subscriptions_without_a_waiter_is_limited() {
        const LOCKS: usize = 1100;
        let backend = Backend::on_a_server().await;
        let (here, there) = (backend.client().await, backend.client().await);
        let mut guards = Vec::new();
        let mut waits = JoinSet::new();
        for number in 0..LOCKS {
            let name = format!("a{number}");
            guards.push(here.lock(&name).acquire().await.unwrap());
            waits.spawn(there.lock(&name).acquire());
        }
        let subscribed = async || backend.subscriptions().await == LOCKS;
        eventually("all wait", Duration::from_secs(20), subscribed).await;
        waits.shutdown().await;
        assert_eq!(there.stats().waiting, 0);
        let fewer = async || backend.subscriptions().await <= 1000;
        eventually("fewer subscriptions are kept", Duration::from_secs(20), fewer).await;
        sleep(Duration::from_millis(20)).await;
        assert!(backend.subscriptions().await > 500, "some are kept for a while");
    }
}
