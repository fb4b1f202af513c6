//! The scripts of `lua/`: their texts, their arguments and their replies. The only file that names Lua.

#[cfg(test)]
mod tests;
mod texts;

use std::fmt::{Display, Write};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::admission_queue::GivesUp;
use crate::key::{Keys, Owner, Request};
use crate::lease::{Fence, ServerTime, Ticket, millis};
use crate::store::pipeline::Priority;
use crate::store::{
    Acquire, Acquired, ConnectionId, Contended, Grant, Holding, Inspect, Inspected, Mode, Release,
    ReleaseOutcome, ReleaseWhat, Released, Renew, Renewed, SpinAcquire, SpinAcquired, SpinRelease,
    SpinReleased, Stamp, Withdraw, Withdrawn,
};

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
pub(crate) const CLOCK: &str = include_str!("../lua/lib/clock.lua");

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
pub(crate) enum Publishing {
    /// To the server's own subscribers: who is not among them can't be reached.
    Plain,
    /// Within a shard of a cluster, from 7.0 on: likewise.
    Sharded,
    /// All over a cluster, whose other nodes are not counted: the clients' records alone tell who can be
    /// reached.
    Unproven,
    /// Within a shard that the slot has moved to lately, and its subscribers not yet: likewise.
    Moved,
}

impl Publishing {
    /// As scripts are told of it.
    fn letter(self) -> char {
        match self {
            Publishing::Plain => 'p',
            Publishing::Sharded => 's',
            Publishing::Unproven => 'u',
            Publishing::Moved => 'm',
        }
    }

    /// Whether a server drops its subscribers of a channel when another one takes over the channel's slot.
    pub(crate) fn ends_with_the_slot(self) -> bool {
        self == Publishing::Sharded
    }
}

/// One call of a script.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) script: &'static Script,
    /// All words in one piece of memory, of which the client library takes parts: to have one made, shared
    /// and given back for each of a dozen words was a tenth of what a call costs the client.
    pub(crate) text: String,
    /// Where each word is: the number of keys, the keys, the arguments.
    pub(crate) words: Vec<Range<usize>>,
    /// Which of them says by when the call must have run, if one does, and who tells.
    not_after: Option<(usize, Arc<dyn Stamp>)>,
}

impl Invocation {
    pub(crate) fn new(script: &'static Script, keys: &[&str]) -> Invocation {
        let keys_len: usize = keys.iter().map(|key| key.len()).sum();
        let invocation = Invocation {
            script,
            // Enough for the arguments too, unless the lock's name is very long.
            text: String::with_capacity(keys_len + 256),
            words: Vec::with_capacity(12),
            not_after: None,
        };
        keys.iter().fold(invocation.with(keys.len()), Invocation::with)
    }

    /// With a lock's key and, unless it is declared alone, those of its queue and of its clients.
    fn of_lock(script: &'static Script, keys: &Keys, declared: Declared) -> Invocation {
        match declared {
            Declared::All => Invocation::new(script, &[&keys.lock, &keys.queue, &keys.clients]),
            Declared::LockAlone => Invocation::new(script, &[&keys.lock]),
        }
    }

    /// The same with one argument more.
    pub(crate) fn with(mut self, word: impl Display) -> Invocation {
        let start = self.text.len();
        write!(self.text, "{word}").expect("a string takes what it is given");
        self.words.push(start..self.text.len());
        self
    }

    /// The same with a lease of at most a day, in ms, in the width that it is kept in.
    fn with_lease(self, lease: Duration) -> Invocation {
        self.with(format_args!("{:08}", millis(lease)))
    }

    /// The same with room for the server time past which the call must do nothing, always in 13 digits: it is
    /// told when the call is written.
    fn with_not_after(mut self, not_after: &Arc<dyn Stamp>) -> Invocation {
        self.not_after = Some((self.words.len(), Arc::clone(not_after)));
        self.with(format_args!("{:013}", 0))
    }

    /// Has it say by when it must have run, now that it is written. `None`: it is not to be written any more.
    /// When its caller gives up.
    pub(crate) fn gives_up(&self) -> GivesUp {
        let not_after = self.not_after.as_ref();
        not_after.map_or(GivesUp::Unknown, |(_, stamp)| stamp.gives_up())
    }

    pub(crate) fn stamped(mut self, on: ConnectionId) -> Option<Invocation> {
        if let Some((word, not_after)) = &self.not_after {
            let digits = format!("{:013}", not_after.written(on)?.ms());
            self.text.replace_range(self.words[*word].clone(), &digits);
        }
        Some(self)
    }

    /// The same with the channels of a lock's waiters, as scripts are told of them: after a letter for the
    /// way.
    fn with_address(self, way: Publishing, keys: &Keys) -> Invocation {
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

/// Why a reply can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyError {
    /// It is not the reply to this call, so every later one of the connection may be another's too.
    OutOfStep(String),
    /// A newer client has written this lock in a format that this one doesn't know.
    NewerFormat,
    /// The call was for the lock alone, and takes the lock's other keys.
    Elsewhere,
}

/// A call of a server, as arguments and as a reader of its reply.
pub(crate) trait Operation: Send + 'static {
    type Reply: Send + 'static;

