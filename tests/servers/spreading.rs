//! Locks that are spread over several connection pairs. The calls and messages of each lock use one pair.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fairlock::LockManager;
use fairlock_testkit::{Client, Server, eventually};
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

/// By the name of a lock, the addresses of the connections that called scripts for it, up to now.
async fn callers(server: &Server, monitor: &mut Client) -> HashMap<String, HashSet<String>> {
    server.command(&["ECHO", "that is all"]).await;
    let mut callers: HashMap<_, HashSet<_>> = HashMap::new();
    loop {
        // `1764063059.524 [0 127.0.0.1:40000] "EVALSHA" "…" "1" "fairlock:{lock0}" …`
        let line = monitor.read().await.unwrap().text().to_owned();
        if line.ends_with("\"that is all\"") {
            return callers;
        }
        let between = |from, to| Some(line.split_once(from)?.1.split_once(to)?.0.to_owned());
        // The commands of a script come from `lua`. The client's label belongs to no lock.
        if let (Some(address), Some(name)) = (between("[0 127.", "] \"EVALSHA\""), between(":{", "}")) {
            callers.entry(name).or_default().insert(address);
        }
    }
}

#[tokio::test]
async fn locks_are_spread_and_each_keeps_to_its_connection() {
    let server = Server::start().await;
    let mut monitor = server.client().await;
    monitor.command(&["MONITOR"]).await.unwrap();
    let locks = client(&server.url(), 3).await;
    for _ in 0..3 {
        acquire_all(&locks).await;
    }
    let callers = callers(&server, &mut monitor).await;
    assert_eq!(callers.len(), LOCKS);
    for (name, connections) in &callers {
        assert_eq!(connections.len(), 1, "{name}: {connections:?}");
    }
    let connections: HashSet<_> = callers.values().flatten().collect();
    assert_eq!(connections.len(), 3, "{connections:?}");
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
