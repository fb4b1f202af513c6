//! What a quorum refuses, before anything is sent.

use std::time::Duration;

use fairlock::spin::SpinLock;
use fairlock::{Error, LockManager, LockManagerBuilder, MemoryStore, Owner, Result};

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

#[tokio::test]
async fn quorum_has_three_to_nine_servers_and_an_odd_number() {
    for count in [0, 1, 2, 4, 6, 8, 10, 11] {
        refused(
            LockManager::quorum(urls(count)).await,
            &format!("{count} servers: a quorum must have 3, 5, 7 or 9"),
        );
        let stores: Vec<_> = (0..count).map(|_| MemoryStore::new()).collect();
        refused(
            LockManager::builder().quorum_in_memory(&stores),
            &format!("{count} stores"),
        );
    }
}

#[test]
fn connecting_can_be_spawned() {
    fn is_spawned(_: impl Future<Output = Result<LockManager>> + Send) {}
    is_spawned(LockManager::quorum(["redis://a", "redis://b", "redis://c"]));
    is_spawned(LockManager::builder().quorum(urls(3)));
}

#[tokio::test]
async fn servers_of_a_quorum_are_plain_and_named_once() {
    let with = |last: &str| [&urls(2)[..], &[last.to_owned()]].concat();
    refused(
        LockManager::quorum(with("redis://me:secret@127.0.0.1:2/3")).await,
        "127.0.0.1:2",
    );
    for url in [
        "redis-cluster://127.0.0.1:3",
        "redis-sentinel://127.0.0.1:3?sentinelServiceName=main",
    ] {
        refused(LockManager::quorum(with(url)).await, "independent servers");
    }
    refused(LockManager::quorum(with("http://127.0.0.1:3")).await, "http");
    let error = LockManager::quorum(with("redis://me:secret@127.0.0.1:2"))
        .await
        .unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn settings_of_one_server_are_refused_in_a_quorum_and_the_reverse() {
    let builder = LockManager::builder;
    let second = Duration::from_secs(1);
    refused(builder().replicas(1).quorum(urls(3)).await, "replicas");
    refused(
        builder().lease(61 * second).quorum(urls(3)).await,
        "lease 61s: must be from 100ms to 60s",
    );
    let short = |settings: LockManagerBuilder| settings.lease(second).longest_lease(second);
    refused(
        short(builder()).claim_window(2 * second).quorum(urls(3)).await,
        "claim_window 2s",
    );
    refused(
        builder().longest_lease(Duration::ZERO).quorum(urls(3)).await,
        "longest_lease",
    );
    refused(
        builder().longest_lease(second).in_memory(&MemoryStore::new()),
        "longest_lease",
    );
    refused(builder().durable(true).in_memory(&MemoryStore::new()), "durable");
    refused(
        builder().durable(true).connect("redis://127.0.0.1:1").await,
        "durable",
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
    let long = Duration::from_secs(61);
    refused(locks.lock("a").lease(long).acquire().await, "lease 61s");
    refused(locks.lock("a").fixed_lease(long).try_acquire().await, "lease 61s");
    let spin = SpinLock::new(&locks, "a");
    let second = Duration::from_secs(1);
    refused(spin.try_lock(second, second).await, "spin lock");
    for server in &servers {
        assert!(server.keys("fairlock:{a}").await.is_empty());
    }
}
