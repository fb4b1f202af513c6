//! Several locks at once, in processes that are killed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlock::{Error, LockManager};
use fairlock_testkit::{Cluster, History, Process, Server, eventually, role};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use super::scene::{SECOND, connect, users_until_stopped};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn history(dir: &Path, name: &str) -> History {
    History::in_file(dir.join(format!("history-{name}")))
}

fn part(url: &str, dir: &Path, seed: u64) -> Process {
    let (dir, seed) = (dir.display().to_string(), seed.to_string());
    let args = [("url", url), ("dir", &dir), ("seed", &seed)];
    Process::spawn("faults::sets::part_of_many", &args)
}

#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn part_of_many() {
    let Some(role) = role() else { return };
    let dir = role.arg("dir");
    users_until_stopped(role, 16, |locks, rng, stopped| {
        let histories = NAMES.map(|name| history(dir.as_ref(), name));
        take_again_and_again(locks, histories, rng, stopped)
    })
    .await;
}

/// Takes three of the names at a time, in any order and in all ways. Returns how often it had them.
async fn take_again_and_again(
    locks: LockManager,
    histories: [History; 8],
    mut rng: SmallRng,
    stopped: Arc<AtomicBool>,
) -> u64 {
    let mut taken = 0;
    while !stopped.load(Ordering::Relaxed) {
        let names: Vec<_> = NAMES.choose_multiple(&mut rng, 3).copied().collect();
        let set = locks.all(&names);
        let patience = Duration::from_millis(rng.random_range(1..100));
        let guard = match rng.random_range(0..4) {
            0 => set.try_acquire().await,
            1 => set.acquire_timeout(patience).await,
            2 => match tokio::time::timeout(patience, set.acquire()).await {
                Ok(guard) => guard,
                Err(_) => continue,
            },
            _ => set.acquire().await,
        };
        let guard = match guard {
            Ok(guard) => guard,
            // A bound can be too short for a first answer.
            Err(Error::Busy { .. } | Error::Timeout { .. } | Error::Unavailable(_)) => {
                tokio::time::sleep(patience).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let entries: Vec<_> = (names.iter().zip(guard.fences()))
            .map(|(name, fence)| {
                let known = NAMES.iter().position(|known| known == name).unwrap();
                let entry = histories[known].asks("task");
                entry.granted(fence.get());
                entry
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..20))).await;
        guard.check().expect("a lease that is renewed");
        entries.into_iter().for_each(fairlock_testkit::Entry::released);
        if rng.random() {
            guard.release().await.expect("a release");
        }
        taken += 1;
    }
    taken
}

/// One process after the other is killed, while others go on.
async fn killed_processes_leave_nothing(url: &str, dir: &Path, seed: u64) {
    let mut parts: Vec<_> = (0..4).map(|n| part(url, dir, 4 * seed + n)).collect();
    let histories = NAMES.map(|name| history(dir, name));
    let grants = || -> usize { histories.iter().map(|history| history.grants().len()).sum() };
    for _ in 0..2 {
        let before = grants();
        eventually("all go on", 20 * SECOND, async || grants() >= before + 200).await;
        let mut killed = parts.pop().unwrap();
        killed.kill();
        histories.iter().for_each(|history| history.died(killed.pid()));
    }
    let before = grants();
    eventually("the others go on", 20 * SECOND, async || grants() >= before + 200).await;
    for part in &mut parts {
        part.tell("stop");
        let taken: u64 = part.line().await.parse().unwrap();
        assert!(taken > 0, "a process had nothing");
    }
    for history in &histories {
        history.assert_no_overlap();
        history.assert_fences_increase();
    }
    let locks = connect(url).await;
    let left = async || locks.list_all("*").await.unwrap();
    eventually("nothing is left", 20 * SECOND, async || left().await.is_empty()).await;
    locks
        .all(NAMES)
        .try_acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Race: A process dies while it holds some locks of a set and waits for the next.
#[tokio::test]
async fn sets_of_killed_processes_free_their_locks_and_nobody_waits_in_a_circle() {
    let server = Server::start().await;
    killed_processes_leave_nothing(&server.url(), server.dir(), 1).await;
}

/// Race: A process dies while it holds some locks of a set and waits for the next.
#[tokio::test]
async fn sets_over_the_masters_of_a_cluster_free_their_locks_too() {
    let cluster = Cluster::start().await;
    killed_processes_leave_nothing(&cluster.url(), cluster.servers[0].dir(), 2).await;
}