    /// A key of the lock that is called for: any, since all of a lock are in one slot.
    fn key(&self) -> &str;

    /// Which of those that wait to be sent go first.
    fn priority(&self) -> Priority {
        Priority::Keep
    }

    /// What it is sent as. One that does not go alone declares all its keys in any case.
    fn invocation(&self, way: Publishing, declared: Declared) -> Invocation;

    /// Whether it can be a call for the lock's own key alone, which is enough where nobody waits. While a
    /// cluster moves a slot, its servers run no call for several keys unless they have all of them, and none
    /// has a key that is not there.
    fn goes_alone(&self) -> bool {
        false
    }

    /// Reads a reply, one line of words. Returns the server's time and what it answered.
    fn read(&self, reply: &str) -> Result<(ServerTime, Self::Reply), ReplyError>;
}

impl Operation for Acquire {
    type Reply = Acquired;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::Ask
    }

    fn invocation(&self, way: Publishing, declared: Declared) -> Invocation {
        let invocation = Invocation::of_lock(&ACQUIRE, &self.keys, declared);
        let mode = match self.mode {
            Mode::Try => "try",
            Mode::Wait => "wait",
            Mode::Open => "open",
            Mode::Question => "question",
        };
        let invocation = invocation
            .with(&self.request)
            .with(mode)
            .with_lease(self.lease)
            .with_not_after(&self.not_after)
            .with(millis(self.heartbeat))
            .with_address(way, &self.keys);
        match self.ticket {
            Some(ticket) => invocation.with(ticket.0),
            None => invocation,
        }
    }

    /// But for a question, which is one to the client's record.
    fn goes_alone(&self) -> bool {
        self.mode != Mode::Question
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Acquired), ReplyError> {
        let mut words = Words::of(reply, self.request.as_str())?;
        let acquired = match words.status {
            1 => Acquired::Granted(Grant {
                request: self.request.clone(),
                deadline: words.deadline,
                fence: words.fence()?,
                pushed: words.flag()?,
            }),
            2 | 3 => {
                let ticket = words.number()?;
                Acquired::Contended(Contended {
                    ttl: words.deadline.since(words.now),
                    ticket: (words.status == 2).then_some(Ticket(ticket)),
                    ahead: words.number()?,
                    enqueued: words.flag()?,
                    seen: words.flag()?,
                    denied: words.flag()?,
                    sibling: words.sibling()?,
                })
            }
            4 => Acquired::Late,
            5 => Acquired::Gone { seen: words.flag()? },
            6 => Acquired::More,
            7 => return Err(ReplyError::Elsewhere),
            8 => Acquired::Full,
            _ => return Err(words.malformed()),
        };
        Ok((words.now, acquired))
    }
}

impl Operation for Release {
    type Reply = Released;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::End
    }

    fn invocation(&self, way: Publishing, declared: Declared) -> Invocation {
        let invocation = Invocation::of_lock(&RELEASE, &self.keys, declared);
        let invocation = invocation.with(&self.request);
        let invocation = match self.what {
            ReleaseWhat::Grant(fence) => invocation.with("grant").with(fence),
            ReleaseWhat::Force(fence) => invocation.with("force").with(fence),
        };
        invocation.with_address(way, &self.keys)
    }

    fn goes_alone(&self) -> bool {
        true
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Released), ReplyError> {
        let mut words = Words::of(reply, self.request.as_str())?;
        let outcome = match words.status {
            1 => ReleaseOutcome::Released,
            2 => ReleaseOutcome::OneFewer,
            3 => ReleaseOutcome::Expired,
            4 => ReleaseOutcome::Taken,
            5 => return Err(ReplyError::Elsewhere),
            _ => return Err(words.malformed()),
        };
        Ok((
            words.now,
            Released {
                outcome,
                denied: words.flag()?,
                more: words.flag()?,
            },
        ))
    }
}

impl Operation for Withdraw {
    type Reply = Withdrawn;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::End
    }

    fn invocation(&self, way: Publishing, declared: Declared) -> Invocation {
        let mut invocation = Invocation::of_lock(&WITHDRAW, &self.keys, declared);
        let start = invocation.text.len();
        for request in &self.requests {
            let space = if invocation.text.len() > start { " " } else { "" };
            write!(invocation.text, "{space}{request}").expect("a string takes what it is given");
        }
        invocation.words.push(start..invocation.text.len());
        invocation.with_address(way, &self.keys)
    }

    fn goes_alone(&self) -> bool {
        true
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Withdrawn), ReplyError> {
        let mut words = Words::of(reply, self.requests[0].as_str())?;
        match words.status {
            1 => words.skip(1),
            5 => return Err(ReplyError::Elsewhere),
            _ => return Err(words.malformed()),
        }
        let more = words.flag()?;
        Ok((words.now, Withdrawn { more }))
    }
}

