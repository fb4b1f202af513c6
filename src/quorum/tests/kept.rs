//! For how long a lock stays taken whose votes came one after the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::calls::prepare_a_late_raise;
use super::link::State;
use super::{MS, Majority, NEAR, Process, SECOND, Servers, acquire_as, params, votes};
use crate::engine::acquire::Tried;
use crate::{LockGuard, LockManager};

const AT_LEAST: Duration = Duration::from_secs(3);

/// A vote that waits for the others can be older than the hold by any time.
#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_from_the_time_of_its_majority_on() {
    let servers = Servers::new(3);
    let second = servers.held_alone(1).await;
    let (here, there) = (Arc::new(servers.process(1)), servers.process(2));
    here.set(2, State::Down);
    let waits = Arc::clone(&here);
    let waiter = tokio::spawn(async move { waits.acquire_at_least(AT_LEAST).await });
    sleep(4 * SECOND).await;
    second.release().await.unwrap();
    let held = waiter.await.unwrap();
    let began = Instant::now();
    held.release().await.unwrap();
    while !there.finds_it_free().await {
        sleep(10 * MS).await;
    }
    let kept = began.elapsed();
    assert!(kept > AT_LEAST - 50 * MS && kept < AT_LEAST + SECOND, "{kept:?}");
}

impl Servers {
    /// A hold of one server alone.
    async fn held_alone(&self, server: usize) -> LockGuard {
        let locks = LockManager::builder().in_memory(&self.0[server]).unwrap();
        locks.lock("a").acquire().await.unwrap()
    }
}

impl Process {
    async fn acquire_at_least(&self, at_least: Duration) -> Majority {
        let mut params = params(&self.quorum, 1);
        params.terms.at_least = Some(at_least);
        acquire_as(&self.quorum, params).await.unwrap()
    }

    async fn finds_it_free(&self) -> bool {
        let tried = self.quorum.try_acquire(params(&self.quorum, 1)).await;
        matches!(tried.unwrap(), Tried::Held(_))
    }
}

/// A hold of two servers of three, one of which is away while the lock is released.
async fn released_at_one_server(servers: &Servers, at_least: Duration) -> Process {
    let process = servers.process_with(1, |options| options.lease = SECOND);
    process.set(2, State::Down);
    let held = process.acquire_at_least(at_least).await;
    assert_eq!(votes(&held), 2);
    process.set(1, State::Down);
    process.set(2, NEAR);
    drop(held);
    process
}

/// The vote of a server that the release does not reach is over after its lease.
#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_by_a_server_that_had_not_voted_in_the_place_of_one_that_is_away() {
    let servers = Servers::new(3);
    let began = Instant::now();
    let here = released_at_one_server(&servers, 20 * SECOND).await;
    let there = servers.process(2);
    sleep(10 * SECOND).await;
    here.set(1, NEAR);
    while !there.finds_it_free().await {
        sleep(10 * MS).await;
    }
    let kept = began.elapsed();
    assert!(kept > 20 * SECOND - 50 * MS && kept < 21 * SECOND, "{kept:?}");
    sleep(60 * SECOND).await;
    assert_eq!(servers.left().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_had_not_voted_is_asked_no_longer_than_the_others_keep_the_lock() {
    let servers = Servers::new(3);
    let third = servers.held_alone(2).await;
    let _here = released_at_one_server(&servers, 3 * SECOND).await;
    let waiting = async || {
        let locks = LockManager::builder().in_memory(&servers.0[2]).unwrap();
        locks.lock("a").status().await.unwrap().waiting
    };
    sleep(SECOND).await;
    assert_eq!(waiting().await, 1);
    sleep(3 * SECOND).await;
    assert_eq!(waiting().await, 0);
    third.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_is_kept_by_no_further_server() {
    let servers = Servers::new(3);
    let process = servers.process_with(1, |options| options.lease = SECOND);
    process.set(2, State::Down);
    let held = process.acquire_at_least(20 * SECOND).await;
    process.set(1, State::Down);
    held.votes().lost().await;
    process.set(2, NEAR);
    process.set(1, NEAR);
    drop(held);
    sleep(5 * SECOND).await;
    assert!(servers.process(2).finds_it_free().await);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_by_a_vote_whose_fence_is_being_raised() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    prepare_a_late_raise(&process, &servers).await;
    process
        .acquire_at_least(20 * SECOND)
        .await
        .release()
        .await
        .unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 3, "servers that keep the lock");
}

/// Otherwise the lock could not be had for that long once another server is away.
#[tokio::test(start_paused = true)]
async fn a_kept_lock_is_taken_by_force_from_every_server() {
    let servers = Servers::new(3);
    let quorum = || LockManager::builder().quorum_in_memory(&servers.0).unwrap();
    let (here, there) = (quorum(), quorum());
    let guard = here.lock("a").at_least(60 * SECOND).acquire().await.unwrap();
    let fence = guard.fence();
    sleep(SECOND).await;
    guard.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 3);
    assert!(there.lock("a").force_release(fence).await.unwrap());
    assert_eq!(servers.left().await, 0);
}

/// A server that hangs holds up nobody, and is told when it answers again.
#[tokio::test(start_paused = true)]
async fn a_forced_release_does_not_wait_for_a_server_that_hangs() {
    let servers = Servers::new(3);
    let here = LockManager::builder().quorum_in_memory(&servers.0).unwrap();
    let guard = here.lock("a").at_least(60 * SECOND).acquire().await.unwrap();
    let fence = guard.fence();
    sleep(SECOND).await;
    guard.release().await.unwrap();
    sleep(SECOND).await;
    let operator = servers.process(1);
    operator.set(0, State::Hung);
    let began = Instant::now();
    assert!(operator.forced(fence).await);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(servers.left().await, 1);
    operator.set(0, NEAR);
    sleep(10 * SECOND).await;
    assert_eq!(servers.left().await, 0);
}
