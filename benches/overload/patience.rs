//! Goodput over patience, for fairlock and the spin lock in turn.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fairlock_benches::Outcome;
use fairlock_testkit::Server;

use crate::part::{Load, Strategy};
use crate::picture::{self, Point};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    /// How long a caller waits before it gives up; the first value is the one that the others are compared
    /// with
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 200, 100, 50, 20, 10, 5, 2])]
    patience_ms: Vec<u64>,
    /// Seconds of each run; the first one does not count
    #[arg(long, default_value_t = 4)]
    seconds: usize,
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["fairlock", "dropped", "spin"])]
    strategies: Vec<Strategy>,
    /// Draws what was acquired over patience, as an SVG
    #[arg(long)]
    svg: Option<PathBuf>,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let load = &arguments.load;
    println!(
        "{} tasks on {} locks, {} client processes, locks released at once",
        load.tasks, load.locks, load.processes
    );
    println!(
        "{:>11} {:>9} {:>11} {:>8} {:>11} {:>12} {:>10} {:>13} {:>13} {:>9} {:>11}",
        "patience ms",
        "strategy",
        "acquired/s",
        "÷ first",
        "gave up/s",
        "memory MiB",
        "close ms",
        "unconfirmed",
        "bystander p99",
        "late %",
        "neighbour/s"
    );
    let mut points = Vec::new();
    let mut first: Vec<Option<f64>> = vec![None; arguments.strategies.len()];
    for &patience_ms in &arguments.patience_ms {
        for (&strategy, first) in arguments.strategies.iter().zip(&mut first) {
            // Each run has a server of its own, without leftovers of the one before.
            let server = Server::start().await;
            let patience = Duration::from_millis(patience_ms);
            let seen = load
                .run(&server.url(), strategy, patience, arguments.seconds, async || {})
                .await?;
            let rate = seen.rate();
            let first = *first.get_or_insert(rate);
            println!(
                "{patience_ms:>11} {:>9} {rate:>11.0} {:>8.2} {:>11.0} {:>12.0} {:>10.0} {:>13} {:>13.1} {:>9.1} {:>11.0}",
                strategy.name(),
                rate / first,
                seen.gave_up as f64 / arguments.seconds as f64,
                seen.memory,
                seen.close.as_secs_f64() * 1000.0,
                seen.unconfirmed,
                seen.bystander,
                100.0 * seen.late,
                seen.neighbour
            );
            points.push(Point {
                strategy,
                patience_ms,
                rate,
            });
        }
    }
    if let Some(svg) = &arguments.svg {
        picture::draw(svg, &points)?;
    }
    Ok(())
}
