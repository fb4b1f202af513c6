//! Counts the calls that waiting costs the server, when many tasks want the same few locks and nothing goes
//! wrong.

use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinHandle;

use super::faults::World;
use super::history::{Effect, Event};
use super::plan::Plan;
use super::run::{name, on_simulated_time};
use crate::LockManager;
use crate::engine::options::ManagerOptions;

/// Extra calls for each grant. A waitlist polls after it subscribed and once in each polling interval, and a
/// request whose turn came before the subscription asks again.
const EXTRA_CALLS: f64 = 0.3;

/// Returns how many calls the server executed for each grant.
fn calls_per_grant(plan: &Plan, mut rng: Rng) -> f64 {
    on_simulated_time(async {
        let world = World::of(plan, &mut rng).await;
        let before = world.network.history.events().len();
        let mut users: Vec<JoinHandle<()>> = Vec::new();
        for peer in &world.peers {
            for task in 0..plan.tasks {
                let turns = take_turns(peer.manager.clone(), task, plan.locks, plan.calls);
                users.push(peer.process.spawn(turns));
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
        calls as f64 / (plan.clients * plan.tasks * plan.calls) as f64
    })
}

/// Takes `turns` turns: each takes the next lock and holds it for a moment.
async fn take_turns(manager: LockManager, first: usize, locks: usize, turns: usize) {
    for turn in 0..turns {
        let lock = manager.lock(name((first + turn) % locks));
        let guard = lock.acquire().await.expect("a world without faults");
        tokio::time::sleep(Duration::from_millis(1)).await;
        guard.release().await.expect("a world without faults");
    }
}

/// Whether a wait causes this event. Renewals and other calls do not count.
fn is_call(event: &Event) -> bool {
    matches!(
        event,
        Event::Executed {
            effect: Effect::Acquire(..) | Effect::Release(..),
            ..
        }
    )
}

fn a_grant_takes_two_calls(load: impl Fn(Plan) -> Plan) {
    for seed in 0..2 {
        fastrand::seed(seed);
        let mut rng = Rng::with_seed(seed);
        let plan = load(Plan {
            options: ManagerOptions::default(),
            ..Plan::draw(&mut rng).without_faults()
        });
        let calls = calls_per_grant(&plan, rng);
        println!("seed {seed}: {calls:.3} calls for a grant");
        assert!(
            calls < 2.0 + EXTRA_CALLS,
            "seed {seed}: {calls:.3} calls for a grant, {plan:?}"
        );
    }
}

/// Race: An unreachable client always has calls to send, and so never subscribes.
#[test]
fn a_grant_takes_two_calls_where_many_wait_for_one_lock() {
    a_grant_takes_two_calls(|plan| Plan {
        clients: 3,
        tasks: 100,
        locks: 1,
        calls: 20,
        ..plan
    });
}

/// Race: An unreachable client always has calls to send, and so never subscribes.
#[test]
fn a_grant_takes_two_calls_where_a_client_waits_for_many_locks() {
    a_grant_takes_two_calls(|plan| Plan {
        clients: 1,
        tasks: 400,
        locks: 20,
        calls: 20,
        ..plan
    });
}

#[test]
fn a_grant_takes_two_calls_where_one_task_of_each_client_waits() {
    a_grant_takes_two_calls(|plan| Plan {
        clients: 4,
        tasks: 1,
        locks: 1,
        calls: 500,
        ..plan
    });
}
