//! One simulation, from its seed to what is left at its end.

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
use crate::engine::shared::Shared;
use crate::engine::waitlist::registry::LateListener;
use crate::options::WAITLIST_KEPT;
use crate::store::Store;
use crate::store::ids::ClientId;
use crate::store::memory::MemoryStore;
use crate::{LockManager, Owner};

/// What the server's clock shows at the beginning, in µs: some day, and a part of a millisecond.
pub(super) const BEGINNING_US: u64 = 1_800_000_000_000_370;
/// Within this time after the calm, every call has ended. It is far more than all holds of a world one after
/// the other.
const LONGEST: Duration = Duration::from_secs(1800);
/// What went wrong before is over by then: connections are back, calls have run that were late.
const SETTLED: Duration = Duration::from_secs(12);
/// What a client does in the background after its last call is over by then.
const AFTERWARDS: Duration = Duration::from_secs(30);

/// What became of a seed.
pub(super) struct Outcome {
    pub(super) seed: u64,
    pub(super) plan: Plan,
    pub(super) events: Vec<(Duration, Event)>,
    pub(super) violations: Vec<String>,
    pub(super) lost: u64,
    pub(super) handed_over: u64,
}

impl Outcome {
    pub(super) fn of(seed: u64) -> Outcome {
        // That of the client code, for its jitter.
        fastrand::seed(seed);
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::draw(&mut rng);
        let mut outcome = on_simulated_time(simulate(&plan, rng));
        outcome.seed = seed;
        outcome
    }

    /// The whole history, an event a line.
    pub(super) fn transcript(&self) -> String {
        let mut text = format!("{:?}\n", self.plan);
        for (at, event) in &self.events {
            let _ = writeln!(text, "{at:>12?} {event:?}");
        }
        text
    }
}

/// Runs a world from its beginning to its end: no time passes but what it sleeps.
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
    let users = world.begin(plan, plan.calls, &mut rng);
    world.misbehave(plan).await;
    world.calm();
    tokio::time::sleep(SETTLED).await;
    world.network.history.record(Event::Calm);
    let later = world.begin(plan, 2, &mut rng);
    let mut left = Vec::from_iter(world.wait_for(users.into_iter().chain(later)).await);
    left.extend(world.quiesce(plan, &mut rng).await);

    let events = world.network.history.events();
    let mut violations = violations(&events, plan, key);
    violations.extend(left);
    let stats = world.peers.iter().map(|peer| peer.manager.stats());
    let (lost, handed_over) = stats.fold((0, 0), |(lost, handed), stats| {
        (lost + stats.lost, handed + stats.handed_over)
    });
    world.end();
    Outcome {
        seed: 0,
        plan: plan.clone(),
        events,
        violations,
        lost,
        handed_over,
    }
}

pub(super) fn name(lock: usize) -> String {
    format!("lock{lock}")
}

fn key(lock: usize) -> String {
    format!("fairlock:{{{}}}", name(lock))
}

impl World {
    pub(super) async fn of(plan: &Plan, rng: &mut Rng) -> World {
        let history = History::new(plan.timing());
        let network = Network::new(
            Arc::clone(&history),
            rng.fork(),
            plan.latency,
            plan.weather.clone(),
        );
        let store = MemoryStore::at_time(Duration::from_micros(BEGINNING_US));
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

    /// Nothing of it runs any more.
    pub(super) fn end(&self) {
        for peer in &self.peers {
            peer.process.end();
        }
        self.network.end();
    }

    async fn connect(&mut self, client: usize, plan: &Plan, rng: &mut Rng) -> Peer {
        // So that the clocks of two clients show different times.
        tokio::time::sleep(Duration::from_millis(rng.u64(1..=50))).await;
        let process = Process::new(rng.fork(), plan.sluggish);
        let late_listener = Arc::new(LateListener::default());
        let listener = Arc::downgrade(&late_listener);
        let options = plan.options.clone();
        let setting = Setting {
            attempt_timeout: options.attempt_timeout(),
            ping_every: options.heartbeat / 3,
            waitlist: plan.waitlist,
        };
        let connection =
            SimConnection::connect(client, &self.network, &self.server, &process, listener, setting);
        let ends = Arc::clone(&connection.0);
        let connection: Arc<dyn Store> = Arc::new(connection);
        let connected = process.spawn(async move {
            let first = loop {
                // Until the network lets it through.
                if let Ok(answer) = connection.time().await {
                    break answer;
                }
            };
            let shared = Shared::new(
                late_listener,
                ClientId::from_number(client as u128),
                connection,
                options,
                &first,
            );
            shared.start().expect("a runtime");
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
    fn begin(&self, plan: &Plan, calls: usize, rng: &mut Rng) -> Vec<(usize, JoinHandle<()>)> {
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
                    locks: (0..plan.locks).map(name).collect(),
                    owner: owner.filter(|_| plan.owners),
                    force: plan.force,
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

    /// Waits until the tasks of all processes that live have ended.
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
        let ended = tokio::time::timeout(LONGEST, all).await;
        left.or(ended
            .err()
            .map(|_| format!("tasks still wait {LONGEST:?} after the last fault")))
    }

    /// Once all calls have ended and nothing goes wrong any more, nothing is left, and every lock can be
    /// acquired.
    async fn quiesce(&mut self, plan: &Plan, rng: &mut Rng) -> Vec<String> {
        let mut wrong = Vec::new();
        tokio::time::sleep(AFTERWARDS).await;
        for tenure in self.server.store().held() {
            wrong.push(format!("still held: {tenure:?}"));
        }
        let anybody = self.connect(plan.clients, plan, rng).await;
        for lock in 0..plan.locks {
            let lock = anybody.manager.lock(name(lock));
            let acquired = anybody.process.spawn(lock.acquire_timeout(AFTERWARDS)).await;
            match acquired.expect("no panic") {
                Ok(guard) => drop(guard),
                Err(error) => wrong.push(format!("{} cannot be acquired: {error}", lock.name())),
            }
        }
        self.peers.push(anybody);
        tokio::time::sleep(WAITLIST_KEPT + AFTERWARDS).await;
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