impl Operation for Renew {
    type Reply = Renewed;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn invocation(&self, _: Publishing, _: Declared) -> Invocation {
        Invocation::new(&RENEW, &[&self.keys.lock])
            .with(&self.request)
            .with(self.fence)
            .with_lease(self.lease)
            .with(self.cap.ms())
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Renewed), ReplyError> {
        let words = Words::of(reply, self.request.as_str())?;
        let renewed = match words.status {
            1 => Renewed::Until(words.deadline),
            2 => Renewed::Expired,
            3 => Renewed::Taken,
            _ => return Err(words.malformed()),
        };
        Ok((words.now, renewed))
    }
}

impl Operation for Inspect {
    type Reply = Inspected;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn invocation(&self, _: Publishing, _: Declared) -> Invocation {
        Invocation::new(&INSPECT, &[&self.keys.lock])
            .with(&self.request)
            .with(&self.keys.queue)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Inspected), ReplyError> {
        let mut words = Words::of(reply, self.request.as_str())?;
        let holder = match words.status {
            1 => Some(Holding {
                deadline: words.deadline,
                fence: words.fence()?,
                owner: Owner::from_wire(words.text()?),
                holds: words.number()?,
            }),
            2 => {
                words.skip(3);
                None
            }
            _ => return Err(words.malformed()),
        };
        Ok((
            words.now,
            Inspected {
                holder,
                waiting: words.number()?,
            },
        ))
    }
}

impl Operation for SpinAcquire {
    type Reply = SpinAcquired;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::Ask
    }

    fn invocation(&self, _: Publishing, _: Declared) -> Invocation {
        Invocation::new(&SPIN_ACQUIRE, &[&self.keys.spin])
            .with(&self.owner)
            .with(millis(self.lease))
            .with(self.request.simple())
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, SpinAcquired), ReplyError> {
        let mut words = Words::of(reply, self.owner.as_str())?;
        let acquired = match words.status {
            1 => SpinAcquired::Held(words.number()?),
            2 => SpinAcquired::Busy,
            _ => return Err(words.malformed()),
        };
        Ok((words.now, acquired))
    }
}

impl Operation for SpinRelease {
    type Reply = SpinReleased;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::End
    }

    fn invocation(&self, _: Publishing, _: Declared) -> Invocation {
        Invocation::new(&SPIN_RELEASE, &[&self.keys.spin]).with(&self.owner)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, SpinReleased), ReplyError> {
        let mut words = Words::of(reply, self.owner.as_str())?;
        let released = match words.status {
            1 => SpinReleased::Left(words.number()?),
            2 => SpinReleased::NotHeld,
            _ => return Err(words.malformed()),
        };
        Ok((words.now, released))
    }
}

/// The words of a reply, in order, after those that every reply begins with. What comes after the last that
/// is read is from a newer script, and ignored.
struct Words<'a> {
    reply: &'a str,
    rest: std::str::Split<'a, char>,
    status: u64,
    now: ServerTime,
    deadline: ServerTime,
}

impl<'a> Words<'a> {
    fn of(reply: &'a str, request: &str) -> Result<Words<'a>, ReplyError> {
        let mut words = Words {
            reply,
            rest: reply.split(' '),
            status: 0,
            now: ServerTime::default(),
            deadline: ServerTime::default(),
        };
        words.status = words.number()?;
        if words.text()? != request {
            return Err(words.malformed());
        }
        if words.status == 0 {
            return Err(ReplyError::NewerFormat);
        }
        words.now = ServerTime::from_ms(words.number()?);
        words.deadline = ServerTime::from_ms(words.number()?);
        Ok(words)
    }

    fn text(&mut self) -> Result<&'a str, ReplyError> {
        self.rest.next().ok_or_else(|| self.malformed())
    }

    /// A whole number, as scripts have them.
    fn number(&mut self) -> Result<u64, ReplyError> {
        let number = self.text()?.parse::<i64>().ok();
        let number = number.and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| self.malformed())
    }

    fn flag(&mut self) -> Result<bool, ReplyError> {
        Ok(self.number()? != 0)
    }

    fn fence(&mut self) -> Result<Fence, ReplyError> {
        Fence::new(self.number()?).ok_or_else(|| self.malformed())
    }

    fn skip(&mut self, count: usize) {
        self.rest.by_ref().take(count).for_each(drop);
    }

    fn sibling(&mut self) -> Result<Option<Grant>, ReplyError> {
        let request = self.text()?;
        if request == "-" {
            return Ok(None);
        }
        let request = Request::from_wire(request).ok_or_else(|| self.malformed())?;
        let fence = self.fence()?;
        let deadline = ServerTime::from_ms(self.number()?);
        Ok(Some(Grant {
            request,
            fence,
            deadline,
            pushed: self.flag()?,
        }))
    }

    fn malformed(&self) -> ReplyError {
        ReplyError::OutOfStep(format!("a reply that is not to this call: {:?}", self.reply))
    }
}
