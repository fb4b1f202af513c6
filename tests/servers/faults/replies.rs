//! Calls whose replies are lost, and calls that arrive long after their client has given up.

use std::time::Duration;

use fairlock::spin::SpinLock;
use fairlock::{Error, Fence, LockManager, Owner};
use fairlock_testkit::{History, Proxy, Server, eventually};
use futures_util::future::join_all;

use super::scene::{
    NAME, SECOND, SETTLED, SOON, connect, epoch_ms, granted, head, in_line, is_held, kept, nothing_left,
    queued, settings, subscribed, turn, unrenewed, waiting,
};

/// Runs one turn of a waiter whose `n`-th reply is lost, between two turns of others. Returns whether a reply
/// was lost.
async fn turn_without_reply(server: &Server, n: usize) -> bool {
    let name = format!("reply-{n}");
    let proxy = Proxy::start(server.port());
    let others = connect(&server.url()).await;
    // The lease is short, so that renewals are part of the turn.
    let short = settings().lease(2 * SECOND).claim_window(2 * SECOND);
    let short = short.connect(&proxy.url()).await.unwrap();
    let history = History::default();
    let spawn =
        |locks: &LockManager, waiter: &str, hold| tokio::spawn(turn(locks, &name, &history, waiter, hold));
    let first = spawn(&others, "first", Duration::from_millis(300));
    eventually("the first waiter holds the lock", SECOND, async || {
        is_held(server, &name).await
    })
    .await;
    proxy.lose_reply(n);
    let middle = spawn(&short, "middle", SECOND * 3 / 2);
    tokio::time::sleep(Duration::from_millis(150)).await;
    let last = spawn(&others, "last", Duration::ZERO);
    for done in [first, middle, last] {
        let done = tokio::time::timeout(6 * SECOND, done).await;
        done.expect("in time").expect("a turn");
    }
    history.assert_no_overlap();
    history.assert_fences_increase();
    nothing_left(server, &name, SETTLED + SECOND).await;
    proxy.lost_replies() > 0
}

/// Race: A script runs, and its reply is lost.
#[tokio::test]
async fn no_lost_reply_costs_the_lock_or_exclusion() {
    let server = Server::start().await;
    // The calls of a turn: acquire, poll, one or two renewals, release.
    let lost = join_all((1..=7).map(|n| turn_without_reply(&server, n))).await;
    assert!(lost[..4].iter().all(|&lost| lost), "{lost:?}");
}

/// Race: A script runs, and its reply is lost.
#[tokio::test]
async fn a_lost_reply_to_an_uncontended_call_is_asked_for_again() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    for n in 1..=2 {
        proxy.lose_reply(n);
        let guard = locks.lock(NAME).acquire().await.unwrap();
        let fence = kept(&server, NAME).await.fence;
        assert_eq!(guard.fence().get(), fence);
        guard.release().await.unwrap();
        assert!(!is_held(&server, NAME).await);
    }
    assert_eq!(proxy.lost_replies(), 2);
    proxy.lose_reply(1);
    drop(locks.lock(NAME).try_acquire().await.unwrap());
    nothing_left(&server, NAME, SETTLED).await;
}

#[tokio::test]
async fn spin_hold_with_a_lost_reply_counts_once() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (mine, others) = (connect(&proxy.url()).await, connect(&server.url()).await);
    let mine = SpinLock::new(&mine, NAME);
    // From now on the server has the scripts.
    assert!(mine.try_lock(Duration::ZERO, 30 * SECOND).await.unwrap());
    mine.unlock().await.unwrap();
    for _ in 0..2 {
        proxy.lose_reply(1);
        assert!(mine.try_lock(Duration::ZERO, 30 * SECOND).await.unwrap());
    }
    assert_eq!(proxy.lost_replies(), 2);
    let others = SpinLock::new(&others, NAME);
    for _ in 0..2 {
        assert!(!others.try_lock(Duration::ZERO, 30 * SECOND).await.unwrap());
        mine.unlock().await.unwrap();
    }
    assert!(others.try_lock(Duration::ZERO, 30 * SECOND).await.unwrap());
}

