//! Leases: what renews them, what ends them, and how a holder hears of the end.

use std::time::Duration;

use fairlock::{Error, HoldEnd, LeaseState};
use fairlock_testkit::{Server, eventually};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{
    Backend, in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, on_each_backend_in_parallel,
    with_local_handoffs,
};

on_each_backend! {
    a_live_guard_is_renewed_for_as_long_as_it_lives,
    a_fixed_lease_is_never_extended,
    a_pushed_fixed_lease_is_claimed_once_and_never_extended,
    a_pushed_grant_is_claimed_at_the_full_lease,
    max_hold_ends_a_hold,
    a_max_hold_shorter_than_the_lease_counts,
    a_leaked_guard_is_freed_by_its_max_hold,
    a_renewal_by_hand_proves_and_prolongs_the_hold,
    lost_resolves_with_the_end_of_the_lease_and_not_before,
    lost_resolves_with_the_release,
    loss_is_reported_at_the_next_renewal,
}

with_local_handoffs! {
    a_live_guard_is_renewed_for_as_long_as_it_lives,
    a_fixed_lease_is_never_extended,
    a_pushed_fixed_lease_is_claimed_once_and_never_extended,
    a_pushed_grant_is_claimed_at_the_full_lease,
    max_hold_ends_a_hold,
    a_max_hold_shorter_than_the_lease_counts,
    a_leaked_guard_is_freed_by_its_max_hold,
    a_renewal_by_hand_proves_and_prolongs_the_hold,
    lost_resolves_with_the_end_of_the_lease_and_not_before,
    lost_resolves_with_the_release,
    loss_is_reported_at_the_next_renewal,
}

in_a_quorum! {
    a_live_guard_is_renewed_for_as_long_as_it_lives,
    a_fixed_lease_is_never_extended,
    a_pushed_fixed_lease_is_claimed_once_and_never_extended,
    a_pushed_grant_is_claimed_at_the_full_lease,
    max_hold_ends_a_hold,
    a_max_hold_shorter_than_the_lease_counts,
    a_leaked_guard_is_freed_by_its_max_hold,
    a_renewal_by_hand_proves_and_prolongs_the_hold,
    lost_resolves_with_the_end_of_the_lease_and_not_before,
    lost_resolves_with_the_release,
    loss_is_reported_at_the_next_renewal,
}

local_handoffs_in_a_quorum! {
    a_live_guard_is_renewed_for_as_long_as_it_lives,
    a_fixed_lease_is_never_extended,
    a_pushed_fixed_lease_is_claimed_once_and_never_extended,
    a_pushed_grant_is_claimed_at_the_full_lease,
    max_hold_ends_a_hold,
    a_max_hold_shorter_than_the_lease_counts,
    a_leaked_guard_is_freed_by_its_max_hold,
    a_renewal_by_hand_proves_and_prolongs_the_hold,
    lost_resolves_with_the_end_of_the_lease_and_not_before,
    lost_resolves_with_the_release,
    loss_is_reported_at_the_next_renewal,
}

on_each_backend_in_parallel! {
    a_lock_is_free_one_lease_after_the_runtime_of_its_holder_is_gone,
}

const LONG: Duration = Duration::from_secs(30);
/// The server counts in whole milliseconds, so a lease can be shorter by one.
const MS: Duration = Duration::from_millis(1);

async fn a_live_guard_is_renewed_for_as_long_as_it_lives(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = backend.short_lease();
    let guard = here.lock("a").lease(lease).acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    sleep(lease * 3).await;
    guard.check().unwrap();
    assert!(!guard.is_lost());
    let now = guard.lease();
    assert_eq!((now.length, now.state), (lease, LeaseState::Held));
    assert!(now.remaining <= lease && now.remaining > lease / 4, "{now:?}");
    assert!(!waiter.is_finished(), "two holders at once");
    let status = there.lock("a").status().await.unwrap();
    assert_eq!(status.holder.unwrap().fence, guard.fence());
    assert_eq!(status.waiting, 1);
    guard.release().await.unwrap();
    let guard = timeout(LONG, waiter).await.expect("free").unwrap().unwrap();
    guard.release().await.unwrap();
}

