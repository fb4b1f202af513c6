//! Configurations of locks whose clients keep their holds between turns.

use crate::single::configuration::{Budget, Configuration};
use crate::single::rules::Rule;

impl Configuration {
    /// Two clients, one of them with two callers. Each hold may serve two turns.
    const fn of_retained(name: &'static str, budget: Budget) -> Configuration {
        Configuration {
            retains: true,
            ..Configuration::of(name, Budget { turns: 1, ..budget })
        }
    }

    /// The same without an end of idle holds. The client of a hold hears in time that it is wanted.
    const fn told(name: &'static str, budget: Budget) -> Configuration {
        Configuration::of_retained(name, budget).without(Rule::IdleEnds)
    }

    /// The same without timers, too.
    const fn told_promptly(name: &'static str, budget: Budget) -> Configuration {
        Configuration::told(name, budget).without(Rule::Timer)
    }
}

const NOTHING: Budget = Budget::NOTHING;
const PAIR: &[usize] = &[1, 1];

pub const CALM: Configuration = Configuration::told_promptly("retained", NOTHING);
pub const FORCED: Configuration = Configuration::told_promptly(
    "retained, a forced release",
    Budget {
        forced_releases: 1,
        ..NOTHING
    },
);
pub const LOST_PUSH: Configuration = Configuration::of_retained(
    "retained, a lost push",
    Budget {
        lost_pushes: 1,
        ..NOTHING
    },
);
const CANCEL: Configuration = Configuration::told(
    "retained, a cancelled wait",
    Budget {
        cancels: 1,
        ..NOTHING
    },
);
const DISCONNECT: Configuration = Configuration::told_promptly(
    "retained, a lost connection",
    Budget {
        disconnects: 1,
        ..NOTHING
    },
);
const LOST_SUBSCRIPTION: Configuration = Configuration::told_promptly(
    "retained, a lost subscription",
    Budget {
        lost_subscriptions: 1,
        ..NOTHING
    },
);
const REPLICA_SUBSCRIPTION: Configuration = Configuration::told(
    "retained, a subscription at a replica",
    Budget {
        replica_subscriptions: 1,
        ..NOTHING
    },
);
const SLOWNESS: Configuration = Configuration::told(
    "retained, a late grant",
    Budget {
        slowness: 1,
        ..NOTHING
    },
);
const CRASH: Configuration = Configuration::told(
    "retained, a crash",
    Budget {
        crashes: 1,
        ..NOTHING
    },
);

/// Configurations that are explored completely in little time. They run with the tests.
pub const SMALL: [Configuration; 9] = [
    CALM,
    FORCED.with_callers(PAIR),
    LOST_PUSH.with_callers(PAIR),
    CANCEL.with_callers(PAIR),
    DISCONNECT.with_callers(PAIR),
    LOST_SUBSCRIPTION.with_callers(PAIR),
    REPLICA_SUBSCRIPTION.with_callers(PAIR),
    SLOWNESS.with_callers(PAIR),
    CRASH.with_callers(PAIR),
];

/// Two faults that meet, or more callers. They are explored as far as time allows.
pub const LARGE: [Configuration; 14] = [
    FORCED,
    LOST_PUSH,
    CANCEL,
    DISCONNECT,
    LOST_SUBSCRIPTION,
    REPLICA_SUBSCRIPTION,
    SLOWNESS,
    CRASH,
    CALM.with_callers(&[2, 2]),
    CALM.with_callers(&[1, 1, 1]),
    Configuration::told_promptly(
        "retained, a forced release, a lost connection",
        Budget {
            forced_releases: 1,
            disconnects: 1,
            ..NOTHING
        },
    )
    .with_callers(PAIR),
    Configuration::told_promptly(
        "retained, a forced release, a lost subscription",
        Budget {
            forced_releases: 1,
            lost_subscriptions: 1,
            ..NOTHING
        },
    )
    .with_callers(PAIR),
    Configuration::of_retained(
        "retained, a lost push, a late grant",
        Budget {
            lost_pushes: 1,
            slowness: 1,
            ..NOTHING
        },
    )
    .with_callers(PAIR),
    Configuration::of_retained(
        "retained, a lost push, a crash, a renewal",
        Budget {
            lost_pushes: 1,
            crashes: 1,
            renewals: 1,
            ..NOTHING
        },
    )
    .with_callers(PAIR),
];
