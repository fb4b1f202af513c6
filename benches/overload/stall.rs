//! Goodput second by second, while the server stops for a moment and the load goes on.

use std::time::Duration;

use clap::Args;
use fairlock_benches::Outcome;
use fairlock_testkit::Server;

use crate::part::{Load, Strategy};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    /// How long a caller waits before it gives up: so many times the mean wait of callers with much patience
    #[arg(long, value_delimiter = ',', default_values_t = [0.8, 1.0, 1.2, 2.0])]
    patience: Vec<f64>,
    #[arg(long, value_enum, default_value_t = Strategy::Fairlock)]
    strategy: Strategy,
    /// When the server stops
    #[arg(long, default_value_t = 4)]
    at: usize,
    /// For how many seconds it stops
    #[arg(long, default_value_t = 1)]
    stall: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 12)]
    seconds: usize,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let (load, at, stall) = (&arguments.load, arguments.at, arguments.stall);
    println!(
        "{} tasks on {} locks, {} client processes; {}; the server is stopped from second {at} to {}",
        load.tasks,
        load.locks,
        load.processes,
        arguments.strategy.name(),
        at + stall
    );
    let server = Server::start().await;
    let much = Duration::from_secs(10);
    let seen = load
        .run(&server.url(), arguments.strategy, much, 4, async || {})
        .await?;
    let mean = load.tasks as f64 / seen.rate();
    println!(
        "with much patience: {:.0}/s, a mean wait of {:.1} ms",
        seen.rate(),
        mean * 1000.0
    );
    drop(server);
    for times in &arguments.patience {
        let server = Server::start().await;
        let stalls = async || {
            tokio::time::sleep(Duration::from_secs(at as u64)).await;
            server.pause();
            tokio::time::sleep(Duration::from_secs(stall as u64)).await;
            server.resume();
        };
        let patience = Duration::from_secs_f64(times * mean);
        let seen = load
            .run(
                &server.url(),
                arguments.strategy,
                patience,
                arguments.seconds,
                stalls,
            )
            .await?;
        let before = seen.acquired[1..at].iter().sum::<u64>() as f64 / (at - 1) as f64;
        let back = seen.acquired[at + stall..]
            .iter()
            .position(|&acquired| acquired as f64 >= 0.8 * before);
        println!(
            "patience of {times} mean waits: {} gave up, at most {} MiB more, close {:.0} ms, {} unconfirmed; \
             back at 0.8 of the earlier rate: {}",
            seen.gave_up,
            seen.memory.round(),
            seen.close.as_secs_f64() * 1000.0,
            seen.unconfirmed,
            match back {
                Some(seconds) => format!("in second {} after the stall", seconds + 1),
                None => "never".to_owned(),
            }
        );
        let seconds: Vec<String> = seen.acquired.iter().map(u64::to_string).collect();
        println!("    acquired in each second: {}", seconds.join(" "));
    }
    Ok(())
}
