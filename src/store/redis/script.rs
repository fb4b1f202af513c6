//! The scripts of `lua/`: their texts, their arguments and their replies. Nothing else names Lua.

mod operations;
mod reply;
mod script_call;
#[cfg(test)]
mod tests;
mod texts;

use std::sync::OnceLock;

pub(crate) use self::operations::Operation;
pub(crate) use self::reply::ReplyError;
pub(crate) use self::script_call::{Declared, ScriptCall};

/// One operation: its own file, and the parts of `lua/lib/` that it shares with others. Whoever has a fast
/// path has the rest of the operation in a file of its own, behind the parts that only this needs.
#[derive(Debug)]
pub(crate) struct Script {
    #[cfg_attr(not(test), expect(dead_code))]
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// What servers know it by, once that was reckoned.
    pub(crate) sha: OnceLock<String>,
}

/// The clock first, since tests put another in its place.
#[cfg(test)]
pub(crate) const CLOCK: &str = include_str!("../../../lua/lib/clock.lua");

pub(crate) static ACQUIRE: Script = Script::new("acquire", texts::ACQUIRE);
pub(crate) static RELEASE: Script = Script::new("release", texts::RELEASE);
pub(crate) static WITHDRAW: Script = Script::new("withdraw", texts::WITHDRAW);
pub(crate) static RENEW: Script = Script::new("renew", texts::RENEW);
pub(crate) static INSPECT: Script = Script::new("inspect", texts::INSPECT);
pub(crate) static SPIN_ACQUIRE: Script = Script::new("spin_acquire", texts::SPIN_ACQUIRE);
pub(crate) static SPIN_RELEASE: Script = Script::new("spin_release", texts::SPIN_RELEASE);

pub(crate) static ALL: [&Script; 7] = [
    &ACQUIRE,
    &RELEASE,
    &WITHDRAW,
    &RENEW,
    &INSPECT,
    &SPIN_ACQUIRE,
    &SPIN_RELEASE,
];

impl Script {
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Script {
        Script {
            name,
            text,
            sha: OnceLock::new(),
        }
    }

    /// The same script under another clock.
    #[cfg(test)]
    pub(crate) fn with_clock(&self, clock: &str) -> String {
        let rest = self
            .text
            .strip_prefix(CLOCK)
            .expect("every script begins with the clock");
        format!("{clock}\n{rest}")
    }
}

/// How scripts publish, and what the number of receivers tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PubSubMode {
    /// To the server's own subscribers: who is not among them can't be reached.
    Plain,
    /// Within a shard of a cluster, from 7.0 on: likewise.
    Sharded,
    /// All over a cluster, whose other nodes are not counted: the clients' records alone tell who can be
    /// reached.
    Uncounted,
    /// Within a shard that the slot has moved to lately, and its subscribers not yet: likewise.
    Migrating,
}

impl PubSubMode {
    /// As scripts are told of it.
    fn letter(self) -> char {
        match self {
            PubSubMode::Plain => 'p',
            PubSubMode::Sharded => 's',
            PubSubMode::Uncounted => 'u',
            PubSubMode::Migrating => 'm',
        }
    }

    /// Whether a server drops its subscribers of a channel when another one takes over the channel's slot.
    pub(crate) fn ends_with_the_slot(self) -> bool {
        self == PubSubMode::Sharded
    }
}
