//! `at_least`: a lock that was released stays taken for a while.

use std::time::Duration;

use fairlock::{Error, Lock, Owner};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Backend, on_each_backend};
use crate::common::is_busy;

on_each_backend! {
    a_release_keeps_the_lock_taken_until_its_time_is_over,
    a_dropped_guard_keeps_the_lock_taken_too,
    a_pushed_grant_is_kept_too,
    work_that_took_longer_hands_over_at_once,
    the_lease_is_renewed_while_the_work_goes_on,
    a_lock_is_kept_for_longer_than_its_lease,
    a_wait_that_was_given_up_keeps_nothing,
    a_kept_lock_is_shown_and_can_be_taken_by_force,
    waiters_of_a_kept_lock_are_served_in_order,
    a_kept_lock_goes_to_the_next_in_time_when_the_first_gives_up,
    a_lock_with_local_handoffs_is_kept_too,
    work_that_has_failed_leaves_the_lock_to_others_at_once,
    a_guard_keeps_its_lock_from_the_moment_at_which_that_is_asked_for,
    a_guard_refuses_a_time_that_its_lock_must_not_have,
    the_last_guard_of_an_owner_keeps_the_lock_from_the_owner_too,
}

const AT_LEAST: Duration = Duration::from_millis(1500);
const HOUR: Duration = Duration::from_secs(3600);
/// Server times have whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

async fn ttl(lock: &Lock) -> Option<Duration> {
    match lock.try_acquire().await {
        Err(Error::Busy { ttl, .. }) => Some(ttl),
        tried => tried.map(|_| None).unwrap(),
    }
}

/// Checks that the lock, which was asked for at `start`, is kept until the end of `AT_LEAST`, and then free.
async fn kept(backend: &Backend, there: &Lock, start: Instant) {
    let left = ttl(there).await.expect("the lock is taken");
    assert!(left <= AT_LEAST, "{left:?}");
    let next = timeout(AT_LEAST + backend.slack(), there.acquire()).await;
    let _guard = next.expect("free when the time is over").unwrap();
    let took = start.elapsed();
    assert!(took + ROUNDING >= AT_LEAST, "{took:?}");
}

async fn a_release_keeps_the_lock_taken_until_its_time_is_over(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let start = Instant::now();
    let guard = here.lock("a").at_least(AT_LEAST).acquire().await.unwrap();
    guard.release().await.unwrap();
    kept(&backend, &there.lock("a"), start).await;
}

async fn a_dropped_guard_keeps_the_lock_taken_too(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let start = Instant::now();
    drop(here.lock("a").at_least(AT_LEAST).acquire().await.unwrap());
    while here.stats().unconfirmed > 0 {
        sleep(Duration::from_millis(2)).await;
    }
    kept(&backend, &there.lock("a"), start).await;
}

async fn a_pushed_grant_is_kept_too(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let first = there.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(here.lock("a").at_least(AT_LEAST).acquire());
    backend.queued(&there.lock("a"), 1, 1).await;
    let start = Instant::now();
    first.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    guard.release().await.unwrap();
    kept(&backend, &there.lock("a"), start).await;
}

async fn work_that_took_longer_hands_over_at_once(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let at_least = Duration::from_millis(100);
    let guard = here.lock("a").at_least(at_least).acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    backend.queued(&there.lock("a"), 1, 1).await;
    sleep(2 * at_least).await;
    guard.release().await.unwrap();
    let next = timeout(backend.slack(), waiter).await.expect("handed over");
    let _guard = next.unwrap().unwrap();
}

async fn the_lease_is_renewed_while_the_work_goes_on(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = backend.short_lease();
    let lock = here.lock("a").lease(lease).at_least(HOUR);
    let guard = lock.acquire().await.unwrap();
    sleep(2 * lease).await;
    guard.check().unwrap();
    assert!(ttl(&there.lock("a")).await.expect("held") <= lease);
    guard.release().await.unwrap();
    let left = ttl(&there.lock("a")).await.expect("kept");
    let expected = HOUR - 2 * lease;
    assert!(
        left > expected - backend.slack() && left < expected + ROUNDING,
        "{left:?}"
    );
}

async fn a_lock_is_kept_for_longer_than_its_lease(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let month = Duration::from_secs(30 * 24 * 3600);
    let lock = here.lock("a").lease(Duration::from_millis(200)).at_least(month);
    lock.acquire().await.unwrap().release().await.unwrap();
    sleep(Duration::from_millis(400)).await;
    let left = ttl(&there.lock("a")).await.expect("kept");
    assert!(
        left > month - Duration::from_millis(400) - backend.slack(),
        "{left:?}"
    );
}

/// No work has begun when nobody took the guard.
async fn a_wait_that_was_given_up_keeps_nothing(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let first = there.lock("a").acquire().await.unwrap();
    let mut waiter = Box::pin(here.lock("a").at_least(HOUR).acquire());
    let observed = there.lock("a");
    let mut queued = Box::pin(backend.queued(&observed, 1, 1));
    while (&mut queued).now_or_never().is_none() {
        assert!((&mut waiter).now_or_never().is_none());
        sleep(Duration::from_millis(2)).await;
    }
    first.release().await.unwrap();
    // The grant is on its way to the waiter, which never looks.
    sleep(Duration::from_millis(50)).await;
    drop(waiter);
    let next = timeout(backend.slack(), there.lock("a").acquire()).await;
    let _guard = next.expect("the lock is free").unwrap();
}

