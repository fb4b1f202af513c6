//! A new primary whose clock differs from the former one's. By its clock, the leases of earlier grants end
//! sooner or later than their holders were told. Leases that it grants itself depend only on its own clock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlock::{LockGuard, LockManager};
use fairlock_testkit::{LockSummary, Sentinels, Server, Setup, eventually};

use super::{LIMIT, subscriptions};

const LEASE: Duration = Duration::from_secs(8);
const WAITERS: usize = 4;

/// Race: The clock of a new primary differs from that of the former one.
#[tokio::test]
async fn new_primary_with_a_clock_ahead_grants_larger_fences_and_no_hold_lasts_too_long() {
    fail_over(3).await;
}

/// Race: The clock of a new primary differs from that of the former one.
#[tokio::test]
async fn new_primary_with_a_clock_behind_grants_larger_fences_and_no_hold_lasts_too_long() {
    // The difference is longer than the failover takes, so fences from the new clock alone would be smaller.
    fail_over(-30).await;
}

async fn fail_over(replicas_ahead: i64) {
    let setup = Setup {
        replicas_ahead,
        ..Setup::default()
    };
    let group = Arc::new(Sentinels::with(setup).await);
    let connect = async || {
        // With this claim window a pushed grant lasts as long as one in a reply.
        let builder = LockManager::builder().lease(LEASE).claim_window(LEASE);
        builder.server_timeout(LIMIT).connect(&group.url()).await.unwrap()
    };
    let locks = connect().await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let (switched, now) = tokio::sync::watch::channel(None);
    let fences = Arc::new(Mutex::new(vec![guard.fence()]));
    let mut waiters = tokio::task::JoinSet::new();
    for place in 1..=WAITERS {
        let (lock, group) = (connect().await.lock("a"), Arc::clone(&group));
        let (mut now, fences) = (now.clone(), Arc::clone(&fences));
        waiters.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let now: usize = now.wait_for(Option::is_some).await.unwrap().unwrap();
            is_held(&guard, &group.servers[now]).await;
            fences.lock().unwrap().push(guard.fence());
            guard.release().await.unwrap();
        });
        let lock = locks.lock("a");
        eventually("the waiter is queued", LIMIT, async || {
            lock.status().await.unwrap().waiting == place as u64
        })
        .await;
    }
    group.replicated().await;

    let former = group.primary().await;
    group.servers[former].kill();
    let successor = group.switched(former).await;
    switched.send_replace(Some(successor));
    // By the clock of the new primary the lease may have expired, and waiters are served before the others
    // are subscribed.
    eventually("all waiters are subscribed again, or served", LIMIT, async || {
        let served = fences.lock().unwrap().len() - 1;
        subscriptions(&group.servers[successor]).await + served >= WAITERS
    })
    .await;
    let _ = guard.release().await;
    while let Some(waiter) = waiters.join_next().await {
        waiter.unwrap();
    }
    let fences = fences.lock().unwrap();
    assert!(
        fences.is_sorted_by(|earlier, later| earlier < later),
        "{fences:?}"
    );
}

/// Checks that the guard does not believe to hold for longer than the server keeps the hold.
async fn is_held(guard: &LockGuard, server: &Server) {
    let believed = Instant::now() + guard.lease().remaining;
    let mut client = server.client().await;
    let summary = client
        .command(&LockSummary::command("fairlock:{a}"))
        .await
        .unwrap();
    let time = client.command(&["TIME"]).await.unwrap().texts();
    let until = Duration::from_millis(LockSummary::of(&summary).until);
    let time = Duration::new(time[0].parse().unwrap(), 0) + Duration::from_micros(time[1].parse().unwrap());
    let end = Instant::now() + until.saturating_sub(time);
    assert!(
        believed <= end,
        "the holder believed {:?} too long",
        believed - end
    );
}
