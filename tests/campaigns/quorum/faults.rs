//! The faults of both schedules.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::servers::Memory;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Servers are killed, and come back with this memory.
    Restarted(Memory),
    Hung,
    /// Some clients cannot reach the servers.
    CutOff,
    Slow,
    ScriptsFlushed,
    ConnectionsKilled,
    /// The servers forget all data, and keep their scripts.
    Flushed,
    // Faults of a client process.
    Stopped,
    StoppedPastLease,
    Killed,
}

pub(crate) const OF_ONE_SERVER: [Fault; 8] = [
    Fault::Restarted(Memory::Nothing),
    Fault::Restarted(Memory::Saved),
    Fault::Restarted(Memory::Older),
    Fault::Hung,
    Fault::CutOff,
    Fault::Slow,
    Fault::ScriptsFlushed,
    Fault::ConnectionsKilled,
];

pub(crate) const OF_A_CLIENT: [Fault; 3] = [Fault::Stopped, Fault::StoppedPastLease, Fault::Killed];

pub(crate) const OF_A_MAJORITY: [Fault; 6] = [
    Fault::Restarted(Memory::Nothing),
    Fault::Restarted(Memory::Saved),
    Fault::Restarted(Memory::Older),
    Fault::Hung,
    Fault::CutOff,
    Fault::Flushed,
];

impl Fault {
    /// All faults, in the order of the table.
    pub(crate) fn all() -> impl Iterator<Item = Fault> {
        OF_ONE_SERVER
            .into_iter()
            .chain([Fault::Flushed])
            .chain(OF_A_CLIENT)
    }

    /// The name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Restarted(Memory::Nothing) => "  servers killed and restarted empty",
            Fault::Restarted(Memory::Saved) => "  … restarted without the last second",
            Fault::Restarted(Memory::Older) => "  … restarted from older files",
            Fault::Hung => "  servers hung",
            Fault::CutOff => "  servers cut off from clients",
            Fault::Slow => "  servers slow",
            Fault::ScriptsFlushed => "  scripts flushed",
            Fault::ConnectionsKilled => "  connections killed",
            Fault::Flushed => "  all data flushed",
            Fault::Stopped => "  client stopped, for less than its lease",
            Fault::StoppedPastLease => "  client stopped past its lease",
            Fault::Killed => "  client killed and replaced",
        }
    }
}

/// How often each fault was caused.
pub(crate) type Counts = BTreeMap<Fault, u64>;

/// Faults in a random order, in which each comes once before one comes again.
#[derive(Debug)]
pub(crate) struct Deck {
    all: &'static [Fault],
    left: Vec<Fault>,
    pub(crate) counts: Counts,
}

impl Deck {
    pub(crate) fn new(all: &'static [Fault]) -> Deck {
        Deck {
            all,
            left: Vec::new(),
            counts: Counts::new(),
        }
    }

    pub(crate) fn draw(&mut self, rng: &mut SmallRng) -> Fault {
        if self.left.is_empty() {
            self.left = self.all.to_vec();
            self.left.shuffle(rng);
        }
        let fault = self.left.pop().expect("a fault");
        *self.counts.entry(fault).or_default() += 1;
        fault
    }
}

/// A random time in whole milliseconds.
pub(crate) fn millis(rng: &mut SmallRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.random_range(from..to))
}
