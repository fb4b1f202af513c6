//! Processes that use permits at random, and some of which are killed.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlock::{Error, LockGuard, LockManager, LockSet, ReadGuard, SemaphoreGuard, WriteGuard};
use fairlock_testkit::{History, Hold, Process, Server, eventually, role};
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::sleep;

use super::{IN_TIME, READ_WRITE, SEMAPHORE, nothing_left};
use crate::faults::scene::{NAME, SECOND, connect, users_until_stopped};

/// The permits of the semaphore, and of the read/write lock: enough for more readers than there are.
const CAPACITIES: [i64; 2] = [5, 1000];

/// The histories of the semaphore, of the read/write lock, and of the semaphore's slots.
fn histories(dir: &Path) -> [History; 3] {
    ["semaphore", "rw", "slots"].map(|name| History::in_file(dir.join(format!("history-{name}"))))
}

#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn part_of_many() {
    let Some(role) = role() else { return };
    let dir = role.arg("dir");
    users_until_stopped(role, 8, |locks, rng, stopped| {
        use_again_and_again(locks, histories(dir.as_ref()), rng, stopped)
    })
    .await;
}

enum Guard {
    Permits(SemaphoreGuard),
    Reads(ReadGuard),
    Writes(WriteGuard),
}

impl Guard {
    fn slot(&self) -> Option<u32> {
        match self {
            Guard::Permits(guard) => guard.slot(),
            Guard::Reads(_) | Guard::Writes(_) => None,
        }
    }

    fn into_any(self) -> LockGuard {
        match self {
            Guard::Permits(guard) => guard.into(),
            Guard::Reads(guard) => guard.into(),
            Guard::Writes(guard) => guard.into(),
        }
    }
}

impl Deref for Guard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Guard::Permits(guard) => guard,
            Guard::Reads(guard) => guard,
            Guard::Writes(guard) => guard,
        }
    }
}

/// Takes a lock in one of the ways. Goes on with the next turn if the wait was dropped.
macro_rules! taken {
    ($lock:expr, $way:expr, $patience:expr) => {
        match $way {
            0 => $lock.try_acquire().await,
            1 => $lock.acquire_timeout($patience).await,
            2 => match tokio::time::timeout($patience, $lock.acquire()).await {
                Ok(guard) => guard,
                Err(_) => continue,
            },
            _ => $lock.acquire().await,
        }
    };
}

/// Uses the semaphore and the read/write lock, in all ways. Returns how often it had one of them. Each waiter
/// is named by its permits, and by how it came to them. A slot has its holders as a lock has.
async fn use_again_and_again(
    locks: LockManager,
    histories: [History; 3],
    mut rng: SmallRng,
    stopped: Arc<AtomicBool>,
) -> u64 {
    let mut uses = 0;
    while !stopped.load(Ordering::Relaxed) {
        let weight = rng.random_range(1..=4_u32);
        let (semaphore, rw) = (locks.semaphore(NAME, 5).permits(weight), locks.rw_lock(NAME));
        let (history, weight) = match rng.random_range(0..8) {
            0 => (&histories[1], CAPACITIES[1]),
            1..=3 => (&histories[1], 1),
            _ => (&histories[0], i64::from(weight)),
        };
        let patience = Duration::from_millis(rng.random_range(1..100));
        let way = rng.random_range(0..6);
        let entry = history.asks(format!("{weight} {}", if way < 3 { "tries" } else { "waits" }));
        let is_semaphore = std::ptr::eq(history, &histories[0]);
        let taken = match (is_semaphore, weight == CAPACITIES[1]) {
            (true, _) => taken!(semaphore, way, patience).map(Guard::Permits),
            (false, true) => taken!(rw.write(), way, patience).map(Guard::Writes),
            (false, false) => taken!(rw.read(), way, patience).map(Guard::Reads),
        };
        match taken {
            Ok(guard) => {
                entry.granted(guard.fence().get());
                let slot = guard.slot().map(|slot| histories[2].asks(slot.to_string()));
                if let Some(slot) = &slot {
                    slot.granted(guard.fence().get());
                }
                sleep(Duration::from_millis(rng.random_range(0..20))).await;
                guard.check().expect("a lease that is renewed");
                if let Some(slot) = slot {
                    slot.released();
                }
                entry.released();
                let guard = match guard {
                    Guard::Writes(writing) if rng.random() => {
                        let reads = history.asks("1 downgraded");
                        let reading = writing.downgrade().await.expect("a reader");
                        reads.granted(reading.fence().get());
                        sleep(Duration::from_millis(rng.random_range(0..20))).await;
                        reads.released();
                        reading.into()
                    }
                    guard => guard.into_any(),
                };
                if rng.random() {
                    guard.release().await.expect("a release");
                }
                uses += 1;
            }
            // A bound can be too short for a first answer.
            Err(Error::Busy { .. } | Error::Timeout { .. } | Error::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
        sleep(Duration::from_millis(rng.random_range(5..60))).await;
    }
    uses
}

/// Checks, by what the holders themselves saw, that no more permits were in use than there are.
fn assert_capacity(history: &History, capacity: i64) {
    let mut changes = Vec::new();
    for hold in history.grants() {
        let weight = hold.waiter.split(' ').next().unwrap().parse::<i64>().unwrap();
        changes.push((hold.granted_ns.unwrap(), weight));
        changes.extend(hold.released_ns.map(|released| (released, -weight)));
    }
    // At the same time, releases come first.
    changes.sort_unstable();
    let mut used = 0;
    for (at, change) in changes {
        used += change;
        assert!(used <= capacity, "{used} of {capacity} in use at {at}");
    }
}

/// Checks that each slot had one holder at a time, each under a larger fence than the one before.
fn assert_slots(history: &History) {
    let mut holds = history.grants();
    holds.sort_by_key(|hold| (hold.waiter.clone(), hold.granted_ns));
    let mut slots: Vec<_> = holds.iter().map(|hold| &*hold.waiter).collect();
    slots.dedup();
    assert!(
        slots.len() > 1 && slots.iter().all(|slot| slot.parse::<u32>().unwrap() < 5),
        "{slots:?}"
    );
    for pair in holds.windows(2).filter(|pair| pair[0].waiter == pair[1].waiter) {
        let is_next = pair[0].released_ns <= pair[1].granted_ns && pair[0].fence < pair[1].fence;
        assert!(pair[0].released_ns.is_some() && is_next, "{pair:?}");
    }
}

/// Checks that each grant has a fence of its own, larger than those of all holders from before it asked.
fn assert_fences(history: &History) {
    let mut grants = history.grants();
    // It goes on under the fence of the writer.
    grants.retain(|hold| !hold.waiter.ends_with("downgraded"));
    let mut fences: Vec<_> = grants.iter().map(|hold| hold.fence).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), grants.len(), "a fence was given out twice");
    let mut asked = grants.clone();
    asked.sort_by_key(|hold| hold.asked_ns);
    let (mut began, mut largest) = (grants.iter().peekable(), None);
    for hold in asked {
        while let Some(before) = began.next_if(|before| before.granted_ns < Some(hold.asked_ns)) {
            largest = largest.max(before.fence);
        }
        assert!(largest < hold.fence, "after the fence {largest:?}: {hold:?}");
    }
}

