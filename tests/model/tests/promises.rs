//! The promises hold in every reachable state of the small configurations.

use std::time::Duration;

use fairlock_model::search::{Configuration, Limits};
use fairlock_model::single;

#[test]
fn every_promise_holds_whatever_single_thing_goes_wrong() {
    all_promises_hold(&single::configuration::SMALL);
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