async fn a_fixed_lease_is_never_extended(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = Duration::from_millis(500);
    let start = Instant::now();
    let guard = here
        .lock("a")
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    assert!(matches!(guard.renew().await, Err(Error::Invalid(_))));
    let lost = guard.lost().await;
    let took = start.elapsed();
    assert!(took <= lease + backend.slack() && took > lease / 2, "{took:?}");
    assert_eq!(lost, HoldEnd::Expired);
    assert_eq!(guard.lease().state, LeaseState::Lost);
    assert_eq!(guard.lease().remaining, Duration::ZERO);
    drop(
        timeout(LONG, there.lock("a").acquire())
            .await
            .expect("free")
            .unwrap(),
    );
    // The client of a quorum gives the rest of its grants back as soon as it tells the holder.
    let margin = if backend.is_a_quorum() { 10 * MS } else { MS };
    assert!(start.elapsed() + margin >= lease);
}

async fn a_pushed_fixed_lease_is_claimed_once_and_never_extended(backend: Backend) {
    let claim_window = Duration::from_millis(500);
    let lease = Duration::from_millis(1500);
    let here = backend.client().await;
    let there = backend
        .client_with(|settings| settings.claim_window(claim_window))
        .await;
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").lease(lease).auto_renew(false).acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    if backend.is_in_memory() {
        // On a slow machine the push may be read too late, and the lock is then granted again.
        assert_eq!(there.stats().handed_over, 1);
    }
    let lost = guard.lost().await;
    let took = start.elapsed();
    assert_eq!(lost, HoldEnd::Expired);
    assert!(took > lease / 2, "the grant was not claimed: {took:?}");
    assert!(took <= lease + backend.slack(), "{took:?}");
    drop(
        timeout(LONG, here.lock("a").acquire())
            .await
            .expect("free")
            .unwrap(),
    );
    assert!(start.elapsed() < lease + backend.slack());
}

/// Race: A hand-over must know the grantee's owner and lease.
async fn a_pushed_grant_is_claimed_at_the_full_lease(backend: Backend) {
    let here = backend.client().await;
    let there = backend
        .client_with(|settings| settings.claim_window(Duration::from_millis(500)))
        .await;
    let lease = Duration::from_secs(20);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").lease(lease).acquire());
    backend.queued(&here.lock("a"), 1, 1).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    sleep(Duration::from_millis(600)).await;
    let holder = here.lock("a").status().await.unwrap().holder.unwrap();
    assert_eq!(holder.fence, guard.fence());
    assert!(holder.ttl > lease / 2 && holder.ttl <= lease, "{holder:?}");
    guard.release().await.unwrap();
}

/// Race: The lease of a stuck job is renewed for ever.
async fn max_hold_ends_a_hold(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (lease, max_hold) = (Duration::from_millis(600), Duration::from_millis(1500));
    let start = Instant::now();
    let lock = here.lock("a").lease(lease).max_hold(max_hold);
    let guard = lock.acquire().await.unwrap();
    let lost = guard.lost().await;
    let took = start.elapsed();
    assert!(took > lease && took <= max_hold + backend.slack(), "{took:?}");
    assert_eq!(lost, HoldEnd::MaxHold);
    assert_eq!(crate::common::lost(guard.check()).reason, HoldEnd::MaxHold);
    drop(
        timeout(LONG, there.lock("a").acquire())
            .await
            .expect("free")
            .unwrap(),
    );
    assert!(start.elapsed() <= max_hold + backend.slack());
    // `None` means no bound.
    let unbounded = lock.max_hold(None).acquire().await.unwrap();
    unbounded.release().await.unwrap();
}

async fn a_max_hold_shorter_than_the_lease_counts(backend: Backend) {
    let client = backend.client().await;
    let max_hold = Duration::from_millis(400);
    let guard = client.lock("a").max_hold(max_hold).acquire().await.unwrap();
    let holder = client.lock("a").status().await.unwrap().holder.unwrap();
    assert!(holder.ttl <= max_hold, "{holder:?}");
    let lost = timeout(max_hold + backend.slack(), guard.lost()).await.unwrap();
    assert_eq!(lost, HoldEnd::MaxHold);
}

/// Race: The lease of a stuck job is renewed for ever.
async fn a_leaked_guard_is_freed_by_its_max_hold(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (lease, max_hold) = (Duration::from_millis(500), Duration::from_millis(1200));
    let start = Instant::now();
    let lock = here.lock("a").lease(lease).max_hold(max_hold);
    std::mem::forget(lock.acquire().await.unwrap());
    drop(
        timeout(LONG, there.lock("a").acquire())
            .await
            .expect("free")
            .unwrap(),
    );
    let took = start.elapsed();
    assert!(took > lease, "the hold was not renewed: {took:?}");
    assert!(took < max_hold + backend.slack(), "{took:?}");
}

