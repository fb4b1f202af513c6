//! The tables that a campaign prints.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use fairlock_model::search::{Configuration, Limits, Outcome};
use fairlock_model::walk::Walks;

/// Explores each configuration, with equal shares of the time. What one does not use goes to the others.
/// Returns how many violate a property.
pub(crate) fn explore<C: Configuration>(configurations: &[C], steps: usize, until: Instant) -> u32 {
    let mut failures = 0;
    head("explored", "states", "depth");
    for (done, configuration) in configurations.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        let time = left / u32::try_from(configurations.len() - done).unwrap_or(1);
        let outcome = configuration.explore(Limits { steps, time });
        failures += u32::from(outcome.violation.is_some());
        let found = match &outcome.violation {
            Some(violation) => violation.property,
            None if outcome.complete => "nothing, and everything is explored",
            None => "nothing so far",
        };
        row(&configuration.name(), configuration, &outcome, found);
        for step in outcome.violation.iter().flat_map(|violation| &violation.steps) {
            println!("    {step:?}");
        }
    }
    failures
}

/// Explores configurations without some rules. Returns how many violate nothing.
pub(crate) fn refute<C: Configuration>(examples: impl Iterator<Item = (String, C)>, steps: usize) -> u32 {
    let mut failures = 0;
    let time = Duration::from_secs(60);
    head("without the rule that", "states", "steps");
    for (rules, configuration) in examples {
        let outcome = configuration.explore(Limits { steps, time });
        let found = outcome
            .violation
            .as_ref()
            .map_or("NOTHING", |violation| violation.property);
        failures += u32::from(outcome.violation.is_none());
        let found = format!("{found}  [{}]", configuration.name());
        row(&rules, &configuration, &outcome, &found);
    }
    failures
}

/// Prints what random walks found. Returns how many violate a property.
pub(crate) fn walked<C: Configuration>(configuration: &C, seed: u64, walks: &Walks<C::Action>) -> u32 {
    let found = walks
        .violation
        .as_ref()
        .map_or("nothing", |violation| violation.property);
    println!(
        "\nrandom walks of seed {seed}, {}, {}:\n{} walks, {} steps, found {found}",
        configuration.size(),
        configuration.name(),
        walks.walks,
        walks.steps
    );
    for step in walks.violation.iter().flat_map(|violation| &violation.steps) {
        println!("    {step:?}");
    }
    u32::from(walks.violation.is_some())
}

fn head(what: &str, states: &str, depth: &str) {
    println!(
        "\n{what:<62} {:<13} {states:>11} {depth:>6} {:>8}  found",
        "clients", "seconds"
    );
}

fn row<A: Debug>(name: &str, configuration: &impl Configuration, outcome: &Outcome<A>, found: &str) {
    let depth = outcome
        .violation
        .as_ref()
        .map_or(outcome.depth, |violation| violation.steps.len());
    println!(
        "{name:<62} {:<13} {:>11} {depth:>6} {:>8.1}  {found}",
        configuration.size(),
        outcome.states,
        outcome.took.as_secs_f64()
    );
}
