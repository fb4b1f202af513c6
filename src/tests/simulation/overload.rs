//! Overload: more callers than can be served in time, which give up. The tests count how many are still
//! served, and how much is left for the client to withdraw.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, timeout};

use super::faults::World;
use super::plan::Plan;
use super::run::{name, on_simulated_time};
use crate::options::ManagerOptions;
use crate::store::pipeline::MAX_IN_FLIGHT;
use crate::{Error, LockGuard, LockManager};

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
                        if let Some(guard) = acquire(&manager, task % locks, way, patience).await {
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

async fn acquire(manager: &LockManager, lock: usize, way: Way, patience: Duration) -> Option<LockGuard> {
    let lock = manager.lock(name(lock));
    let acquired = match way {
        Way::Bound => lock.acquire_timeout(patience).await,
        Way::Drop => timeout(patience, lock.acquire()).await.ok()?,
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
        Ok(guard) => Some(guard),
        Err(Error::Timeout { .. }) => None,
        Err(error) => panic!("{error}"),
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
