//! Clients whose address leads to another server while their connections stay open. This happens when servers
//! exchange their roles without closing connections, or when a proxy spreads connections over a primary and
//! its replica.
//!
//! A message that is published at a primary also reaches subscribers at its replicas, which the primary does
//! not count.

use std::time::{Duration, Instant};

use fairlock::LockManager;
use fairlock_testkit::{Proxy, Server, eventually};
use futures_util::future::{Either, select};
use tokio::task::JoinHandle;

use super::scene::{NAME, SECOND, SOON, connect, granted, in_line, settings, subscribed};

/// A `READONLY` reply does not replace a connection that is younger than this.
const MIN_AGE: Duration = Duration::from_millis(1_100);
/// A client that receives no message has polled within this time, and has found the other server.
const POLLED_BY: Duration = Duration::from_secs(12);

async fn replica_of(primary: &Server) -> Server {
    let replica = Server::builder()
        .config("replicaof", &format!("127.0.0.1 {}", primary.port()))
        .config("repl-diskless-sync-delay", "0")
        .start()
        .await;
    follows(&replica).await;
    replica
}

/// Waits until a replica is up to date.
async fn follows(replica: &Server) {
    let is_up = async || {
        let info = replica.info("replication").await;
        info.get("master_link_status")
            .is_some_and(|status| status == "up")
    };
    eventually("the replica follows", 20 * SECOND, is_up).await;
}

/// Exchanges the roles of the two servers. No connection is closed.
async fn change_roles(primary: &Server, replica: &Server) {
    replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    let port = replica.port().to_string();
    primary.command(&["REPLICAOF", "127.0.0.1", &port]).await;
    follows(primary).await;
}

/// Race: A client that listens at a replica receives a push, although it was not counted and was skipped.
#[tokio::test]
async fn a_change_of_roles_under_open_connections_gives_the_lock_to_one_alone() {
    let primary = Server::start().await;
    let replica = replica_of(&primary).await;
    let proxy = Proxy::start(primary.port());
    let (holder, first, second) = (
        connect(&proxy.url()).await,
        connect(&proxy.url()).await,
        connect(&proxy.url()).await,
    );
    let guard = holder.lock(NAME).acquire().await.unwrap();
    let first = in_line(&primary, &first, NAME, 1).await;
    let second = in_line(&primary, &second, NAME, 2).await;
    subscribed(&primary, 2).await;
    tokio::time::sleep(MIN_AGE).await;

    change_roles(&primary, &replica).await;
    proxy.lead_to(&[replica.port()]);
    let fence = guard.fence();
    guard.release().await.unwrap();
    // The first of them to find the new primary has the lock. The other is not reachable there yet.
    let either = select(first, second);
    let found = tokio::time::timeout(POLLED_BY, either)
        .await
        .expect("a grant after a poll");
    let (guard, other) = match found {
        Either::Left(found) | Either::Right(found) => found,
    };
    let guard = guard.unwrap().unwrap();
    assert!(guard.fence() > fence);
    tokio::time::sleep(SOON).await;
    assert!(!other.is_finished(), "two holders at once");
    guard.check().unwrap();
    // The other waiter has found the new primary too, also for its subscriber connection.
    subscribed(&replica, 2).await;
    let fence = guard.fence();
    guard.release().await.unwrap();
    let guard = granted(other, SOON).await;
    assert!(guard.fence() > fence);
    guard.release().await.unwrap();
}

/// Keeps the lock busy, so that it is never free while this runs.
fn keep_busy(locks: &LockManager) -> Vec<JoinHandle<()>> {
    let busy = (0..3).map(|_| {
        let lock = locks.lock(NAME);
        tokio::spawn(async move {
            loop {
                let guard = lock.acquire().await.expect("a guard");
                tokio::time::sleep(Duration::from_millis(5)).await;
                guard.release().await.expect("a release");
            }
        })
    });
    busy.collect()
}

/// Race: A client sends its calls to one server and listens at another.
#[tokio::test]
async fn a_client_that_listens_elsewhere_finds_the_server_of_its_calls_and_gets_a_hot_lock() {
    let primary = Server::start().await;
    let busy = keep_busy(&connect(&primary.url()).await);
    let proxy = Proxy::start(primary.port());
    for elsewhere in [replica_of(&primary).await, Server::start().await] {
        // Calls go to the primary. The subscriber connection goes elsewhere twice before it reaches the
        // primary.
        proxy.lead_to(&[primary.port(), elsewhere.port(), elsewhere.port(), primary.port()]);
        let locks = connect(&proxy.url()).await;
        let guard = locks.lock(NAME).acquire_timeout(POLLED_BY).await.unwrap();
        guard.release().await.unwrap();
        locks.close().await.unwrap();
    }
    busy.iter().for_each(JoinHandle::abort);
}

/// Race: A client sends its calls to one server and listens at another.
#[tokio::test]
async fn client_that_cannot_listen_at_the_server_of_its_calls_sends_it_few_calls() {
    const LOCKS: usize = 200;
    let primary = Server::start().await;
    let elsewhere = Server::start().await;
    let other = connect(&primary.url()).await;
    let name = |n: usize| format!("{NAME}{n}");
    let mut guards = Vec::new();
    for n in 0..LOCKS {
        guards.push(other.lock(name(n)).acquire().await.unwrap());
    }
    let proxy = Proxy::start(primary.port());
    let mut servers = vec![elsewhere.port(); 1_000];
    servers[0] = primary.port();
    proxy.lead_to(&servers);
    let locks = settings().connect(&proxy.url()).await.unwrap();
    let waiters: Vec<_> = (0..LOCKS)
        .map(|n| tokio::spawn(locks.lock(name(n)).acquire()))
        .collect();
    // By now the client has made all attempts that it makes at once.
    tokio::time::sleep(4 * SECOND).await;
    let (scripts, connections, began) = (proxy.count("EVALSHA"), proxy.accepted(), Instant::now());
    tokio::time::sleep(6 * SECOND).await;
    let seconds = began.elapsed().as_secs_f64();
    let scripts = f64::from(u32::try_from(proxy.count("EVALSHA") - scripts).unwrap()) / seconds;
    let connections = proxy.accepted() - connections;
    // Every lock is polled once in 4.5 s, and after each new connection.
    assert!(scripts < 150.0, "{scripts:.0} scripts per second");
    assert!(connections <= 4, "{connections} connections");
    // Each waiter still gets its lock when that is free.
    drop(guards);
    for waiter in waiters {
        granted(waiter, POLLED_BY).await.release().await.unwrap();
    }
}