/// How many waiters were granted permits before others that had asked more than 100 ms earlier.
fn overtakers(history: &History) -> (usize, usize) {
    let mut waits = history.grants();
    waits.retain(|hold| hold.waiter.ends_with("waits"));
    waits.sort_by_key(|hold| hold.asked_ns);
    let (mut earlier, mut largest) = (waits.iter().peekable(), None);
    let has_overtaken = |hold: &&Hold| {
        let is_earlier = |before: &&Hold| before.asked_ns + 100_000_000 < hold.asked_ns;
        while let Some(before) = earlier.next_if(is_earlier) {
            largest = largest.max(before.fence);
        }
        largest > hold.fence
    };
    let overtakers = waits.iter().filter(has_overtaken).count();
    (overtakers, waits.len())
}

/// Race: A process dies with some of the permits of a semaphore, or as a reader or a writer.
#[tokio::test]
async fn random_users_of_four_processes_of_which_two_are_killed_break_no_promise() {
    let server = Server::start().await;
    let (url, dir) = (server.url(), server.dir().display().to_string());
    let mut parts: Vec<_> = (0..4)
        .map(|seed| {
            let args = [("url", &*url), ("dir", &*dir), ("seed", &seed.to_string())];
            Process::spawn("faults::permits::users::part_of_many", &args)
        })
        .collect();
    let histories = histories(server.dir());
    let go_on = async || {
        let counts = || histories.each_ref().map(|history| history.grants().len());
        let before = counts();
        let more = || {
            counts()[..2]
                .iter()
                .zip(before)
                .all(|(now, then)| *now >= then + 80)
        };
        eventually("both are used", 60 * SECOND, async || {
            sleep(SECOND / 10).await;
            more()
        })
        .await;
    };
    for _ in 0..2 {
        go_on().await;
        let mut killed = parts.pop().unwrap();
        killed.kill();
        histories.iter().for_each(|history| history.died(killed.pid()));
    }
    go_on().await;
    for part in &mut parts {
        part.tell("stop");
        let uses: u64 = part.line().await.parse().unwrap();
        assert!(uses > 0, "a process had nothing");
    }
    for (history, capacity) in histories.iter().zip(CAPACITIES) {
        assert_capacity(history, capacity);
        assert_fences(history);
        // A process can be kept from sending what it has just logged.
        let (overtakers, waits) = overtakers(history);
        assert!(overtakers * 10 <= waits, "{overtakers} of {waits}");
    }
    assert_slots(&histories[2]);
    let locks = connect(&url).await;
    let all = LockSet::from(locks.semaphore(NAME, 5).permits(5)).and(locks.rw_lock(NAME).write());
    all.acquire_timeout(IN_TIME)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for of in [SEMAPHORE, READ_WRITE] {
        nothing_left(&server, of).await;
    }
}
