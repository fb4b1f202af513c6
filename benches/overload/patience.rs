//! Goodput over patience, fairlock and the spin lock in turn.

use std::time::Duration;

use clap::Args;

use crate::Outcome;
use crate::part::{Load, Strategy};
use crate::support::Server;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    /// For how long a caller waits before it gives up; the first one is what the others are compared with
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 200, 100, 50, 20, 10, 5, 2])]
    patience_ms: Vec<u64>,
    /// Seconds of each, of which the first one counts for nothing
    #[arg(long, default_value_t = 4)]
    seconds: usize,
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["fairlock", "spin"])]
    strategies: Vec<Strategy>,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let load = &arguments.load;
    println!(
        "{} tasks on {} locks, {} client processes, held for no time; callers give up by {:?}",
        load.tasks, load.locks, load.processes, load.way
    );
    println!(
        "{:>11} {:>9} {:>11} {:>8} {:>11} {:>12} {:>10} {:>13} {:>13}",
        "patience ms",
        "strategy",
        "acquired/s",
        "÷ first",
        "gave up/s",
        "memory MiB",
        "close ms",
        "unconfirmed",
        "bystander p99"
    );
    let mut first: Vec<Option<f64>> = vec![None; arguments.strategies.len()];
    for &patience_ms in &arguments.patience_ms {
        for (&strategy, first) in arguments.strategies.iter().zip(&mut first) {
            // Each on a server of its own: nothing of the one before is left.
            let server = Server::start().await;
            let patience = Duration::from_millis(patience_ms);
            let seen = load
                .run(&server.url(), strategy, patience, arguments.seconds, async || {})
                .await?;
            let rate = seen.rate();
            let first = *first.get_or_insert(rate);
            println!(
                "{patience_ms:>11} {:>9} {rate:>11.0} {:>8.2} {:>11.0} {:>12.0} {:>10.0} {:>13} {:>13.1}",
                format!("{strategy:?}").to_lowercase(),
                rate / first,
                seen.gave_up as f64 / arguments.seconds as f64,
                seen.memory.1 - seen.memory.0,
                seen.close.as_secs_f64() * 1000.0,
                seen.unconfirmed,
                seen.bystander.0
            );
        }
    }
    Ok(())
}
