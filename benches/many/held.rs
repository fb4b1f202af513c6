//! Locks that one client holds and renews: how late the renewals are, what each lock costs, and how long
//! another lock takes meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use fairlock::{LockGuard, LockManager};
use fairlock_benches::Outcome;
use fairlock_benches::memory::own_memory;
use fairlock_testkit::Server;
use futures_util::stream::{StreamExt, TryStreamExt, iter};

use crate::{own_cpu, percentile, told};

/// How many are acquired at a time.
const AT_ONCE: usize = 500;
/// How often each lease is checked, which is also the precision of the lateness.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Locks that are held
    #[arg(long, default_value_t = 100_000)]
    locks: usize,
    /// Their lease, in seconds; it is renewed when a third is used up
    #[arg(long, default_value_t = 30.0)]
    lease: f64,
    /// How many renewals of each lock are watched
    #[arg(long, default_value_t = 3)]
    periods: u32,
    /// Stops the server for this many seconds first, so that all renewals are due at once
    #[arg(long, default_value_t = 0.0)]
    stall: f64,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let lease = Duration::from_secs_f64(arguments.lease);
    let period = lease / 3;
    let server = Server::start().await;
    let builder = LockManager::builder().lease(lease);
    let locks = builder.connect(&server.url()).await?;
    let before = (own_memory()?, told(&server, "memory", "used_memory").await?);
    let acquired = Instant::now();
    let each = (0..arguments.locks).map(|n| locks.lock(format!("held:{n}")).acquire());
    let guards: Vec<LockGuard> = iter(each).buffer_unordered(AT_ONCE).try_collect().await?;
    println!("{} locks acquired in {:.1?}", guards.len(), acquired.elapsed());
    let count = guards.len() as f64;
    println!(
        "memory per held lock: {:.0} B here, {:.0} B in the server",
        own_memory()?.saturating_sub(before.0) as f64 / count,
        (told(&server, "memory", "used_memory").await? - before.1) / count
    );
    if arguments.stall > 0.0 {
        server.pause();
        tokio::time::sleep(Duration::from_secs_f64(arguments.stall)).await;
        server.resume();
    }

    let stop = Arc::new(AtomicBool::new(false));
    let other = tokio::spawn(acquire_another(locks.clone(), Arc::clone(&stop)));
    let (cpu, server_cpu) = (own_cpu(), server_cpu(&server).await?);
    let watched = Instant::now();
    let time = period * arguments.periods;
    let watch = tokio::task::spawn_blocking(move || (watch(&guards, period, watched + time), guards));
    let (mut lateness, guards) = watch.await?;
    let elapsed = watched.elapsed();
    stop.store(true, Ordering::Relaxed);
    let mut waits = other.await?;
    lateness.sort_unstable();
    waits.sort_unstable();

    let share = |late: Duration| 100.0 * late.as_secs_f64() / period.as_secs_f64();
    let (p50, p99) = (percentile(&lateness, 50), percentile(&lateness, 99));
    let most = lateness.last().copied().unwrap_or_default();
    println!(
        "{} renewals in {elapsed:.1?}, one per lock every {period:.1?}; late by p50 {p50:.0?}, \
         p99 {p99:.0?} ({:.1} % of the period; bar 10), at most {most:.0?} (±{LOOK_EVERY:?})",
        lateness.len(),
        share(p99),
    );
    println!(
        "leases lost: {}",
        guards.iter().filter(|guard| guard.is_lost()).count()
    );
    let renewals = lateness.len().max(1) as f64;
    println!(
        "CPU per renewal: {:.1} µs here (with its share of the checks every {LOOK_EVERY:?}), \
         {:.1} µs in the server",
        (own_cpu() - cpu).as_secs_f64() * 1e6 / renewals,
        (self::server_cpu(&server).await? - server_cpu) * 1e6 / renewals
    );
    println!(
        "another lock, acquired {} times meanwhile: p50 {:.2?}, p99 {:.2?}, longest {:.2?}",
        waits.len(),
        percentile(&waits, 50),
        percentile(&waits, 99),
        waits.last().copied().unwrap_or_default()
    );
    Ok(())
}

/// Checks all leases until the end, and returns how late each observed renewal was.
fn watch(guards: &[LockGuard], period: Duration, end: Instant) -> Vec<Duration> {
    let mut lateness = Vec::new();
    let due = |guard: &LockGuard| guard.lease().length - period;
    let mut before: Vec<Duration> = guards.iter().map(|guard| guard.lease().remaining).collect();
    while Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
        for (guard, before) in guards.iter().zip(&mut before) {
            let remaining = guard.lease().remaining;
            if remaining > *before {
                lateness.push(due(guard).saturating_sub(*before));
            }
            *before = remaining;
        }
    }
    lateness
}

/// Acquires and releases an uncontended lock, and returns how long each acquire took.
async fn acquire_another(locks: LockManager, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let lock = locks.lock("another");
    let mut waits = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let Ok(guard) = lock.acquire().await else { continue };
        waits.push(asked.elapsed());
        drop(guard);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    waits
}

async fn server_cpu(server: &Server) -> Outcome<f64> {
    Ok(told(server, "cpu", "used_cpu_user").await? + told(server, "cpu", "used_cpu_sys").await?)
}
