//! Explores the protocol, and prints the result: `scripts/campaign model`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use fairlock_model::configuration::{Configuration, LARGE, SMALL};
use fairlock_model::counterexamples::{COUNTEREXAMPLES, UNBROKEN};
use fairlock_model::search::{Limits, Outcome, explore};

/// Explores every interleaving of the protocol in small configurations, and shows the reason for each of its
/// rules.
#[derive(Debug, Parser)]
struct Arguments {
    /// Total duration in seconds; the search for counterexamples takes some of it
    #[arg(long, default_value_t = 900)]
    seconds: u64,
    /// Most steps per configuration, which bounds the memory: some 400 bytes each
    #[arg(long, default_value_t = 30_000_000)]
    steps: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let until = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut failures = 0;

    println!(
        "{:<62} {:<10} {:>11} {:>6} {:>8}  found",
        "explored", "callers", "states", "depth", "seconds"
    );
    let configurations: Vec<_> = SMALL.iter().chain(&LARGE).collect();
    for (done, configuration) in configurations.iter().enumerate() {
        // Unused time goes to the other configurations. A tenth is kept for the counterexamples.
        let left = until.saturating_duration_since(Instant::now()) * 9 / 10;
        let share = left / u32::try_from(configurations.len() - done).unwrap_or(1);
        let outcome = explore(
            **configuration,
            Limits {
                steps: arguments.steps,
                time: share,
            },
        );
        failures += u32::from(outcome.violation.is_some());
        let found = match &outcome.violation {
            Some(violation) => violation.property,
            None if outcome.complete => "nothing, and everything is explored",
            None => "nothing so far",
        };
        report(configuration.name, configuration, &outcome, found);
        for step in outcome.violation.iter().flat_map(|violation| &violation.steps) {
            println!("    {step:?}");
        }
    }

    let limits = Limits {
        steps: arguments.steps,
        time: Duration::from_secs(60),
    };
    println!(
        "\n{:<62} {:<10} {:>11} {:>6} {:>8}  found",
        "without the rule that", "callers", "states", "steps", "seconds"
    );
    for example in &COUNTEREXAMPLES {
        let configuration = example.configuration.without_all(example.without);
        let outcome = explore(configuration, limits);
        let found = outcome
            .violation
            .as_ref()
            .map_or("NOTHING", |violation| violation.property);
        failures += u32::from(found == "NOTHING");
        let rules: Vec<_> = example.without.iter().map(ToString::to_string).collect();
        report(
            &rules.join(" + "),
            &configuration,
            &outcome,
            &format!("{found}  [{}]", configuration.name),
        );
    }
    for unbroken in &UNBROKEN {
        println!("{:<62} no counterexample: {}", unbroken.without, unbroken.why);
    }
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn report(name: &str, configuration: &Configuration, outcome: &Outcome, found: &str) {
    let depth = outcome
        .violation
        .as_ref()
        .map_or(outcome.depth, |violation| violation.steps.len());
    let callers = format!("{:?}", configuration.callers);
    let seconds = outcome.took.as_secs_f64();
    println!(
        "{name:<62} {callers:<10} {:>11} {depth:>6} {seconds:>8.1}  {found}",
        outcome.states
    );
}
