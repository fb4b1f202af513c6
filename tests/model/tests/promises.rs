//! The promises hold in every reachable state of the small configurations.

use std::time::Duration;

use fairlock_model::configuration::SMALL;
use fairlock_model::search::{Limits, explore};

#[test]
fn every_promise_holds_whatever_single_thing_goes_wrong() {
    for configuration in SMALL {
        let outcome = explore(
            configuration,
            Limits {
                steps: usize::MAX,
                time: Duration::from_secs(600),
            },
        );
        assert!(
            outcome.violation.is_none(),
            "{}: {:#?}",
            configuration.name,
            outcome.violation
        );
        assert!(
            outcome.complete,
            "{}: cut at {} states",
            configuration.name, outcome.states
        );
    }
}
