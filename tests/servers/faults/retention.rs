//! Locks that their clients retain, on a server: nobody holds beside another, and nobody waits for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};
use fairlock_testkit::{Proxy, Server, eventually};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::scene::{NAME, SECOND, connect, settings};

const R: Duration = Duration::from_millis(20);

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