/// An acquire call that is delayed on its way to the server, on a connection that its client has lost.
async fn stuck_acquire(server: &Server, proxy: &Proxy) -> tokio::task::JoinHandle<fairlock::LockGuard> {
    let locks = connect(&proxy.url()).await;
    proxy.freeze_open();
    let acquiring = tokio::spawn(async move { locks.lock(NAME).acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!is_held(server, NAME).await);
    proxy.strand();
    acquiring
}

/// Lets a delayed first attempt through. `fence` is the last fence before it runs.
async fn leaves_nothing_when_it_runs(server: &Server, proxy: &Proxy, fence: Fence) {
    proxy.thaw();
    // The attempt has run, and its hold has no caller. It ends sooner than a lease.
    let has_run = async || kept(server, NAME).await.fence > fence.get();
    eventually("the first attempt runs", SECOND, has_run).await;
    nothing_left(server, NAME, SETTLED).await;
}

/// Race: A first attempt runs after the second was granted and released.
#[tokio::test]
async fn a_first_attempt_that_runs_after_the_second_was_released_leaves_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let guard = stuck_acquire(&server, &proxy).await.await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    leaves_nothing_when_it_runs(&server, &proxy, fence).await;
}

/// Race: A first attempt runs after the second was granted and released.
#[tokio::test]
async fn a_first_attempt_of_a_try_that_runs_after_the_second_found_it_busy_leaves_nothing() {
    // The attempt runs either at once, or after the client's immediate clean-up.
    for later in [Duration::ZERO, SECOND / 2] {
        let server = Server::start().await;
        let proxy = Proxy::start(server.port());
        let (others, locks) = (connect(&server.url()).await, connect(&proxy.url()).await);
        let guard = others.lock(NAME).acquire().await.unwrap();
        let fence = guard.fence();
        proxy.freeze_open();
        let trying = tokio::spawn(async move { locks.lock(NAME).try_acquire().await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.strand();
        assert!(matches!(trying.await.unwrap(), Err(Error::Busy { .. })));
        guard.release().await.unwrap();
        tokio::time::sleep(later).await;
        leaves_nothing_when_it_runs(&server, &proxy, fence).await;
    }
}

/// Race: A first attempt runs after the second was granted and released.
#[tokio::test]
async fn a_first_attempt_that_runs_after_its_time_does_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let guard = stuck_acquire(&server, &proxy).await.await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    tokio::time::sleep(SETTLED).await;
    let calls = server.calls().await["evalsha"];
    proxy.thaw();
    eventually("the first attempt arrives", SECOND, async || {
        server.calls().await["evalsha"] > calls
    })
    .await;
    assert!(!is_held(&server, NAME).await);
    assert_eq!(waiting(&server, NAME).await, 0);
    assert_eq!(kept(&server, NAME).await.fence, fence.get());
}

/// Race: A withdrawal overtakes the call of its request.
#[tokio::test]
async fn an_attempt_that_runs_after_its_caller_left_leaves_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let others = connect(&server.url()).await;
    // A new client also sends its label. If that were answered later than the call begins, the server would
    // have been heard meanwhile.
    locks
        .lock("other")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    proxy.freeze_open();
    // A thread that is busy elsewhere for as long would be no outage.
    let left = locks.lock(NAME).acquire_timeout(SECOND).await;
    assert!(matches!(left, Err(fairlock::Error::Unavailable(_))), "{left:?}");
    proxy.strand();
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.thaw();
    // The attempt may hold for a moment, but the next caller does not have to wait for a lease.
    let next = others.lock(NAME).acquire_timeout(SETTLED).await.unwrap();
    next.release().await.unwrap();
    nothing_left(&server, NAME, SETTLED).await;
}

/// Race: Commands of a closed connection still run.
#[tokio::test]
async fn waiter_with_a_late_stuck_attempt_is_queued_once() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let others = connect(&server.url()).await;
    let guard = others.lock(NAME).acquire().await.unwrap();
    let locks = connect(&proxy.url()).await;
    proxy.freeze_open();
    let waiter = tokio::spawn(locks.lock(NAME).acquire());
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.strand();
    subscribed(&server, 1).await;
    let last = in_line(&server, &others, NAME, 2).await;
    proxy.thaw();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(waiting(&server, NAME).await, 2);
    guard.release().await.unwrap();
    granted(waiter, SOON).await.release().await.unwrap();
    granted(last, SOON).await.release().await.unwrap();
    nothing_left(&server, NAME, SETTLED).await;
}

