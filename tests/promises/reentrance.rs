//! Owners, and for which of them a lock is re-entrant.

use std::time::Duration;

use fairlock::{Error, HoldEnd, LockManager, Owner};
use fairlock_testkit::{Process, Proxy};
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Backend, on_each_backend, with_local_handoffs};

on_each_backend! {
    an_owner_holds_again_under_the_same_fence,
    without_an_owner_a_lock_is_not_reentrant,
    a_named_owner_is_the_same_for_every_client,
    another_owner_waits_for_the_last_release,
    the_holder_does_not_wait_behind_others,
    a_short_hold_ends_alone_and_the_long_one_stays,
    the_longest_hold_may_end_first,
    an_owner_that_waits_twice_is_let_in_twice,
    a_forced_release_ends_all_holds_of_the_owner,
    dropped_guard_releases_one_hold,
    a_grant_to_a_named_owner_is_its_own,
    owner_at_its_limit_of_holds_gets_an_error,
}

with_local_handoffs! {
    an_owner_holds_again_under_the_same_fence,
    without_an_owner_a_lock_is_not_reentrant,
    a_named_owner_is_the_same_for_every_client,
    another_owner_waits_for_the_last_release,
    the_holder_does_not_wait_behind_others,
    a_short_hold_ends_alone_and_the_long_one_stays,
    the_longest_hold_may_end_first,
    an_owner_that_waits_twice_is_let_in_twice,
    a_forced_release_ends_all_holds_of_the_owner,
    dropped_guard_releases_one_hold,
    a_grant_to_a_named_owner_is_its_own,
    owner_at_its_limit_of_holds_gets_an_error,
}

const SOON: Duration = Duration::from_millis(1500);
const LONG: Duration = Duration::from_secs(30);

/// Race: A nested hold fences out its own outer section.
async fn an_owner_holds_again_under_the_same_fence(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let owner = Owner::new();
    let lock = here.lock("a").owner(&owner);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.try_acquire().await.unwrap();
    let innermost = lock.acquire_timeout(Duration::ZERO).await.unwrap();
    assert_eq!(outer.owner(), &owner);
    assert_eq!((inner.fence(), inner.owner()), (outer.fence(), &owner));
    assert_eq!((innermost.fence(), innermost.owner()), (outer.fence(), &owner));
    let holder = there.lock("a").status().await.unwrap().holder.unwrap();
    assert_eq!(
        (holder.owner, holder.fence, holder.holds),
        (owner, outer.fence(), 3)
    );

    for (guard, left) in [(inner, 2), (outer, 1)] {
        guard.release().await.unwrap();
        assert!(matches!(
            there.lock("a").try_acquire().await,
            Err(Error::Busy { .. })
        ));
        let holder = there.lock("a").status().await.unwrap().holder.unwrap();
        assert_eq!(holder.holds, left);
    }
    let fence = innermost.fence();
    innermost.check().unwrap();
    innermost.release().await.unwrap();
    let next = there.lock("a").try_acquire().await.unwrap();
    assert!(next.fence() > fence);
}

/// Race: An owner takes a lock again and again, without a limit.
async fn owner_at_its_limit_of_holds_gets_an_error(backend: Backend) {
    const MOST: u64 = 256;
    let (here, there) = (backend.client().await, backend.client().await);
    let owner = Owner::new();
    let lock = here.lock("a").owner(&owner);
    let mut guards = Vec::new();
    for _ in 0..MOST {
        guards.push(lock.acquire().await.unwrap());
    }
    let waited = timeout(SOON, lock.acquire()).await.expect("an answer at once");
    assert!(matches!(waited, Err(Error::TooManyHolds { .. })), "{waited:?}");
    let tried = lock.try_acquire().await;
    assert!(matches!(tried, Err(Error::TooManyHolds { .. })), "{tried:?}");
    let status = there.lock("a").status().await.unwrap();
    assert_eq!((status.holder.unwrap().holds, status.waiting), (MOST, 0));
    guards.pop().unwrap().release().await.unwrap();
    guards.push(lock.acquire().await.unwrap());
    for guard in guards {
        guard.release().await.unwrap();
    }
    let next = there.lock("a").acquire_timeout(SOON).await.unwrap();
    next.release().await.unwrap();
}

