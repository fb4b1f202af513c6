//! The calls to a server: the script for each, and the reader of its reply.

mod labels;

use std::fmt::Write;

use super::reply::{ReplyError, ReplyReader};
use super::script_call::{Declared, ScriptCall};
use super::{ACQUIRE, INSPECT, LOOK, PubSubMode, RELEASE, RENEW, SPIN_ACQUIRE, SPIN_RELEASE, WITHDRAW};
use crate::owner::Owner;
use crate::store::ids::{ClientId, RequestId};
use crate::store::pipeline::Prioritized;
use crate::store::{
    Acquire, Acquired, Contended, Grant, Holding, Inspect, Inspected, Look, Looked, Mode, Release,
    ReleaseOutcome, ReleaseWhat, Released, Renew, Renewed, SpinAcquire, SpinAcquired, SpinRelease,
    SpinReleased, Withdraw, Withdrawn,
};
use crate::time::server_time::{ServerTime, Ticket, millis};

/// A call to a server that can produce a script call and read its reply.
pub(crate) trait Operation: Prioritized + Send + 'static {
    type Reply: Send + 'static;

    /// A key of the call's lock. Any key will do, because all keys of a lock are in one slot.
    fn key(&self) -> &str;

    /// Whether the call may make a waiter the holder. While a slot moves, such a call waits for a moment
    /// until the slot has arrived, because the waiter's client does not listen where the keys are.
    fn hands_over(&self) -> bool {
        false
    }

    /// The script call to send. If the call does not go alone, it declares all its keys in any case.
    fn script_call(&self, way: PubSubMode, declared: Declared) -> ScriptCall;

    /// Whether the call can declare the lock's own key alone, which is enough if nobody is queued. While a
    /// slot moves, a server of the cluster runs a call for several keys only if it has all of them. No
    /// server has a key that does not exist.
    fn goes_alone(&self) -> bool {
        false
    }

    /// Reads a reply, which is one line of words. Returns the server time and the content.
    fn read(&self, reply: &str) -> Result<(ServerTime, Self::Reply), ReplyError>;
}

impl Operation for Acquire {
    type Reply = Acquired;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn script_call(&self, way: PubSubMode, declared: Declared) -> ScriptCall {
        let script_call = ScriptCall::of_lock(&ACQUIRE, &self.keys, declared);
        let mode = match self.mode {
            Mode::Try => "try",
            Mode::Wait => "wait",
            Mode::Register => "register",
            Mode::Poll => "poll",
        };
        let script_call = script_call
            .with(&self.request)
            .with(mode)
            .with_lease(self.lease)
            .with_not_after(&self.not_after)
            .with(millis(self.heartbeat))
            .with_address(way, &self.keys);
        let script_call = match self.ticket {
            Some(ticket) => script_call.with(ticket.0),
            None if self.floor.is_some() => script_call.with(""),
            None => script_call,
        };
        script_call.with_floor(self.floor)
    }

