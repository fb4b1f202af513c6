//! Leaders whose primary dies. A term goes on if the new primary knows it. Otherwise it ends by its lease,
//! and the next has a larger fence.

use std::future::pending;
use std::time::Instant;

use fairlock::{HoldToken, LockManager, Result};
use fairlock_testkit::{Sentinels, eventually};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{LEASE, LIMIT, client};

/// A process that leads whenever it can. The channel has its terms.
fn follower(locks: &LockManager) -> (mpsc::UnboundedReceiver<HoldToken>, JoinHandle<Result<()>>) {
    let (told, terms) = mpsc::unbounded_channel();
    let run = locks.leadership("a").run(move |term| {
        told.send(term).unwrap();
        pending()
    });
    (terms, tokio::spawn(run))
}

async fn next(terms: &mut mpsc::UnboundedReceiver<HoldToken>) -> HoldToken {
    timeout(LIMIT, terms.recv()).await.expect("a term").unwrap()
}

/// Race: A failover loses a holder.
#[tokio::test]
async fn a_term_that_the_new_primary_does_not_know_ends_by_its_lease_and_another_follows() {
    let group = Sentinels::start().await;
    let (locks, others) = (client(&group.url()).await, client(&group.url()).await);
    let former = group.primary().await;
    let paused = group.pause_replicas(former).await;
    let (mut terms, run) = follower(&locks);
    let first = next(&mut terms).await;
    let granted = Instant::now();
    group.servers[former].kill();
    paused.iter().for_each(|replica| replica.resume());

    first.lost().await;
    assert!(granted.elapsed() < LEASE, "it had been granted before");
    assert!(first.check().is_err());
    // It campaigns again, by itself.
    let mut last = next(&mut terms).await;
    assert!(last.fence() > first.fence(), "{last:?} after {first:?}");
    eventually("the others see that term", LIMIT, async || {
        // On a busy machine the sentinels can fail over once more, and then that term is lost too.
        while let Ok(newer) = terms.try_recv() {
            last = newer;
        }
        let leader = others.leadership("a").leader().await.unwrap();
        leader.is_some_and(|leader| leader.fence == last.fence())
    })
    .await;
    last.check().unwrap();
    run.abort();
}

/// Race: A failover loses a holder.
#[tokio::test]
async fn a_term_that_the_new_primary_knows_goes_on_and_the_next_candidate_keeps_its_place() {
    let group = Sentinels::start().await;
    let (locks, others) = (client(&group.url()).await, client(&group.url()).await);
    let (mut terms, run) = follower(&locks);
    let first = next(&mut terms).await;
    let (mut later, waiting) = follower(&others);
    eventually("the second candidate is queued", LIMIT, async || {
        others.lock("a").status().await.unwrap().waiting == 1
    })
    .await;
    group.replicated().await;
    let former = group.primary().await;
    group.servers[former].kill();
    group.switched(former).await;

    let leader = others.leadership("a").leader().await.unwrap().unwrap();
    assert_eq!(leader.fence, first.fence());
    first.check().unwrap();
    // A process that ends resigns.
    run.abort();
    let second = next(&mut later).await;
    assert!(second.fence() > first.fence(), "{second:?} after {first:?}");
    waiting.abort();
}
