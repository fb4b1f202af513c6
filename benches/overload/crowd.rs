//! What other locks of a client feel while very many of its callers wait, give up and come again: how long an
//! acquire of a free lock takes, and whether leases are lost. A plain lock with as many callers is measured
//! before each other kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fairlock::{Error, LockGuard, LockManager, LockSet, LockSetGuard};
use fairlock_benches::Outcome;
use fairlock_benches::quantile::quantile;
use fairlock_testkit::Server;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// What the callers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// One lock
    Lock,
    /// Readers, for a writer
    Rw,
    /// A semaphore with as many permits as there are callers
    Semaphore,
    /// A lock each
    Names,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["rw", "semaphore", "names"])]
    kind: Vec<Kind>,
    /// Callers, all of one client
    #[arg(long, default_value_t = 10_000)]
    callers: usize,
    /// How long a caller waits before it gives up; ten times as long for `names`, whose callers all ask
    #[arg(long, default_value_t = 300)]
    patience_ms: u64,
    /// Seconds of each run
    #[arg(long, default_value_t = 9)]
    seconds: u64,
}

/// The leases of the locks that must not be lost.
const LEASE: Duration = Duration::from_secs(6);
const LEASES: usize = 100;

struct Seen {
    median: f64,
    p99: f64,
    worst: f64,
    gave_up: u64,
    errors: u64,
    lost: usize,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    println!(
        "{:>10} {:>10} {:>10} {:>10} {:>11} {:>8} {:>10} {:>11}",
        "", "median ms", "p99 ms", "worst ms", "gave up/s", "errors", "lost", "p99 / lock"
    );
    for kind in &arguments.kind {
        let plain = measure(Kind::Lock, arguments).await?;
        let p99 = plain.p99;
        for (kind, seen) in [(Kind::Lock, plain), (*kind, measure(*kind, arguments).await?)] {
            let name = kind.to_possible_value().map(|value| value.get_name().to_owned());
            println!(
                "{:>10} {:>10.2} {:>10.2} {:>10.1} {:>11} {:>8} {:>7}/{LEASES} {:>10.2}",
                name.unwrap_or_default(),
                seen.median,
                seen.p99,
                seen.worst,
                seen.gave_up / arguments.seconds,
                seen.errors,
                seen.lost,
                seen.p99 / p99
            );
        }
    }
    Ok(())
}

async fn measure(kind: Kind, arguments: &Arguments) -> Outcome<Seen> {
    let server = Server::start().await;
    let (url, builder) = (server.url(), LockManager::builder().max_waiters(None));
    let connect = || builder.clone().connect(&url);
    let (holder, locks) = (connect().await?, connect().await?);
    let names = if kind == Kind::Names { arguments.callers } else { 1 };
    let held: Vec<LockSetGuard> =
        iter((0..names).map(|name| whole(kind, &holder, name, arguments.callers).acquire()))
            .buffer_unordered(100)
            .try_collect()
            .await?;
    let leases: Vec<LockGuard> =
        iter((0..LEASES).map(|n| locks.lock(format!("leases:{n}")).lease(LEASE).acquire()))
            .buffer_unordered(LEASES)
            .try_collect()
            .await?;
    let is_over = Arc::<AtomicBool>::default();
    let (gave_up, errors) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let mut callers = JoinSet::new();
    for caller in 0..arguments.callers {
        let lock = wanted(kind, &locks, caller % names, arguments.callers);
        let (is_over, gave_up, errors) = (Arc::clone(&is_over), Arc::clone(&gave_up), Arc::clone(&errors));
        let times = if kind == Kind::Names { 10 } else { 1 };
        let patience = Duration::from_millis(times * arguments.patience_ms);
        // They do not come all at the same moment.
        let first = patience.mul_f64(caller as f64 / arguments.callers as f64);
        callers.spawn(async move {
            sleep(first).await;
            while !is_over.load(Ordering::Relaxed) {
                let count = match lock.acquire_timeout(patience).await {
                    Err(Error::Timeout { .. }) => &gave_up,
                    _ => &errors,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let (mut waits, end) = (
        Vec::new(),
        Instant::now() + Duration::from_secs(arguments.seconds),
    );
    while Instant::now() < end {
        let asked = Instant::now();
        let guard = locks.lock("free").acquire().await?;
        waits.push(asked.elapsed().as_secs_f64() * 1000.0);
        drop(guard);
        sleep(Duration::from_millis(5)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let seen = Seen {
        median: quantile(&mut waits, 0.5),
        p99: quantile(&mut waits, 0.99),
        worst: quantile(&mut waits, 1.0),
        gave_up: gave_up.load(Ordering::Relaxed),
        errors: errors.load(Ordering::Relaxed),
        lost: leases.iter().filter(|guard| guard.is_lost()).count(),
    };
    callers.join_all().await;
    drop(held);
    Ok(seen)
}

/// All that there is of a lock.
fn whole(kind: Kind, locks: &LockManager, name: usize, callers: usize) -> LockSet {
    let name = format!("crowd:{name}");
    match kind {
        Kind::Lock | Kind::Names => locks.lock(name).into(),
        Kind::Rw => locks.rw_lock(name).write().into(),
        Kind::Semaphore => locks
            .semaphore(name, capacity(callers))
            .permits(capacity(callers))
            .into(),
    }
}

/// What a caller wants of it.
fn wanted(kind: Kind, locks: &LockManager, name: usize, callers: usize) -> LockSet {
    let name = format!("crowd:{name}");
    match kind {
        Kind::Lock | Kind::Names => locks.lock(name).into(),
        Kind::Rw => locks.rw_lock(name).read().into(),
        Kind::Semaphore => locks.semaphore(name, capacity(callers)).into(),
    }
}

fn capacity(callers: usize) -> u32 {
    u32::try_from(callers).unwrap_or(u32::MAX)
}