    /// A poll needs the client's presence record too.
    fn goes_alone(&self) -> bool {
        self.mode != Mode::Poll
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Acquired), ReplyError> {
        let mut words = ReplyReader::of(reply, self.request.as_str())?;
        let acquired = match words.status {
            1 => Acquired::Granted {
                grant: Grant {
                    request: self.request.clone(),
                    deadline: words.deadline,
                    fence: words.fence()?,
                    pushed: words.flag()?,
                },
                was_queued: words.flag()?,
            },
            2 | 3 => {
                let ticket = words.number()?;
                Acquired::Contended(Contended {
                    ttl: words.deadline.since(words.now),
                    ticket: (words.status == 2).then_some(Ticket(ticket)),
                    ahead: words.number()?,
                    enqueued: words.flag()?,
                    seen: words.flag()?,
                    own_grant: words.own_grant()?,
                })
            }
            4 => Acquired::ExpiredCall,
            5 => Acquired::NotRegistered { seen: words.flag()? },
            6 => Acquired::Incomplete,
            7 => return Err(ReplyError::Elsewhere),
            8 => Acquired::Full,
            9 => return Err(ReplyError::ClockBehind),
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

    fn hands_over(&self) -> bool {
        true
    }

    fn script_call(&self, way: PubSubMode, declared: Declared) -> ScriptCall {
        let script_call = ScriptCall::of_lock(&RELEASE, &self.keys, declared);
        let script_call = script_call.with(&self.request);
        let (what, fence) = match self.what {
            ReleaseWhat::Grant(fence) => ("grant", fence),
            ReleaseWhat::Turns { first, .. } => ("turns", first),
            ReleaseWhat::Keep { fence, .. } => ("keep", fence),
            ReleaseWhat::Force(fence) => ("force", fence),
        };
        let script_call = script_call.with(what).with(fence).with_address(way, &self.keys);
        match (self.what, self.floor) {
            (ReleaseWhat::Turns { last, .. }, None) => script_call.with_floor(Some(last)),
            (ReleaseWhat::Turns { last, .. }, Some(floor)) => {
                script_call.with(format_args!("{:016} {:016}", last.get(), floor.get()))
            }
            (ReleaseWhat::Keep { at_least, until, .. }, floor) => {
                let (most, until) = (millis(at_least), until.ms());
                match floor {
                    Some(floor) => {
                        script_call.with(format_args!("{most:010} {until:013} {:016}", floor.get()))
                    }
                    None => script_call.with(format_args!("{most:010} {until:013}")),
                }
            }
            (ReleaseWhat::Grant(_) | ReleaseWhat::Force(_), floor) => script_call.with_floor(floor),
        }
    }

    fn goes_alone(&self) -> bool {
        true
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Released), ReplyError> {
        let mut words = ReplyReader::of(reply, self.request.as_str())?;
        let outcome = match words.status {
            1 => ReleaseOutcome::Released,
            2 => ReleaseOutcome::OneFewer,
            3 => ReleaseOutcome::Expired,
            4 => ReleaseOutcome::Taken,
            5 => return Err(ReplyError::Elsewhere),
            6 => return Err(ReplyError::ClockBehind),
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

    fn hands_over(&self) -> bool {
        true
    }

    fn script_call(&self, way: PubSubMode, declared: Declared) -> ScriptCall {
        let mut script_call = ScriptCall::of_lock(&WITHDRAW, &self.keys, declared);
        let start = script_call.text.len();
        for request in &self.requests {
            let space = if script_call.text.len() > start { " " } else { "" };
            write!(script_call.text, "{space}{request}").expect("a string takes what it is given");
        }
        script_call.words.push(start..script_call.text.len());
        script_call.with_address(way, &self.keys).with_floor(self.floor)
    }

    fn goes_alone(&self) -> bool {
        true
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Withdrawn), ReplyError> {
        let mut words = ReplyReader::of(reply, self.requests[0].as_str())?;
        match words.status {
            1 => words.skip(1),
            5 => return Err(ReplyError::Elsewhere),
            6 => return Err(ReplyError::ClockBehind),
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

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        renewal(ScriptCall::new(&RENEW, &[&self.keys.lock]), self)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Renewed), ReplyError> {
        let words = ReplyReader::of(reply, self.request.as_str())?;
        Ok((words.now, renewed(&words)?))
    }
}

/// Adds the arguments of a renewal.
fn renewal(script_call: ScriptCall, renew: &Renew) -> ScriptCall {
    script_call
        .with(&renew.request)
        .with(renew.fence)
        .with_lease(renew.lease)
        .with(renew.cap.ms())
}

/// Reads what became of the hold.
fn renewed(words: &ReplyReader<'_>) -> Result<Renewed, ReplyError> {
    match words.status {
        1 => Ok(Renewed::Until(words.deadline)),
        2 => Ok(Renewed::Expired),
        3 => Ok(Renewed::Taken),
        _ => Err(words.malformed()),
    }
}

impl Operation for Look {
    type Reply = Looked;

    fn key(&self) -> &str {
        self.renew.key()
    }

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        let keys = &self.renew.keys;
        renewal(ScriptCall::new(&LOOK, &[&keys.lock, &keys.queue]), &self.renew)
            .with_floor(Some(self.floor))
            .with(self.ticket.0)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Looked), ReplyError> {
        let mut words = ReplyReader::of(reply, self.renew.request.as_str())?;
        if words.status == 4 {
            return Err(ReplyError::ClockBehind);
        }
        let renewed = renewed(&words)?;
        let is_held = matches!(renewed, Renewed::Until(_));
        let looked = Looked {
            renewed,
            fence: if is_held { words.fence()? } else { self.renew.fence },
            earlier: is_held && words.flag()?,
        };
        Ok((words.now, looked))
    }
}

impl Operation for Inspect {
    type Reply = Inspected;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn script_call(&self, _: PubSubMode, declared: Declared) -> ScriptCall {
        let script_call = match declared {
            Declared::All => ScriptCall::new(&INSPECT, &[&self.keys.lock, &self.keys.queue]),
            Declared::LockAlone => ScriptCall::new(&INSPECT, &[&self.keys.lock]),
        };
        script_call.with(&self.request)
    }

    fn goes_alone(&self) -> bool {
        true
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Inspected), ReplyError> {
        let mut words = ReplyReader::of(reply, self.request.as_str())?;
        let (holder, waiting) = match words.status {
            1 => {
                let (deadline, fence) = (words.deadline, words.fence()?);
                let (owner, holds) = (words.text()?, words.number()?);
                let (waiting, client) = (words.number()?, words.text()?);
                let holding = Holding {
                    owner: Owner::from_wire(owner),
                    client: ClientId::from_wire(client),
                    fence,
                    holds,
                    deadline,
                    kept: RequestId::from_wire(owner).is_some_and(|request| request.is_kept()),
                };
                (Some(holding), waiting)
            }
            2 => {
                words.skip(3);
                let waiting = words.number()?;
                words.skip(1);
                (None, waiting)
            }
            3 => return Err(ReplyError::Elsewhere),
            _ => return Err(words.malformed()),
        };
        let first = words.number()?;
        let inspected = Inspected {
            holder,
            waiting,
            first: (waiting > 0).then_some(Ticket(first)),
        };
        Ok((words.now, inspected))
    }
}

impl Operation for SpinAcquire {
    type Reply = SpinAcquired;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        ScriptCall::new(&SPIN_ACQUIRE, &[&self.keys.spin])
            .with(&self.owner)
            .with(millis(self.lease))
            .with(self.request.simple())
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, SpinAcquired), ReplyError> {
        let mut words = ReplyReader::of(reply, self.owner.as_str())?;
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

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        ScriptCall::new(&SPIN_RELEASE, &[&self.keys.spin]).with(&self.owner)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, SpinReleased), ReplyError> {
        let mut words = ReplyReader::of(reply, self.owner.as_str())?;
        let released = match words.status {
            1 => SpinReleased::Left(words.number()?),
            2 => SpinReleased::NotHeld,
            _ => return Err(words.malformed()),
        };
        Ok((words.now, released))
    }
}
