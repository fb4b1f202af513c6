//! Networks that go silent between a holder and its server.

use std::time::{Duration, Instant};

use fairlock::{Error, LeaseState, LockManager};
use fairlock_testkit::{Proxy, Server, eventually};

use super::scene::{
    NAME, SECOND, SOON, connect, epoch_ms, granted, in_line, kept, queued, settings, subscribed,
};

const LEASE: Duration = Duration::from_millis(2500);

async fn behind(proxy: &Proxy) -> LockManager {
    let settings = settings().lease(LEASE).claim_window(LEASE).server_timeout(SECOND);
    settings.connect(&proxy.url()).await.unwrap()
}

/// Under this fault of the network, a lease is lost in the client no later than on the server, and locks work
/// again afterwards.
async fn lost_in_time(fault: impl FnOnce(&Proxy)) {
    let server = Server::start().await;
    let others = connect(&server.url()).await;
    let proxy = Proxy::start(server.port());
    let locks = behind(&proxy).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiter = in_line(&server, &others, NAME, 1).await;
    // This is long enough for a renewal or two.
    tokio::time::sleep(SECOND).await;
    fault(&proxy);
    server.kill_clients().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let lease_end = kept(&server, NAME).await.until;
    let lost = tokio::spawn(guard.lost());
    loop {
        let now = epoch_ms();
        if guard.check().is_err() {
            break;
        }
        assert!(
            now < lease_end,
            "held {} ms after the lease's end",
            now - lease_end
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let lost = tokio::time::timeout(SOON, lost).await.expect("in time").unwrap();
    assert_eq!(guard.lease().state, LeaseState::Lost);
    assert!(guard.run(async {}).await.is_err());
    assert_ne!(lost, fairlock::HoldEnd::Released);

    // The release ends too, and the next waiter gets the lock in time.
    let started = Instant::now();
    assert!(matches!(
        guard.release().await,
        Err(Error::Lost(_) | Error::Unavailable(_))
    ));
    assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
    granted(waiter, SOON).await.release().await.unwrap();

    proxy.heal();
    let again = async || match locks.lock(NAME).acquire().await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(_) => false,
    };
    eventually("acquires succeed again", 3 * SECOND, again).await;
}

/// Race: The network fails for longer than the lease.
#[tokio::test]
async fn a_lease_is_lost_in_time_in_a_black_hole() {
    lost_in_time(Proxy::black_hole).await;
}

/// Race: The network fails for longer than the lease.
#[tokio::test]
async fn a_lease_is_lost_in_time_behind_a_frozen_network() {
    lost_in_time(Proxy::freeze).await;
}

/// Race: The network fails for longer than the lease.
#[tokio::test]
async fn a_lease_is_lost_in_time_when_connections_are_refused() {
    lost_in_time(Proxy::refuse).await;
}

#[tokio::test]
async fn a_partition_shorter_than_the_lease_leaves_doubt_for_a_while_and_loses_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let settings = settings()
        .lease(4 * SECOND)
        .claim_window(SECOND)
        .server_timeout(Duration::from_millis(700));
    let locks = settings.connect(&proxy.url()).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let (lost, state) = (guard.lost(), || guard.lease().state);
    assert_eq!(state(), LeaseState::Held);
    proxy.black_hole();
    eventually("the hold is in doubt", 3 * SECOND, async || {
        state() == LeaseState::InDoubt
    })
    .await;
    assert!(!guard.is_lost() && !guard.lease().remaining.is_zero());
    proxy.heal();
    eventually("the hold is confirmed again", 2 * SECOND, async || {
        state() == LeaseState::Held
    })
    .await;
    assert!(tokio::time::timeout(4 * SECOND, lost).await.is_err());
    guard.release().await.unwrap();
    assert_eq!(crate::lost(&locks), 0);
}

#[tokio::test]
async fn waiters_behind_a_silent_network_are_told_so_or_come_back() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let locks = connect(&server.url()).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let away = settings().claim_window(SECOND).server_timeout(SECOND);
    let away = away.connect(&proxy.url()).await.unwrap();

    let waiter = in_line(&server, &away, NAME, 1).await;
    proxy.black_hole();
    let told = tokio::time::timeout(4 * SECOND, waiter).await.expect("no hang");
    assert!(matches!(told.unwrap(), Err(Error::Unavailable(_))));

    proxy.heal();
    eventually("the network is back", 3 * SECOND, async || {
        away.ping().await.is_ok()
    })
    .await;
    // The request that it left in the queue is removed.
    queued(&server, NAME, 0).await;
    let waiter = in_line(&server, &away, NAME, 1).await;
    proxy.black_hole();
    tokio::time::sleep(Duration::from_millis(400)).await;
    guard.release().await.unwrap();
    proxy.heal();
    granted(waiter, 4 * SECOND).await.release().await.unwrap();
}

/// Race: A grant is read when its lease is over, or nearly over.
#[tokio::test]
async fn waiter_gets_the_lock_by_asking_when_every_push_is_late() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let claim = Duration::from_millis(300);
    let (locks, slow) = (connect(&server.url()).await, settings().claim_window(claim));
    let slow = slow.connect(&proxy.url()).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiter = in_line(&server, &slow, NAME, 1).await;
    subscribed(&server, 1).await;
    proxy.delay_down(claim + claim / 3);
    guard.release().await.unwrap();
    let guard = granted(waiter, 4 * SECOND).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Race: A waiter's connection is half-open, and looks alive.
#[tokio::test]
async fn waiter_notices_half_open_connections_and_keeps_waiting() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let settings = settings().claim_window(SECOND);
    let (locks, away) = (
        connect(&server.url()).await,
        settings.connect(&proxy.url()).await.unwrap(),
    );
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiter = in_line(&server, &away, NAME, 1).await;
    subscribed(&server, 1).await;
    // Bytes no longer get through, neither side is told, and new connections work.
    proxy.freeze_open();
    guard.release().await.unwrap();
    granted(waiter, 10 * SECOND).await.release().await.unwrap();
}
