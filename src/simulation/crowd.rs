//! Many who want the same few locks, while nothing goes wrong: what their waiting costs the server.

use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinHandle;

use super::faults::World;
use super::history::{Deed, Event};
use super::plan::Plan;
use super::run::{name, on_simulated_time};
use crate::LockManager;
use crate::options::ManagerOptions;

/// Calls that must come with the rest: after a subscription, and once in an interval, a room asks a question, and whose turn came
/// before its room was subscribed asks anew.
const BESIDES: f64 = 0.2;

/// So many tasks want so many locks, in turn, as often.
#[derive(Debug)]
struct Crowd {
    clients: usize,
    /// Of each client.
    tasks: usize,
    locks: usize,
    /// Of each task.
    turns: usize,
}

impl Crowd {
    /// How many calls the server executed for each grant.
    fn calls_per_grant(&self, seed: u64) -> f64 {
        fastrand::seed(seed);
        let mut rng = Rng::with_seed(seed);
        let plan = Plan {
            clients: self.clients,
            options: ManagerOptions::default(),
            ..Plan::draw(&mut rng).without_faults()
        };
        on_simulated_time(async {
            let world = World::of(&plan, &mut rng).await;
            let before = world.network.history.events().len();
            let mut users: Vec<JoinHandle<()>> = Vec::new();
            for peer in &world.peers {
                for task in 0..self.tasks {
                    let use_in_turn = use_in_turn(peer.manager.clone(), task, self.locks, self.turns);
                    users.push(peer.process.spawn(use_in_turn));
                }
            }
            for user in users {
                user.await.expect("no panic");
            }
            let events = world.network.history.events();
            world.end();
            let calls = events[before..]
                .iter()
                .filter(|(_, event)| is_call(event))
                .count();
            calls as f64 / (self.clients * self.tasks * self.turns) as f64
        })
    }
}

/// Takes one lock after the other, and holds each for a moment.
async fn use_in_turn(manager: LockManager, first: usize, locks: usize, turns: usize) {
    for turn in 0..turns {
        let lock = manager.lock(name((first + turn) % locks));
        let guard = lock.acquire().await.expect("nothing goes wrong");
        tokio::time::sleep(Duration::from_millis(1)).await;
        guard.release().await.expect("nothing goes wrong");
    }
}

/// Of those that a wait causes.
fn is_call(event: &Event) -> bool {
    matches!(
        event,
        Event::Executed {
            deed: Deed::Acquire(..) | Deed::Release(..),
            ..
        }
    )
}

fn a_grant_takes_two_calls(crowd: &Crowd) {
    for seed in 0..5 {
        let calls = crowd.calls_per_grant(seed);
        println!("seed {seed}: {calls:.3} calls for a grant");
        assert!(
            calls < 2.0 + BESIDES,
            "{crowd:?}, seed {seed}: {calls:.3} calls for a grant"
        );
    }
}

#[test]
fn a_grant_takes_two_calls_where_many_wait_for_one_lock() {
    a_grant_takes_two_calls(&Crowd {
        clients: 3,
        tasks: 100,
        locks: 1,
        turns: 20,
    });
}

#[test]
fn a_grant_takes_two_calls_where_a_client_waits_for_many_locks() {
    a_grant_takes_two_calls(&Crowd {
        clients: 1,
        tasks: 400,
        locks: 20,
        turns: 20,
    });
}

#[test]
fn a_grant_takes_two_calls_where_one_task_of_each_client_waits() {
    a_grant_takes_two_calls(&Crowd {
        clients: 4,
        tasks: 1,
        locks: 1,
        turns: 500,
    });
}
