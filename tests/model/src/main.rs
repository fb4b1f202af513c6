//! Explores the protocol, and prints the result: `scripts/campaign model`.

mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use fairlock_model::single;

/// Explores every interleaving of the protocol in small configurations, and shows the reason for each of its
/// rules.
#[derive(Debug, Parser)]
struct Arguments {
    /// Total duration in seconds, including the search for counterexamples
    #[arg(long, default_value_t = 900)]
    seconds: u64,
    /// Most steps per configuration, which bounds the memory: some 400 bytes each
    #[arg(long, default_value_t = 30_000_000)]
    steps: usize,
}

fn main() -> ExitCode {
    let Arguments { seconds, steps } = Arguments::parse();
    let began = Instant::now();
    let after = |percent| began + Duration::from_secs(seconds) * percent / 100;
    let mut failures = 0;

    let configurations = [&single::configuration::SMALL[..], &single::configuration::LARGE].concat();
    failures += report::explore(&configurations, steps, after(90));
    let examples = single::counterexamples::COUNTEREXAMPLES.iter().map(|example| {
        let rules: Vec<_> = example.without.iter().map(ToString::to_string).collect();
        let configuration = example.configuration.without_all(example.without);
        (rules.join(" + "), configuration)
    });
    failures += report::refute(examples, steps);
    for unbroken in &single::counterexamples::UNBROKEN {
        println!("{:<62} no counterexample: {}", unbroken.without, unbroken.why);
    }

    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
