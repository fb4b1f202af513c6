//! The size of a configuration: who calls, and how often which fault may happen.

use crate::single::rules::{Rule, Rules};
use crate::single::state::Permits;

/// What may happen, and how often at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Callers that stop waiting.
    pub cancels: u8,
    /// Lost command connections.
    pub disconnects: u8,
    /// Lost subscriber connections.
    pub lost_subscriptions: u8,
    /// Subscriber connections that lead to a replica from then on. They receive everything, but are not
    /// counted.
    pub replica_subscriptions: u8,
    /// Messages that are lost without a sign.
    pub lost_pushes: u8,
    /// A client or a network that is too slow, so that a lease expires under a holder or before its push is
    /// read.
    pub slowness: u8,
    /// Clients that are noted absent late, after they have come back, or without a reason.
    pub stray_notes: u8,
    /// Any note may be lost at any time, since the server keeps only the last ones.
    pub lost_notes: bool,
    /// Processes that die.
    pub crashes: u8,
    /// Polls for which nothing gave a reason.
    pub polls: u8,
    pub renewals: u8,
    /// Turns that pass inside a process. Each hold may serve one more than these.
    pub turns: u8,
    /// Timers that run out before the deadlines of their holds, because renewals have moved these. The
    /// renewals themselves are not counted.
    pub early_timers: u8,
    /// Losses of all timers.
    pub lost_timers: u8,
    /// Locks that an operator takes away from their holders.
    pub forced_releases: u8,
}

impl Budget {
    pub const NOTHING: Budget = Budget {
        cancels: 0,
        disconnects: 0,
        lost_subscriptions: 0,
        replica_subscriptions: 0,
        lost_pushes: 0,
        slowness: 0,
        stray_notes: 0,
        lost_notes: false,
        crashes: 0,
        polls: 0,
        renewals: 0,
        turns: 0,
        early_timers: 0,
        lost_timers: 0,
        forced_releases: 0,
    };
}

/// What the server and a client hear of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// The server counts the subscribers of a channel.
    Counted,
    /// It cannot count them, so it reaches clients without one.
    Uncounted,
    /// It counts them, and the first client can never subscribe.
    FirstIsDeaf,
}

#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    pub name: &'static str,
    /// For each client, how many acquire calls its users make.
    pub callers: &'static [usize],
    /// What each of the callers asks for, in the order of the clients. Of a lock this is empty.
    pub permits: &'static [Permits],
    /// How many more ids each client has, for requests that go on under a new id.
    pub spares: usize,
    pub budget: Budget,
    pub listening: Listening,
    /// Clients may keep their holds of a lock between turns.
    pub retains: bool,
    pub rules: Rules,
}

impl Configuration {
    /// Two clients, one of them with two callers.
    pub(super) const fn of(name: &'static str, budget: Budget) -> Configuration {
        Configuration {
            name,
            callers: &[2, 1],
            permits: &[],
            spares: 1,
            budget,
            listening: Listening::Counted,
            retains: false,
            rules: Rules::ALL,
        }
    }

    /// The same without timers. Where no lease ends and nothing is lost without a sign, every client is told
    /// of everything, and no waiter is served late.
    const fn prompt(name: &'static str, budget: Budget) -> Configuration {
        Configuration {
            rules: Rules::ALL.without(Rule::Timer),
            ..Configuration::of(name, budget)
        }
    }

    /// The same clients with other faults.
    pub const fn with(self, name: &'static str, budget: Budget) -> Configuration {
        Configuration { name, budget, ..self }
    }

    pub const fn with_callers(self, callers: &'static [usize]) -> Configuration {
        Configuration { callers, ..self }
    }

