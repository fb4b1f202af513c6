//! Each rule has an example of what breaks without it, or a reason why nothing does. The campaign of the
//! model tries them: no change of the crate alters what it finds.

use std::time::Duration;

use fairlock_model::quorum::configuration::{DISCONNECT, RESTART, two_clients};
use fairlock_model::quorum::properties::LARGER_FENCES;
use fairlock_model::search::{Configuration, Limits};
use fairlock_model::single::rules::Rule;
use fairlock_model::{quorum, single};

const LIMITS: Limits = Limits {
    steps: usize::MAX,
    time: Duration::from_secs(600),
};

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
fn every_rule_is_accounted_for() {
    for rule in Rule::ALL {
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

#[test]
fn architecture_names_every_rule_and_no_other() {
    let text = include_str!("../../../ARCHITECTURE.md");
    let section = text
        .split("\n### ")
        .find(|section| section.starts_with("Requests, queue and grants"));
    let is_rule =
        |word: &&str| word.starts_with(char::is_uppercase) && word.chars().all(char::is_alphanumeric);
    let mut named: Vec<_> = section
        .unwrap()
        .split('`')
        .filter(is_rule)
        .map(String::from)
        .collect();
    let mut rules = Rule::ALL.map(|rule| format!("{rule:?}"));
    named.sort_unstable();
    rules.sort_unstable();
    assert_eq!(named, rules);
}
