//! Runs one simulation, from its seed to the checks at its end.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use super::connection::{Setting, SimConnection};
use super::faults::{Peer, World};
use super::history::{Event, History};
use super::invariants::violations;
use super::network::Network;
use super::plan::Plan;
use super::process::Process;
use super::server::Server;
use super::user::User;
use crate::api::handle::Handle;
use crate::engine::options::IDLE_LIMIT;
use crate::engine::shared::Shared;
use crate::engine::waitlist::registry::LateListener;
use crate::protocol::ids::ClientId;
use crate::protocol::keys::Keys;
use crate::servers::Store;
use crate::servers::memory::MemoryStore;
use crate::types::permits::{Gives, Permits};
use crate::{LockGuard, LockManager, Owner};

/// What the server's clock shows at the start, in µs. It includes a part of a millisecond.
pub(super) const START_US: u64 = 1_800_000_000_000_370;
/// All calls end within this time after the calm. All holds of a world, one after the other, take much less.
const LONGEST_RUN: Duration = Duration::from_secs(1800);
/// How long the last faults can have an effect: connections are replaced, and late calls run.
const SETTLING_TIME: Duration = Duration::from_secs(12);
/// How long a client works in the background after its last call.
const CLEANUP_TIME: Duration = Duration::from_secs(30);

/// The result of one seed.
pub(super) struct Outcome {
    pub(super) seed: u64,
    pub(super) plan: Plan,
    pub(super) events: Vec<(Duration, Event)>,
    pub(super) violations: Vec<String>,
    pub(super) lost: u64,
    pub(super) handed_over: u64,
    pub(super) retained: u64,
}

impl Outcome {
    pub(super) fn of(seed: u64) -> Outcome {
        // The client code draws its jitter from this generator.
        fastrand::seed(seed);
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::draw(&mut rng);
        let mut outcome = on_simulated_time(simulate(&plan, rng));
        outcome.seed = seed;
        outcome
    }

    /// Returns the whole history, one event per line.
    pub(super) fn transcript(&self) -> String {
        let mut text = format!("{:?}\n", self.plan);
        for (at, event) in &self.events {
            let _ = writeln!(text, "{at:>12?} {event:?}");
        }
        text
    }
}

/// Runs a future on paused time, which advances only when all tasks sleep.
pub(super) fn on_simulated_time<T>(world: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(world)
}

async fn simulate(plan: &Plan, mut rng: Rng) -> Outcome {
    let mut world = World::of(plan, &mut rng).await;
    let users = world.start_tasks(plan, plan.calls, &mut rng);
    world.inject_faults(plan).await;
    world.calm();
    tokio::time::sleep(SETTLING_TIME).await;
    world.network.history.record(Event::Calm);
    let later = world.start_tasks(plan, 2, &mut rng);
    let mut left = Vec::from_iter(world.wait_for(users.into_iter().chain(later)).await);
    left.extend(world.quiesce(plan, &mut rng).await);

    let events = world.network.history.events();
    let mut violations = violations(&events, plan, |lock| key(plan.gives[lock], &name(lock)));
    violations.extend(left);
    let stats = world.peers.iter().map(|peer| peer.manager.stats());
    let (lost, handed_over, retained) = stats.fold((0, 0, 0), |(lost, handed, retained), stats| {
        let lost_here = stats.lost_expired + stats.lost_taken + stats.lost_max_hold;
        (
            lost + lost_here,
            handed + stats.handed_over,
            retained + stats.retained,
        )
    });
    world.end();
    Outcome {
        seed: 0,
        plan: plan.clone(),
        events,
        violations,
        lost,
        handed_over,
        retained,
    }
}

pub(super) fn name(lock: usize) -> String {
    format!("lock{lock}")
}

/// The key of a lock on the server.
pub(super) fn key(gives: Gives, name: &str) -> String {
    Keys::of_kind(gives.kind(), "fairlock", name).unwrap().lock
}

/// The lock of this kind, to look at or to take as a whole.
pub(super) fn whole(manager: &LockManager, gives: Gives, name: &str) -> Handle {
    let whole = |Permits { capacity, .. }| Permits {
        weight: capacity,
        capacity,
    };
    let gives = match gives {
        Gives::Itself => Gives::Itself,
        Gives::Permits(permits) => Gives::Permits(whole(permits)),
        Gives::Shared(_) => Gives::Shared(Permits::WRITER),
    };
    manager.handle(gives, name)
}

impl World {
    pub(super) async fn of(plan: &Plan, rng: &mut Rng) -> World {
        let history = History::new(plan.timing());
        let network = Network::new(
            Arc::clone(&history),
            rng.fork(),
            plan.latency,
            plan.message_faults.clone(),
        );
        let store = MemoryStore::at_time(Duration::from_micros(START_US));
        let server = Server::new(store, plan.drift_ppm, history);
        tokio::spawn(Arc::clone(&network).run());
        let mut world = World {
            network,
            server,
            peers: Vec::new(),
            rng: rng.fork(),
            clock_was_set: false,
        };
        for client in 0..plan.clients {
            let peer = world.connect(client, plan, rng).await;
            world.peers.push(peer);
        }
        world
    }

