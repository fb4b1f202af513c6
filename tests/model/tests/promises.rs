//! The promises hold in every reachable state of the small configurations.

use std::time::{Duration, Instant};

use fairlock_model::quorum::protocol::Protocol;
use fairlock_model::search::{Configuration, Limits};
use fairlock_model::walk::walk;
use fairlock_model::{quorum, single};

#[test]
fn every_promise_holds_whatever_single_thing_goes_wrong() {
    all_promises_hold(&single::configuration::SMALL);
}

#[test]
fn every_promise_holds_where_clients_keep_their_holds_between_turns() {
    all_promises_hold(&single::retained::SMALL);
}

#[test]
fn every_promise_of_permits_holds_whatever_single_thing_goes_wrong() {
    all_promises_hold(&single::permits::SMALL);
}

#[test]
fn every_promise_of_a_quorum_holds_whatever_single_thing_goes_wrong() {
    all_promises_hold(&quorum::configuration::SMALL);
}

fn all_promises_hold<C: Configuration>(configurations: &[C]) {
    for configuration in configurations {
        let outcome = configuration.explore(Limits {
            steps: usize::MAX,
            time: Duration::from_secs(600),
        });
        let name = configuration.name();
        assert!(outcome.violation.is_none(), "{name}: {:#?}", outcome.violation);
        assert!(outcome.complete, "{name}: cut at {} states", outcome.states);
    }
}

#[test]
fn random_walks_with_every_fault_break_no_promise_of_a_quorum() {
    let limits = Limits {
        steps: 200_000,
        time: Duration::from_secs(600),
    };
    let model = Protocol::until(quorum::configuration::EVERYTHING, Instant::now());
    let walks = walk(&model, 1, limits);
    assert!(walks.violation.is_none(), "{:#?}", walks.violation);
    assert!(walks.steps >= limits.steps);
}
