//! Locks that their clients retain, on a server: nobody holds beside another, and nobody waits for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};
use fairlock_testkit::{Process, Proxy, Server, eventually};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::parts;
use super::scene::{NAME, SECOND, connect, settings};

const R: Duration = Duration::from_millis(20);
/// The lease of a client in a process of its own.
const LEASE: Duration = SECOND;

/// A client that retains the lock when this returns.
async fn retaining(url: &str, retain: Duration) -> LockManager {
    let locks = settings().retain(retain).connect(url).await.unwrap();
    eventually("the lock is retained", 10 * SECOND, async || {
        locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
        locks.stats().retained > 0
    })
    .await;
    locks
}

/// Two clients, one on a thread of its own, use the lock again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_that_retain_a_lock_never_hold_at_once() {
    let server = Server::start().await;
    let (is_held, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let until = Instant::now() + 3 * SECOND;
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let locks = retaining(&server.url(), R).await;
        let (is_held, last) = (Arc::clone(&is_held), Arc::clone(&last));
        tasks.spawn(async move {
            let lock = locks.lock(NAME);
            let (mut turns, mut longest) = (0_u64, Duration::ZERO);
            while Instant::now() < until {
                let asked = Instant::now();
                let guard = lock.acquire().await.unwrap();
                longest = longest.max(asked.elapsed());
                assert!(!is_held.swap(true, Ordering::SeqCst), "two hold the lock");
                let fence = guard.fence().get();
                assert!(
                    last.swap(fence, Ordering::SeqCst) < fence,
                    "a fence does not increase"
                );
                is_held.store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
                turns += 1;
                if turns % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            locks.close().await.unwrap();
            (turns, longest, locks.stats())
        });
    }
    for (turns, longest, stats) in tasks.join_all().await {
        assert!(stats.retained > turns / 2, "{stats:?}");
        assert!(stats.handed_over > 0, "{stats:?}");
        assert!(longest < SECOND, "a wait of {longest:?}");
    }
}

/// Race: A process dies while it retains a lock that it does not use.
#[tokio::test]
async fn a_process_that_dies_while_it_retains_a_lock_costs_its_lease() {
    let server = Server::start().await;
    let mut dead = part_that_retains(&server).await;
    dead.kill();
    let killed = Instant::now();
    let locks = connect(&server.url()).await;
    let guard = timeout(10 * SECOND, locks.lock(NAME).acquire()).await.unwrap();
    guard.unwrap().release().await.unwrap();
    assert!(killed.elapsed() < LEASE + 2 * SECOND, "{:?}", killed.elapsed());
}

/// Race: A process dies after it has given back a lock that it retained.
#[tokio::test]
async fn a_process_that_dies_after_the_retention_costs_nothing() {
    let server = Server::start().await;
    let mut dead = part_that_retains(&server).await;
    let locks = connect(&server.url()).await;
    let lock = locks.lock(NAME);
    eventually("the lock is given back", 2 * SECOND, async || {
        lock.status().await.unwrap().holder.is_none()
    })
    .await;
    dead.kill();
    lock.try_acquire().await.unwrap().release().await.unwrap();
}

/// A client in a process of its own, which retains the lock.
async fn part_that_retains(server: &Server) -> Process {
    let lease_ms = LEASE.as_millis().to_string();
    let mut part = parts::client_of(server, "retained", &lease_ms, "1000");
    let locks = connect(&server.url()).await;
    eventually("the lock is retained", 10 * SECOND, async || {
        part.tell("acquire 1");
        parts::fence(&mut part).await;
        part.tell("release");
        assert_eq!(part.line().await, "released");
        locks.lock(NAME).status().await.unwrap().holder.is_some()
    })
    .await;
    part
}

/// Race: The message that a retained lock is wanted is lost.
#[tokio::test]
async fn a_lost_message_costs_no_more_than_the_retention() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let retain = SECOND / 2;
    let locks = retaining(&proxy.url(), retain).await;
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    proxy.delay_down(10 * SECOND);
    let other = connect(&server.url()).await;
    let guard = timeout(3 * retain, other.lock(NAME).acquire()).await;
    guard
        .expect("the end of the retention")
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Race: A retained lock is wanted while its client is not connected, and hears nothing.
#[tokio::test]
async fn a_client_that_loses_its_connection_gives_back_what_it_retains() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let locks = retaining(&proxy.url(), 9 * SECOND).await;
    let other = connect(&server.url()).await;
    proxy.refuse();
    proxy.cut();
    let waits = tokio::spawn(other.lock(NAME).acquire());
    eventually("it is queued", SECOND, async || {
        other.lock(NAME).status().await.unwrap().waiting == 1
    })
    .await;
    proxy.heal();
    let guard = timeout(5 * SECOND, waits).await.expect("at once").unwrap();
    guard.unwrap().release().await.unwrap();
    drop(locks);
}

#[tokio::test]
async fn a_forced_release_is_heard_by_a_client_that_retains_the_lock() {
    let server = Server::start().await;
    let locks = retaining(&server.url(), 9 * SECOND).await;
    let other = connect(&server.url()).await;
    let holder = other.lock(NAME).status().await.unwrap().holder.unwrap();
    assert!(other.lock(NAME).force_release(holder.fence).await.unwrap());
    let held = other.lock(NAME).acquire().await.unwrap();
    let lock = locks.lock(NAME);
    eventually("the client has heard of it", SECOND, async || {
        matches!(lock.try_acquire().await, Err(Error::Busy { .. }))
    })
    .await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_thousand_locks_that_nobody_uses_are_given_back() {
    let server = Server::start().await;
    let locks = settings().retain(R).connect(&server.url()).await.unwrap();
    for _ in 0..2 {
        for n in 0..1000 {
            locks
                .lock(format!("lock:{n}"))
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    }
    let other = connect(&server.url()).await;
    eventually("all are free", 10 * SECOND, async || {
        for n in 0..1000 {
            match other.lock(format!("lock:{n}")).try_acquire().await {
                Ok(guard) => guard.release().await.unwrap(),
                Err(_) => return false,
            }
        }
        true
    })
    .await;
}