async fn without_an_owner_a_lock_is_not_reentrant(backend: Backend) {
    let client = backend.client().await;
    let guard = client.lock("a").acquire().await.unwrap();
    assert!(matches!(
        client.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    let ended = client.lock("a").acquire_timeout(Duration::from_millis(300)).await;
    assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
    guard.release().await.unwrap();
    // Two guards of one lock have different owners.
    let first = client.lock("a").acquire().await.unwrap();
    let (owner, fence) = (first.owner().clone(), first.fence());
    first.release().await.unwrap();
    let second = client.lock("a").acquire().await.unwrap();
    assert!(second.owner() != &owner && second.fence() > fence);
}

async fn a_named_owner_is_the_same_for_every_client(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (one, same) = (Owner::named("job-42"), Owner::named(String::from("job-42")));
    assert_eq!(one, same);
    assert_eq!((one.as_str(), one.to_string()), (same.as_str(), same.to_string()));
    assert_ne!(one, Owner::named("job-43"));
    assert_ne!(Owner::default(), Owner::new());
    let outer = here.lock("a").owner(&one).acquire().await.unwrap();
    let inner = there.lock("a").owner(&same).try_acquire().await.unwrap();
    assert_eq!((inner.fence(), inner.owner()), (outer.fence(), outer.owner()));
    let other = Owner::named("job-43");
    let tried = there.lock("a").owner(&other).try_acquire().await;
    assert!(matches!(tried, Err(Error::Busy { .. })));
    outer.release().await.unwrap();
    assert!(matches!(
        here.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    inner.release().await.unwrap();
    assert!(here.lock("a").try_acquire().await.is_ok());
}

async fn another_owner_waits_for_the_last_release(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a").owner(&Owner::named("one"));
    let (first, second) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    let waiter = tokio::spawn(there.lock("a").owner(&Owner::named("two")).acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    first.release().await.unwrap();
    sleep(Duration::from_millis(50)).await;
    assert!(!waiter.is_finished());
    second.release().await.unwrap();
    let guard = timeout(SOON, waiter).await.expect("served").unwrap().unwrap();
    assert_eq!(guard.owner(), &Owner::named("two"));
}

async fn the_holder_does_not_wait_behind_others(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a").owner(&Owner::named("one"));
    let outer = lock.acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    // If it waited, it would wait for itself.
    let inner = timeout(SOON, lock.acquire())
        .await
        .expect("a grant without a wait")
        .unwrap();
    assert_eq!(inner.fence(), outer.fence());
    inner.release().await.unwrap();
    assert!(!waiter.is_finished());
    outer.release().await.unwrap();
    drop(timeout(SOON, waiter).await.expect("served").unwrap().unwrap());
}

/// Race: Two holds of one owner have different leases.
async fn a_short_hold_ends_alone_and_the_long_one_stays(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a").owner(&Owner::named("one"));
    let long = lock.acquire().await.unwrap();
    let short = lock.clone().lease(Duration::from_millis(300)).auto_renew(false);
    let short = short.acquire().await.unwrap();
    assert_eq!(short.lost().await, HoldEnd::Expired);
    sleep(Duration::from_millis(50)).await;
    long.check().unwrap();
    let holder = there.lock("a").status().await.unwrap().holder.unwrap();
    assert_eq!((holder.fence, holder.holds), (long.fence(), 1));
    assert!(holder.ttl > Duration::from_secs(15), "{holder:?}");
    assert!(matches!(
        there.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    let Err(Error::Lost(lost)) = short.release().await else {
        panic!("released a hold that was over");
    };
    assert_ne!(lost.reason, HoldEnd::Released);
    let holder = there.lock("a").status().await.unwrap().holder.unwrap();
    assert_eq!((holder.fence, holder.holds), (long.fence(), 1));
    long.release().await.unwrap();
    assert!(there.lock("a").try_acquire().await.is_ok());
}

async fn the_longest_hold_may_end_first(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a").owner(&Owner::named("one"));
    let long = lock.acquire().await.unwrap();
    let lease = Duration::from_millis(400);
    let start = Instant::now();
    let short = lock
        .clone()
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    long.release().await.unwrap();
    short.check().unwrap();
    let holder = there.lock("a").status().await.unwrap().holder.unwrap();
    assert!(holder.ttl <= lease, "{holder:?}");
    drop(
        timeout(LONG, there.lock("a").acquire())
            .await
            .expect("free")
            .unwrap(),
    );
    assert!(start.elapsed() < lease + backend.slack());
}

async fn an_owner_that_waits_twice_is_let_in_twice(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let lock = there.lock("a").owner(&Owner::named("one"));
    let waiters = [tokio::spawn(lock.acquire()), tokio::spawn(lock.acquire())];
    backend.queued(&here.lock("a"), 2, 1).await;
    guard.release().await.unwrap();
    let [first, second] = waiters;
    let first = timeout(SOON, first).await.expect("served").unwrap().unwrap();
    let second = timeout(SOON, second)
        .await
        .expect("the second does not wait for itself")
        .unwrap()
        .unwrap();
    assert_eq!(first.fence(), second.fence());
    first.release().await.unwrap();
    assert!(matches!(
        here.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    second.release().await.unwrap();
    assert!(here.lock("a").try_acquire().await.is_ok());
}

async fn a_forced_release_ends_all_holds_of_the_owner(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a").owner(&Owner::named("one"));
    let (first, second) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    assert!(there.lock("a").force_release(first.fence()).await.unwrap());
    let next = there.lock("a").try_acquire().await.unwrap();
    for guard in [first, second] {
        let Err(Error::Lost(lost)) = guard.release().await else {
            panic!("released a hold that was taken away");
        };
        assert_eq!(lost.reason, HoldEnd::Taken);
    }
    next.check().unwrap();
    next.release().await.unwrap();
}

async fn dropped_guard_releases_one_hold(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a").owner(&Owner::named("one"));
    let outer = lock.acquire().await.unwrap();
    drop(lock.acquire().await.unwrap());
    // Calls that are sent after the ping arrive after it.
    here.ping().await.unwrap();
    fairlock_testkit::eventually("one hold", backend.slack(), async || {
        there.lock("a").status().await.unwrap().holder.unwrap().holds == 1
    })
    .await;
    outer.check().unwrap();
    outer.release().await.unwrap();
    assert!(there.lock("a").try_acquire().await.is_ok());
}

/// Race: A hand-over must know the grantee's owner and lease.
async fn a_grant_to_a_named_owner_is_its_own(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let lock = there.lock("a").owner(&Owner::named("one"));
    let waiter = tokio::spawn(lock.acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    guard.release().await.unwrap();
    let pushed = timeout(SOON, waiter).await.expect("served").unwrap().unwrap();
    assert_eq!(pushed.owner(), &Owner::named("one"));
    // The lock is re-entrant for its owner even in a client that had no part in the grant.
    let again = here
        .lock("a")
        .owner(&Owner::named("one"))
        .try_acquire()
        .await
        .unwrap();
    assert_eq!(again.fence(), pushed.fence());
}

mod on_a_real_server {
    use super::*;

    #[tokio::test]
    async fn a_named_owner_is_the_same_in_every_process() {
        let backend = Backend::on_a_server().await;
        let url = backend.server().unwrap().url();
        let args = [("url", url.as_str()), ("prefix", backend.prefix())];
        let mut process = Process::spawn("reentrance::on_a_real_server::holder", &args);
        let fence: u64 = process.line().await.parse().unwrap();

        let client = backend.client().await;
        assert!(matches!(
            client.lock("a").try_acquire().await,
            Err(Error::Busy { .. })
        ));
        let owner = Owner::named("one for all");
        let guard = client.lock("a").owner(&owner).acquire().await.unwrap();
        assert_eq!(guard.fence().get(), fence);
        process.tell("release");
        process.expect("released").await;
        guard.check().unwrap();
        assert!(matches!(
            client.lock("a").try_acquire().await,
            Err(Error::Busy { .. })
        ));
        guard.release().await.unwrap();
        assert!(client.lock("a").try_acquire().await.is_ok());
        process.ended().await;
    }

    /// A grant that is read with too little of its lease left is withdrawn. The next grant has the same
    /// fence.
    #[tokio::test]
    async fn late_grant_is_replaced_by_another() {
        let backend = Backend::on_a_server().await;
        let proxy = Proxy::start(backend.server().unwrap().port());
        let builder = LockManager::builder().prefix(backend.prefix());
        let locks = builder.connect(&proxy.url()).await.unwrap();
        let lock = locks.lock("a").owner(&Owner::named("one"));
        let outer = lock.acquire().await.unwrap();
        let lease = Duration::from_millis(400);
        proxy.delay_down(lease * 4 / 5);
        let inner = tokio::spawn(lock.clone().lease(lease).auto_renew(false).acquire());
        sleep(lease).await;
        proxy.heal();
        let inner = timeout(LONG, inner).await.expect("granted").unwrap().unwrap();
        assert_eq!(inner.fence(), outer.fence());
    }

    #[tokio::test]
    #[ignore = "a role for other tests, run in its own process"]
    async fn holder() {
        let Some(mut role) = fairlock_testkit::role() else {
            return;
        };
        let builder = LockManager::builder().prefix(role.arg("prefix"));
        let locks = builder.connect(&role.arg("url")).await.unwrap();
        let lock = locks.lock("a").owner(&Owner::named("one for all"));
        let guard = lock.acquire().await.unwrap();
        role.say(&guard.fence().to_string());
        role.heard().await;
        guard.release().await.unwrap();
        role.say("released");
    }
}
