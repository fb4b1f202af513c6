//! The scripts of `lua/`: their texts, arguments and replies. Besides the operations, no module knows Lua.

mod reply;
mod script_call;
#[cfg(test)]
mod tests;
mod texts;

use std::sync::OnceLock;

pub(crate) use self::reply::{ReplyError, ReplyReader};
pub(crate) use self::script_call::{Declared, ScriptCall};
pub(crate) use self::texts::inlined;
use crate::types::status::Kind;

/// One operation: its own file, and the parts of `lua/lib/` that it shares with others. If the operation has
/// a fast path, the rest of it is in a second file, after the parts that only the rest needs.
#[derive(Debug)]
pub(crate) struct Script {
    #[cfg_attr(not(test), expect(dead_code))]
    pub(crate) name: &'static str,
    /// The text as it is written, with constants.
    source: &'static str,
    /// The text as it is sent. It is made at the first use.
    text: OnceLock<String>,
}

/// Tests replace the clock.
#[cfg(test)]
pub(crate) const CLOCK: &str = include_str!("../../lua/lib/clock.lua");

pub(crate) static ACQUIRE: Script = Script::new("acquire", texts::ACQUIRE);
pub(crate) static RELEASE: Script = Script::new("release", texts::RELEASE);
pub(crate) static WITHDRAW: Script = Script::new("withdraw", texts::WITHDRAW);
pub(crate) static RENEW: Script = Script::new("renew", texts::RENEW);
pub(crate) static LOOK: Script = Script::new("look", texts::LOOK);
pub(crate) static INSPECT: Script = Script::new("inspect", texts::INSPECT);
pub(crate) static LABEL: Script = Script::new("label", texts::LABEL);
pub(crate) static SPIN_ACQUIRE: Script = Script::new("spin_acquire", texts::SPIN_ACQUIRE);
pub(crate) static SPIN_RELEASE: Script = Script::new("spin_release", texts::SPIN_RELEASE);

pub(crate) static PERMITS_ACQUIRE: Script = Script::new("permits_acquire", texts::PERMITS_ACQUIRE);
pub(crate) static PERMITS_RELEASE: Script = Script::new("permits_release", texts::PERMITS_RELEASE);
pub(crate) static PERMITS_WITHDRAW: Script = Script::new("permits_withdraw", texts::PERMITS_WITHDRAW);
pub(crate) static PERMITS_RENEW: Script = Script::new("permits_renew", texts::PERMITS_RENEW);
pub(crate) static PERMITS_INSPECT: Script = Script::new("permits_inspect", texts::PERMITS_INSPECT);

pub(crate) static RATE_ASK: Script = Script::new("rate_ask", texts::RATE_ASK);

pub(crate) static ALL: [&Script; 15] = [
    &ACQUIRE,
    &RELEASE,
    &WITHDRAW,
    &RENEW,
    &LOOK,
    &INSPECT,
    &LABEL,
    &SPIN_ACQUIRE,
    &SPIN_RELEASE,
    &PERMITS_ACQUIRE,
    &PERMITS_RELEASE,
    &PERMITS_WITHDRAW,
    &PERMITS_RENEW,
    &PERMITS_INSPECT,
    &RATE_ASK,
];

/// The scripts of locks come first. The servers of a quorum need no others.
const FOR_LOCKS: usize = 9;

/// The scripts for a server.
#[cfg(feature = "redis")]
pub(crate) fn for_server(of_a_quorum: bool) -> &'static [&'static Script] {
    match of_a_quorum {
        true => &ALL[..FOR_LOCKS],
        false => &ALL,
    }
}

/// The scripts of an operation: one for locks, and one for permits. They have the same arguments.
#[derive(Debug)]
pub(crate) struct ByKind {
    lock: &'static Script,
    permits: &'static Script,
}

pub(crate) static ACQUIRES: ByKind = ByKind::new(&ACQUIRE, &PERMITS_ACQUIRE);
pub(crate) static RELEASES: ByKind = ByKind::new(&RELEASE, &PERMITS_RELEASE);
pub(crate) static WITHDRAWALS: ByKind = ByKind::new(&WITHDRAW, &PERMITS_WITHDRAW);
pub(crate) static RENEWALS: ByKind = ByKind::new(&RENEW, &PERMITS_RENEW);
pub(crate) static INSPECTIONS: ByKind = ByKind::new(&INSPECT, &PERMITS_INSPECT);

impl ByKind {
    const fn new(lock: &'static Script, permits: &'static Script) -> ByKind {
        ByKind { lock, permits }
    }

    pub(crate) fn of(&self, kind: Kind) -> &'static Script {
        match kind {
            Kind::Lock => self.lock,
            Kind::Semaphore | Kind::ReadWrite => self.permits,
        }
    }
}

impl Script {
    pub(crate) const fn new(name: &'static str, source: &'static str) -> Script {
        Script {
            name,
            source,
            text: OnceLock::new(),
        }
    }

    /// The text that is sent.
    pub(crate) fn text(&self) -> &str {
        self.text.get_or_init(|| inlined(self.source))
    }

    /// The source of the same script with another clock.
    #[cfg(test)]
    pub(crate) fn with_clock(&self, clock: &str) -> String {
        let (before, after) = self.source.split_once(CLOCK).expect("every script has a clock");
        format!("{clock}\n{before}{after}")
    }
}

/// How scripts publish, and what the number of receivers means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PubSubMode {
    /// To subscribers of the server itself. A client without a counted subscription cannot be reached.
    Plain,
    /// Within a shard of a cluster, from 7.0 on. Counts as in `Plain`.
    Sharded,
    /// To the whole cluster, whose other nodes are not counted. Every client is taken for one that listens.
    Uncounted,
    /// Within a shard to which the slot moved recently, but not yet its subscribers. As in `Uncounted`.
    Migrating,
}

impl PubSubMode {
    /// The letter for this mode in a script's arguments.
    fn letter(self) -> char {
        match self {
            PubSubMode::Plain => 'p',
            PubSubMode::Sharded => 's',
            PubSubMode::Uncounted => 'u',
            PubSubMode::Migrating => 'm',
        }
    }
}
