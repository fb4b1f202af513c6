//! Grants that count only once they are on disk, on real servers. Servers without `WAITAOF` (before Redis
//! 7.2) are refused, and on them these tests check the refusal.

mod cost;

use std::time::Duration;

use fairlock::{Error, Lock, LockManager, LockManagerBuilder, MemoryStore, Owner, Result};
use fairlock_testkit::{Cluster, Resp, Server, eventually};
use futures_util::future::join_all;

const SECOND: Duration = Duration::from_secs(1);
/// Everything that does not wait for a lease happens within this time, also on a busy machine.
const SOON: Duration = Duration::from_secs(5);
const NAME: &str = "orders:42";

fn settings() -> LockManagerBuilder {
    LockManager::builder().prefix("t").fsynced(true)
}

/// Starts a server with an append-only file and this `appendfsync`. Returns `None` if the server has no
/// `WAITAOF`, after a check that the client refuses it.
async fn with_file(appendfsync: &str) -> Option<Server> {
    let server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", appendfsync)
        .config("repl-diskless-sync-delay", "0")
        .start()
        .await;
    if knows_waitaof(&server).await {
        return Some(server);
    }
    refused_with(settings().connect(&server.url()).await, "7.2");
    None
}

async fn knows_waitaof(server: &Server) -> bool {
    let info = server.command(&["COMMAND", "INFO", "waitaof"]).await;
    matches!(info.array(), [Resp::Array(about)] if !about.is_empty())
}

/// The words of the error that say why the installed server cannot confirm writes.
async fn advice_of(server: &Server) -> &'static str {
    match knows_waitaof(server).await {
        true => "appendonly yes",
        false => "7.2",
    }
}

