//! For each rule, this finds what breaks without it. That nothing does where a reason is given is checked by
//! the campaign.

use std::time::Duration;

use fairlock_model::quorum::configuration::{DISCONNECT, RESTART, two_clients};
use fairlock_model::quorum::properties::LARGER_FENCES;
use fairlock_model::search::{Configuration, Limits};
use fairlock_model::single::configuration::Reach;
use fairlock_model::single::rules::Rule;
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

/// Why there are floors. One server that forgets is enough, so this is no matter of a majority.
#[test]
fn a_waiter_with_a_ticket_in_place_of_a_floor_gets_a_smaller_fence_once_one_server_has_forgotten() {
    assert_eq!(violated(&two_clients(DISCONNECT).by_tickets()), None);
    assert_eq!(violated(&two_clients(RESTART).by_tickets()), Some(LARGER_FENCES));
}

fn violated(configuration: &impl Configuration) -> Option<&'static str> {
    let outcome = configuration.explore(LIMITS);
    outcome.violation.map(|violation| violation.property)
}

#[test]
#[ignore = "a design to come, and it takes a minute"]
fn a_protocol_with_notes_of_absence_breaks_a_promise_without_the_rule() {
    let is_of_absence = |rules: &[Rule]| rules.iter().all(|rule| rule.is_of(Reach::Absence));
    for example in single::counterexamples::COUNTEREXAMPLES {
        if is_of_absence(example.without) {
            let configuration = example.configuration.by_absence().without_all(example.without);
            assert!(
                violated(&configuration).is_some(),
                "without {:?}",
                example.without
            );
        }
    }
    for example in single::absence::COUNTEREXAMPLES {
        let configuration = example.configuration.without_all(example.without);
        let found = violated(&configuration);
        assert_eq!(found, Some(example.violates), "without {:?}", example.without);
    }
}

#[test]
fn every_rule_of_absence_has_one_counterexample() {
    let of_absence = Rule::ALL.into_iter().filter(|rule| !rule.is_of(Reach::Presence));
    for rule in of_absence {
        let examples = single::absence::COUNTEREXAMPLES.iter();
        let alone = examples.filter(|example| example.without == [rule]).count();
        assert_eq!(alone, 1, "{rule:?}");
    }
}

#[test]
fn every_rule_is_accounted_for() {
    for rule in Rule::ALL.into_iter().filter(|rule| rule.is_of(Reach::Presence)) {
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
