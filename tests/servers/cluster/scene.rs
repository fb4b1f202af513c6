//! Helpers for these tests: clients of a cluster, and a queue of waiters.

use std::time::{Duration, Instant};

use fairlock::{Lock, LockManager, LockSet};
use fairlock_testkit::{Cluster, History, Hold, eventually};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::Looked;

pub(crate) async fn clients(cluster: &Cluster, count: usize) -> Vec<LockManager> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(LockManager::connect(&cluster.url()).await.unwrap());
    }
    clients
}

/// Queues `count` waiters one after the other, on these locks in turn. Each waiter holds its lock once, for
/// `hold`.
pub(crate) async fn queue<L: Looked + Clone + Into<LockSet>>(
    locks: &[L],
    count: usize,
    hold: Duration,
    history: &History,
    waiters: &mut JoinSet<()>,
) {
    for n in 0..count {
        let lock = locks[n % locks.len()].clone();
        let before = waiting(&lock).await;
        let (set, history): (LockSet, _) = (lock.into(), history.clone());
        waiters.spawn(async move {
            let entry = history.asks(n);
            let guard = set.acquire().await.unwrap();
            entry.granted(guard.fences()[0].get());
            // A waiter whose lease is lost stops at that moment.
            tokio::select! {
                _ = guard.lost() => {}
                () = sleep(hold) => {}
            }
            entry.released();
            // The release may find the lease lost or the master gone. In both cases the lock is no longer
            // held.
            let _ = guard.release().await;
        });
        eventually("one more waits", Duration::from_secs(20), async || {
            waiting(&locks[0]).await > before
        })
        .await;
    }
}

/// Queues `count` waiters behind a holder, and lets some of them have the lock. Each holds it for 20 ms.
/// Returns how many have had it.
pub(crate) async fn serve_some(
    locks: &[Lock],
    count: usize,
    history: &History,
    waiters: &mut JoinSet<()>,
) -> usize {
    let first = locks[0].acquire().await.unwrap();
    queue(locks, count, Duration::from_millis(20), history, waiters).await;
    // By now their subscriptions are up.
    sleep(Duration::from_millis(500)).await;
    first.release().await.unwrap();
    sleep(Duration::from_millis(200)).await;
    history.grants().len()
}

pub(crate) async fn waiting(lock: &impl Looked) -> u64 {
    lock.look().await.unwrap().waiting
}

/// Waits until all waiters have had the lock.
pub(crate) async fn all_served(waiters: &mut JoinSet<()>, limit: Duration) {
    let start = Instant::now();
    let all = async {
        while let Some(served) = waiters.join_next().await {
            served.unwrap();
        }
    };
    assert!(
        tokio::time::timeout(limit, all).await.is_ok(),
        "{} were not served within {:?}",
        waiters.len(),
        start.elapsed()
    );
}

/// The longest time between a release and the grant after it.
pub(crate) fn longest_gap(grants: &[Hold]) -> Duration {
    let gap = |pair: &[Hold]| {
        let released = pair[0].released_ns.unwrap_or(u64::MAX);
        pair[1].granted_ns.unwrap_or(0).saturating_sub(released)
    };
    Duration::from_nanos(grants.windows(2).map(gap).max().unwrap_or_default())
}

/// How many grants came before the previous holder had released.
pub(crate) fn overlaps(grants: &[Hold]) -> usize {
    let overlap = |pair: &&[Hold]| pair[0].released_ns > pair[1].granted_ns;
    grants.windows(2).filter(overlap).count()
}

/// How many requests were served before another one that had asked earlier.
pub(crate) fn overtakings(grants: &[Hold]) -> usize {
    let is_overtaken = |pair: &&[Hold]| pair[0].asked_ns > pair[1].asked_ns;
    grants.windows(2).filter(is_overtaken).count()
}
