//! What is counted, and when. Time is paused, so sums of time are exact.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::*;
use crate::engine::options::ManagerOptions;
use crate::tests::scripted_store;
use crate::{Error, LockGuard, LockManager, MemoryStore, Quorum};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// A client of one server, and one of a quorum, with these settings.
fn clients_with(
    settings: impl Fn(crate::LockManagerBuilder) -> crate::LockManagerBuilder,
) -> [LockManager; 2] {
    let builder = || settings(LockManager::builder());
    let servers = [(); 3].map(|()| MemoryStore::new());
    let in_quorum = builder().connect_quorum(Quorum::in_memory(&servers));
    [
        builder().in_memory(&MemoryStore::new()).unwrap(),
        in_quorum.now_or_never().unwrap().unwrap(),
    ]
}

fn clients() -> [LockManager; 2] {
    clients_with(|builder| builder)
}

async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

/// Checks that each of these calls has ended once, and these `others` with an error that has no count.
fn adds_up(locks: &LockManager, calls: u64, others: u64) {
    let stats = locks.stats();
    let ended = stats.acquired
        + stats.timed_out
        + stats.busy
        + stats.cancelled
        + stats.queue_full
        + stats.unavailable;
    assert_eq!(ended + others, calls, "{stats:?}");
    assert_eq!(locks.place().counters().ended(Outcome::Failed), others);
}

fn acquired(locks: &LockManager, how: How) -> u64 {
    locks.place().counters().ended(Outcome::Acquired(how))
}

/// How many holds ended by a release, by the drop of their guards, and by a loss.
fn ends(locks: &LockManager) -> (u64, u64, u64) {
    let (stats, counters) = (locks.stats(), locks.place().counters());
    (
        counters.holds_ended(GuardEnd::Released),
        counters.holds_ended(GuardEnd::Dropped),
        stats.lost_expired + stats.lost_taken + stats.lost_max_hold,
    )
}

/// A lease ends a little earlier here than on the server.
fn is_about(held_for: Duration, span: Duration) {
    let early = span.saturating_sub(held_for);
    assert!(
        held_for <= span && early < Duration::from_millis(20),
        "{held_for:?}"
    );
}

/// Waits in the background.
async fn waits(lock: &crate::Lock) -> tokio::task::JoinHandle<LockGuard> {
    let acquiring = lock.acquire();
    let waiter = tokio::spawn(async move { acquiring.await.unwrap() });
    settle().await;
    waiter
}