async fn a_kept_lock_is_shown_and_can_be_taken_by_force(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").at_least(HOUR).acquire().await.unwrap();
    let fence = guard.fence();
    let holder = there.lock("a").status().await.unwrap().holder.expect("held");
    assert!(!holder.kept);
    guard.release().await.unwrap();
    let holder = there.lock("a").status().await.unwrap().holder.expect("kept");
    assert!(holder.kept);
    assert_eq!((holder.fence, holder.holds), (fence, 1));
    let ttl = holder.ttl;
    assert!(ttl > HOUR - backend.slack() && ttl <= HOUR, "{ttl:?}");
    let waiter = tokio::spawn(here.lock("a").acquire());
    backend.queued(&there.lock("a"), 1, 1).await;
    assert!(there.lock("a").force_release(fence).await.unwrap());
    let next = timeout(backend.slack(), waiter).await.expect("handed over");
    assert!(next.unwrap().unwrap().fence() > fence);
}

/// The waiters know only when the lease was to end, until they are told that it is over sooner.
async fn waiters_of_a_kept_lock_are_served_in_order(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").at_least(AT_LEAST).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for n in 1..=3 {
        waiters.push(tokio::spawn(there.lock("a").acquire()));
        backend.queued(&here.lock("a"), n, 1).await;
    }
    let released = Instant::now();
    guard.release().await.unwrap();
    let mut last = None;
    for waiter in waiters {
        let next = timeout(AT_LEAST + backend.slack(), waiter).await;
        let next = next.expect("served when the time is over").unwrap().unwrap();
        assert!(last < Some(next.fence()));
        last = Some(next.fence());
        next.release().await.unwrap();
    }
    let took = released.elapsed();
    assert!(took < AT_LEAST + backend.slack(), "{took:?}");
}

async fn a_kept_lock_goes_to_the_next_in_time_when_the_first_gives_up(backend: Backend) {
    let [here, there, gone] = [
        backend.client().await,
        backend.client().await,
        backend.client().await,
    ];
    let (lock, patient) = (here.lock("a"), there.lock("a"));
    let start = Instant::now();
    let guard = lock.clone().at_least(AT_LEAST).acquire().await.unwrap();
    let first = tokio::spawn(gone.lock("a").acquire());
    backend.queued(&lock, 1, 1).await;
    let next = tokio::spawn(patient.acquire());
    backend.queued(&lock, 2, 2).await;
    guard.release().await.unwrap();
    first.abort();
    let next = timeout(AT_LEAST + backend.slack(), next).await;
    let _guard = next.expect("free when the time is over").unwrap().unwrap();
    let took = start.elapsed();
    assert!(took + ROUNDING >= AT_LEAST, "{took:?}");
}

async fn a_lock_with_local_handoffs_is_kept_too(backend: Backend) {
    let here = backend.client().await;
    let start = Instant::now();
    let lock = here.lock("a").local_handoffs(64).at_least(AT_LEAST);
    let guard = lock.acquire().await.unwrap();
    let next = tokio::spawn(lock.acquire());
    backend.queued(&lock, 1, 1).await;
    guard.release().await.unwrap();
    let next = timeout(AT_LEAST + backend.slack(), next).await.expect("free");
    let _guard = next.unwrap().unwrap();
    let took = start.elapsed();
    assert!(took + ROUNDING >= AT_LEAST, "{took:?}");
}

async fn work_that_has_failed_leaves_the_lock_to_others_at_once(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a").at_least(HOUR).acquire().await.unwrap();
    let permit = here.semaphore("a", 1).at_least(HOUR).acquire().await.unwrap();
    for guard in [lock, permit.into()] {
        guard.at_least(None).unwrap();
        guard.release().await.unwrap();
    }
    assert!(!is_busy(&there.lock("a")).await && !is_busy(&there.semaphore("a", 1)).await);
}

async fn a_guard_keeps_its_lock_from_the_moment_at_which_that_is_asked_for(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    sleep(AT_LEAST / 2).await;
    guard.at_least(HOUR).unwrap();
    let start = Instant::now();
    guard.at_least(AT_LEAST).unwrap();
    guard.release().await.unwrap();
    kept(&backend, &there.lock("a"), start).await;
}

async fn a_guard_refuses_a_time_that_its_lock_must_not_have(backend: Backend) {
    let locks = backend.client().await;
    let second = Duration::from_secs(1);
    let cases = [
        (locks.lock("a"), Duration::ZERO, "from 1ms"),
        (locks.lock("a").max_hold(second), 2 * second, "max_hold, 1s"),
        (
            locks.lock("a").lease(second).auto_renew(false),
            2 * second,
            "lease, 1s",
        ),
        (locks.lock("a").local_handoffs(64), second, "local hand-off"),
    ];
    for (lock, at_least, why) in cases {
        let guard = lock.acquire().await.unwrap();
        let Err(Error::Invalid(refused)) = guard.at_least(at_least) else {
            panic!("{lock:?} with {at_least:?}");
        };
        assert!(refused.to_string().contains(why), "{refused}");
        guard.at_least(None).unwrap();
        guard.release().await.unwrap();
    }
    let kept = ttl(&locks.lock("a")).await;
    assert_eq!(kept, None, "none was kept");
}

async fn the_last_guard_of_an_owner_keeps_the_lock_from_the_owner_too(backend: Backend) {
    let here = backend.client().await;
    let lock = here.lock("a").owner(&Owner::new()).at_least(HOUR);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    inner.release().await.unwrap();
    let again = lock.try_acquire().await.expect("held by the owner");
    again.release().await.unwrap();
    outer.release().await.unwrap();
    let left = ttl(&lock).await.expect("kept");
    assert!(left > HOUR - backend.slack(), "{left:?}");
}
