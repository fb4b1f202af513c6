//! The size of a configuration: how many clients want the lock, and how often which fault may happen.

use std::fmt;

use crate::quorum::rules::Rule;
use crate::quorum::state::{ClientId, Fence, SERVERS};

/// What may happen, and how often at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Clients that stop waiting.
    pub cancels: u8,
    /// Processes of clients that die.
    pub crashes: u8,
    /// Servers that restart empty, or are gone for good.
    pub restarts: u8,
    pub lost_pushes: u8,
    /// Leases that run out, under a holder or before their grant is read.
    pub ended_leases: u8,
    /// Waiting clients that a server cannot reach at their turn.
    pub unreachable: u8,
    /// Lost connections between one client and one server.
    pub disconnects: u8,
    /// Clients that are cut off from a server, for as long as it may be.
    pub cuts: u8,
    /// Renewals of a holder that has not got all votes.
    pub claims: u8,
    /// Renewals of a ballot for which nothing gave a reason.
    pub looks: u8,
    /// Turns that pass inside a process, at most one in each hold.
    pub turns: u8,
}

impl Budget {
    pub const fn and(self, other: Budget) -> Budget {
        Budget {
            cancels: self.cancels + other.cancels,
            crashes: self.crashes + other.crashes,
            restarts: self.restarts + other.restarts,
            lost_pushes: self.lost_pushes + other.lost_pushes,
            ended_leases: self.ended_leases + other.ended_leases,
            unreachable: self.unreachable + other.unreachable,
            disconnects: self.disconnects + other.disconnects,
            cuts: self.cuts + other.cuts,
            claims: self.claims + other.claims,
            looks: self.looks + other.looks,
            turns: self.turns + other.turns,
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.cancels, "a cancelled wait", "cancelled waits"),
            (self.crashes, "a crash", "crashes"),
            (self.restarts, "an empty restart", "empty restarts"),
            (self.lost_pushes, "a lost push", "lost pushes"),
            (self.ended_leases, "an ended lease", "ended leases"),
            (self.unreachable, "an unreachable waiter", "unreachable waiters"),
            (self.disconnects, "a lost connection", "lost connections"),
            (self.cuts, "a client that is cut off", "clients that are cut off"),
            (self.claims, "a claim", "claims"),
            (self.looks, "a look without a reason", "looks without a reason"),
            (self.turns, "a passed turn", "passed turns"),
        ];
        let words = all.iter().filter_map(|(times, one, many)| match times {
            0 => None,
            1 => Some((*one).to_owned()),
            _ => Some(format!("{times} {many}")),
        });
        let words: Vec<_> = words.collect();
        f.write_str(if words.is_empty() {
            "nothing goes wrong"
        } else {
            ""
        })?;
        f.write_str(&words.join(", "))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    pub clients: ClientId,
    pub budget: Budget,
    /// The last fence of each server at the beginning.
    pub fences: [Fence; SERVERS],
    /// The rule that is switched off.
    pub without: Option<Rule>,
    /// Grants have their request's ticket as their least fence, in place of floors.
    pub by_tickets: bool,
}

impl Configuration {
    /// The same on servers that have granted the lock before, some more often than others.
    pub const fn with_fences(self, fences: [Fence; SERVERS]) -> Configuration {
        Configuration { fences, ..self }
    }

    pub const fn by_tickets(self) -> Configuration {
        Configuration {
            by_tickets: true,
            ..self
        }
    }

    pub const fn without(self, rule: Rule) -> Configuration {
        Configuration {
            without: Some(rule),
            ..self
        }
    }

    pub fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }
}

pub const fn two_clients(budget: Budget) -> Configuration {
    Configuration {
        clients: 2,
        budget,
        fences: NONE_GRANTED,
        without: None,
        by_tickets: false,
    }
}

pub const fn three_clients(budget: Budget) -> Configuration {
    Configuration {
        clients: 3,
        budget,
        fences: NONE_GRANTED,
        without: None,
        by_tickets: false,
    }
}

