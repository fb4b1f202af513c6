//! Local hand-off in processes that die or lose their leases, next to others: nobody holds beside another,
//! and fences increase.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlock::{HoldEnd, Lock, LockGuard};
use fairlock_testkit::{History, Process, Proxy, Server, eventually, role};
use tokio::task::{JoinHandle, JoinSet};

use super::scene::{NAME, SECOND, connect, epoch_ms, kept, lock_key, settings};
use crate::common::lost;

const TURNS: u64 = 64;
const LEASE: Duration = Duration::from_millis(900);

/// Starts a process whose tasks take the lock again and again, until it is told `stop`.
fn part(server: &Server, history: &Path, tasks: u64, local_handoffs: u64) -> Process {
    let (url, history) = (server.url(), history.display().to_string());
    let (tasks, local_handoffs) = (tasks.to_string(), local_handoffs.to_string());
    let args = [
        ("url", url.as_str()),
        ("history", &history),
        ("tasks", &tasks),
        ("local-handoffs", &local_handoffs),
    ];
    Process::spawn("faults::local_handoffs::part_of_many", &args)
}

#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn part_of_many() {
    let Some(mut role) = role() else { return };
    let history = History::in_file(role.arg("history"));
    let turns = u32::try_from(role.number("local-handoffs")).unwrap();
    let locks = settings().lease(LEASE).claim_window(LEASE).local_handoffs(turns);
    let locks = locks.connect(&role.arg("url")).await.unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..role.number("tasks") {
        let (lock, history, stopped) = (locks.lock(NAME), history.clone(), Arc::clone(&stopped));
        tasks.spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let entry = history.asks("task");
                let guard = lock.acquire().await.expect("a guard");
                entry.granted(guard.fence().get());
                entry.released();
                guard.release().await.expect("a release");
            }
        });
    }
    assert_eq!(role.heard().await, "stop");
    stopped.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    role.say(&format!("{} local hand-offs", locks.stats().local_handoffs));
}

fn history_in(server: &Server) -> (PathBuf, History) {
    let path = server.dir().join("history");
    (path.clone(), History::in_file(path))
}

async fn has_grants(history: &History, count: usize) {
    let is_so = async || history.grants().len() >= count;
    eventually(&format!("{count} grants"), 20 * SECOND, is_so).await;
}

/// Stops the processes, and returns how many hand-offs each made inside itself.
async fn stop(parts: &mut [Process]) -> Vec<u64> {
    let mut local = Vec::new();
    for part in parts {
        part.tell("stop");
        let line = part.line().await;
        local.push(line.split(' ').next().unwrap().parse().unwrap());
    }
    local
}

/// Race: A process dies in the middle of a tenure.
#[tokio::test]
async fn no_turn_of_a_killed_process_has_a_fence_that_is_given_out_again() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    // The clock was set back since. So the next fence depends on the last one alone.
    let mut summary = kept(&server, NAME).await;
    summary.fence = (epoch_ms() + 3_600_000) * 1000;
    let written = summary.to_string();
    server.command(&["HSET", &lock_key(NAME), "hold", &written]).await;

    let (path, history) = history_in(&server);
    let mut process = part(&server, &path, 8, TURNS);
    has_grants(&history, 100).await;
    let tenure = loop {
        process.stop();
        let kept = kept(&server, NAME).await;
        if kept.until > epoch_ms() {
            break kept;
        }
        process.cont();
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    process.kill();
    let next = locks.lock(NAME).acquire_timeout(10 * SECOND).await.unwrap();
    let used = history.grants().into_iter().filter_map(|hold| hold.fence).max();
    assert!(used.unwrap() < next.fence().get());
    // A hold reserves a thousand fences, whatever its number of turns.
    assert_eq!(next.fence().get(), tenure.fence + 1000);
}

/// Race: A process dies while others wait. Subscriptions break meanwhile.
#[tokio::test]
async fn processes_with_and_without_it_never_hold_at_once_though_one_is_killed() {
    let server = Server::start().await;
    let (path, history) = history_in(&server);
    let sizes = [(1, TURNS), (4, TURNS), (8, 16), (8, 1)];
    let mut parts: Vec<_> = (sizes.into_iter())
        .map(|(tasks, turns)| part(&server, &path, tasks, turns))
        .collect();
    has_grants(&history, 1000).await;
    let mut killed = parts.remove(1);
    killed.kill();
    history.died(killed.pid());
    for round in 1..=3 {
        let count = history.grants().len();
        server.kill_clients().await;
        has_grants(&history, count + 200 * round).await;
    }
    let local = stop(&mut parts).await;
    assert!(local[1] > 0, "{local:?}");
    assert_eq!(local[2], 0);
    history.assert_no_overlap();
    history.assert_fences_increase();
}

