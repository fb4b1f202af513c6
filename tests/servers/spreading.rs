//! Locks that are spread over several connection pairs. The calls and messages of each lock use one pair.

use std::time::Duration;

use fairlock::LockManager;
use fairlock_testkit::{Server, eventually};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(10);
const LOCKS: usize = 30;

async fn client(url: &str, connections: usize) -> LockManager {
    let builder = LockManager::builder().connections(connections);
    builder.connect(url).await.unwrap()
}

fn names() -> impl Iterator<Item = String> {
    (0..LOCKS).map(|n| format!("lock{n}"))
}

async fn acquire_all(locks: &LockManager) {
    for name in names() {
        let guard = tokio::time::timeout(LIMIT, locks.lock(name).acquire()).await;
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

/// The ids of the connections whose last command was this one.
async fn that_last_did(server: &Server, command: &str) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST"]).await;
    let field = |line: &str, name: &str| {
        let field = line.split(' ').find_map(|field| field.strip_prefix(name));
        field.unwrap_or_default().to_owned()
    };
    let lines = list.text().lines().filter(|line| field(line, "cmd=") == command);
    lines.map(|line| field(line, "id=")).collect()
}

#[tokio::test]
async fn locks_are_spread_and_each_keeps_to_its_connection() {
    let server = Server::start().await;
    let one = client(&server.url(), 3).await;
    for _ in 0..LOCKS {
        one.lock("a").acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(that_last_did(&server, "evalsha").await.len(), 1, "one lock");
    let many = client(&server.url(), 3).await;
    acquire_all(&many).await;
    assert_eq!(that_last_did(&server, "evalsha").await.len(), 1 + 3, "many");
}

#[tokio::test]
async fn every_lock_is_handed_over_by_a_message() {
    let server = Server::start().await;
    let (holder, waiter) = (client(&server.url(), 4).await, client(&server.url(), 3).await);
    let mut guards = Vec::new();
    let mut waiting = JoinSet::new();
    for name in names() {
        guards.push(holder.lock(&name).acquire().await.unwrap());
        waiting.spawn(waiter.lock(&name).acquire());
    }
    eventually("all are subscribed", LIMIT, async || {
        let channels = server.command(&["PUBSUB", "CHANNELS", "fairlock:*"]).await;
        channels.array().len() == LOCKS
    })
    .await;
    for guard in guards {
        guard.release().await.unwrap();
    }
    while let Some(granted) = tokio::time::timeout(LIMIT, waiting.join_next()).await.unwrap() {
        granted.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(waiter.stats().handed_over, LOCKS as u64);
}

#[tokio::test]
async fn a_connection_that_breaks_comes_back_beside_the_others() {
    let server = Server::start().await;
    let locks = client(&server.url(), 3).await;
    acquire_all(&locks).await;
    let guard = locks.lock("lock0").acquire().await.unwrap();
    for id in that_last_did(&server, "evalsha").await {
        server.command(&["CLIENT", "KILL", "ID", &id]).await;
        eventually("all locks can be acquired", LIMIT, async || {
            let others = names().skip(1).map(|name| locks.lock(name).try_acquire());
            let all = futures_util::future::try_join_all(others).await;
            all.is_ok_and(|all| all.into_iter().all(|one| one.acquired().is_some()))
        })
        .await;
    }
    assert!(guard.check().is_ok());
    guard.release().await.unwrap();
}
