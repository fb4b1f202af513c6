//! Many hot locks in one client or several, each with many tasks that contend for it. All tasks begin at
//! once. More callers than one connection has calls in flight saturate their client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use fairlock::{Error, LockManager};
use fairlock_benches::Outcome;
use fairlock_testkit::Server;
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
    /// Numbers of connections, one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    connections: Vec<usize>,
    /// Measured time of each
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    println!(
        "{} locks, {} waiters each, held for {} ms, clients: {}",
        arguments.locks, arguments.waiters, arguments.held, arguments.clients
    );
    println!(
        "{:>11} {:>10} {:>12} {:>12} {:>18} {:>10} {:>8} {:>11}",
        "connections",
        "grants/s",
        "wait p50",
        "longest",
        "turns per waiter",
        "overtaken",
        "errors",
        "calls/grant"
    );
    for &connections in &arguments.connections {
        let server = Server::start().await;
        let mut clients = Vec::new();
        for _ in 0..arguments.clients {
            let builder = LockManager::builder().connections(connections).max_waiters(None);
            let builder = builder.local_handoffs(arguments.local_handoffs);
            clients.push(builder.connect(&server.url()).await?);
        }
        let time = Duration::from_secs_f64(arguments.seconds);
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
                tasks.spawn(contend(locks, name, held, order, started + time));
            }
        }
        let waits: Vec<Waits> = tasks.join_all().await;
        let calls = server.calls().await.get("evalsha").copied().unwrap_or(0);
        let turns = waits.iter().map(|waits| waits.granted.len());
        let (fewest, most) = (turns.clone().min().unwrap_or(0), turns.max().unwrap_or(0));
        let errors: Vec<Error> = waits.iter().flat_map(|waits| waits.errors.clone()).collect();
        let overtaken = waits.iter().map(|waits| waits.overtaken).max().unwrap_or(0);
        let mut all: Vec<Duration> = waits.into_iter().flat_map(|waits| waits.granted).collect();
        all.sort_unstable();
        println!(
            "{connections:>11} {:>10.0} {:>12.1?} {:>12.1?} {:>18} {overtaken:>10} {:>8} {:>11.2}",
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
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Waits {
    granted: Vec<Duration>,
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
async fn contend(locks: LockManager, name: String, held: Duration, order: Arc<Order>, end: Instant) -> Waits {
    let lock = locks.lock(name);
    let mut waits = Waits::default();
    while Instant::now() < end {
        let asked = Instant::now();
        let number = order.enter();
        let acquired = lock.acquire().await;
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
            Err(error) => {
                waits.errors.push(error);
            }
        }
    }
    waits
}
