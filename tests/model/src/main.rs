//! Explores the protocol, and prints the result: `scripts/campaign model`.

mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use fairlock_model::quorum::protocol::Protocol;
use fairlock_model::search::Limits;
use fairlock_model::walk::walk;
use fairlock_model::{quorum, single};

/// Explores every interleaving of the protocol in small configurations, on one server and on a majority of
/// three, and shows the reason for each of its rules.
#[derive(Debug, Parser)]
struct Arguments {
    /// Total duration in seconds, including the search for counterexamples
    #[arg(long, default_value_t = 900)]
    seconds: u64,
    /// Most steps per configuration, which bounds the memory: some 400 bytes each
    #[arg(long, default_value_t = 30_000_000)]
    steps: usize,
    /// Where the random walks begin
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let Arguments { seconds, steps, seed } = Arguments::parse();
    let began = Instant::now();
    let after = |percent| began + Duration::from_secs(seconds) * percent / 100;
    let mut failures = 0;

    println!("ONE SERVER");
    let of_locks = [&single::configuration::SMALL[..], &single::configuration::LARGE].concat();
    let of_permits = [&single::permits::SMALL[..], &single::permits::LARGE].concat();
    let of_retained = [&single::retained::SMALL[..], &single::retained::LARGE].concat();
    failures += report::explore(&[of_locks, of_retained, of_permits].concat(), steps, after(45));
    let examples = single::counterexamples::COUNTEREXAMPLES.iter().map(|example| {
        let rules: Vec<_> = example.without.iter().map(ToString::to_string).collect();
        let configuration = example.configuration.without_all(example.without);
        (rules.join(" + "), configuration)
    });
    failures += report::refute(examples, steps);
    for unbroken in &single::counterexamples::UNBROKEN {
        println!("{:<62} no counterexample: {}", unbroken.without, unbroken.why);
    }

    println!("\nA MAJORITY OF THREE SERVERS");
    let configurations = [&quorum::configuration::SMALL[..], &quorum::configuration::LARGE].concat();
    failures += report::explore(&configurations, steps, after(85));
    let examples = quorum::counterexamples::COUNTEREXAMPLES.iter();
    failures += report::refute(
        examples.map(|example| (example.without.to_string(), example.configuration)),
        steps,
    );
    let everything = quorum::configuration::EVERYTHING;
    let limits = Limits {
        steps: usize::MAX,
        time: after(100).saturating_duration_since(Instant::now()),
    };
    let model = Protocol::until(everything, after(100));
    let walks = walk(&model, seed, limits);
    failures += report::walked(&everything, seed, &walks);

    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
