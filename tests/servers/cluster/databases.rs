//! Numbered databases: a cluster has one, and from Valkey 9.0 on as many as it is set to.

use std::time::Duration;

use fairlock::diagnose::{self, Verdict};
use fairlock::{Error, LockManager, LockSet};
use fairlock_testkit::{Cluster, Resp, eventually};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);
/// Shorter than the time within which a waiter that hears nothing asks again.
const SOON: Duration = Duration::from_secs(2);

fn url(cluster: &Cluster, database: u8) -> String {
    cluster.url().replacen('?', &format!("/{database}?"), 1)
}

async fn waits(locks: &LockManager, name: &str) {
    eventually("one waits", LIMIT, async || {
        let listed = locks.list_all(name).await.unwrap();
        listed.iter().any(|lock| lock.status.waiting == 1)
    })
    .await;
    // Before its subscription is up, it would be passed over.
    tokio::time::sleep(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn a_database_that_a_cluster_does_not_have_is_refused_with_the_number_and_the_setting() {
    let cluster = Cluster::of_masters(3).await;
    LockManager::connect(&url(&cluster, 0)).await.unwrap();
    let error = LockManager::connect(&url(&cluster, 3))
        .await
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    let words = error.to_string();
    assert!(
        words.contains("database 3: must be less") && words.contains("cluster-databases"),
        "{words}"
    );
}

#[tokio::test]
async fn a_database_of_a_cluster_has_locks_of_its_own() {
    let Some(cluster) = Cluster::with_databases(4).await else {
        return eprintln!("skipped: clusters of the installed server have one database");
    };
    let url = |database| url(&cluster, database);
    let (two, three, other) = (
        LockManager::connect(&url(2)).await.unwrap(),
        LockManager::connect(&url(3)).await.unwrap(),
        LockManager::connect(&url(3)).await.unwrap(),
    );
    // On all masters.
    for n in 0..9 {
        let name = format!("a{n}");
        let _elsewhere = two.lock(&name).try_acquire().await.unwrap();
        let kinds: [fn(&LockManager, &str) -> LockSet; 2] = [
            |locks, name| locks.lock(name).into(),
            |locks, name| locks.semaphore(name, 1).into(),
        ];
        for kind in kinds {
            let (lock, wanted) = (kind(&three, &name), kind(&other, &name));
            let held = lock.acquire().await.unwrap();
            let waiting = tokio::spawn(wanted.acquire());
            waits(&three, &name).await;
            held.release().await.unwrap();
            let guard = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
            guard.release().await.unwrap();
        }
    }
    assert!(other.stats().handed_over >= 18, "{:?}", other.stats());
    for server in &cluster.servers {
        let keyspace = server.info("keyspace").await;
        assert!(
            keyspace.contains_key("db2") && keyspace.contains_key("db3"),
            "{keyspace:?}"
        );
        assert!(!keyspace.contains_key("db0"), "{keyspace:?}");
    }
    let findings = diagnose::server(LockManager::builder(), &url(3)).await;
    let findings = findings.unwrap();
    let harm = findings.iter().find(|finding| finding.verdict > Verdict::Warning);
    assert!(harm.is_none(), "{harm:?}");
    let error = LockManager::connect(&url(4)).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("database 4: must be less"), "{error}");
}

/// Race: A slot moves while its locks are held and waited for.
#[tokio::test]
async fn a_slot_that_moves_takes_the_locks_of_all_databases_along() {
    let Some(cluster) = Cluster::with_databases(4).await else {
        return eprintln!("skipped: clusters of the installed server have one database");
    };
    let (one, other) = (
        LockManager::connect(&url(&cluster, 3)).await.unwrap(),
        LockManager::connect(&url(&cluster, 3)).await.unwrap(),
    );
    let lock = one.lock("moving");
    let held = lock.acquire().await.unwrap();
    let waiting = tokio::spawn(other.lock("moving").acquire());
    waits(&one, "moving").await;
    let slot = cluster.slot("{moving}").await;
    let from = Cluster::first_owner(slot);
    let (to, slot) = ((from + 1) % 3, slot.to_string());
    // At once, with all keys of all databases.
    let id = cluster.id(to).await;
    let moves = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slot, &slot, "NODE", &id];
    let begun = cluster.servers[from].command(&moves).await;
    assert!(!matches!(begun, Resp::Error(_)), "{begun:?}");
    eventually("the slot has moved", LIMIT, async || {
        let counted = ["CLUSTER", "COUNTKEYSINSLOT", &slot];
        cluster.servers[from].command(&counted).await.int() == 0
            && cluster.servers[to].info("keyspace").await.contains_key("db3")
    })
    .await;
    held.check().unwrap();
    let fence = held.fence();
    held.release().await.unwrap();
    let guard = timeout(LIMIT, waiting).await.unwrap().unwrap().unwrap();
    assert!(guard.fence() > fence);
    guard.release().await.unwrap();
}
