//! How fast the tasks of one process hand a lock on with local hand-off, beside `tokio::sync::Mutex`.
//! `benches/README.md` says how to run it and how to read it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock::{Lock, LockGuard, LockManager};
use fairlock_benches::quantile::quantile;
use fairlock_benches::{NO_SERVER, Outcome, exit_code, is_called_by_cargo_bench};
use fairlock_testkit::Server;
use tokio::sync::{Mutex, MutexGuard, Semaphore};
use tokio::task::JoinSet;

/// The tasks that take the lock, and how often each takes it in a block.
const TASKS: u32 = 1000;
const TURNS: u32 = 20;

/// The ratio is the median of this number of rounds. Each round is a block of every kind.
const ROUNDS: usize = 20;

/// The limit of the ratio.
const BAR: f64 = 0.2;

#[tokio::main]
async fn main() -> ExitCode {
    if !is_called_by_cargo_bench("local") {
        return ExitCode::SUCCESS;
    }
    exit_code("local", run().await)
}

async fn run() -> Outcome<()> {
    if !Server::is_installed() {
        return Err(NO_SERVER.into());
    }
    let server = Server::start().await;
    let (memory, redis) = (
        LockManager::in_memory(),
        LockManager::connect(&server.url()).await?,
    );
    let lock = |locks: &LockManager, turns| Kind::Lock(locks.lock("local").local_handoffs(turns));
    let kinds = [
        ("tokio::sync::Mutex", Kind::Mutex(Arc::default())),
        ("in memory, 64 turns in a tenure", lock(&memory, 64)),
        ("on a server, 64", lock(&redis, 64)),
        ("on a server, 1,000", lock(&redis, 1000)),
    ];

    let mut rates = kinds.each_ref().map(|_| Vec::new());
    // The first round only warms up.
    for round in 0..=ROUNDS {
        for turn in 0..kinds.len() {
            let kind = (round + turn) % kinds.len();
            let took = kinds[kind].1.block().await?;
            if round > 0 {
                rates[kind].push(f64::from(TASKS * TURNS) / took.as_secs_f64());
            }
        }
    }
    println!("{TASKS} tasks of one process; the ratio should be at least {BAR}\n");
    println!("{:<32} {:>10} {:>6}", "", "turns/s", "ratio");
    let mutex = rates[0].clone();
    for ((name, _), rates) in kinds.iter().zip(&mut rates) {
        let mut ratios: Vec<f64> = rates
            .iter()
            .zip(&mutex)
            .map(|(rate, mutex)| rate / mutex)
            .collect();
        let (rate, ratio) = (quantile(rates, 0.5), quantile(&mut ratios, 0.5));
        println!("{name:<32} {rate:>10.0} {ratio:>6.3}");
    }
    Ok(())
}

#[derive(Clone)]
enum Kind {
    Mutex(Arc<Mutex<()>>),
    Lock(Lock),
}

impl Kind {
    /// The time until every task has had its turns. All of them wait when the first turn begins, so every
    /// turn comes from another task.
    async fn block(&self) -> Outcome<Duration> {
        let first = self.acquire().await?;
        let waiting = Arc::new(Semaphore::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            tasks.spawn(self.clone().take_turns(Arc::clone(&waiting)));
        }
        waiting.acquire_many(TASKS).await?.forget();
        let started = Instant::now();
        first.release().await?;
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(started.elapsed())
    }

    async fn take_turns(self, waiting: Arc<Semaphore>) -> fairlock::Result<()> {
        waiting.add_permits(1);
        for _ in 0..TURNS {
            self.acquire().await?.release().await?;
        }
        Ok(())
    }

    async fn acquire(&self) -> fairlock::Result<Guard<'_>> {
        Ok(match self {
            Kind::Mutex(mutex) => Guard::Mutex(mutex.lock().await),
            Kind::Lock(lock) => Guard::Lock(lock.acquire().await?),
        })
    }
}

enum Guard<'a> {
    Mutex(MutexGuard<'a, ()>),
    Lock(LockGuard),
}

impl Guard<'_> {
    async fn release(self) -> fairlock::Result<()> {
        match self {
            Guard::Mutex(guard) => drop(guard),
            Guard::Lock(guard) => guard.release().await?,
        }
        Ok(())
    }
}
