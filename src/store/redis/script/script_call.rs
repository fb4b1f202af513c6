//! One call of a script: its keys and arguments.

use std::fmt::{Display, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{PubSubMode, Script};
use crate::store::keys::Keys;
use crate::store::{ConnectionId, Stamp};
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::millis;

/// One call of a script.
#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static Script,
    /// All words in one piece of memory, of which the client library takes parts: to have one made, shared
    /// and given back for each of a dozen words was a tenth of what a call costs the client.
    pub(crate) text: String,
    /// Where each word is: the number of keys, the keys, the arguments.
    pub(crate) words: Vec<Range<usize>>,
    /// Which of them says by when the call must have run, if one does, and who tells.
    not_after: Option<(usize, Arc<dyn Stamp>)>,
}

impl ScriptCall {
    pub(crate) fn new(script: &'static Script, keys: &[&str]) -> ScriptCall {
        let keys_len: usize = keys.iter().map(|key| key.len()).sum();
        let script_call = ScriptCall {
            script,
            // Enough for the arguments too, unless the lock's name is very long.
            text: String::with_capacity(keys_len + 256),
            words: Vec::with_capacity(12),
            not_after: None,
        };
        keys.iter().fold(script_call.with(keys.len()), ScriptCall::with)
    }

    /// With a lock's key and, unless it is declared alone, those of its queue and of its clients.
    pub(super) fn of_lock(script: &'static Script, keys: &Keys, declared: Declared) -> ScriptCall {
        match declared {
            Declared::All => ScriptCall::new(script, &[&keys.lock, &keys.queue, &keys.clients]),
            Declared::LockAlone => ScriptCall::new(script, &[&keys.lock]),
        }
    }

    /// The same with one argument more.
    pub(crate) fn with(mut self, word: impl Display) -> ScriptCall {
        let start = self.text.len();
        write!(self.text, "{word}").expect("a string takes what it is given");
        self.words.push(start..self.text.len());
        self
    }

    /// The same with a lease of at most a day, in ms, in the width that it is kept in.
    pub(super) fn with_lease(self, lease: Duration) -> ScriptCall {
        self.with(format_args!("{:08}", millis(lease)))
    }

    /// The same with room for the server time past which the call must do nothing, always in 13 digits: it is
    /// told when the call is written.
    pub(super) fn with_not_after(mut self, not_after: &Arc<dyn Stamp>) -> ScriptCall {
        self.not_after = Some((self.words.len(), Arc::clone(not_after)));
        self.with(format_args!("{:013}", 0))
    }

    /// When its caller gives up.
    pub(crate) fn gives_up(&self) -> GivesUp {
        let not_after = self.not_after.as_ref();
        not_after.map_or(GivesUp::Unknown, |(_, stamp)| stamp.gives_up())
    }

    /// Has it say by when it must have run, now that it is written. `None`: it is not to be written any more.
    pub(crate) fn stamped(mut self, on: ConnectionId) -> Option<ScriptCall> {
        if let Some((word, not_after)) = &self.not_after {
            let digits = format!("{:013}", not_after.written(on)?.ms());
            self.text.replace_range(self.words[*word].clone(), &digits);
        }
        Some(self)
    }

    /// The same with the channels of a lock's waiters, as scripts are told of them: after a letter for the
    /// way.
    pub(super) fn with_address(self, way: PubSubMode, keys: &Keys) -> ScriptCall {
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

/// Which keys of its lock a call declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    All,
    /// Of those that [go alone](Operation::goes_alone).
    LockAlone,
}
