//! Overload: more callers than can be served in time, which give up. The tests count how many are still
//! served, also while the server stalls, and how much is left for the client to withdraw.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::faults::World;
use super::plan::Plan;
use super::run::{name, on_simulated_time};
use crate::engine::options::ManagerOptions;
use crate::servers::redis::pipeline::MAX_IN_FLIGHT;
use crate::{Error, LockGuard, LockManager, Result};

/// How long each task goes on.
const RUN_TIME: Duration = Duration::from_secs(3);
/// How long each hold lasts.
const HOLD_TIME: Duration = Duration::from_millis(1);

/// How a caller gives up.
#[derive(Clone, Copy)]
enum Way {
    Bound,
    Drop,
    /// Like `Bound`, but one caller in five is not polled when its time is over, and notices late.
    Late,
}

/// What a run of all tasks came to.
#[derive(Debug, Default)]
struct Seen {
    /// Grants in the second half of the run.
    served: u64,
    /// The largest number of requests that waited to be withdrawn or released.
    pending: usize,
}

/// Runs tasks that take one lock each, again and again, and give up after `patience`.
fn load(plan: &Plan, way: Way, patience: Duration) -> Seen {
    let mut rng = Rng::with_seed(1);
    on_simulated_time(async {
        let world = World::of(plan, &mut rng).await;
        let served = Arc::new(AtomicU64::new(0));
        let end = Instant::now() + RUN_TIME;
        for peer in &world.peers {
            for task in 0..plan.tasks {
                let (manager, served) = (peer.manager.clone(), Arc::clone(&served));
                let locks = plan.locks;
                drop(peer.process.spawn(async move {
                    while Instant::now() < end {
                        let way = match way {
                            Way::Late if task % 5 > 0 => Way::Bound,
                            way => way,
                        };
                        let acquired = acquire(&manager, task % locks, way, patience).await;
                        if let Some(guard) = acquired.expect("a world without faults") {
                            if Instant::now() > end - RUN_TIME / 2 {
                                served.fetch_add(1, Ordering::Relaxed);
                            }
                            sleep(HOLD_TIME).await;
                            // The lease is long enough, so the release finds the hold.
                            guard.release().await.expect("a world without faults");
                        }
                    }
                }));
            }
        }
        let mut seen = Seen::default();
        while Instant::now() < end {
            sleep(Duration::from_millis(10)).await;
            let pending = world
                .peers
                .iter()
                .map(|peer| peer.manager.shared().background().pending());
            seen.pending = seen.pending.max(pending.max().unwrap_or_default());
        }
        sleep(5 * patience).await;
        for peer in &world.peers {
            timeout(Duration::from_secs(1), peer.manager.close())
                .await
                .expect("a close in time")
                .expect("all releases are confirmed");
        }
        assert_eq!(world.server.store().queued(), 0, "requests are left in a queue");
        world.end();
        seen.served = served.load(Ordering::Relaxed);
        seen
    })
}

