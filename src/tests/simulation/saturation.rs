//! Saturation: the callers of one client want more calls at once than its connection may have in flight, for
//! longer than the `server_timeout`. The server is well all the time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep};

use super::faults::World;
use super::plan::Plan;
use super::run::{name, on_simulated_time};
use crate::Error;
use crate::engine::options::ManagerOptions;

const SERVER_TIMEOUT: Duration = Duration::from_millis(500);
const RUN_TIME: Duration = Duration::from_secs(2);
const HOLD_TIME: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Seen {
    granted: u64,
    errors: Vec<Error>,
    /// By how many later callers of its own client a caller was overtaken at most.
    overtaken: u64,
}

impl Seen {
    fn granted_after(&mut self, overtaken: u64) {
        self.granted += 1;
        self.overtaken = self.overtaken.max(overtaken);
    }
}

/// Runs tasks that take one lock each, again and again. All begin at once.
fn load(plan: &Plan, seed: u64, patience: Option<Duration>) -> Seen {
    fastrand::seed(seed);
    let mut rng = Rng::with_seed(seed);
    on_simulated_time(async {
        let world = World::of(plan, &mut rng).await;
        let seen = Rc::new(RefCell::new(Seen::default()));
        let end = Instant::now() + RUN_TIME;
        let local = tokio::task::LocalSet::new();
        for peer in &world.peers {
            for lock in 0..plan.locks {
                // The callers of this client for this lock, in the order in which they came, and by how many
                // later ones each was overtaken.
                let waiting: Rc<RefCell<BTreeMap<u64, u64>>> = Rc::default();
                let arrivals = Rc::new(RefCell::new(0));
                for _ in 0..plan.tasks {
                    let (seen, waiting, arrivals) =
                        (Rc::clone(&seen), Rc::clone(&waiting), Rc::clone(&arrivals));
                    let lock = peer.manager.lock(name(lock));
                    local.spawn_local(async move {
                        while Instant::now() < end {
                            let number = {
                                *arrivals.borrow_mut() += 1;
                                *arrivals.borrow()
                            };
                            waiting.borrow_mut().insert(number, 0);
                            let acquired = match patience {
                                Some(patience) => lock.acquire_timeout(patience).await,
                                None => lock.acquire().await,
                            };
                            let overtaken = waiting.borrow_mut().remove(&number).unwrap_or(0);
                            match acquired {
                                Ok(guard) => {
                                    waiting
                                        .borrow_mut()
                                        .range_mut(..number)
                                        .for_each(|(_, by)| *by += 1);
                                    seen.borrow_mut().granted_after(overtaken);
                                    sleep(HOLD_TIME).await;
                                    drop(guard);
                                }
                                Err(Error::Timeout { .. }) => {}
                                Err(error) => seen.borrow_mut().errors.push(error),
                            }
                        }
                    });
                }
            }
        }
        local.await;
        world.end();
        seen.take()
    })
}

/// Clients whose windows hold far fewer calls than there are callers.
fn plan(clients: usize, tasks: usize, local_handoffs: u32) -> Plan {
    let mut rng = Rng::with_seed(7);
    Plan {
        clients,
        tasks,
        locks: 10,
        options: ManagerOptions {
            server_timeout: SERVER_TIMEOUT,
            local_handoffs,
            ..ManagerOptions::default()
        },
        mixed: false,
        latency: Duration::from_millis(2),
        max_in_flight: 6,
        ..Plan::draw(&mut rng).without_faults()
    }
}

/// Race: A poll that waits in a saturated client loses the race with the grant of its request, again and
/// again.
#[test]
fn callers_of_a_saturated_client_are_told_of_no_outage() {
    for (clients, local_handoffs, patience) in [
        (1, 1, None),
        (1, 1, Some(2 * SERVER_TIMEOUT)),
        (1, 1, Some(SERVER_TIMEOUT / 10)),
        (2, 4, None),
    ] {
        let seen = load(&plan(clients, 20, local_handoffs), 1, patience);
        let case = format!("{clients} clients, {local_handoffs} turns, {patience:?}");
        println!(
            "{case}: {} granted, overtaken by {}",
            seen.granted, seen.overtaken
        );
        assert!(seen.granted > 0, "{case}");
        assert!(seen.errors.is_empty(), "{case}: {:?}", seen.errors.first());
    }
}

/// Race: A waiter loses its place because its turn comes before its client has subscribed.
#[test]
fn callers_that_begin_at_once_are_overtaken_by_no_more_than_the_calls_in_flight() {
    for clients in [1, 2] {
        for seed in 0..2 {
            let plan = Plan {
                locks: 30,
                max_in_flight: 4,
                ..plan(clients, 20, 1)
            };
            let seen = load(&plan, seed, None);
            println!("{clients} clients, seed {seed}: overtaken by {}", seen.overtaken);
            assert!(
                seen.overtaken <= plan.max_in_flight.into(),
                "{clients} clients, seed {seed}: overtaken by {}",
                seen.overtaken
            );
        }
    }
}
