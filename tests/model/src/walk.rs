//! Random walks through a model that is too large to be explored.

use std::time::Instant;

use fastrand::Rng;
use stateright::Model;

use crate::search::{Limits, Violation};

/// The result of many walks.
#[derive(Debug)]
pub struct Walks<Action> {
    pub walks: usize,
    pub steps: usize,
    pub violation: Option<Violation<Action>>,
}

/// Walks from the first state to a last one, again and again up to the limits, or until a state on the way
/// violates a property. Equal seeds make equal walks.
pub fn walk<M: Model>(model: &M, seed: u64, limits: Limits) -> Walks<M::Action>
where
    M::Action: Clone,
{
    let until = Instant::now() + limits.time;
    let mut random = Rng::with_seed(seed);
    let mut result = Walks {
        walks: 0,
        steps: 0,
        violation: None,
    };
    while result.violation.is_none() && result.steps < limits.steps && Instant::now() < until {
        let (steps, property) = walk_once(model, &mut random);
        result.walks += 1;
        result.steps += steps.len();
        result.violation = property.map(|property| Violation { property, steps });
    }
    result
}

/// Returns the steps of a walk, and the property that its last state violates.
fn walk_once<M: Model>(model: &M, random: &mut Rng) -> (Vec<M::Action>, Option<&'static str>)
where
    M::Action: Clone,
{
    let properties = model.properties();
    let mut steps = Vec::new();
    let mut actions = Vec::new();
    let mut state = random.choice(model.init_states());
    while let Some(last) = &state {
        let violated = properties
            .iter()
            .find(|property| !(property.condition)(model, last));
        if let Some(property) = violated {
            return (steps, Some(property.name));
        }
        actions.clear();
        model.actions(last, &mut actions);
        let Some(action) = random.choice(&actions) else {
            break;
        };
        steps.push(action.clone());
        state = model.next_state(last, action.clone());
    }
    (steps, None)
}
