//! How much of everything there is: who calls, and what may go wrong how often.

use crate::rules::{Rule, Rules};

/// What may happen, and how often at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Callers that stop waiting.
    pub cancels: u8,
    /// Lost connections for calls.
    pub disconnects: u8,
    /// Lost subscriber connections.
    pub deafenings: u8,
    /// Subscriber connections that lead to a replica from then on: all is heard there, and nobody is counted.
    pub strays: u8,
    /// Messages lost without a sign.
    pub lost_pushes: u8,
    /// A client or a network that is too slow: leases that run out under a holder or under a message.
    pub slowness: u8,
    /// Records that run out, since their client was silent.
    pub lapsed_records: u8,
    /// Processes that die.
    pub crashes: u8,
    /// Questions that are asked though nothing happened.
    pub questions: u8,
    pub renewals: u8,
}

impl Budget {
    pub const NOTHING: Budget = Budget {
        cancels: 0,
        disconnects: 0,
        deafenings: 0,
        strays: 0,
        lost_pushes: 0,
        slowness: 0,
        lapsed_records: 0,
        crashes: 0,
        questions: 0,
        renewals: 0,
    };
}

#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    pub name: &'static str,
    /// For each client, how many acquire calls its users make.
    pub callers: &'static [usize],
    /// How many more ids each client has, for requests that go on under a new one.
    pub spares: usize,
    pub budget: Budget,
    pub rules: Rules,
}

impl Configuration {
    /// Two clients, one of them with two callers.
    const fn of(name: &'static str, budget: Budget) -> Configuration {
        Configuration {
            name,
            callers: &[2, 1],
            spares: 1,
            budget,
            rules: Rules::ALL,
        }
    }

    /// The same without timers: where no lease ends and nothing is lost without a sign, everybody is told of
    /// everything, and nobody is served late.
    const fn prompt(name: &'static str, budget: Budget) -> Configuration {
        Configuration {
            rules: Rules::ALL.without(Rule::Timer),
            ..Configuration::of(name, budget)
        }
    }

    pub const fn with_callers(self, callers: &'static [usize]) -> Configuration {
        Configuration { callers, ..self }
    }

    pub const fn without(self, rule: Rule) -> Configuration {
        Configuration {
            rules: self.rules.without(rule),
            ..self
        }
    }

    pub fn without_all(self, rules: &[Rule]) -> Configuration {
        rules
            .iter()
            .fold(self, |configuration, &rule| configuration.without(rule))
    }
}

const NOTHING: Budget = Budget::NOTHING;

pub const CALM: Configuration = Configuration::of("nothing goes wrong", NOTHING);
pub const CANCEL: Configuration = Configuration::of(
    "a cancel",
    Budget {
        cancels: 1,
        ..NOTHING
    },
);
pub const DISCONNECT: Configuration = Configuration::of(
    "a lost connection",
    Budget {
        disconnects: 1,
        ..NOTHING
    },
);
pub const DEAFENING: Configuration = Configuration::of(
    "a lost subscription",
    Budget {
        deafenings: 1,
        ..NOTHING
    },
);
pub const STRAY: Configuration =
    Configuration::of("a subscription at a replica", Budget { strays: 1, ..NOTHING });
pub const LOST_PUSH: Configuration = Configuration::of(
    "a lost push",
    Budget {
        lost_pushes: 1,
        ..NOTHING
    },
);
pub const SLOWNESS: Configuration = Configuration::of(
    "a late grant",
    Budget {
        slowness: 1,
        ..NOTHING
    },
);
pub const LAPSE: Configuration = Configuration::of(
    "a lapsed record",
    Budget {
        lapsed_records: 1,
        ..NOTHING
    },
);
pub const CRASH: Configuration = Configuration::of(
    "a crash",
    Budget {
        crashes: 1,
        ..NOTHING
    },
);
pub const RENEWAL: Configuration = Configuration::of(
    "a renewal, a lost connection",
    Budget {
        renewals: 1,
        disconnects: 1,
        ..NOTHING
    },
)
.with_callers(&[1, 1]);
pub const TWICE_SLOW: Configuration = Configuration::of(
    "two late grants",
    Budget {
        slowness: 2,
        ..NOTHING
    },
);
pub const PROMPT_CALM: Configuration = Configuration::prompt("nothing goes wrong, no timers", NOTHING);
pub const PROMPT_DISCONNECT: Configuration = Configuration::prompt(
    "a lost connection, no timers",
    Budget {
        disconnects: 1,
        ..NOTHING
    },
);
pub const PROMPT_DEAFENING: Configuration = Configuration::prompt(
    "a lost subscription, no timers",
    Budget {
        deafenings: 1,
        ..NOTHING
    },
);

/// Explored whole in little time: they run with the tests.
pub const SMALL: [Configuration; 14] = [
    CALM,
    CANCEL,
    DISCONNECT,
    DEAFENING,
    STRAY,
    LOST_PUSH,
    SLOWNESS,
    LAPSE,
    CRASH,
    TWICE_SLOW.with_callers(&[1, 1]),
    RENEWAL,
    PROMPT_CALM,
    PROMPT_DISCONNECT,
    PROMPT_DEAFENING,
];

/// Two faults that meet, more callers, a third client: as much of it as there is time for.
pub const LARGE: [Configuration; 16] = [
    Configuration::of(
        "a cancel, a lost connection",
        Budget {
            cancels: 1,
            disconnects: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a lost connection, a late grant",
        Budget {
            disconnects: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a lost subscription, a late grant",
        Budget {
            deafenings: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    TWICE_SLOW,
    Configuration::of(
        "a cancel, a late grant",
        Budget {
            cancels: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a crash, a late grant",
        Budget {
            crashes: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a lost push, a late grant",
        Budget {
            lost_pushes: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a crash, a cancel, a renewal",
        Budget {
            crashes: 1,
            cancels: 1,
            renewals: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a lapsed record, a lost subscription",
        Budget {
            lapsed_records: 1,
            deafenings: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a question, a lost connection",
        Budget {
            questions: 1,
            disconnects: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "both connections lost",
        Budget {
            disconnects: 1,
            deafenings: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "two lost connections",
        Budget {
            disconnects: 2,
            ..NOTHING
        },
    )
    .with_callers(&[1, 1]),
    Configuration::of(
        "a subscription at a replica, a late grant",
        Budget {
            strays: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a subscription at a replica, a lost connection",
        Budget {
            strays: 1,
            disconnects: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a cancel, four callers",
        Budget {
            cancels: 1,
            ..NOTHING
        },
    )
    .with_callers(&[2, 2]),
    Configuration::of(
        "a crash, three clients",
        Budget {
            crashes: 1,
            ..NOTHING
        },
    )
    .with_callers(&[1, 1, 1]),
];