    pub const fn listening(self, listening: Listening) -> Configuration {
        Configuration { listening, ..self }
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
    "a cancelled wait",
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
pub const LOST_SUBSCRIPTION: Configuration = Configuration::of(
    "a lost subscription",
    Budget {
        lost_subscriptions: 1,
        ..NOTHING
    },
);
pub const REPLICA_SUBSCRIPTION: Configuration = Configuration::of(
    "a subscription at a replica",
    Budget {
        replica_subscriptions: 1,
        ..NOTHING
    },
);
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
pub const TURNS: Configuration = Configuration::of(
    "turns, a crash, a late grant",
    Budget {
        turns: 2,
        crashes: 1,
        slowness: 1,
        ..NOTHING
    },
)
.with_callers(&[1, 1]);
pub const TURNS_DISCONNECT: Configuration = Configuration::of(
    "turns, a lost connection, a renewal",
    Budget {
        turns: 2,
        disconnects: 1,
        renewals: 1,
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
pub const PROMPT_LOST_SUBSCRIPTION: Configuration = Configuration::prompt(
    "a lost subscription, no timers",
    Budget {
        lost_subscriptions: 1,
        ..NOTHING
    },
);
const PROMPT_FORCED: Configuration = Configuration::prompt(
    "a forced release, no timers",
    Budget {
        forced_releases: 1,
        ..NOTHING
    },
);
const TURNS_FORCED: Configuration = Configuration::of(
    "turns, a forced release, a late grant",
    Budget {
        turns: 1,
        forced_releases: 1,
        slowness: 1,
        ..NOTHING
    },
)
.with_callers(&[1, 1]);

/// Two clients with two callers each. One client dies.
pub const CRASH_OF_TWO: Configuration = CRASH.with_callers(&[2, 2]);

pub const CRASH_LOST_NOTES: Budget = Budget {
    crashes: 1,
    lost_notes: true,
    ..NOTHING
};
pub const LATE_LOST_NOTES: Budget = Budget {
    slowness: 1,
    lost_notes: true,
    ..NOTHING
};
pub const TWICE_SLOW_LOST_NOTES: Budget = Budget {
    slowness: 2,
    ..LATE_LOST_NOTES
};
pub const STRAY_NOTE: Budget = Budget {
    stray_notes: 1,
    ..NOTHING
};

/// Configurations that are explored completely in little time. They run with the tests.
pub const SMALL: [Configuration; 28] = [
    CALM,
    CANCEL,
    DISCONNECT,
    LOST_SUBSCRIPTION,
    REPLICA_SUBSCRIPTION,
    LOST_PUSH,
    SLOWNESS,
    CRASH,
    TWICE_SLOW.with_callers(&[1, 1]),
    RENEWAL,
    TURNS,
    TURNS_DISCONNECT,
    PROMPT_CALM,
    PROMPT_DISCONNECT,
    PROMPT_LOST_SUBSCRIPTION,
    PROMPT_FORCED,
    TURNS_FORCED,
    CALM.with("a stray note", STRAY_NOTE),
    CALM.with("a crash, lost notes", CRASH_LOST_NOTES),
    CALM.with("a late grant, lost notes", LATE_LOST_NOTES),
    CALM.listening(Listening::Uncounted),
    CRASH.listening(Listening::Uncounted),
    LOST_PUSH.listening(Listening::Uncounted),
    LOST_SUBSCRIPTION.listening(Listening::Uncounted),
    SLOWNESS.listening(Listening::Uncounted),
    CALM.listening(Listening::FirstIsDeaf),
    CRASH.listening(Listening::FirstIsDeaf),
    SLOWNESS.listening(Listening::FirstIsDeaf),
];

/// Two faults that meet, more callers, or a third client. They are explored as far as time allows.
pub const LARGE: [Configuration; 24] = [
    Configuration::of(
        "turns, a lost connection, a late grant",
        Budget {
            turns: 2,
            disconnects: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a cancelled wait, a lost connection",
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
            lost_subscriptions: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    TWICE_SLOW,
    Configuration::of(
        "a cancelled wait, a late grant",
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
        "a crash, a cancelled wait, a renewal",
        Budget {
            crashes: 1,
            cancels: 1,
            renewals: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a stray note, a lost subscription",
        Budget {
            lost_subscriptions: 1,
            ..STRAY_NOTE
        },
    ),
    Configuration::of(
        "a stray note, a lost connection",
        Budget {
            disconnects: 1,
            ..STRAY_NOTE
        },
    ),
    Configuration::of(
        "a stray note, a late grant",
        Budget {
            slowness: 1,
            ..STRAY_NOTE
        },
    ),
    Configuration::of("two late grants, lost notes", TWICE_SLOW_LOST_NOTES),
    CRASH_OF_TWO,
    CRASH_OF_TWO.listening(Listening::Uncounted),
    CRASH_OF_TWO.with("a crash, lost notes", CRASH_LOST_NOTES),
    Configuration::of(
        "a poll without a reason, a lost connection",
        Budget {
            polls: 1,
            disconnects: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "both connections lost",
        Budget {
            disconnects: 1,
            lost_subscriptions: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a forced release, a lost connection",
        Budget {
            forced_releases: 1,
            disconnects: 1,
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
            replica_subscriptions: 1,
            slowness: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a subscription at a replica, a lost connection",
        Budget {
            replica_subscriptions: 1,
            disconnects: 1,
            ..NOTHING
        },
    ),
    Configuration::of(
        "a cancelled wait, four callers",
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