/// A guard with the third turn of a tenure, and a fourth caller that waits for its turn.
async fn third_turn_of(lock: &Lock) -> (LockGuard, JoinHandle<fairlock::Result<LockGuard>>) {
    let mut guard = lock.acquire().await.unwrap();
    let mut waiters = VecDeque::new();
    for _ in 0..3 {
        waiters.push_back(tokio::spawn(lock.acquire()));
        tokio::task::yield_now().await;
    }
    for _ in 0..2 {
        guard.release().await.unwrap();
        guard = waiters.pop_front().unwrap().await.unwrap().unwrap();
    }
    (guard, waiters.pop_front().unwrap())
}

/// Race: A lease is lost in the middle of a tenure.
#[tokio::test]
async fn a_turn_that_loses_its_lease_is_told_and_those_behind_it_wait_on() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let turns = u32::try_from(TURNS).unwrap();
    let settings = settings().lease(LEASE).claim_window(LEASE).local_handoffs(turns);
    let here = settings.connect(&proxy.url()).await.unwrap();
    let there = connect(&server.url()).await;
    let (guard, waiter) = third_turn_of(&here.lock(NAME)).await;
    let local = here.stats().local_handoffs;

    proxy.freeze();
    let next = there
        .lock(NAME)
        .acquire_timeout(LEASE + 10 * SECOND)
        .await
        .unwrap();
    // It was told before another client could have the lock.
    let lost = lost(guard.check());
    assert_eq!(lost.reason, HoldEnd::Expired);
    // The server does not know which of the reserved fences were used.
    assert!(next.fence().get() > guard.fence().get());
    assert!(!waiter.is_finished());

    proxy.thaw();
    let last = next.fence();
    next.release().await.unwrap();
    drop(guard);
    let after = tokio::time::timeout(20 * SECOND, waiter).await.expect("a turn");
    assert!(after.unwrap().unwrap().fence() > last);
    assert_eq!(
        here.stats().local_handoffs,
        local,
        "the lost tenure went no further"
    );
    assert_eq!(crate::lost(&here), 1);
}

/// Race: A tenure is ended by force in its middle.
#[tokio::test]
async fn a_tenure_that_was_taken_by_force_is_followed_by_the_next_one() {
    let server = Server::start().await;
    let turns = u32::try_from(TURNS).unwrap();
    let settings = settings().lease(LEASE).claim_window(LEASE).local_handoffs(turns);
    let here = settings.connect(&server.url()).await.unwrap();
    let there = connect(&server.url()).await;
    let (guard, waiter) = third_turn_of(&here.lock(NAME)).await;

    let shown = there
        .lock(NAME)
        .status()
        .await
        .unwrap()
        .holder
        .expect("held")
        .fence;
    assert!(shown < guard.fence());
    assert!(there.lock(NAME).force_release(shown).await.unwrap());
    // The next tenure of this process was already queued.
    let next = tokio::time::timeout(20 * SECOND, waiter).await.expect("a turn");
    let next = next.unwrap().unwrap();
    assert!(next.fence() > guard.fence());
    let lost = tokio::time::timeout(10 * SECOND, guard.lost())
        .await
        .expect("told");
    assert_eq!(lost, HoldEnd::Taken);
    next.check().unwrap();
}

/// Race: A server loses a lock, and grants it again, while the former holder passes turns on.
#[tokio::test]
async fn no_fence_is_given_twice_though_the_lock_is_deleted_again_and_again() {
    let server = Server::start().await;
    let stopped = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let locks = settings()
            .local_handoffs(1000)
            .connect(&server.url())
            .await
            .unwrap();
        for _ in 0..8 {
            let (lock, stopped) = (locks.lock(NAME), Arc::clone(&stopped));
            tasks.spawn(async move {
                let mut fences = Vec::new();
                while !stopped.load(Ordering::Relaxed) {
                    fences.push(lock.acquire().await.expect("a guard").fence());
                }
                fences
            });
        }
    }
    let began = Instant::now();
    while began.elapsed() < 2 * SECOND {
        server.command(&["DEL", &lock_key(NAME)]).await;
    }
    stopped.store(true, Ordering::Relaxed);
    let mut fences = tasks.join_all().await.concat();
    let given = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), given);
    assert!(given > 1000, "{given}");
}
