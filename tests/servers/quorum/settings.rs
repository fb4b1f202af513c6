//! What a quorum refuses, before anything is sent.

use std::time::Duration;

use fairlock::spin::SpinLock;
use fairlock::{Error, LockManager, MemoryStore, Owner, Quorum, Result};

use super::{client, servers};

/// Servers that nobody asks.
fn urls(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("redis://127.0.0.1:{n}")).collect()
}

fn refused(result: Result<impl Sized>, words: &str) {
    match result {
        Err(Error::Invalid(invalid)) => assert!(invalid.to_string().contains(words), "{invalid}"),
        Err(error) => panic!("{words}: {error}"),
        Ok(_) => panic!("{words}: accepted"),
    }
}

async fn connected(quorum: Quorum) -> Result<LockManager> {
    LockManager::builder().connect_quorum(quorum).await
}

#[tokio::test]
async fn quorum_has_three_to_nine_servers_and_an_odd_number() {
    for count in [0, 1, 2, 4, 6, 8, 10, 11] {
        refused(
            connected(Quorum::of(urls(count))).await,
            &format!("{count} servers: a quorum must have 3, 5, 7 or 9"),
        );
        let stores: Vec<_> = (0..count).map(|_| MemoryStore::new()).collect();
        refused(
            connected(Quorum::in_memory(&stores)).await,
            &format!("{count} stores"),
        );
    }
}

#[test]
fn connecting_can_be_spawned() {
    fn is_spawned(_: impl Future<Output = Result<LockManager>> + Send) {}
    is_spawned(LockManager::builder().connect_quorum(Quorum::of(urls(3))));
}

#[tokio::test]
async fn servers_of_a_quorum_are_plain_and_named_once() {
    let with = |last: &str| [&urls(2)[..], &[last.to_owned()]].concat();
    refused(
        connected(Quorum::of(with("redis://me:secret@127.0.0.1:2/3"))).await,
        "127.0.0.1:2",
    );
    for url in [
        "redis-cluster://127.0.0.1:3",
        "redis-sentinel://127.0.0.1:3?sentinelServiceName=main",
    ] {
        refused(connected(Quorum::of(with(url))).await, "independent servers");
    }
    refused(connected(Quorum::of(with("http://127.0.0.1:3"))).await, "http");
    let error = connected(Quorum::of(with("redis://me:secret@127.0.0.1:2")))
        .await
        .unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn settings_of_one_server_are_refused_in_a_quorum() {
    let builder = LockManager::builder;
    let second = Duration::from_secs(1);
    let quorum = || Quorum::of(urls(3));
    refused(builder().replicas(1).connect_quorum(quorum()).await, "replicas");
    refused(
        builder().lease(61 * second).connect_quorum(quorum()).await,
        "lease 61s: must be from 100ms to 60s",
    );
    let short = builder().lease(second).claim_window(2 * second);
    refused(
        short.connect_quorum(quorum().longest_lease(second)).await,
        "claim_window 2s",
    );
    refused(
        connected(quorum().longest_lease(Duration::ZERO)).await,
        "longest_lease",
    );
}

#[tokio::test]
async fn lock_of_a_quorum_has_no_owner_no_at_least_and_no_long_lease() {
    let servers = servers::<3>().await;
    let locks = client(&servers).await;
    refused(locks.lock("a").owner(&Owner::new()).acquire().await, "owner");
    refused(locks.lock("a").owner(&Owner::new()).try_acquire().await, "owner");
    let kept = locks.lock("a").at_least(Duration::from_secs(1));
    refused(
        kept.acquire().await,
        "at_least: must not be set in a quorum; keep the guard for that long, or use one server",
    );
    refused(kept.try_acquire().await, "at_least");
    let guard = locks.lock("b").acquire().await.unwrap();
    refused(guard.at_least(Duration::from_secs(1)), "at_least");
    guard.at_least(None).unwrap();
    guard.release().await.unwrap();
    let long = Duration::from_secs(61);
    refused(locks.lock("a").lease(long).acquire().await, "lease 61s");
    refused(
        locks.lock("a").lease(long).auto_renew(false).try_acquire().await,
        "lease 61s",
    );
    let spin = SpinLock::new(&locks, "a");
    let second = Duration::from_secs(1);
    refused(spin.try_lock(second, second).await, "spin lock");
    for server in &servers {
        assert!(server.keys("fairlock:{a}").await.is_empty());
    }
}
