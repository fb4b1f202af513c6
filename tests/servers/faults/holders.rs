//! Locks whose holder dies or is stopped.

use std::time::Duration;

use fairlock_testkit::{Process, Server};

use super::parts;
use super::scene::{
    NAME, SECOND, SOON, connect, epoch_ms, granted, in_line, kept, lock_key, queued, settings, subscribed,
};

async fn holder(server: &Server, lease_ms: &str) -> (Process, u64) {
    let mut holder = parts::client(server, lease_ms, lease_ms);
    holder.tell("acquire 1");
    let fence = parts::fence(&mut holder).await;
    (holder, fence)
}

/// Kills a holder on a server with many other keys that have a TTL. They delay the server's own expiry of the
/// lock's key.
async fn killed_beside(other_keys: u32) {
    let server = Server::start().await;
    let fill = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'other:' .. i, i, 'PX', 1000000 + i) end";
    server
        .command(&["EVAL", fill, "0", &other_keys.to_string()])
        .await;
    let locks = connect(&server.url()).await;
    let (mut holder, fence) = holder(&server, "1000").await;
    let waiter = in_line(&server, &locks, NAME, 1).await;
    // This is long enough for a renewal, so the waiter was told of an earlier deadline than the last one.
    tokio::time::sleep(Duration::from_millis(450)).await;
    holder.kill();
    let lease_end = kept(&server, NAME).await.until;

    let guard = granted(waiter, 3 * SECOND).await;
    let granted_at = epoch_ms();
    assert!(
        granted_at >= lease_end,
        "{granted_at} before the lease's end {lease_end}"
    );
    assert!(
        granted_at <= lease_end + 1000,
        "{granted_at} long after the lease's end {lease_end}"
    );
    assert!(guard.fence().get() > fence);
}

/// Race: A lease expires, and no message says so.
#[tokio::test]
async fn a_killed_holder_costs_its_lease_and_no_more() {
    killed_beside(0).await;
}

/// Race: A lease expires, and no message says so.
#[tokio::test]
async fn a_killed_holder_costs_no_more_beside_many_other_volatile_keys() {
    killed_beside(20_000).await;
}

/// Race: A holder is stopped for longer than its lease.
#[tokio::test]
async fn holder_stopped_past_its_lease_sees_the_loss_at_its_first_check() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let (mut holder, stale_fence) = holder(&server, "600").await;
    let waiter = in_line(&server, &locks, NAME, 1).await;
    holder.stop();
    let guard = granted(waiter, 3 * SECOND).await;

    // After it continues, the process first checks its guard, before its timers or a reply can have changed
    // anything.
    holder.tell("check");
    holder.cont();
    holder.expect("lost").await;
    holder.tell("release");
    holder.expect("lost").await;

    // A resource that checks fences would refuse its writes too. The new holder is not disturbed.
    assert!(guard.fence().get() > stale_fence);
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_stopped_for_less_than_its_lease_keeps_the_lock() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let (mut holder, _) = holder(&server, "3000").await;
    let waiter = in_line(&server, &locks, NAME, 1).await;
    holder.stop();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    holder.cont();
    tokio::time::sleep(2 * SECOND).await;
    holder.tell("check");
    holder.expect("held").await;
    assert!(!waiter.is_finished());
    holder.tell("release");
    holder.expect("released").await;
    granted(waiter, SOON).await.release().await.unwrap();
}

/// Race: A waiter dies after its grant.
///
/// Race: A waiter is told of a long wait, and then the lock goes to a client that dies.
#[tokio::test]
async fn a_lock_handed_to_a_killed_process_is_free_after_a_claim_window() {
    let server = Server::start().await;
    let locks = settings()
        .claim_window(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut dead = parts::client(&server, "30000", "1000");
    dead.tell("acquire 1");
    queued(&server, NAME, 1).await;
    let waiter = in_line(&server, &locks, NAME, 2).await;
    subscribed(&server, 2).await;
    // The process is stopped first, so it cannot claim the grant.
    dead.stop();
    guard.release().await.unwrap();
    assert!(kept(&server, NAME).await.pushed);
    dead.kill();
    granted(waiter, Duration::from_millis(1800))
        .await
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_guard_that_outlives_its_manager_is_renewed_and_released() {
    let server = Server::start().await;
    let others = connect(&server.url()).await;
    for is_closed in [true, false] {
        let short = settings().lease(SECOND).claim_window(SECOND);
        let locks = short.connect(&server.url()).await.unwrap();
        let guard = locks.lock(NAME).acquire().await.unwrap();
        if is_closed {
            locks.close().await.unwrap_err();
        }
        drop(locks);
        let waiter = in_line(&server, &others, NAME, 1).await;
        tokio::time::sleep(2 * SECOND).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        granted(waiter, SOON).await.release().await.unwrap();
    }
}

/// Race: A failing renewal of one lock stops the renewals of others.
#[tokio::test]
async fn failing_renewals_of_one_lock_do_not_affect_another() {
    let server = Server::start().await;
    let lease = 2 * SECOND;
    let locks = settings().lease(lease).claim_window(SECOND);
    let locks = locks.connect(&server.url()).await.unwrap();
    let (failing, good) = (
        locks.lock("failing").acquire().await.unwrap(),
        locks.lock(NAME).acquire().await.unwrap(),
    );
    server.command(&["SET", &lock_key("failing"), "foreign"]).await;
    failing.lost().await;
    tokio::time::sleep(lease).await;
    good.check().unwrap();
    good.release().await.unwrap();
    assert_eq!(crate::lost(&locks), 1);
}
