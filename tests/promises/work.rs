//! Work under a lock: `run` and `with`.

use std::time::Duration;

use fairlock::{Error, HoldEnd};
use fairlock_testkit::eventually;
use tokio::time::timeout;

use crate::backend::{
    Backend, in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, with_local_handoffs,
};
use crate::common::lost;

on_each_backend! {
    work_is_stopped_when_the_lease_is_lost,
    work_that_ends_in_time_returns_its_result,
    with_releases_when_the_work_is_done,
    with_reports_work_that_was_not_covered_by_the_lease,
    dropped_work_leaves_the_lock_held,
}

with_local_handoffs! {
    work_is_stopped_when_the_lease_is_lost,
    work_that_ends_in_time_returns_its_result,
    with_releases_when_the_work_is_done,
    with_reports_work_that_was_not_covered_by_the_lease,
    dropped_work_leaves_the_lock_held,
}

in_a_quorum! {
    work_is_stopped_when_the_lease_is_lost,
    work_that_ends_in_time_returns_its_result,
    with_releases_when_the_work_is_done,
    with_reports_work_that_was_not_covered_by_the_lease,
    dropped_work_leaves_the_lock_held,
}

local_handoffs_in_a_quorum! {
    work_is_stopped_when_the_lease_is_lost,
    work_that_ends_in_time_returns_its_result,
    with_releases_when_the_work_is_done,
    with_reports_work_that_was_not_covered_by_the_lease,
    dropped_work_leaves_the_lock_held,
}

const LONG: Duration = Duration::from_secs(30);

async fn work_is_stopped_when_the_lease_is_lost(backend: Backend) {
    let client = backend.client().await;
    let lock = client
        .lock("a")
        .lease(Duration::from_millis(300))
        .auto_renew(false);
    let guard = lock.acquire().await.unwrap();
    let stopped = timeout(LONG, guard.run(std::future::pending::<()>()))
        .await
        .expect("stopped");
    assert_eq!(lost(stopped).reason, HoldEnd::Expired);
    // Work is not started on a lost lease.
    let begun = guard.run(async { panic!("begun without the lock") }).await;
    assert!(begun.is_err());
    drop(guard);
    let stopped = lock.with(async |_| std::future::pending::<()>().await).await;
    assert!(matches!(stopped, Err(Error::Lost(_))), "{stopped:?}");
}

async fn work_that_ends_in_time_returns_its_result(backend: Backend) {
    let client = backend.client().await;
    let guard = client.lock("a").acquire().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
    // An error of the work is not an error of the lock.
    let failed: Result<(), &str> = guard.run(async { Err("no ink") }).await.unwrap();
    assert_eq!(failed, Err("no ink"));
    guard.check().unwrap();
    guard.release().await.unwrap();
}

async fn with_releases_when_the_work_is_done(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a");
    let name = String::from("borrowed");
    let fence = lock
        .with(async |token| {
            assert_eq!((&*name, token.name()), ("borrowed", "a"));
            token.check().unwrap();
            let holder = there.lock("a").status().await.unwrap().holder.unwrap();
            assert_eq!(holder.fence, token.fence());
            token.fence()
        })
        .await
        .unwrap();
    let failed: Result<(), &str> = lock
        .with_timeout(LONG, async |later| {
            assert!(later.fence() > fence);
            Err("no ink")
        })
        .await
        .unwrap();
    assert_eq!(failed, Err("no ink"));
    // A busy server may take longer to confirm the release than its result waits.
    eventually("released", LONG, async || {
        there.lock("a").status().await.unwrap().holder.is_none()
    })
    .await;
}

async fn with_reports_work_that_was_not_covered_by_the_lease(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (lock, taken) = (here.lock("a").lease(backend.short_lease()), there.lock("a"));
    let worked = lock
        .with(async |token| {
            assert!(taken.force_release(token.fence()).await.unwrap());
            if !backend.is_in_memory() {
                // The result does not wait for a slow answer. The next renewal hears of it too.
                std::future::pending().await
            }
        })
        .await;
    let Err(Error::Lost(lost)) = worked else {
        panic!("{worked:?}")
    };
    assert_eq!(lost.reason, HoldEnd::Taken);
}

async fn dropped_work_leaves_the_lock_held(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let work = guard.run(std::future::pending::<()>());
    assert!(timeout(Duration::from_millis(50), work).await.is_err());
    guard.check().unwrap();
    assert!(matches!(
        there.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    guard.release().await.unwrap();
}