pub const NOTHING: Budget = Budget {
    cancels: 0,
    crashes: 0,
    restarts: 0,
    lost_pushes: 0,
    ended_leases: 0,
    unreachable: 0,
    disconnects: 0,
    cuts: 0,
    claims: 0,
    looks: 0,
    turns: 0,
};
pub const CANCEL: Budget = Budget {
    cancels: 1,
    ..NOTHING
};
pub const CRASH: Budget = Budget {
    crashes: 1,
    ..NOTHING
};
pub const RESTART: Budget = Budget {
    restarts: 1,
    ..NOTHING
};
pub const LOST_PUSH: Budget = Budget {
    lost_pushes: 1,
    ..NOTHING
};
pub const ENDED_LEASE: Budget = Budget {
    ended_leases: 1,
    ..NOTHING
};
pub const TWO_ENDED_LEASES: Budget = ENDED_LEASE.and(ENDED_LEASE);
pub const UNREACHABLE: Budget = Budget {
    unreachable: 1,
    ..NOTHING
};
pub const DISCONNECT: Budget = Budget {
    disconnects: 1,
    ..NOTHING
};
pub const CUT: Budget = Budget { cuts: 1, ..NOTHING };
pub const CLAIM: Budget = Budget { claims: 1, ..NOTHING };
pub const LOOK: Budget = Budget { looks: 1, ..NOTHING };
pub const TURN: Budget = Budget { turns: 1, ..NOTHING };

/// No server has granted the lock yet.
pub const NONE_GRANTED: [Fence; SERVERS] = [0; SERVERS];
/// A server has not granted the lock yet, and the others have.
pub const ONE_BEHIND: [Fence; SERVERS] = [0, 1, 1];

/// Configurations that are explored completely in little time. They run with the tests.
pub const SMALL: [Configuration; 20] = [
    two_clients(NOTHING),
    two_clients(CANCEL),
    two_clients(CRASH),
    two_clients(RESTART),
    two_clients(LOST_PUSH),
    two_clients(ENDED_LEASE),
    two_clients(UNREACHABLE),
    two_clients(DISCONNECT),
    two_clients(CUT),
    two_clients(CLAIM.and(CLAIM)),
    two_clients(LOOK.and(LOOK)),
    two_clients(CLAIM.and(RESTART)),
    two_clients(CANCEL.and(LOST_PUSH)),
    two_clients(TURN.and(TURN)),
    two_clients(TURN.and(CLAIM)),
    two_clients(TURN.and(CRASH)),
    two_clients(TURN.and(RESTART)),
    two_clients(TURN.and(ENDED_LEASE)),
    two_clients(TURN.and(DISCONNECT)),
    three_clients(NOTHING),
];

/// Two faults that meet, or a third client. They are explored as far as time allows.
pub const LARGE: [Configuration; 32] = [
    two_clients(CLAIM.and(CRASH)),
    two_clients(LOOK.and(ENDED_LEASE)),
    two_clients(UNREACHABLE.and(CRASH)),
    two_clients(CANCEL.and(DISCONNECT)),
    two_clients(CRASH.and(RESTART)),
    two_clients(CRASH.and(ENDED_LEASE)),
    two_clients(RESTART.and(RESTART)),
    two_clients(RESTART.and(ENDED_LEASE)),
    two_clients(TWO_ENDED_LEASES),
    two_clients(DISCONNECT.and(ENDED_LEASE)),
    two_clients(DISCONNECT.and(RESTART)),
    two_clients(DISCONNECT.and(CRASH)),
    two_clients(CUT.and(CUT)),
    two_clients(CUT.and(RESTART)),
    two_clients(CUT.and(ENDED_LEASE)),
    two_clients(CUT.and(CLAIM)),
    two_clients(TURN.and(TWO_ENDED_LEASES)).with_fences(ONE_BEHIND),
    two_clients(TURN.and(CRASH).and(ENDED_LEASE)).with_fences(ONE_BEHIND),
    two_clients(TURN.and(RESTART).and(ENDED_LEASE)).with_fences(ONE_BEHIND),
    two_clients(TURN.and(DISCONNECT).and(ENDED_LEASE)),
    three_clients(TURN.and(TURN)),
    three_clients(LOST_PUSH),
    three_clients(UNREACHABLE),
    three_clients(CLAIM),
    three_clients(CANCEL),
    three_clients(LOOK),
    three_clients(CRASH),
    three_clients(RESTART),
    three_clients(ENDED_LEASE),
    three_clients(DISCONNECT),
    three_clients(CUT),
    three_clients(CANCEL.and(LOST_PUSH)),
];

/// Some of everything, for random walks.
pub const EVERYTHING: Configuration = three_clients(Budget {
    cancels: 1,
    crashes: 1,
    restarts: 2,
    lost_pushes: 2,
    ended_leases: 2,
    unreachable: 2,
    disconnects: 2,
    cuts: 2,
    claims: 3,
    looks: 2,
    turns: 3,
});