#[tokio::test(start_paused = true)]
async fn campaigns_of_leaders_are_counted_and_count_as_no_wait() {
    for locks in clients_with(|builder| builder) {
        let leadership = locks.leadership("a").max_hold(SECOND);
        let lead = leadership.campaign().await.unwrap();
        let next = tokio::spawn(leadership.campaign());
        settle().await;
        assert_eq!(locks.stats().waiting, 1);
        drop((next.await.unwrap().unwrap(), lead));
        let stats = locks.stats();
        assert_eq!((stats.acquired, stats.waited), (2, Duration::ZERO), "{stats:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_counts_once_by_how_it_ended() {
    for locks in clients_with(|builder| builder.max_waiters(1)) {
        let lock = locks.lock("a");
        let guard = lock.acquire().await.unwrap();
        assert_eq!((locks.stats().acquired, acquired(&locks, How::Free)), (1, 1));
        assert!(matches!(lock.try_acquire().await, Err(Error::Busy { .. })));
        assert!(matches!(
            lock.acquire_timeout(Duration::ZERO).await,
            Err(Error::Timeout { .. })
        ));
        assert!(matches!(
            lock.acquire_timeout(SECOND).await,
            Err(Error::Timeout { .. })
        ));
        assert!(lock.acquire().now_or_never().is_none());
        let waiter = waits(&lock).await;
        assert!(matches!(lock.acquire().await, Err(Error::QueueFull { .. })));
        adds_up(&locks, 6, 0);
        // Refused before it asks.
        assert!(locks.lock("").acquire().await.is_err());
        drop(lock.acquire());
        let stats = locks.stats();
        let ended = (stats.busy, stats.timed_out, stats.cancelled, stats.queue_full);
        assert_eq!(ended, (1, 2, 1, 1), "{stats:?}");
        assert_eq!(stats.acquired, 1, "the waiter has not ended");
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        drop(lock.try_acquire().await.unwrap());
        let stats = locks.stats();
        let counts = (stats.acquired, acquired(&locks, How::Free), stats.handed_over);
        assert_eq!(counts, (3, 2, 1), "{stats:?}");
        adds_up(&locks, 8, 0);
        locks.close().await.unwrap();
        assert!(matches!(lock.acquire().await, Err(Error::Closed)));
        adds_up(&locks, 8, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_no_server_answers_counts_as_unavailable() {
    let options = ManagerOptions {
        server_timeout: SECOND,
        ..ManagerOptions::default()
    };
    let (locks, seen) = scripted_store::client_with(options, &MemoryStore::new(), &[]);
    seen.lose_calls(u32::MAX);
    assert!(matches!(
        locks.lock("a").acquire().await,
        Err(Error::Unavailable(_))
    ));
    assert!(matches!(
        locks.lock("a").try_acquire().await,
        Err(Error::Unavailable(_))
    ));
    assert_eq!(locks.stats().unavailable, 2);
    adds_up(&locks, 2, 0);
}

/// The owner's 257th hold.
#[tokio::test(start_paused = true)]
async fn any_other_error_has_no_count() {
    let locks = LockManager::in_memory();
    let lock = locks.lock("a").owner(&crate::Owner::new());
    let mut guards = Vec::new();
    for _ in 0..256 {
        guards.push(lock.acquire().await.unwrap());
    }
    assert!(matches!(lock.acquire().await, Err(Error::TooManyHolds { .. })));
    assert_eq!((locks.stats().acquired, locks.stats().held), (256, 256));
    adds_up(&locks, 257, 1);
}

#[tokio::test(start_paused = true)]
async fn waits_and_holds_sum_up_their_time() {
    for locks in clients() {
        let lock = locks.lock("a");
        let guard = lock.acquire().await.unwrap();
        sleep(SECOND).await;
        let waiter = waits(&lock).await;
        assert!(lock.acquire_timeout(SECOND).await.is_err());
        sleep(SECOND).await;
        assert_eq!(locks.stats().held_for, Duration::ZERO, "nothing has ended");
        guard.release().await.unwrap();
        let second = waiter.await.unwrap();
        let stats = locks.stats();
        let times = (stats.waited, stats.held_for);
        assert_eq!(
            times,
            (2 * SECOND, 3 * SECOND),
            "the time-out is no wait for a lock that came"
        );
        sleep(SECOND).await;
        drop(second);
        assert_eq!(locks.stats().held_for, 4 * SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn each_hold_counts_once_by_how_it_ended() {
    for locks in clients() {
        let lock = locks.lock("a");
        lock.acquire().await.unwrap().release().await.unwrap();
        drop(lock.acquire().await.unwrap());
        assert_eq!(ends(&locks), (1, 1, 0));

        let taken = lock.acquire().await.unwrap();
        assert!(lock.force_release(taken.fence()).await.unwrap());
        assert!(matches!(taken.release().await, Err(Error::Lost(_))));
        assert_eq!(locks.stats().lost_taken, 1, "its release found that");
        assert_eq!(ends(&locks), (1, 1, 1));

        let limited = lock.clone().max_hold(2 * SECOND).acquire().await.unwrap();
        limited.lost().await;
        settle().await;
        let stats = locks.stats();
        assert_eq!((stats.lost_max_hold, stats.held), (1, 0));
        assert_eq!(ends(&locks), (1, 1, 2));
        is_about(stats.held_for, 2 * SECOND);
        drop(limited);

        let expired = lock
            .clone()
            .lease(SECOND)
            .auto_renew(false)
            .acquire()
            .await
            .unwrap();
        sleep(2 * SECOND).await;
        let stats = locks.stats();
        assert_eq!(stats.lost_expired, 1);
        is_about(stats.held_for, 3 * SECOND);
        drop(expired);
        assert_eq!((ends(&locks), locks.stats().held), ((1, 1, 3), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_ends_releases_its_lock_and_drops_no_guard() {
    for locks in clients() {
        locks.lock("a").with(async |_| {}).await.unwrap();
        let failed = locks
            .lock("a")
            .with_timeout(SECOND, async |_| Err::<(), _>("no ink"));
        assert_eq!(failed.await.unwrap(), Err("no ink"));
        let leadership = locks.leadership("b");
        leadership.run(async |_| {}).await.unwrap();
        let shutdown = sleep(SECOND);
        let led = leadership.run_until(shutdown, async |_| std::future::pending::<()>().await);
        assert_eq!(led.await.unwrap(), None);
        assert_eq!(ends(&locks), (4, 0, 0));
    }
}

/// The lock goes on to the next request, and no guard of it is ever made.
#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_takes_is_no_hold() {
    for locks in clients() {
        let lock = locks.lock("a");
        let guard = lock.acquire().await.unwrap();
        let mut waiting = Box::pin(lock.acquire());
        assert!(waiting.as_mut().now_or_never().is_none());
        settle().await;
        guard.release().await.unwrap();
        settle().await;
        drop(waiting);
        settle().await;
        let stats = locks.stats();
        assert_eq!((stats.acquired, stats.cancelled, stats.held), (1, 1, 0));
        assert_eq!(ends(&locks), (1, 0, 0));
    }
}

/// In a quorum, a hold begins only when its caller asks, so it is never over by then.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_made_after_the_end_of_its_lease_has_lost_it() {
    let locks = LockManager::in_memory();
    let lock = locks.lock("a").lease(SECOND).auto_renew(false);
    let guard = lock.acquire().await.unwrap();
    let mut waiting = Box::pin(lock.acquire());
    assert!(waiting.as_mut().now_or_never().is_none());
    settle().await;
    guard.release().await.unwrap();
    sleep(2 * SECOND).await;
    let late = waiting.await.unwrap();
    let stats = locks.stats();
    assert_eq!(
        (stats.acquired, stats.lost_expired, stats.held),
        (2, 1, 0),
        "{stats:?}"
    );
    drop(late);
    settle().await;
    assert_eq!(ends(&locks), (1, 0, 1), "it is counted once");
}

#[tokio::test(start_paused = true)]
async fn each_turn_of_a_tenure_is_a_hold() {
    let store = MemoryStore::new();
    store.knows("fairlock:{a}");
    let locks = LockManager::builder().in_memory(&store).unwrap();
    let lock = locks.lock("a").local_handoffs(3);
    let guard = lock.acquire().await.unwrap();
    let waiters = [waits(&lock).await, waits(&lock).await];
    sleep(Duration::from_millis(4)).await;
    guard.release().await.unwrap();
    let [second, third] = waiters;
    let second = second.await.unwrap();
    assert_eq!(locks.stats().held_for, Duration::from_millis(4));
    sleep(Duration::from_millis(5)).await;
    drop(second);
    let third = third.await.unwrap();
    sleep(SECOND).await;
    third.release().await.unwrap();
    // Another tenure was asked for, and is given up.
    settle().await;
    let stats = locks.stats();
    let counts = (stats.acquired, acquired(&locks, How::Free), stats.local_handoffs);
    assert_eq!(counts, (3, 1, 2));
    assert_eq!((ends(&locks), stats.held), ((2, 1, 0), 0));
    assert_eq!(stats.held_for, SECOND + Duration::from_millis(9));
    assert_eq!(stats.waited, Duration::from_millis(4 + 9));
    adds_up(&locks, 3, 0);
}

/// Nobody publishes when a lease expires, so the waiter asks. In a quorum, the holder releases what is left
/// of its votes then.
#[tokio::test(start_paused = true)]
async fn lock_that_is_found_free_by_a_poll_was_neither_handed_over_nor_free_at_once() {
    let [locks, _quorum] = clients();
    let _expires = locks
        .lock("a")
        .lease(SECOND)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    let _guard = locks.lock("a").acquire().await.unwrap();
    let counts = [How::Free, How::Polled, How::HandedOver].map(|how| acquired(&locks, how));
    assert_eq!((counts, locks.stats().acquired), ([1, 1, 0], 2));
}

#[tokio::test(start_paused = true)]
async fn renewals_are_counted_and_a_claim_is_one() {
    let [locks, quorum] = clients();
    for (locks, servers) in [(&locks, 1), (&quorum, 3)] {
        let guard = locks.lock("a").acquire().await.unwrap();
        assert_eq!(locks.stats().renewals, 0);
        sleep(2 * LEASE).await;
        // In a quorum, the first renewal of each vote gives it its whole lease.
        let stats = locks.stats();
        assert!(
            stats.renewals >= 5 * servers && stats.renewals < 9 * servers,
            "{stats:?}"
        );
        guard.release().await.unwrap();
    }
    let lock = locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    let waiter = waits(&lock).await;
    let before = locks.stats().renewals;
    guard.release().await.unwrap();
    let _claimed = waiter.await.unwrap();
    sleep(2 * SECOND).await;
    assert_eq!(locks.stats().renewals, before + 1);
}

#[tokio::test(start_paused = true)]
async fn connection_that_was_replaced_counts_at_its_own_client() {
    use crate::engine::waitlist::registry::Waitlists;
    use crate::protocol::Listener;

    let [locks, quorum] = clients();
    let reopened = |waitlists: &std::sync::Arc<Waitlists>| waitlists.reopened("command", "127.0.0.1:1");
    let shared = locks.shared();
    reopened(shared.waitlists());
    assert_eq!(locks.stats().reconnects, 1);
    let Place::Quorum(servers) = quorum.place() else {
        panic!("a quorum")
    };
    servers
        .servers
        .iter()
        .for_each(|server| reopened(server.waitlists()));
    assert_eq!(quorum.stats().reconnects, 3);
}
