//! For how long a lock stays taken whose votes came one after the other.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{MS, SECOND, Servers};
use crate::{LockManager, TryAcquire};

const AT_LEAST: Duration = Duration::from_secs(3);

/// A vote that waits for the others can be older than the hold by any time.
#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_from_the_time_of_its_majority_on() {
    let servers = Servers::new(3);
    let alone = |server: usize| {
        let locks = LockManager::builder().in_memory(&servers.0[server]).unwrap();
        locks.lock("a").acquire()
    };
    let (second, third) = (alone(1).await.unwrap(), alone(2).await.unwrap());
    let quorum = || LockManager::builder().quorum_in_memory(&servers.0).unwrap();
    let (here, there) = (quorum(), quorum());
    let waiter = tokio::spawn(here.lock("a").at_least(AT_LEAST).acquire());
    sleep(4 * SECOND).await;
    second.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let began = Instant::now();
    guard.release().await.unwrap();
    third.release().await.unwrap();
    while !matches!(
        there.lock("a").try_acquire().await.unwrap(),
        TryAcquire::Acquired(_)
    ) {
        sleep(10 * MS).await;
    }
    let kept = began.elapsed();
    assert!(kept > AT_LEAST - 50 * MS && kept < AT_LEAST + SECOND, "{kept:?}");
}
