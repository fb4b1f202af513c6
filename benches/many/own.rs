//! Each task acquires and releases a lock of its own again and again. This shows how near that comes to the
//! client library alone with two scripts that do nothing.

use std::time::{Duration, Instant};

use clap::Args;
use fairlock::{Lock, LockManager};
use fairlock_benches::Outcome;
use fairlock_benches::bare::Bare;
use fairlock_benches::quantile::quantile;
use fairlock_testkit::Server;
use tokio::task::JoinSet;

/// The required share of the rate of two bare scripts.
const BAR: f64 = 0.85;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Tasks, each with a lock of its own
    #[arg(long, default_value_t = 10_000)]
    tasks: usize,
    /// Measured time of a round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds of each
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let server = Server::start().await;
    let bare = Bare::connect(&server.url()).await?;
    let locks = LockManager::connect(&server.url()).await?;
    let time = Duration::from_secs_f64(arguments.seconds);
    let (mut bare_rates, mut rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // The first round only warms up.
    for round in 0..=arguments.rounds {
        let bare_rate = rate(arguments.tasks, time, |_| Pair::Bare(bare.clone())).await;
        let own = |task| Pair::Lock(locks.lock(format!("own:{task}")));
        let own_rate = rate(arguments.tasks, time, own).await;
        if round > 0 {
            bare_rates.push(bare_rate);
            rates.push(own_rate);
            ratios.push(own_rate / bare_rate);
        }
    }
    println!(
        "{} tasks with a lock each: {:.0} pairs/s; two bare scripts: {:.0} pairs/s; ratio {:.2}, bar {BAR}",
        arguments.tasks,
        quantile(&mut rates, 0.5),
        quantile(&mut bare_rates, 0.5),
        quantile(&mut ratios, 0.5)
    );
    Ok(())
}

/// What a task does again and again.
enum Pair {
    Bare(Bare),
    Lock(Lock),
}

impl Pair {
    async fn turn(&self) -> bool {
        match self {
            Pair::Bare(bare) => bare.pair().await.is_ok(),
            Pair::Lock(lock) => match lock.acquire().await {
                Ok(guard) => guard.release().await.is_ok(),
                Err(_) => false,
            },
        }
    }
}

/// How many turns per second all tasks together make.
async fn rate(tasks: usize, time: Duration, pair_of: impl Fn(usize) -> Pair) -> f64 {
    let started = Instant::now();
    let end = started + time;
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let pair = pair_of(task);
        all.spawn(async move {
            let mut done = 0_u32;
            while Instant::now() < end {
                done += u32::from(pair.turn().await);
            }
            done
        });
    }
    let done: u32 = all.join_all().await.into_iter().sum();
    f64::from(done) / started.elapsed().as_secs_f64()
}
