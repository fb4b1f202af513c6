//! Many hot locks in one client, each with many tasks that contend for it.

use std::time::{Duration, Instant};

use clap::Args;
use fairlock::LockManager;
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
    /// Numbers of connections, one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    connections: Vec<usize>,
    /// Measured time of each
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    println!(
        "{} locks, {} waiters each, one client",
        arguments.locks, arguments.waiters
    );
    println!(
        "{:>11} {:>10} {:>12} {:>12} {:>22}",
        "connections", "grants/s", "wait p50", "longest", "turns per waiter"
    );
    for &connections in &arguments.connections {
        let server = Server::start().await;
        let builder = LockManager::builder().connections(connections);
        let locks = builder.connect(&server.url()).await?;
        let time = Duration::from_secs_f64(arguments.seconds);
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for lock in 0..arguments.locks {
            for _ in 0..arguments.waiters {
                tasks.spawn(contend(locks.clone(), format!("hot:{lock}"), started + time));
            }
        }
        let waits: Vec<Vec<Duration>> = tasks.join_all().await;
        let turns = waits.iter().map(Vec::len);
        let (fewest, most) = (turns.clone().min().unwrap_or(0), turns.max().unwrap_or(0));
        let mut all: Vec<Duration> = waits.into_iter().flatten().collect();
        all.sort_unstable();
        println!(
            "{connections:>11} {:>10.0} {:>12.1?} {:>12.1?} {:>22}",
            all.len() as f64 / time.as_secs_f64(),
            percentile(&all, 50),
            all.last().copied().unwrap_or_default(),
            format!("{fewest} to {most}"),
        );
    }
    Ok(())
}

/// Takes turns until the time is over, and returns how long it waited for each.
async fn contend(locks: LockManager, name: String, end: Instant) -> Vec<Duration> {
    let lock = locks.lock(name);
    let mut waits = Vec::new();
    loop {
        let asked = Instant::now();
        let Ok(guard) = lock.acquire().await else { continue };
        let now = Instant::now();
        if now > end {
            return waits;
        }
        waits.push(now - asked);
        // The next acquire waits behind the release anyway.
        drop(guard);
    }
}