#[track_caller]
fn refused_with<T: std::fmt::Debug>(result: Result<T>, words: &str) {
    match result {
        Err(Error::Refused(error)) => assert!(error.to_string().contains(words), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn not_replicated<T: std::fmt::Debug>(result: Result<T>, expected: (u32, u32)) {
    match result {
        Err(Error::NotReplicated { wanted, got }) => assert_eq!((wanted, got), expected),
        other => panic!("{other:?}"),
    }
}

/// Whether the lock is free now and its queue is empty.
async fn is_free(lock: &Lock) -> bool {
    let status = lock.status().await.unwrap();
    status.holder.is_none() && status.waiting == 0
}

#[tokio::test]
async fn every_way_to_acquire_gives_a_guard_once_the_disk_has_the_grant() {
    let Some(server) = with_file("always").await else {
        return;
    };
    let locks = settings().connect(&server.url()).await.unwrap();
    let owner = Owner::new();
    let lock = locks.lock(NAME).owner(&owner);
    let guard = lock.acquire().await.unwrap();
    let inner = lock.try_acquire().await.unwrap().acquired().expect("re-entrant");
    inner.release().await.unwrap();
    guard.release().await.unwrap();
    lock.acquire_timeout(SOON).await.unwrap().release().await.unwrap();
    assert_eq!(lock.with(async |_| 7).await.unwrap(), 7);
    let turns = (0..16).map(|_| async { locks.lock(NAME).acquire().await.unwrap().release().await.unwrap() });
    join_all(turns).await;
    assert!(is_free(&lock).await);
    let calls = server.calls().await;
    assert!(calls["waitaof"] > 4 && !calls.contains_key("wait"), "{calls:?}");
}

#[tokio::test]
async fn a_primary_that_comes_back_from_its_file_knows_the_holder() {
    let Some(server) = with_file("always").await else {
        return;
    };
    let locks = settings().connect(&server.url()).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    server.kill();
    server.restart().await;
    let holder = locks.lock(NAME).status().await.unwrap().holder;
    assert_eq!(holder.expect("still held").fence, guard.fence());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_disk_that_is_synced_once_a_second_confirms_in_time_also_while_others_write() {
    let Some(server) = with_file("everysec").await else {
        return;
    };
    let others = LockManager::builder()
        .prefix("t")
        .connect(&server.url())
        .await
        .unwrap();
    let writing = tokio::spawn(async move {
        loop {
            let guard = others.lock("busy").acquire().await.unwrap();
            guard.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let locks = settings()
        .server_timeout(10 * SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    for round in 0..3 {
        let turns = (0..32).map(|n| {
            let lock = locks.lock(format!("{round}:{n}"));
            async move { lock.acquire().await?.release().await }
        });
        for turn in join_all(turns).await {
            turn.unwrap();
        }
    }
    writing.abort();
}

#[tokio::test]
async fn grant_that_is_never_synced_is_released() {
    let Some(server) = with_file("no").await else {
        return;
    };
    let locks = settings()
        .server_timeout(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let lock = locks.lock(NAME);
    not_replicated(lock.acquire().await, (1, 0));
    assert!(is_free(&lock).await);
    not_replicated(lock.try_acquire().await, (1, 0));
    assert!(is_free(&lock).await);
    assert_eq!(locks.stats().held, 0);
    server.command(&["CONFIG", "SET", "appendfsync", "always"]).await;
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn disks_of_replicas_count_and_their_memory_does_not() {
    let Some(primary) = with_file("always").await else {
        return;
    };
    let address = format!("127.0.0.1 {}", primary.port());
    let replica = Server::builder()
        .config("replicaof", &address)
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start()
        .await;
    eventually("the replica's disk", 20 * SECOND, async || {
        let mut client = primary.client().await;
        client.command(&["SET", "x", "1"]).await.unwrap();
        let counts = client.command(&["WAITAOF", "1", "1", "500"]).await.unwrap();
        counts.array() == [Resp::Int(1), Resp::Int(1)]
    })
    .await;
    let locks = settings()
        .replicas(1)
        .server_timeout(SECOND)
        .connect(&primary.url())
        .await
        .unwrap();
    let lock = locks.lock(NAME);
    lock.acquire().await.unwrap().release().await.unwrap();

    replica.command(&["CONFIG", "SET", "appendonly", "no"]).await;
    let in_memory = LockManager::builder().prefix("t").replicas(1);
    let in_memory = in_memory.connect(&primary.url()).await.unwrap();
    in_memory
        .lock(NAME)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    not_replicated(lock.acquire().await, (2, 1));
    assert!(is_free(&lock).await);
}

#[tokio::test]
async fn server_without_a_file_or_without_the_command_is_refused_with_advice() {
    let server = Server::start().await;
    let advice = advice_of(&server).await;
    refused_with(settings().connect(&server.url()).await, advice);
    refused_with(settings().replicas(1).connect(&server.url()).await, advice);
    assert_eq!(server.keys("t").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_file_that_is_turned_off_later_refuses_the_grant_and_leaves_nothing() {
    let Some(server) = with_file("always").await else {
        return;
    };
    let locks = settings().connect(&server.url()).await.unwrap();
    let lock = locks.lock(NAME);
    server.command(&["CONFIG", "SET", "appendonly", "no"]).await;
    refused_with(lock.acquire().await, "appendonly yes");
    assert!(is_free(&lock).await);
    server.command(&["CONFIG", "SET", "appendonly", "yes"]).await;
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn cluster_without_confirming_masters_refuses_the_first_grant_and_leaves_nothing() {
    let cluster = Cluster::of_masters(1).await;
    let advice = advice_of(&cluster.servers[0]).await;
    let locks = settings().connect(&cluster.url()).await.unwrap();
    let lock = locks.lock(NAME);
    refused_with(lock.acquire().await, advice);
    assert!(is_free(&lock).await);
}

#[tokio::test]
async fn waiting_for_disks_needs_one_more_right_and_reports_its_lack_at_once() {
    let Some(server) = with_file("always").await else {
        return;
    };
    let advised = include_str!("../../docs/operations.md")
        .lines()
        .find(|line| line.starts_with("ACL SETUSER locks "))
        .expect("the page advises a user");
    let words: Vec<&str> = advised.split(' ').collect();
    server.set_user(&words).await;
    let url = server.url_as("locks", "secret");
    let settings = || LockManager::builder().fsynced(true);
    refused_with(settings().connect(&url).await, "waitaof");
    server.command(&["ACL", "SETUSER", "locks", "+waitaof"]).await;
    server.command(&["ACL", "LOG", "RESET"]).await;
    let locks = settings().connect(&url).await.unwrap();
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(server.command(&["ACL", "LOG"]).await.array(), []);
}

#[tokio::test]
async fn there_is_no_disk_in_memory() {
    match settings().in_memory(&MemoryStore::new()) {
        Err(Error::Invalid(invalid)) => assert!(invalid.to_string().contains("fsynced"), "{invalid}"),
        other => panic!("{other:?}"),
    }
}
