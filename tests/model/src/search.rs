//! Explores a configuration breadth first, so that the first violation found has the fewest steps.

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::configuration::Configuration;
use crate::protocol::{Action, Protocol};

/// When an exploration stops before its end.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many steps are tried, including those to known states.
    pub steps: usize,
    pub time: Duration,
}

/// The result of an exploration.
#[derive(Debug)]
pub struct Outcome {
    /// The number of different states.
    pub states: usize,
    pub depth: usize,
    /// Everything was explored, or a violation was found.
    pub complete: bool,
    pub violation: Option<Violation>,
    pub took: Duration,
}

#[derive(Debug)]
pub struct Violation {
    pub property: &'static str,
    pub steps: Vec<Action>,
}

pub fn explore(configuration: Configuration, limits: Limits) -> Outcome {
    let mut outcome = explore_to(configuration, limits, None);
    // The search goes on for a while at one depth, so the first violation may not be a shortest one.
    while let Some(found) = &outcome.violation {
        let shorter = explore_to(configuration, limits, Some(found.steps.len()));
        match shorter.violation {
            Some(violation) => outcome.violation = Some(violation),
            None => break,
        }
    }
    outcome
}

/// Explores what can be reached in fewer steps than this.
fn explore_to(configuration: Configuration, limits: Limits, fewer_than: Option<usize>) -> Outcome {
    let began = Instant::now();
    let until = began + limits.time;
    let mut builder = Protocol::until(configuration, until)
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(limits.steps);
    if let Some(steps) = fewer_than {
        // The limit counts states, and the first state takes no step.
        builder = builder.target_max_depth(steps + 1);
    }
    let checker = builder.spawn_bfs().join();
    let violations = checker
        .discoveries()
        .into_iter()
        .map(|(property, path)| Violation {
            property,
            steps: path.into_actions(),
        });
    let violation = violations.min_by_key(|violation| (violation.steps.len(), violation.property));
    let cut = checker.state_count() >= limits.steps || Instant::now() >= until;
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        complete: violation.is_some() || !cut,
        violation,
        took: began.elapsed(),
    }
}
