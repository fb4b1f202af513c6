//! What the keeper finds out when it renews.

use tokio::time::sleep;

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
