//! Explores a model breadth first, so that the first violation found has the fewest steps.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

/// When an exploration stops before its end.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many steps are tried, including those to known states.
    pub steps: usize,
    pub time: Duration,
}

/// The result of an exploration.
#[derive(Debug)]
pub struct Outcome<Action> {
    /// The number of different states.
    pub states: usize,
    pub depth: usize,
    /// Everything was explored, or a violation was found.
    pub complete: bool,
    pub violation: Option<Violation<Action>>,
    pub took: Duration,
}

#[derive(Debug)]
pub struct Violation<Action> {
    pub property: &'static str,
    pub steps: Vec<Action>,
}

/// The size of a model, and which of its rules hold.
pub trait Configuration {
    type Action: Debug;

    fn name(&self) -> String;

    /// How many clients there are, and whatever else decides the number of states.
    fn size(&self) -> String;

    fn explore(&self, limits: Limits) -> Outcome<Self::Action>;
}

/// Explores the model that `until` makes. It must have no new states after the time that is passed to it.
pub(crate) fn explore<M>(until: impl Fn(Instant) -> M, limits: Limits) -> Outcome<M::Action>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let mut outcome = explore_to(&until, limits, None);
    // The search goes on for a while at one depth, so the first violation may not be a shortest one.
    while let Some(found) = &outcome.violation {
        let shorter = explore_to(&until, limits, Some(found.steps.len()));
        match shorter.violation {
            Some(violation) => outcome.violation = Some(violation),
            None => break,
        }
    }
    outcome
}

/// Explores what can be reached in fewer steps than this.
fn explore_to<M>(
    model: &impl Fn(Instant) -> M,
    limits: Limits,
    fewer_than: Option<usize>,
) -> Outcome<M::Action>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let until = began + limits.time;
    let mut builder = model(until)
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