/// Race: A stale grant is released late, when its request already has a newer one.
#[tokio::test]
async fn an_old_grant_that_is_read_late_frees_no_newer_one() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (others, locks) = (connect(&server.url()).await, connect(&proxy.url()).await);
    let ending = unrenewed(&others, NAME, SECOND).await;
    let old_fence = ending.fence();
    let waiter = in_line(&server, &locks, NAME, 1).await;
    subscribed(&server, 1).await;
    let request = head(&server, NAME).await;
    let channel = server.command(&["PUBSUB", "CHANNELS"]).await.texts().remove(0);

    // An old push is sent to the waiter shortly before it is granted the lock in the reply to its own poll.
    // It reads the push before that reply.
    let delay = Duration::from_millis(300);
    proxy.delay_down(delay);
    let lease_end = kept(&server, NAME).await.until;
    tokio::time::sleep(Duration::from_millis(lease_end.saturating_sub(epoch_ms() + 50))).await;
    let push = format!("1 {old_fence} {} {request}", lease_end - 500);
    assert_eq!(server.command(&["PUBLISH", &channel, &push]).await.int(), 1);

    let guard = granted(waiter, 2 * SECOND).await;
    assert!(guard.fence() > old_fence);
    tokio::time::sleep(delay).await;
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
}

/// Race: A stale grant is released late, when its request already has a newer one.
#[tokio::test]
async fn late_grant_withdrawn_still_later_frees_no_newer_hold_of_its_owner() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let claim = settings().claim_window(SECOND);
    let slow = claim.connect(&proxy.url()).await.unwrap();
    let others = settings()
        .claim_window(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let owner = Owner::new();
    let before = others.lock(NAME).acquire().await.unwrap();
    let waiter = tokio::spawn(slow.lock(NAME).owner(&owner).acquire());
    queued(&server, NAME, 1).await;
    subscribed(&server, 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    // The waiter is granted the lock, and learns of it when most of its claim window is over. In the meantime
    // its owner gets a second hold elsewhere, under the same fence.
    proxy.freeze();
    before.release().await.unwrap();
    let second = others.lock(NAME).owner(&owner).acquire().await.unwrap();
    tokio::time::sleep(SECOND * 9 / 10).await;
    // The waiter's withdrawal of the late grant is delayed, and its connection is lost.
    proxy.delay_up(Duration::from_millis(300));
    proxy.thaw();
    tokio::time::sleep(Duration::from_millis(150)).await;
    proxy.strand();
    proxy.delay_up(Duration::ZERO);
    let guard = granted(waiter, 3 * SECOND).await;
    assert_eq!(guard.fence(), second.fence());
    proxy.thaw();
    tokio::time::sleep(SOON).await;
    second.release().await.unwrap();
    guard.renew().await.unwrap();
    assert!(is_held(&server, NAME).await, "its newer hold was freed");
    guard.release().await.unwrap();
    nothing_left(&server, NAME, SETTLED).await;
}

/// Race: A poll makes its request the holder again when its lease is over, and is answered before the client
/// notices.
#[tokio::test]
async fn poll_that_runs_when_its_grant_is_over_leaves_no_holder() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let others = connect(&server.url()).await;
    let window = Duration::from_millis(300);
    let locks = settings().claim_window(window);
    let locks = locks.connect(&proxy.url()).await.unwrap();
    let _ending = unrenewed(&others, NAME, SECOND).await;
    let waiter = in_line(&server, &locks, NAME, 1).await;
    subscribed(&server, 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    // The waiter's poll at the end of the lease is in flight for longer than a claim window. In the meantime
    // another client finds the lock free, and hands it over.
    let evalshas = proxy.count("EVALSHA");
    proxy.delay_up(window * 2);
    let lease_end = kept(&server, NAME).await.until;
    tokio::time::sleep(Duration::from_millis(lease_end.saturating_sub(epoch_ms()) + 60)).await;
    assert_eq!(proxy.count("EVALSHA"), evalshas + 1, "the poll is under way");
    assert!(matches!(
        others.lock(NAME).try_acquire().await,
        Err(Error::Busy { .. })
    ));
    let guard = granted(waiter, SOON).await;
    guard.lost().await;
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost(_))), "{released:?}");
    nothing_left(&server, NAME, 3 * SECOND).await;
}
