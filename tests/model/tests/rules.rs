//! For each rule, this finds what breaks without it, or checks that nothing does where a reason is given.

use std::time::Duration;

use fairlock_model::configuration::SMALL;
use fairlock_model::counterexamples::{COUNTEREXAMPLES, UNBROKEN};
use fairlock_model::rules::Rule;
use fairlock_model::search::{Limits, explore};

const LIMITS: Limits = Limits {
    steps: usize::MAX,
    time: Duration::from_secs(600),
};

#[test]
fn a_protocol_without_the_rule_breaks_a_promise() {
    for example in COUNTEREXAMPLES {
        let outcome = explore(example.configuration.without_all(example.without), LIMITS);
        let found = outcome.violation.map(|violation| violation.property);
        assert_eq!(found, Some(example.violates), "without {:?}", example.without);
    }
}

#[test]
fn the_other_rules_break_nothing_alone() {
    for unbroken in UNBROKEN {
        // The configurations that take longest are left to the campaign.
        for configuration in SMALL
            .into_iter()
            .filter(|small| small.budget.cancels + small.budget.disconnects == 0)
        {
            let outcome = explore(configuration.without(unbroken.without), LIMITS);
            assert!(
                outcome.violation.is_none(),
                "{:?}, {}",
                unbroken.without,
                configuration.name
            );
        }
    }
}

#[test]
fn every_rule_is_accounted_for() {
    for rule in Rule::ALL {
        let alone = COUNTEREXAMPLES
            .iter()
            .filter(|example| example.without == [rule])
            .count();
        let unbroken = UNBROKEN
            .iter()
            .filter(|unbroken| unbroken.without == rule)
            .count();
        assert_eq!(alone + unbroken, 1, "{rule:?}");
    }
}