/// Waits for a lock. Returns `None` if the caller gives up before it has it.
async fn acquire(
    manager: &LockManager,
    lock: usize,
    way: Way,
    patience: Duration,
) -> Result<Option<LockGuard>> {
    let lock = manager.lock(name(lock));
    let acquired = match way {
        Way::Bound => lock.acquire_timeout(patience).await,
        Way::Drop => match timeout(patience, lock.acquire()).await {
            Ok(acquired) => acquired,
            Err(_) => return Ok(None),
        },
        Way::Late => {
            let mut wait = pin!(lock.acquire_timeout(patience));
            if let Some(acquired) = wait.as_mut().now_or_never() {
                acquired
            } else {
                sleep(3 * patience).await;
                wait.await
            }
        }
    };
    match acquired {
        Ok(guard) => Ok(Some(guard)),
        Err(Error::Timeout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn plan(clients: usize, tasks: usize, locks: usize) -> Plan {
    let mut rng = Rng::with_seed(7);
    Plan {
        clients,
        tasks,
        locks,
        options: ManagerOptions::default(),
        latency: Duration::from_micros(200),
        max_in_flight: MAX_IN_FLIGHT,
        ..Plan::draw(&mut rng).without_faults()
    }
}

/// Race: Callers give up before their turn, and their leftovers keep the server from serving others.
#[test]
fn overloaded_lock_is_held_almost_all_the_time() {
    // With several clients, each has at least one waiter in the queue, so a caller needs more patience to get
    // its turn.
    let (few, many) = (&[20, 10][..], &[20][..]);
    for (clients, tasks, locks, patience_ms) in [(1, 100, 2, few), (4, 25, 1, many), (1, 20, 10, few)] {
        let plan = plan(clients, tasks, locks);
        for way in [Way::Bound, Way::Drop] {
            let patient = load(&plan, way, Duration::from_secs(60));
            for patience in patience_ms.iter().copied().map(Duration::from_millis) {
                let seen = load(&plan, way, patience);
                println!("{clients} {tasks} {locks} {patience:?}: {seen:?}, of {patient:?}");
                assert!(
                    2 * seen.served >= patient.served,
                    "{patience:?}: {seen:?}, of {patient:?}"
                );
                assert!(seen.pending <= 2 * tasks, "{patience:?}: {seen:?}");
            }
        }
    }
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[test]
fn late_notice_of_a_timeout_delays_no_other_caller() {
    let plan = plan(1, 20, 2);
    let patience = Duration::from_millis(20);
    let patient = load(&plan, Way::Bound, Duration::from_secs(60));
    let seen = load(&plan, Way::Late, patience);
    println!("{seen:?}, of {patient:?}");
    // One caller in five keeps a grant for three times its patience without using it.
    assert!(4 * seen.served >= patient.served, "{seen:?}, of {patient:?}");
}

/// Callers of one client, each of which takes one lock again and again.
#[derive(Clone, Copy)]
struct Crowd {
    callers: usize,
    way: Way,
    patience: Duration,
    /// How long each waits after a hold.
    pause: Duration,
}

/// What became of the waits of one caller.
#[derive(Debug, Default)]
struct Waits {
    /// When it was granted the lock, since the crowds came.
    granted: Vec<Duration>,
    gave_up: usize,
    /// Why other waits failed.
    failed: Vec<Error>,
}

/// The server stalls from this time on, for this time.
type Stall = (Duration, Duration);

/// What becomes of the callers of each crowd until `end`, while the server stalls now and then.
fn with_stalls(crowds: &[Crowd], end: Duration, stalls: &[Stall]) -> Vec<Vec<Waits>> {
    const HOLD_TIME: Duration = Duration::from_millis(5);
    fastrand::seed(1);
    let mut rng = Rng::with_seed(1);
    on_simulated_time(async {
        let world = World::of(&plan(1, 0, 1), &mut rng).await;
        let peer = &world.peers[0];
        let began = Instant::now();
        let caller = |crowd: Crowd| {
            let manager = peer.manager.clone();
            peer.process.spawn(async move {
                let mut waits = Waits::default();
                while began.elapsed() < end {
                    match acquire(&manager, 0, crowd.way, crowd.patience).await {
                        Ok(Some(guard)) => {
                            waits.granted.push(began.elapsed());
                            sleep(HOLD_TIME).await;
                            guard.release().await.expect("a lease is longer than a stall");
                            sleep(crowd.pause).await;
                        }
                        Ok(None) => waits.gave_up += 1,
                        Err(error) => waits.failed.push(error),
                    }
                }
                waits
            })
        };
        let crowds: Vec<Vec<_>> = crowds
            .iter()
            .map(|crowd| (0..crowd.callers).map(|_| caller(*crowd)).collect())
            .collect();
        for (from, lasts) in stalls {
            sleep_until(began + *from).await;
            world.server.stall(*lasts);
        }
        let mut waits = Vec::new();
        for callers in crowds {
            waits.push(try_join_all(callers).await.expect("no caller panics"));
        }
        world.end();
        waits
    })
}

/// Race: A caller that cannot wait any longer fails those that can.
#[test]
fn callers_that_can_wait_are_served_though_others_fail_in_each_stall() {
    let mut rng = Rng::with_seed(1);
    let stalls: Vec<Stall> = (1..=10)
        .map(|n| {
            let lasts = Duration::from_millis(rng.u64(120..=400));
            (n * Duration::from_millis(1200), lasts)
        })
        .collect();
    let crowd = |callers, way, patience_ms, pause_ms| Crowd {
        callers,
        way,
        patience: Duration::from_millis(patience_ms),
        pause: Duration::from_millis(pause_ms),
    };
    // Once callers were dropped, those that can wait begin in the client, too.
    for (pause_ms, dropped) in [(0, 0), (100, 50)] {
        let waits = with_stalls(
            &[
                crowd(10, Way::Bound, 30_000, pause_ms),
                crowd(2, Way::Drop, 3_600_000, pause_ms),
                crowd(100 - dropped, Way::Bound, 50, 0),
                crowd(dropped, Way::Drop, 30, 0),
            ],
            Duration::from_secs(13),
            &stalls,
        );
        let case = format!("pauses of {pause_ms} ms, {dropped} are dropped");
        for crowd in &waits {
            let sum = |count: fn(&Waits) -> usize| crowd.iter().map(count).sum::<usize>();
            println!(
                "{case}: {} granted, {} gave up, {} failed",
                sum(|waits| waits.granted.len()),
                sum(|waits| waits.gave_up),
                sum(|waits| waits.failed.len()),
            );
        }
        let is_failed = waits[2].iter().any(|waits| !waits.failed.is_empty());
        assert!(is_failed || dropped == 0, "{case}: the stalls fail nobody");
        for waits in waits[..2].iter().flatten() {
            assert!(waits.gave_up == 0 && waits.failed.is_empty(), "{case}: {waits:?}");
            assert!(waits.granted.len() > 5, "{case}: {waits:?}");
        }
    }
}

#[test]
fn after_a_stall_as_many_callers_are_served_as_before() {
    const CALLERS: u32 = 100;
    let [before, from, lasts, after, end] = [4, 6, 1, 7, 9].map(Duration::from_secs);
    let granted = |waits: &[Vec<Waits>], from: Duration| {
        let until = from + Duration::from_secs(2);
        let all = waits.iter().flatten().flat_map(|waits| &waits.granted);
        all.filter(|at| from <= **at && **at < until).count()
    };
    let crowd = |way, patience| Crowd {
        callers: CALLERS as usize,
        way,
        patience,
        pause: Duration::ZERO,
    };
    let patient = with_stalls(&[crowd(Way::Bound, Duration::from_secs(60))], end, &[]);
    let turn = Duration::from_secs(2).div_f64(granted(&patient, before) as f64);
    for way in [Way::Bound, Way::Drop] {
        let crowd = crowd(way, (turn * CALLERS).mul_f64(1.2));
        let waits = with_stalls(&[crowd], end, &[(from, lasts)]);
        let (before, after) = (granted(&waits, before), granted(&waits, after));
        println!("patience {:?}: {before} before, {after} after", crowd.patience);
        assert!(10 * after >= 8 * before, "{before} before, {after} after");
    }
}
