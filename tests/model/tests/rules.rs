//! For each rule, this finds what breaks without it. That nothing does where a reason is given is checked by
//! the campaign.

use std::time::Duration;

use fairlock_model::search::{Configuration, Limits};
use fairlock_model::{quorum, single};

const LIMITS: Limits = Limits {
    steps: usize::MAX,
    time: Duration::from_secs(600),
};

#[test]
fn a_protocol_without_the_rule_breaks_a_promise() {
    for example in single::counterexamples::COUNTEREXAMPLES {
        let configuration = example.configuration.without_all(example.without);
        let found = violated(&configuration);
        assert_eq!(found, Some(example.violates), "without {:?}", example.without);
    }
}

#[test]
fn a_quorum_without_the_rule_breaks_a_promise() {
    for example in quorum::counterexamples::COUNTEREXAMPLES {
        let found = violated(&example.configuration);
        assert_eq!(found, Some(example.violates), "without {:?}", example.without);
    }
}

fn violated(configuration: &impl Configuration) -> Option<&'static str> {
    let outcome = configuration.explore(LIMITS);
    outcome.violation.map(|violation| violation.property)
}

#[test]
fn every_rule_is_accounted_for() {
    for rule in single::rules::Rule::ALL {
        let alone = single::counterexamples::COUNTEREXAMPLES
            .iter()
            .filter(|example| example.without == [rule])
            .count();
        let unbroken = single::counterexamples::UNBROKEN
            .iter()
            .filter(|unbroken| unbroken.without == rule)
            .count();
        assert_eq!(alone + unbroken, 1, "{rule:?}");
    }
}

#[test]
fn every_rule_of_a_quorum_has_one_counterexample() {
    for rule in quorum::rules::Rule::ALL {
        let examples = quorum::counterexamples::COUNTEREXAMPLES.iter();
        assert_eq!(
            examples.filter(|example| example.without == rule).count(),
            1,
            "{rule:?}"
        );
    }
}
