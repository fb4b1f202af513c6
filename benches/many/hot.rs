//! Many hot locks in one client or several, each with many tasks that contend for it. All tasks begin at
//! once. More callers than one connection has calls in flight saturate their client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fairlock::{Error, Lock, LockManager, LockManagerBuilder, Quorum};
use fairlock_benches::Outcome;
use fairlock_testkit::{Cluster, Server};
use tokio::task::JoinSet;

use crate::percentile;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Hot locks
    #[arg(long, default_value_t = 100)]
    locks: usize,
    /// Tasks that contend for each
    #[arg(long, default_value_t = 100)]
    waiters: usize,
    /// Clients that share the tasks
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// For how long each guard is held, in ms
    #[arg(long, default_value_t = 0.0)]
    held: f64,
    /// Turns inside a process that may follow one another
    #[arg(long, default_value_t = 1)]
    local_handoffs: u32,
    /// Where the locks are
    #[arg(long, value_enum, default_value_t = Topology::Server)]
    topology: Topology,
    /// How long each caller waits at most, in ms
    #[arg(long)]
    patience: Option<u64>,
    /// Measured time
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Topology {
    Server,
    Cluster,
    Quorum,
}

/// The servers of the locks.
enum Home {
    Server(Box<Server>),
    Cluster(Cluster),
    Quorum(Vec<Server>),
}

impl Home {
    async fn start(topology: Topology) -> Home {
        match topology {
            Topology::Server => Home::Server(Box::new(Server::start().await)),
            Topology::Cluster => Home::Cluster(Cluster::start().await),
            Topology::Quorum => Home::Quorum(vec![
                Server::start().await,
                Server::start().await,
                Server::start().await,
            ]),
        }
    }

    async fn connect(&self, builder: LockManagerBuilder) -> fairlock::Result<LockManager> {
        match self {
            Home::Server(server) => builder.connect(&server.url()).await,
            Home::Cluster(cluster) => builder.connect(&cluster.url()).await,
            Home::Quorum(servers) => {
                let urls: Vec<String> = servers.iter().map(Server::url).collect();
                // The servers have just started, and may have forgotten nothing.
                builder.connect_quorum(Quorum::of(&urls).durable()).await
            }
        }
    }

    /// The script calls so far.
    async fn calls(&self) -> u64 {
        let of = async |server: &Server| server.calls().await.get("evalsha").copied().unwrap_or(0);
        match self {
            Home::Server(server) => of(server).await,
            Home::Cluster(cluster) => cluster.calls("evalsha").await,
            Home::Quorum(servers) => {
                let mut calls = 0;
                for server in servers {
                    calls += of(server).await;
                }
                calls
            }
        }
    }
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    println!(
        "{} locks, {} waiters each, held for {} ms, clients: {}",
        arguments.locks, arguments.waiters, arguments.held, arguments.clients
    );
    println!(
        "{:>10} {:>12} {:>12} {:>18} {:>10} {:>9} {:>7} {:>11}",
        "grants/s",
        "wait p50",
        "longest",
        "turns per waiter",
        "overtaken",
        "timed out",
        "errors",
        "calls/grant"
    );
    let home = Home::start(arguments.topology).await;
    let mut clients = Vec::new();
    for _ in 0..arguments.clients {
        let builder = LockManager::builder().max_waiters(None);
        let builder = builder.local_handoffs(arguments.local_handoffs);
        clients.push(home.connect(builder).await?);
    }
    let time = Duration::from_secs_f64(arguments.seconds);
    let patience = arguments.patience.map(Duration::from_millis);
    let held = Duration::from_secs_f64(arguments.held / 1000.0);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for lock in 0..arguments.locks {
        // A client serves its own callers of a lock in the order in which they came.
        let orders: Vec<Arc<Order>> = clients.iter().map(|_| Arc::default()).collect();
        for waiter in 0..arguments.waiters {
            let client = waiter % clients.len();
            let order = Arc::clone(&orders[client]);
            let (locks, name) = (clients[client].clone(), format!("hot:{lock}"));
            tasks.spawn(contend(locks.lock(name), held, patience, order, started + time));
        }
    }
    let waits: Vec<Waits> = tasks.join_all().await;
    let calls = home.calls().await;
    let turns = waits.iter().map(|waits| waits.granted.len());
    let (fewest, most) = (turns.clone().min().unwrap_or(0), turns.max().unwrap_or(0));
    let errors: Vec<Error> = waits.iter().flat_map(|waits| waits.errors.clone()).collect();
    let timed_out: usize = waits.iter().map(|waits| waits.timed_out).sum();
    let overtaken = waits.iter().map(|waits| waits.overtaken).max().unwrap_or(0);
    let mut all: Vec<Duration> = waits.into_iter().flat_map(|waits| waits.granted).collect();
    all.sort_unstable();
    println!(
        "{:>10.0} {:>12.1?} {:>12.1?} {:>18} {overtaken:>10} {timed_out:>9} {:>7} {:>11.2}",
        all.len() as f64 / time.as_secs_f64(),
        percentile(&all, 50),
        all.last().copied().unwrap_or_default(),
        format!("{fewest} to {most}"),
        errors.len(),
        calls as f64 / all.len() as f64,
    );
    if let Some(error) = errors.first() {
        println!("one of the errors: {error}");
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Waits {
    granted: Vec<Duration>,
    timed_out: usize,
    errors: Vec<Error>,
    /// By how many later callers a caller was overtaken at most.
    overtaken: u64,
}

/// The order in which the callers of one lock in one client came, and by how many later ones each was
/// overtaken so far.
#[derive(Debug, Default)]
struct Order(Mutex<(u64, BTreeMap<u64, u64>)>);

impl Order {
    fn enter(&self) -> u64 {
        let (last, waiting) = &mut *self.0.lock().expect("no panic");
        *last += 1;
        waiting.insert(*last, 0);
        *last
    }

    /// Returns how many later callers were granted the lock before this one.
    fn granted(&self, number: u64) -> u64 {
        let (_, waiting) = &mut *self.0.lock().expect("no panic");
        let overtaken = waiting.remove(&number).unwrap_or(0);
        waiting
            .range_mut(..number)
            .for_each(|(_, overtaken)| *overtaken += 1);
        overtaken
    }
}

/// Takes turns until the time is over.
async fn contend(
    lock: Lock,
    held: Duration,
    patience: Option<Duration>,
    order: Arc<Order>,
    end: Instant,
) -> Waits {
    let mut waits = Waits::default();
    while Instant::now() < end {
        let asked = Instant::now();
        let number = order.enter();
        let acquired = match patience {
            Some(patience) => lock.acquire_timeout(patience).await,
            None => lock.acquire().await,
        };
        let overtaken = order.granted(number);
        match acquired {
            Ok(guard) => {
                waits.granted.push(asked.elapsed());
                waits.overtaken = waits.overtaken.max(overtaken);
                if !held.is_zero() {
                    tokio::time::sleep(held).await;
                }
                // The next acquire waits behind the release anyway.
                drop(guard);
            }
            Err(Error::Timeout { .. }) => waits.timed_out += 1,
            Err(error) => {
                waits.errors.push(error);
            }
        }
    }
    waits
}
