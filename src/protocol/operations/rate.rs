//! Asks for the turns of a rate limit.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::{CallKind, Operation};
use crate::protocol::ids::ClientId;
use crate::protocol::interface::Priority;
use crate::protocol::keys::RateKeys;
use crate::protocol::script::{Declared, PubSubMode, RATE_ASK, ReplyError, ReplyReader, ScriptCall};
use crate::time::server_time::ServerTime;

/// How fast turns come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    /// µs between two turns.
    pub(crate) interval: u64,
    /// By how many µs turns may come early.
    pub(crate) burst: u64,
}

/// A caller that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateCaller {
    /// For how many µs it has waited.
    pub(crate) age: u64,
    /// How many turns it takes.
    pub(crate) cost: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct RateAsk {
    pub(crate) keys: Arc<RateKeys>,
    /// The waitlist that asks.
    pub(crate) waitlist: Arc<str>,
    /// Whether the waitlist keeps its place in the queue.
    pub(crate) waits: bool,
    pub(crate) rate: Rate,
    /// For how many µs ahead turns are given out.
    pub(crate) window: u64,
    /// The first one first.
    pub(crate) callers: Vec<RateCaller>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RateAsked {
    /// How long the first callers wait for their turns.
    pub(crate) waits: Vec<Duration>,
    /// When to ask again for those that are left.
    pub(crate) again: Duration,
    /// How many waitlists come before them.
    pub(crate) ahead: u64,
}

/// Looks at a rate limit, and takes nothing.
#[derive(Clone, Debug)]
pub(crate) struct RateLook {
    pub(crate) keys: Arc<RateKeys>,
    /// Who looks, which only names the call.
    pub(crate) by: ClientId,
    pub(crate) rate: Rate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RateLooked {
    /// The time of the next turn, and the time of this answer (µs).
    pub(crate) next: u64,
    pub(crate) us: u64,
    /// How many waitlists wait.
    pub(crate) waiting: u64,
}

/// The call for the turns of a rate. The other arguments of a `mode` follow.
fn script_call(keys: &RateKeys, waitlist: &str, mode: &str, rate: Rate) -> ScriptCall {
    let Rate { interval, burst } = rate;
    ScriptCall::new(&RATE_ASK, &[&keys.rate, &keys.queue])
        .with(waitlist)
        .with(mode)
        .with(interval)
        .with(burst)
}

impl Operation for RateLook {
    type Reply = RateLooked;
    const KIND: CallKind = CallKind::Inspect;

    fn key(&self) -> &str {
        &self.keys.rate
    }

    fn priority(&self) -> Priority {
        Priority::Ask
    }

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        script_call(&self.keys, self.by.as_str(), "look", self.rate)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, RateLooked), ReplyError> {
        let mut words = ReplyReader::of(reply, self.by.as_str())?;
        let looked = RateLooked {
            next: words.number()?,
            us: words.number()?,
            waiting: words.number()?,
        };
        if words.status != 2 {
            return Err(words.malformed());
        }
        Ok((words.now, looked))
    }
}

impl Operation for RateAsk {
    type Reply = RateAsked;
    const KIND: CallKind = CallKind::Other;

    fn key(&self) -> &str {
        &self.keys.rate
    }

    fn priority(&self) -> Priority {
        Priority::Ask
    }

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        let mut callers = String::new();
        for RateCaller { age, cost } in &self.callers {
            // Writing to a string cannot fail.
            let _ = write!(callers, "{age}/{cost} ");
        }
        let mode = if self.waits { "wait" } else { "try" };
        script_call(&self.keys, &self.waitlist, mode, self.rate)
            .with(self.window)
            .with(callers)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, RateAsked), ReplyError> {
        let mut words = ReplyReader::of(reply, &self.waitlist)?;
        let (again, ahead) = (Duration::from_micros(words.number()?), words.number()?);
        let waits: Vec<_> = words.numbers()?.into_iter().map(Duration::from_micros).collect();
        if words.status != 1 || waits.len() > self.callers.len() {
            return Err(words.malformed());
        }
        Ok((words.now, RateAsked { waits, again, ahead }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_with_a_word_that_is_no_time_cannot_be_read() {
        let ask = RateAsk {
            keys: Arc::new(RateKeys::new("fairlock", "a").unwrap()),
            waitlist: "w".into(),
            waits: true,
            rate: Rate {
                interval: 1,
                burst: 1,
            },
            window: 0,
            callers: vec![RateCaller { age: 0, cost: 1 }],
        };
        assert!(ask.read("1 w 5 0 0 0 7").is_ok());
        for reply in ["1 w 5 0 0 0 x", "1 w 5 0 0 0 7 x", "1 w 5 0 0 0 7 8"] {
            let unreadable = ReplyError::Unreadable(reply.to_owned());
            assert_eq!(ask.read(reply).err(), Some(unreadable));
        }
    }
}
