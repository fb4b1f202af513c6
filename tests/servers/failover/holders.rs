//! Holders of locks whose primary dies. The outcome depends on whether the new primary knows the grant.

use std::future::pending;
use std::time::Instant;

use fairlock::{Error, HoldEnd};
use fairlock_testkit::{Sentinels, Server, eventually};

use super::{LEASE, client};
use crate::common::lost;

/// Race: A failover loses a holder.
#[tokio::test]
async fn a_holder_that_the_new_primary_does_not_know_is_told_no_later_than_its_lease_ends() {
    let group = Sentinels::start().await;
    let (locks, others) = (client(&group.url()).await, client(&group.url()).await);
    let former = group.primary().await;
    let paused = group.pause_replicas(former).await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let granted = Instant::now();
    group.servers[former].kill();
    paused.iter().for_each(|replica| replica.resume());

    let told = async {
        let end = tokio::time::Instant::from_std(granted + LEASE);
        let stopped = tokio::time::timeout_at(end, guard.run(pending::<()>())).await;
        let stopped = lost(stopped.expect("stopped by the end of its lease"));
        assert_eq!(lost(guard.check()).reason, stopped.reason);
        println!("{:?} {:?} after the grant", stopped.reason, granted.elapsed());
        stopped.reason
    };
    let others = others.lock("a");
    let (successor, reason, lost) = tokio::join!(others.acquire(), told, guard.lost());
    assert!(matches!(reason, HoldEnd::Taken | HoldEnd::Expired));
    assert_eq!(lost, reason);

    // The former holder's calls do not affect the new one.
    let successor = successor.unwrap();
    assert!(successor.fence() > guard.fence());
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    let holder = others.status().await.unwrap().holder;
    if holder.is_none() && group.switches() > 1 {
        return println!("skipped: a second failover has lost the new holder too");
    }
    assert_eq!(holder.unwrap().fence, successor.fence());
    successor.release().await.unwrap();
}

/// Race: A failover loses a holder.
#[tokio::test]
async fn a_holder_that_the_new_primary_knows_is_renewed_there_and_keeps_its_lock() {
    let group = Sentinels::start().await;
    let (locks, others) = (client(&group.url()).await, client(&group.url()).await);
    let guard = locks.lock("a").acquire().await.unwrap();
    group.replicated().await;
    let former = group.primary().await;
    let granted = deadline(&group.servers[former]).await;
    group.servers[former].kill();
    let now = group.switched(former).await;

    let others = others.lock("a");
    assert!(matches!(others.try_acquire().await, Err(Error::Busy { .. })));
    eventually("the new primary has its renewal", LEASE, async || {
        deadline(&group.servers[now]).await > granted
    })
    .await;
    guard.check().unwrap();
    assert!(matches!(others.try_acquire().await, Err(Error::Busy { .. })));
    let holder = others.status().await.unwrap().holder.unwrap();
    assert_eq!(holder.fence, guard.fence());
    guard.release().await.unwrap();
}

/// The deadline of the hold on the server, by the server's clock.
async fn deadline(server: &Server) -> u64 {
    server.lock_summary("fairlock:{a}").await.until
}