async fn a_renewal_by_hand_proves_and_prolongs_the_hold(backend: Backend) {
    let client = backend.client().await;
    let lease = Duration::from_secs(9);
    let guard = client.lock("a").lease(lease).acquire().await.unwrap();
    sleep(Duration::from_millis(400)).await;
    let before = guard.lease().remaining;
    assert!(before < lease - Duration::from_millis(300), "{before:?}");
    let renewed = guard.renew().await.unwrap();
    assert_eq!((renewed.length, renewed.state), (lease, LeaseState::Held));
    assert!(renewed.remaining > before, "{renewed:?}");
    guard.release().await.unwrap();
}

async fn lost_resolves_with_the_end_of_the_lease_and_not_before(backend: Backend) {
    let client = backend.client().await;
    let lease = Duration::from_millis(400);
    let guard = client
        .lock("a")
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    let watcher = tokio::spawn(guard.lost());
    sleep(lease / 4).await;
    assert!(!watcher.is_finished());
    guard.check().unwrap();
    let lost = watcher.await.unwrap();
    let error = crate::common::lost(guard.check());
    assert_eq!((&*error.name, error.reason), ("a", lost));
    // No other request can hold the lock yet: the lease on the server has not expired, or only just.
    let again = guard.lost().await;
    assert_eq!(again, lost);
}

async fn lost_resolves_with_the_release(backend: Backend) {
    let client = backend.client().await;
    let guard = client.lock("a").acquire().await.unwrap();
    let watcher = tokio::spawn(guard.lost());
    guard.release().await.unwrap();
    let lost = timeout(backend.slack(), watcher).await.expect("told").unwrap();
    assert_eq!(lost, HoldEnd::Released);

    let guard = client.lock("a").acquire().await.unwrap();
    let watchers = [guard.lost(), guard.lost()];
    drop(guard);
    for watcher in watchers {
        let lost = timeout(backend.slack(), watcher).await.expect("told");
        assert_eq!(lost, HoldEnd::Released);
    }
}

async fn loss_is_reported_at_the_next_renewal(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = Duration::from_millis(1500);
    let guard = here.lock("a").lease(lease).acquire().await.unwrap();
    let start = Instant::now();
    assert!(there.lock("a").force_release(guard.fence()).await.unwrap());
    let lost = timeout(lease + backend.slack(), guard.lost()).await.unwrap();
    let took = start.elapsed();
    assert_eq!(lost, HoldEnd::Taken);
    assert!(took < lease / 3 + backend.slack(), "{took:?}");
    let counted = async || (here.stats().lost_taken, here.stats().held) == (1, 0);
    eventually("counted", backend.slack(), counted).await;
}

/// Race: A guard is dropped outside of a runtime, or at shutdown.
async fn a_lock_is_free_one_lease_after_the_runtime_of_its_holder_is_gone(backend: Backend) {
    let there = backend.client().await;
    let lease = backend.short_lease();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let made = runtime.block_on(async {
            let here = backend.client().await;
            // Nothing keeps the lock taken for longer, since nothing releases it.
            let lock = here.lock("a").lease(lease).at_least(LONG);
            let guard = lock.acquire().await.unwrap();
            (here, guard)
        });
        runtime.shutdown_background();
        let _ = sender.send(made);
        backend
    });
    let (here, guard) = receiver.await.unwrap();
    let backend = tokio::task::spawn_blocking(|| thread.join().unwrap())
        .await
        .unwrap();
    let start = Instant::now();
    // The threads of the runtime drop its tasks at some time.
    eventually("closed", backend.slack(), async || here.is_closed()).await;
    for ended in [
        here.lock("b").acquire().await.map(drop),
        here.lock("b").try_acquire().await.map(drop),
        here.lock("b").status().await.map(drop),
        here.ping().await,
    ] {
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    }
    drop(
        timeout(LONG, there.lock("a").acquire())
            .await
            .expect("free")
            .unwrap(),
    );
    let took = start.elapsed();
    assert!(took < lease + backend.slack(), "{took:?}");
    assert!(guard.is_lost());
    let released = guard.release().await;
    assert!(
        matches!(released, Err(Error::Lost(_) | Error::Closed)),
        "{released:?}"
    );
}

mod on_a_real_server {
    use super::*;

