//! Waiting for a lock: when a wait ends, and what is left afterwards.

use std::time::Duration;

use fairlock::{Error, HoldEnd, LockGuard, LockManager, Result};
use fairlock_testkit::eventually;
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{
    Backend, in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, with_local_handoffs,
};

on_each_backend! {
    a_release_wakes_the_waiter,
    a_dropped_guard_wakes_the_waiter,
    a_wait_of_a_client_behind_itself_ends_with_the_release,
    a_lease_that_runs_out_lets_the_waiter_in,
    a_bounded_wait_ends_in_time_and_leaves_nothing,
    a_wait_of_zero_is_one_attempt,
    very_long_bound_counts_as_no_bound,
    a_try_never_waits,
    forced_release_wakes_the_first_waiter_and_repeated_evicts_no_holder,
    a_full_client_refuses_at_once,
    closing_ends_waits_and_calls,
    closing_leaves_live_guards_renewed_and_releasable,
    closing_sends_the_releases_of_dropped_guards,
    the_last_clone_closes_the_manager,
    status_shows_holder_and_queue,
    stats_count_all_events,
    an_idle_client_answers_a_ping,
}

// Not here: tests that count the requests on the server, where each process waits once, or that need one
// order over all processes.
with_local_handoffs! {
    a_release_wakes_the_waiter,
    a_dropped_guard_wakes_the_waiter,
    a_wait_of_a_client_behind_itself_ends_with_the_release,
    a_lease_that_runs_out_lets_the_waiter_in,
    a_bounded_wait_ends_in_time_and_leaves_nothing,
    a_wait_of_zero_is_one_attempt,
    very_long_bound_counts_as_no_bound,
    forced_release_wakes_the_first_waiter_and_repeated_evicts_no_holder,
    closing_leaves_live_guards_renewed_and_releasable,
    closing_sends_the_releases_of_dropped_guards,
    the_last_clone_closes_the_manager,
    stats_count_all_events,
    an_idle_client_answers_a_ping,
}

in_a_quorum! {
    a_release_wakes_the_waiter,
    a_dropped_guard_wakes_the_waiter,
    a_wait_of_a_client_behind_itself_ends_with_the_release,
    a_lease_that_runs_out_lets_the_waiter_in,
    a_bounded_wait_ends_in_time_and_leaves_nothing,
    a_wait_of_zero_is_one_attempt,
    very_long_bound_counts_as_no_bound,
    a_try_never_waits,
    forced_release_wakes_the_first_waiter_and_repeated_evicts_no_holder,
    a_full_client_refuses_at_once,
    closing_ends_waits_and_calls,
    closing_leaves_live_guards_renewed_and_releasable,
    closing_sends_the_releases_of_dropped_guards,
    the_last_clone_closes_the_manager,
    status_shows_holder_and_queue,
    stats_count_all_events,
    an_idle_client_answers_a_ping,
}

local_handoffs_in_a_quorum! {
    a_release_wakes_the_waiter,
    a_dropped_guard_wakes_the_waiter,
    a_wait_of_a_client_behind_itself_ends_with_the_release,
    a_lease_that_runs_out_lets_the_waiter_in,
    a_bounded_wait_ends_in_time_and_leaves_nothing,
    a_wait_of_zero_is_one_attempt,
    very_long_bound_counts_as_no_bound,
    forced_release_wakes_the_first_waiter_and_repeated_evicts_no_holder,
    closing_leaves_live_guards_renewed_and_releasable,
    closing_sends_the_releases_of_dropped_guards,
    the_last_clone_closes_the_manager,
    stats_count_all_events,
    an_idle_client_answers_a_ping,
}

/// The longest time in which a waiter must hear of a release. It is far shorter than any timer, which would
/// hide a lost message.
const SOON: Duration = Duration::from_millis(1500);
const LONG: Duration = Duration::from_secs(30);

/// Returns the guard of a waiter that must wake up now.
async fn woken(waiter: JoinHandle<Result<LockGuard>>) -> LockGuard {
    timeout(SOON, waiter).await.expect("woken").unwrap().unwrap()
}

async fn a_release_wakes_the_waiter(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    assert!(!waiter.is_finished());
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = woken(waiter).await;
    assert!(next.fence() > fence);
    next.release().await.unwrap();
}