    /// Ends the processes and the network.
    pub(super) fn end(&self) {
        for peer in &self.peers {
            peer.process.end();
        }
        self.network.end();
    }

    async fn connect(&mut self, client: usize, plan: &Plan, rng: &mut Rng) -> Peer {
        // The clocks of two clients must show different times.
        tokio::time::sleep(Duration::from_millis(rng.u64(1..=50))).await;
        let process = Process::new(rng.fork(), plan.yield_rate);
        let late_listener = Arc::new(LateListener::default());
        let listener = Arc::downgrade(&late_listener);
        let mut options = plan.options.clone();
        if plan.mixed && client % 2 == 0 {
            options.local_handoffs = 1;
        }
        let setting = Setting {
            attempt_timeout: options.attempt_timeout(),
            ping_every: plan.ping_every,
            max_in_flight: plan.max_in_flight,
        };
        let connection =
            SimConnection::connect(client, &self.network, &self.server, &process, listener, setting);
        let ends = Arc::clone(&connection.0);
        let connection = Store::Double(Arc::new(connection));
        let connected = process.spawn(async move {
            let first = loop {
                // The network may lose the first calls.
                if let Ok(answer) = connection.time().await {
                    break answer;
                }
            };
            let shared = Shared::new(
                late_listener,
                ClientId::from_number(client as u128),
                connection,
                options,
                Some(&first),
                None,
            );
            shared.start();
            LockManager::of(shared)
        });
        Peer {
            manager: connected.await.expect("a connection"),
            process,
            ends,
            killed: false,
            closed: false,
        }
    }

    /// Starts the tasks of all clients. Each makes `calls` calls.
    fn start_tasks(&self, plan: &Plan, calls: usize, rng: &mut Rng) -> Vec<(usize, JoinHandle<()>)> {
        let mut users = Vec::new();
        for (client, peer) in self.peers.iter().enumerate() {
            for task in 0..plan.tasks {
                let owner = match rng.u8(..4) {
                    0 => Some(Owner::named("shared")),
                    1 => Some(Owner::named(format!("{client} {task}"))),
                    _ => None,
                };
                let user = User {
                    client,
                    manager: peer.manager.clone(),
                    locks: (0..plan.locks)
                        .map(|lock| (name(lock), plan.gives[lock]))
                        .collect(),
                    capacities: plan.capacities,
                    owner: owner.filter(|_| plan.owners),
                    force: plan.force,
                    turns: peer.manager.shared().waitlists().client().options.local_handoffs,
                    lease: plan.options.lease,
                    rng: rng.fork(),
                    history: Arc::clone(&self.network.history),
                    server: Arc::clone(&self.server),
                };
                users.push((client, peer.process.spawn(user.run(calls))));
            }
        }
        users
    }

    /// Waits for the tasks of all processes that were not killed.
    async fn wait_for(&self, users: impl Iterator<Item = (usize, JoinHandle<()>)>) -> Option<String> {
        let mut left = None;
        let all = async {
            for (client, user) in users {
                if self.peers[client].killed {
                    user.abort();
                } else {
                    user.await.unwrap_or_else(|error| left = Some(error.to_string()));
                }
            }
        };
        let ended = tokio::time::timeout(LONGEST_RUN, all).await;
        left.or(ended
            .err()
            .map(|_| format!("tasks still wait {LONGEST_RUN:?} after the last fault")))
    }

    /// Checks that nothing is left after all calls have ended, and that every lock can be acquired.
    async fn quiesce(&mut self, plan: &Plan, rng: &mut Rng) -> Vec<String> {
        let mut wrong = Vec::new();
        tokio::time::sleep(CLEANUP_TIME).await;
        for hold in self.server.store().held() {
            wrong.push(format!("still held: {hold:?}"));
        }
        let last = self.connect(plan.clients, plan, rng).await;
        for lock in 0..plan.locks {
            let lock = whole(&last.manager, plan.gives[lock], &name(lock));
            let acquired = last
                .process
                .spawn(lock.acquire::<LockGuard>(Some(CLEANUP_TIME)))
                .await;
            match acquired.expect("no panic") {
                Ok(guard) => drop(guard),
                Err(error) => wrong.push(format!("{} cannot be acquired: {error}", lock.name())),
            }
        }
        self.peers.push(last);
        tokio::time::sleep(IDLE_LIMIT + CLEANUP_TIME).await;
        let store = self.server.store();
        let left = (store.held().len(), store.queued(), store.subscribed());
        if left != (0, 0, 0) {
            wrong.push(format!("left on the server (held, queued, subscribed): {left:?}"));
        }
        for (client, peer) in self.peers.iter().enumerate() {
            if peer.killed {
                continue;
            }
            let stats = peer.manager.stats();
            let shared = peer.manager.shared();
            let left = (
                stats.held,
                stats.waiting,
                shared.waitlists().len(),
                shared.background().pending(),
            );
            if left != (0, 0, 0, 0) {
                wrong.push(format!(
                    "left in client {client} (held, waiting, waitlists, outbox): {left:?}"
                ));
            }
        }
        wrong
    }
}
