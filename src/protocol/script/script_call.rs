//! One call of a script: its keys and arguments.

use std::fmt::{Display, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{ByKind, PubSubMode, Script};
use crate::protocol::interface::{ConnectionId, Stamp};
use crate::protocol::keys::Keys;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::millis;
use crate::types::fence::Fence;
use crate::types::status::Kind;

#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static Script,
    /// All words in one allocation, which the client library shares in parts. A separate allocation for each
    /// of a dozen words took a tenth of the client's cost of a call.
    pub(crate) text: String,
    /// The position of each word: the number of keys, the keys, the arguments.
    pub(crate) words: Vec<Range<usize>>,
    /// The index of the word for `not_after`, and the stamp that sets it. Only some calls have them.
    not_after: Option<(usize, Arc<dyn Stamp>)>,
}

impl ScriptCall {
    pub(crate) fn new(script: &'static Script, keys: &[&str]) -> ScriptCall {
        let keys_len: usize = keys.iter().map(|key| key.len()).sum();
        let script_call = ScriptCall {
            script,
            // This is enough for the arguments too, unless the lock's name is very long.
            text: String::with_capacity(keys_len + 256),
            words: Vec::with_capacity(12),
            not_after: None,
        };
        keys.iter().fold(script_call.with(keys.len()), ScriptCall::with)
    }

    /// A call with the lock's key. Unless the key is declared alone, the key of the queue follows, and of
    /// permits that of the timers.
    pub(crate) fn of_lock(scripts: &ByKind, keys: &Keys, declared: Declared) -> ScriptCall {
        let Keys {
            lock, queue, timers, ..
        } = keys;
        let script = scripts.of(keys.kind);
        match (declared, keys.kind) {
            (Declared::LockAlone, _) => ScriptCall::new(script, &[lock]),
            (Declared::All, Kind::Lock) => ScriptCall::new(script, &[lock, queue]),
            (Declared::All, _) => ScriptCall::new(script, &[lock, queue, timers]),
        }
    }

    /// Adds an argument.
    pub(crate) fn with(mut self, word: impl Display) -> ScriptCall {
        let start = self.text.len();
        write!(self.text, "{word}").expect("a string takes what it is given");
        self.words.push(start..self.text.len());
        self
    }

    /// Adds a lease of at most 30 days, in ms, in the width in which it is stored.
    pub(crate) fn with_lease(self, lease: Duration) -> ScriptCall {
        self.with(format_args!("{:010}", millis(lease)))
    }

    /// Adds a floor, if there is one, in the width in which fences are stored. A server's time has that
    /// width.
    pub(crate) fn with_floor(self, floor: Option<Fence>) -> ScriptCall {
        match floor {
            Some(floor) => self.with(format_args!("{:016}", floor.get())),
            None => self,
        }
    }

    /// Reserves 13 digits for the server time past which the call must do nothing. The time is set when the
    /// call is written.
    pub(crate) fn with_not_after(mut self, not_after: &Arc<dyn Stamp>) -> ScriptCall {
        self.not_after = Some((self.words.len(), Arc::clone(not_after)));
        self.with(format_args!("{:013}", 0))
    }

    /// When the caller of this call gives up.
    pub(crate) fn gives_up(&self) -> GivesUp {
        let not_after = self.not_after.as_ref();
        not_after.map_or(GivesUp::Unknown, |(_, stamp)| stamp.gives_up())
    }

    /// Sets `not_after` when the call is written. Returns `None` if the call must not be written any more.
    pub(crate) fn stamp(&mut self, on: ConnectionId) -> Option<()> {
        if let Some((word, not_after)) = &self.not_after {
            let digits = format!("{:013}", not_after.written(on)?.ms());
            self.text.replace_range(self.words[*word].clone(), &digits);
        }
        Some(())
    }

    /// Adds the prefix of the lock's unlock channels, after the letter of the publishing mode.
    pub(crate) fn with_address(self, way: PubSubMode, keys: &Keys) -> ScriptCall {
        self.with(format_args!("{}{}", way.letter(), keys.channel))
    }

    #[cfg(test)]
    pub(crate) fn keys_and_args(&self) -> (Vec<&str>, Vec<&str>) {
        let mut words = self.words.iter().map(|word| &self.text[word.clone()]);
        let keys = words.next().and_then(|number| number.parse().ok());
        let keys = words.by_ref().take(keys.expect("a number")).collect();
        (keys, words.collect())
    }
}

/// The keys of its lock that a call declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    All,
    /// Only for calls that go alone (`Operation::goes_alone`).
    LockAlone,
}
