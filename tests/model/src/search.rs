//! Exploring a configuration, breadth first: the first violation found is a shortest one.

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::configuration::Configuration;
use crate::protocol::{Action, Protocol};

/// When an exploration stops though there is more.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many steps are tried, those to known states too.
    pub steps: usize,
    pub time: Duration,
}

/// What an exploration came to.
#[derive(Debug)]
pub struct Outcome {
    /// Different ones.
    pub states: usize,
    pub depth: usize,
    /// All there is was explored, or a violation was found.
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
    // Within one depth the search goes on for a while, and may report a longer one.
    while let Some(found) = &outcome.violation {
        let shorter = explore_to(configuration, limits, Some(found.steps.len()));
        match shorter.violation {
            Some(violation) => outcome.violation = Some(violation),
            None => break,
        }
    }
    outcome
}

/// Explores what can be reached in fewer than so many steps.
fn explore_to(configuration: Configuration, limits: Limits, fewer_than: Option<usize>) -> Outcome {
    let began = Instant::now();
    let until = began + limits.time;
    let mut builder = Protocol::until(configuration, until)
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(limits.steps);
    if let Some(steps) = fewer_than {
        // It counts states, the first of which takes no step.
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
