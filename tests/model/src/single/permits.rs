//! Configurations of semaphores and read/write locks.

use crate::single::configuration::{
    Budget, CRASH_LOST_NOTES, Configuration, LATE_LOST_NOTES, Listening, STRAY_NOTE, TWICE_SLOW_LOST_NOTES,
};
use crate::single::rules::{Rule, Rules};
use crate::single::state::Permits;

impl Configuration {
    /// One client has two readers, and another one a writer.
    const fn of_permits(name: &'static str, budget: Budget) -> Configuration {
        Configuration {
            name,
            callers: &[2, 1],
            permits: &[READER, READER, WRITER],
            spares: 1,
            budget,
            listening: Listening::Counted,
            retains: false,
            // A reply to a request for permits tells of no other grant.
            rules: Rules::ALL.without(Rule::TellOwnGrant),
        }
    }

    const fn for_callers(self, callers: &'static [usize], permits: &'static [Permits]) -> Configuration {
        Configuration {
            callers,
            permits,
            ..self
        }
    }

    /// One client has a reader and a writer, and another one a reader.
    const fn with_mixed_client(self) -> Configuration {
        self.for_callers(&[2, 1], &[READER, WRITER, READER])
    }
}

const fn permits(weight: u8, capacity: u8) -> Permits {
    Permits { weight, capacity }
}

const READER: Permits = permits(1, 2);
const WRITER: Permits = permits(2, 2);
const NOTHING: Budget = Budget::NOTHING;

pub const CALM: Configuration = Configuration::of_permits("nothing goes wrong", NOTHING);
pub const CRASH: Configuration = Configuration::of_permits(
    "a crash",
    Budget {
        crashes: 1,
        ..NOTHING
    },
);
pub const TIMERS: Configuration = Configuration::of_permits(
    "an early timer, lost timers, a crash",
    Budget {
        early_timers: 1,
        lost_timers: 1,
        crashes: 1,
        ..NOTHING
    },
);
const DISCONNECT: Configuration = Configuration::of_permits(
    "a lost connection",
    Budget {
        disconnects: 1,
        ..NOTHING
    },
);

/// One client names a smaller capacity than the other.
const MIXED: &[Permits] = &[
    permits(1, 2),
    permits(2, 4),
    permits(2, 4),
    permits(2, 4),
    permits(2, 4),
];
pub const CAPACITIES: Configuration = CALM.for_callers(&[1, 4], MIXED);

/// Two clients with a reader and a writer each, one of which dies.
pub const CRASH_OF_MANY: Configuration = CRASH.for_callers(&[2, 2], &[READER, WRITER, READER, WRITER]);

/// Each client names a smaller and a larger capacity.
pub const MIXED_CLIENTS: Configuration = Configuration {
    spares: 0,
    ..CALM.for_callers(
        &[2, 3],
        &[
            permits(1, 2),
            permits(2, 4),
            permits(2, 4),
            permits(2, 4),
            permits(1, 2),
        ],
    )
};
const TWO_OF_EACH: Configuration = MIXED_CLIENTS.for_callers(
    &[2, 2],
    &[permits(1, 2), permits(2, 4), permits(2, 4), permits(1, 2)],
);

/// Configurations that are explored completely in little time. They run with the tests.
pub const SMALL: [Configuration; 20] = [
    CALM,
    CRASH,
    CRASH.with_mixed_client(),
    TIMERS,
    DISCONNECT,
    Configuration::of_permits(
        "a cancelled wait",
        Budget {
            cancels: 1,
            ..NOTHING
        },
    ),
    Configuration::of_permits(
        "a lost subscription",
        Budget {
            lost_subscriptions: 1,
            ..NOTHING
        },
    ),
    Configuration::of_permits(
        "a subscription at a replica",
        Budget {
            replica_subscriptions: 1,
            ..NOTHING
        },
    ),
    Configuration::of_permits(
        "a lost push",
        Budget {
            lost_pushes: 1,
            ..NOTHING
        },
    ),
    Configuration::of_permits(
        "a late grant",
        Budget {
            slowness: 1,
            ..NOTHING
        },
    ),
    CALM.with("a stray note", STRAY_NOTE),
    CALM.with("a late grant, lost notes", LATE_LOST_NOTES),
    CRASH.listening(Listening::Uncounted),
    TWO_OF_EACH.with("a stray note", STRAY_NOTE),
    Configuration::of_permits(
        "a late grant, an early timer, lost timers",
        Budget {
            slowness: 1,
            early_timers: 1,
            lost_timers: 1,
            ..NOTHING
        },
    )
    .for_callers(&[1, 1], &[READER, WRITER]),
    Configuration::of_permits(
        "capacities that differ, a crash",
        Budget {
            crashes: 1,
            ..NOTHING
        },
    )
    .for_callers(&[1, 1, 1], &[permits(1, 2), permits(1, 3), permits(2, 3)]),
    CAPACITIES.for_callers(&[1, 3], MIXED),
    CRASH.for_callers(&[1, 2], MIXED),
    DISCONNECT.for_callers(&[1, 2], MIXED),
    Configuration {
        rules: CALM.rules.without(Rule::Timer),
        ..Configuration::of_permits("nothing goes wrong, no timers", NOTHING)
    },
];

/// Two faults that meet, or more callers. They are explored as far as time allows.
pub const LARGE: [Configuration; 10] = [
    MIXED_CLIENTS,
    TWO_OF_EACH.with("a crash, lost notes", CRASH_LOST_NOTES),
    TWO_OF_EACH.with("two late grants, lost notes", TWICE_SLOW_LOST_NOTES),
    DISCONNECT.with_mixed_client(),
    CRASH.for_callers(&[1, 1, 1], &[READER, WRITER, READER]),
    CRASH_OF_MANY,
    Configuration::of_permits(
        "two crashes, lost timers",
        Budget {
            crashes: 2,
            lost_timers: 1,
            ..NOTHING
        },
    )
    .for_callers(&[1, 1, 1], &[READER, WRITER, READER]),
    Configuration::of_permits(
        "a cancelled wait, a lost connection",
        Budget {
            cancels: 1,
            disconnects: 1,
            ..NOTHING
        },
    ),
    Configuration::of_permits(
        "a lost connection, lost timers",
        Budget {
            disconnects: 1,
            lost_timers: 1,
            ..NOTHING
        },
    ),
    Configuration::of_permits(
        "a crash, a late grant",
        Budget {
            crashes: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
];
