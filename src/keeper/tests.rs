//! What the keeper finds out when it renews.

use futures_util::FutureExt;
use tokio::time::{advance, sleep};

use super::*;
use crate::{LockManager, MemoryStore};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn a_lock_that_the_server_forgot_is_lost_at_the_next_renewal() {
    let store = MemoryStore::new();
    let locks = LockManager::builder().lease(LEASE).in_memory(&store).unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    store.flush();
    sleep(LEASE / 3 - Duration::from_secs(1)).await;
    assert!(guard.check().is_ok());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(guard.check().unwrap_err().reason(), LostReason::Taken);
}

#[tokio::test(start_paused = true)]
async fn all_of_many_holds_that_are_due_at_once_are_renewed() {
    let locks = LockManager::builder()
        .lease(LEASE)
        .in_memory(&MemoryStore::new())
        .unwrap();
    let mut guards = Vec::new();
    for n in 0..10 * BATCH {
        guards.push(locks.lock(format!("{n}")).acquire().await.unwrap());
    }
    sleep(2 * LEASE).await;
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_released_as_its_renewal_is_due_leaves_nothing() {
    let locks = LockManager::builder()
        .lease(LEASE)
        .in_memory(&MemoryStore::new())
        .unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let keeper = locks.service().keeper();
    let hold = Arc::clone(&keeper.held()[0]);
    guard.release().await.unwrap();
    assert!(keeper.look(hold).is_none());
    assert!(locked(&keeper.schedule).places.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_here_does_not_go_on_at_the_server() {
    let store = MemoryStore::new();
    let client = || LockManager::builder().lease(LEASE).in_memory(&store).unwrap();
    let (locks, others) = (client(), client());
    let guard = locks.lock("a").acquire().await.unwrap();

    // The process stands still until its lease is over, but for a renewal that it had sent: nobody hears its answer.
    let service = locks.service();
    let hold = &service.keeper().held()[0];
    let sleep_on = |time| assert!(advance(time).now_or_never().is_none());
    sleep_on(LEASE - Duration::from_millis(1));
    let renewed = service.client().store.renew(hold.renewal()).now_or_never();
    assert!(matches!(
        renewed,
        Some(Ok(Answer {
            reply: Renewed::Until(_),
            ..
        }))
    ));
    sleep_on(Duration::from_millis(2));

    assert_eq!(guard.lost().await.reason(), LostReason::Expired);
    let next = others.lock("a").acquire_timeout(LEASE / 10).await;
    assert!(next.is_ok(), "{next:?}");
}