    /// Race: Renewals go on after the release.
    #[tokio::test]
    async fn nothing_touches_a_lock_after_its_release() {
        let backend = Backend::on_a_server().await;
        let server = backend.server().unwrap();
        let client = backend.client().await;
        let lease = Duration::from_millis(400);
        let guard = client.lock("a").lease(lease).acquire().await.unwrap();
        // The lease has been renewed by now, so there are renewals to stop.
        sleep(lease).await;
        guard.release().await.unwrap();
        let key = format!("{}:{{a}}", backend.prefix());
        let content = server.command(&["HGETALL", &key]).await;
        let mut ttl = server.command(&["PTTL", &key]).await.int();
        let start = Instant::now();
        while start.elapsed() < lease * 2 {
            sleep(Duration::from_millis(50)).await;
            let now = server.command(&["PTTL", &key]).await.int();
            assert!(now < ttl, "{now} ms after {ttl} ms");
            ttl = now;
        }
        assert_eq!(server.command(&["HGETALL", &key]).await, content);
    }

    /// Race: All renewals are due at once, after the process stood still.
    #[tokio::test]
    async fn renewals_that_are_due_at_once_let_an_acquire_through() {
        const LOCKS: i64 = 5_000;

        let server = Server::start().await;
        let lease = Duration::from_secs(12);
        let builder = fairlock::LockManager::builder().lease(lease);
        let locks = builder.connect(&server.url()).await.unwrap();
        let each = (0..LOCKS).map(|n| locks.lock(format!("{n}")).acquire());
        let guards = futures_util::future::try_join_all(each).await.unwrap();
        // This is the only thread, so no renewal happens in the meantime.
        std::thread::sleep(lease / 3 + Duration::from_secs(1));
        // The background task runs a few times, and continues only after it reads a reply.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let another = locks.lock("another").acquire().await.unwrap();
        // The last renewal of each hold was one lease before its deadline.
        let until = server.lock_summary("fairlock:{another}").await.until;
        let count = "local count = 0
            for n = 0, ARGV[1] - 1 do
                local summary = redis.call('HGET', 'fairlock:{' .. n .. '}', 'hold')
                local until_ms = string.sub(summary, 1, 13)
                if until_ms > ARGV[2] and until_ms < ARGV[3] then count = count + 1 end
            end
            return count";
        let [since, until] = [until - 4_000, until].map(|ms| ms.to_string());
        let words = ["EVAL", count, "0", &LOCKS.to_string(), &since, &until];
        let ahead = server.command(&words).await.int();
        assert!((1..LOCKS / 2).contains(&ahead), "{ahead} renewals came first");
        assert!(guards.iter().all(|guard| guard.check().is_ok()));
        another.release().await.unwrap();
    }

    /// Race: Keys are flushed, deleted or renamed by hand.
    #[tokio::test]
    async fn a_holder_is_told_when_its_key_was_deleted_and_the_waiter_holds() {
        let server = Server::start().await;
        let here = fairlock::LockManager::connect(&server.url()).await.unwrap();
        let there = fairlock::LockManager::connect(&server.url()).await.unwrap();
        for (name, command) in [("a", vec!["DEL", "fairlock:{a}"]), ("b", vec!["FLUSHALL"])] {
            let lease = Duration::from_millis(1500);
            let guard = here.lock(name).lease(lease).acquire().await.unwrap();
            let waiter = tokio::spawn(there.lock(name).acquire());
            while here.lock(name).status().await.unwrap().waiting == 0 {
                sleep(Duration::from_millis(5)).await;
            }
            let start = Instant::now();
            assert!(!server.command(&command).await.is_error());
            let lost = timeout(LONG, guard.lost()).await.expect("told");
            assert!(
                start.elapsed() < lease / 3 + Duration::from_secs(2),
                "{command:?}"
            );
            assert_eq!(lost, HoldEnd::Taken, "{command:?}");
            let next = timeout(LONG, waiter).await.expect("free").unwrap().unwrap();
            assert!(next.fence() > guard.fence(), "{command:?}");
            assert!(start.elapsed() < lease + Duration::from_secs(2), "{command:?}");
            next.release().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_lease_is_in_doubt_while_the_server_does_not_answer() {
        let server = Server::start().await;
        let locks = fairlock::LockManager::connect(&server.url()).await.unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        server.pause();
        let unanswered = guard.renew().await;
        assert!(matches!(unanswered, Err(Error::Unavailable(_))), "{unanswered:?}");
        assert_eq!(guard.lease().state, LeaseState::InDoubt);
        assert!(guard.lost().now_or_never().is_none());
        guard.check().unwrap();
        server.resume();
        eventually("held again", LONG, async || {
            guard
                .renew()
                .await
                .is_ok_and(|lease| lease.state == LeaseState::Held)
        })
        .await;
        guard.release().await.unwrap();
        assert_eq!((locks.stats().lost_expired, locks.stats().lost_taken), (0, 0));
    }
}