async fn a_dropped_guard_wakes_the_waiter(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    drop(guard);
    drop(woken(waiter).await);
}

async fn a_wait_of_a_client_behind_itself_ends_with_the_release(backend: Backend) {
    let client = backend.client().await;
    let guard = client.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(client.lock("a").acquire());
    backend.queued(&client.lock("a"), 1, 1).await;
    guard.release().await.unwrap();
    drop(woken(waiter).await);
}

async fn a_lease_that_runs_out_lets_the_waiter_in(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = Duration::from_millis(400);
    // This is taken before the lease begins, so the time of the reply does not matter.
    let start = Instant::now();
    let _guard = here
        .lock("a")
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    let next = timeout(LONG, there.lock("a").acquire())
        .await
        .expect("free")
        .unwrap();
    let waited = start.elapsed();
    // In a quorum, the holder releases what is left of its votes at its local deadline, a little earlier.
    assert!(waited >= lease - Duration::from_millis(10), "{waited:?}");
    assert!(waited < lease + backend.slack(), "{waited:?}");
    next.release().await.unwrap();
}

async fn a_bounded_wait_ends_in_time_and_leaves_nothing(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let _guard = here.lock("a").acquire().await.unwrap();
    let bound = Duration::from_millis(300);
    let start = Instant::now();
    let ended = there.lock("a").acquire_timeout(bound).await;
    let took = start.elapsed();
    assert!(took >= bound && took < bound + backend.slack(), "{took:?}");
    let Err(error @ Error::Timeout { waited, ttl, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert!(
        waited >= bound && waited <= took + Duration::from_millis(1),
        "{waited:?}"
    );
    // The holder renews long before half of its lease is over.
    assert!(ttl > backend.unrenewed(LONG) / 2 && ttl <= LONG, "{ttl:?}");
    assert!(
        error.is_transient() && error.to_string().contains("\"a\""),
        "{error}"
    );
    let lock = here.lock("a");
    eventually("an empty queue", SOON, async || {
        lock.status().await.unwrap().waiting == 0
    })
    .await;
    assert_eq!(there.stats().waiting, 0);
}

async fn a_wait_of_zero_is_one_attempt(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = there.lock("a").acquire_timeout(Duration::ZERO).await.unwrap();
    let start = Instant::now();
    let ended = here.lock("a").acquire_timeout(Duration::ZERO).await;
    assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
    let ended = here.lock("a").with_timeout(Duration::ZERO, async |_| ()).await;
    assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
    assert!(start.elapsed() < backend.slack());
    guard.release().await.unwrap();
    drop(here.lock("a").acquire_timeout(Duration::ZERO).await.unwrap());
}

async fn very_long_bound_counts_as_no_bound(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire_timeout(Duration::MAX));
    backend.queued(&here.lock("a"), 1, 1).await;
    guard.release().await.unwrap();
    drop(woken(waiter).await);
}

async fn a_try_never_waits(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    for client in [&here, &there] {
        let start = Instant::now();
        let tried = client.lock("a").try_acquire().await;
        assert!(start.elapsed() < backend.slack());
        let Err(Error::Busy { waiting, .. }) = tried else {
            panic!("two holders at once, or {tried:?}");
        };
        assert_eq!(waiting, 1);
    }
    assert_eq!(
        here.lock("a").status().await.unwrap().waiting,
        1,
        "tries do not queue"
    );
    guard.release().await.unwrap();
    drop(woken(waiter).await);
}

/// Race: A forced release is repeated when the next waiter already holds the lock.
async fn forced_release_wakes_the_first_waiter_and_repeated_evicts_no_holder(backend: Backend) {
    let clients = backend.clients(3).await;
    let lock = clients[0].lock("a");
    let guard = lock.acquire().await.unwrap();
    let first = tokio::spawn(clients[1].lock("a").acquire());
    backend.queued(&lock, 1, 1).await;
    let second = tokio::spawn(clients[2].lock("a").acquire());
    backend.queued(&lock, 2, 2).await;

    let seen = lock.status().await.unwrap().holder.unwrap().fence;
    assert_eq!(seen, guard.fence());
    assert!(lock.force_release(seen).await.unwrap());
    let first = woken(first).await;
    assert!(
        !lock.force_release(seen).await.unwrap(),
        "the fence of a former holder"
    );
    assert_eq!(lock.status().await.unwrap().holder.unwrap().fence, first.fence());
    assert!(!second.is_finished());
    let Err(Error::Lost(lost)) = guard.release().await else {
        panic!("released what another holds");
    };
    assert_eq!(lost.reason, HoldEnd::Taken);
    first.release().await.unwrap();
    drop(woken(second).await);
}

async fn a_full_client_refuses_at_once(backend: Backend) {
    let here = backend.client().await;
    let there = backend.client_with(|settings| settings.max_waiters(2)).await;
    let guard = here.lock("a").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=2 {
        waiters.push(tokio::spawn(there.lock("a").acquire()));
        backend.queued(&here.lock("a"), place, 1).await;
    }
    // The call was refused at its first poll, so nothing was sent. The limit counts the waiters of all locks.
    for name in ["a", "b"] {
        let refused = there
            .lock(name)
            .acquire()
            .now_or_never()
            .expect("an answer at once");
        let Err(error @ Error::QueueFull { max_waiters, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(max_waiters, 2);
        assert!(
            error.is_transient() && error.to_string().contains(&format!("{name:?}")),
            "{error}"
        );
    }
    // A call that does not wait does not count.
    assert!(there.lock("b").try_acquire().await.is_ok());
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    there.lock("a").acquire().await.unwrap().release().await.unwrap();
    // `None` means no bound.
    let unbounded = backend.client_with(|settings| settings.max_waiters(None)).await;
    drop(unbounded.lock("a").acquire().await.unwrap());
}

async fn closing_ends_waits_and_calls(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiters = [
        tokio::spawn(there.lock("a").acquire()),
        tokio::spawn(there.lock("a").acquire_timeout(LONG)),
    ];
    backend.queued(&here.lock("a"), 2, 1).await;
    assert!(!there.is_closed());
    // Calls in flight must end first, which can take 2 s (`not_after`).
    sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    there.close().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2) + backend.slack());
    assert!(there.is_closed() && there.clone().is_closed());
    for waiter in waiters {
        let ended = timeout(SOON, waiter).await.expect("told").unwrap();
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    }
    // In a quorum, the slowest server may hear of it a moment later.
    backend.queued(&here.lock("a"), 0, 0).await;

    let lock = there.lock("b");
    let closed = [
        lock.acquire().await.map(drop),
        lock.acquire_timeout(Duration::ZERO).await.map(drop),
        lock.try_acquire().await.map(drop),
        lock.status().await.map(drop),
        lock.force_release(guard.fence()).await.map(drop),
        lock.with(async |_| ()).await,
        there.ping().await,
    ];
    for ended in closed {
        let Err(error) = ended else {
            panic!("a call succeeded after close")
        };
        assert!(matches!(error, Error::Closed), "{error:?}");
        assert!(!error.is_transient());
    }
    there.close().await.unwrap();
    guard.release().await.unwrap();
}

async fn closing_leaves_live_guards_renewed_and_releasable(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = backend.short_lease();
    let guard = here.lock("a").lease(lease).acquire().await.unwrap();
    let other = here.lock("b").acquire().await.unwrap();
    let Err(unreleased) = here.close().await else {
        panic!("two guards exist");
    };
    let mut held = unreleased.held.clone();
    held.sort_unstable();
    assert_eq!(held, [("a".into(), guard.fence()), ("b".into(), other.fence())]);
    assert_eq!(unreleased.unconfirmed, 0);
    assert!(
        unreleased.to_string().contains("2 locks still held"),
        "{unreleased}"
    );

    sleep(lease * 2).await;
    guard.check().unwrap();
    assert!(matches!(
        there.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    guard.release().await.unwrap();
    assert!(there.lock("a").try_acquire().await.is_ok());
    drop(other);
    drop(woken(tokio::spawn(there.lock("b").acquire())).await);
    here.close().await.unwrap();
}

/// Race: A guard is dropped outside of a runtime, or at shutdown.
async fn closing_sends_the_releases_of_dropped_guards(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for name in ["a", "b", "c"] {
        drop(here.lock(name).acquire().await.unwrap());
    }
    here.close().await.unwrap();
    for name in ["a", "b", "c"] {
        assert!(there.lock(name).try_acquire().await.is_ok());
    }
}

async fn the_last_clone_closes_the_manager(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.clone().lock("a");
    drop(here);
    // A lock keeps its manager alive, and so does a call in flight.
    let guard = lock.acquire().await.unwrap();
    drop(lock);
    // A live guard can still be released.
    assert!(matches!(
        there.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    guard.release().await.unwrap();
    assert!(there.lock("a").try_acquire().await.is_ok());
}

#[tokio::test]
async fn what_is_awaited_is_acquired() {
    let locks = LockManager::in_memory();
    let lock = locks.lock("a").lease(Duration::from_secs(5));
    let guard = locks.lock("a").await.unwrap();
    assert!(matches!(lock.try_acquire().await, Err(Error::Busy { .. })));
    guard.release().await.unwrap();
    (&lock).await.unwrap().release().await.unwrap();

    let config = locks.rw_lock("config");
    let writing = config.write().await.unwrap();
    assert!(matches!(
        config.read().try_acquire().await,
        Err(Error::Busy { .. })
    ));
    drop(writing);

    let set = locks.all(["a", "b"]);
    let both = tokio::spawn(set.clone().into_future()).await.unwrap().unwrap();
    assert!(matches!(lock.try_acquire().await, Err(Error::Busy { .. })));
    both.release().await.unwrap();
    tokio::select! {
        both = &set => both.unwrap().release().await.unwrap(),
        () = sleep(LONG) => panic!("the locks are free"),
    }
}

async fn status_shows_holder_and_queue(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = there.lock("a");
    let status = lock.status().await.unwrap();
    assert_eq!((status.holder, status.waiting), (None, 0));

    let lease = Duration::from_secs(20);
    let guard = here.lock("a").lease(lease).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=2 {
        waiters.push(tokio::spawn(lock.acquire()));
        backend.queued(&lock, place, 1).await;
    }
    let status = lock.status().await.unwrap();
    assert_eq!(status.waiting, 2);
    let holder = status.holder.unwrap();
    assert_eq!(
        (&holder.owner, holder.fence, holder.holds),
        (guard.owner(), guard.fence(), 1)
    );
    assert!(
        holder.ttl <= lease && holder.ttl > backend.unrenewed(lease) / 2,
        "{holder:?}"
    );
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    let status = lock.status().await.unwrap();
    assert_eq!((status.holder, status.waiting), (None, 0));
}

async fn stats_count_all_events(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let idle = here.stats();
    assert_eq!((idle.held, idle.waiting, idle.acquired), (0, 0, 0));
    assert_eq!((idle.handed_over, idle.lost_taken, idle.timed_out), (0, 0, 0));

    let guard = here.lock("a").acquire().await.unwrap();
    let other = here.lock("b").try_acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    assert_eq!((here.stats().held, here.stats().acquired), (2, 2));
    assert_eq!((there.stats().waiting, there.stats().acquired), (1, 0));

    guard.release().await.unwrap();
    let handed = waiter.await.unwrap().unwrap();
    let stats = there.stats();
    assert_eq!((stats.held, stats.waiting), (1, 0));
    assert_eq!((stats.acquired, stats.handed_over), (1, 1));
    assert_eq!(here.stats().handed_over, 0);

    drop(other);
    assert_eq!(here.stats().held, 0);

    let bound = Duration::from_millis(20);
    let timed_out = here.lock("a").acquire_timeout(bound).await;
    assert!(matches!(timed_out, Err(Error::Timeout { .. })));
    let timed_out = here.lock("a").acquire_timeout(Duration::ZERO).await;
    assert!(matches!(timed_out, Err(Error::Timeout { .. })));
    assert_eq!((here.stats().timed_out, here.stats().waiting), (2, 0));

    assert!(here.lock("a").force_release(handed.fence()).await.unwrap());
    assert!(handed.renew().await.is_err());
    let stats = there.stats();
    assert_eq!((stats.lost_taken, stats.held), (1, 0));
}

async fn an_idle_client_answers_a_ping(backend: Backend) {
    let client: LockManager = backend.client().await;
    let answered: Result<()> = client.ping().await;
    answered.unwrap();
}
