//! Asks for the lock, or for a place in its queue.

use std::sync::Arc;
use std::time::Duration;

use super::{CallKind, Operation};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::{Grant, Priority, Stamp};
use crate::protocol::keys::Keys;
use crate::protocol::script::{ACQUIRES, Declared, PubSubMode, ReplyError, ReplyReader, ScriptCall};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;
use crate::types::status::Kind;

/// How an acquire takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Take the lock if no reachable waiter is in front; never queue.
    Try,
    /// Queue if the lock is held.
    Ask,
    /// Like `Ask`, and also prolong the queue's TTL. The reply says whether the server sees the client's
    /// subscription.
    Poll,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// Gives the server time past which this call must do nothing new.
    pub(crate) not_after: Arc<dyn Stamp>,
    /// The place that the request had before, if it had one.
    pub(crate) ticket: Option<Ticket>,
    /// In a quorum: the least fence of a grant, which takes the place of the server's time. The ticket then
    /// counts as it is, even if it is later than the server's time.
    pub(crate) floor: Option<Fence>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The request holds the lock, by this call or by an earlier grant.
    Granted {
        grant: Grant,
        /// This call granted the lock, and found the request in the queue.
        was_queued: bool,
    },
    /// Another owner holds the lock.
    Contended(Contended),
    /// The call ran after its `not_after`: nothing was done.
    ExpiredCall,
    /// The call removed so many unreachable waiters that it stopped half-way. It must be repeated.
    Incomplete,
    /// The owner has the maximum number of holds, and nothing was done.
    Full,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contended {
    /// The time until the lock can be free at the earliest, if nobody releases it.
    pub(crate) ttl: Duration,
    /// The request's place in the queue; `None` for [`Mode::Try`].
    pub(crate) ticket: Option<Ticket>,
    /// An upper bound of the number of requests that are queued before this one.
    pub(crate) ahead: u64,
    /// This call put the request into the queue. It was not queued before.
    pub(crate) enqueued: bool,
    /// The holder's grant, if the holder is another request of the same client. That request may not have
    /// received its push.
    pub(crate) own_grant: Option<Grant>,
}

impl Operation for Acquire {
    type Reply = Acquired;
    const KIND: CallKind = CallKind::Acquire;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    /// In a quorum, each request brings a ticket, and none goes before others because of it.
    fn priority(&self) -> Priority {
        match self.ticket.is_some() && self.floor.is_none() {
            true => Priority::Return,
            false => Priority::Ask,
        }
    }

    fn floor(&self) -> Option<Fence> {
        self.floor
    }

    fn stamp(&self) -> Option<&dyn Stamp> {
        Some(&*self.not_after)
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn script_call(&self, way: PubSubMode, declared: Declared) -> ScriptCall {
        let script_call = ScriptCall::of_lock(&ACQUIRES, &self.keys, declared);
        let mode = match self.mode {
            Mode::Try => "try",
            Mode::Ask => "ask",
            Mode::Poll => "poll",
        };
        let script_call = script_call
            .with(&self.request)
            .with(mode)
            .with_lease(self.lease)
            .with_not_after(&self.not_after)
            .with_address(way, &self.keys);
        let script_call = match self.ticket {
            Some(ticket) => script_call.with(ticket.0),
            None if self.floor.is_some() => script_call.with(""),
            None => script_call,
        };
        script_call.with_floor(self.floor)
    }

    /// A poll is for the queue too.
    fn goes_alone(&self) -> bool {
        self.mode != Mode::Poll && self.keys.may_go_alone()
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Acquired), ReplyError> {
        let mut words = ReplyReader::of(reply, self.request.as_str())?;
        let acquired = match words.status {
            1 => {
                let (fence, pushed, was_queued) = (words.fence()?, words.flag()?, words.flag()?);
                let slot = match self.keys.kind {
                    Kind::Lock => None,
                    Kind::Semaphore | Kind::ReadWrite => words.slot()?,
                };
                let grant = Grant {
                    request: self.request.clone(),
                    deadline: words.deadline,
                    fence,
                    pushed,
                    slot,
                };
                Acquired::Granted { grant, was_queued }
            }
            2 | 3 => {
                let ticket = words.number()?;
                Acquired::Contended(Contended {
                    ttl: words.deadline.since(words.now),
                    ticket: (words.status == 2).then_some(Ticket(ticket)),
                    ahead: words.number()?,
                    enqueued: words.flag()?,
                    own_grant: words.own_grant()?,
                })
            }
            4 => Acquired::ExpiredCall,
            5 => Acquired::Incomplete,
            6 => return Err(ReplyError::Elsewhere),
            7 => Acquired::Full,
            8 => return Err(ReplyError::ClockBehind),
            _ => return Err(words.malformed()),
        };
        Ok((words.now, acquired))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::ClientId;

    #[test]
    fn calls_of_requests_with_a_place_go_before_those_that_ask_for_one() {
        let time = Duration::from_secs(1);
        let new = Acquire {
            keys: Arc::new(Keys::new("fairlock", "a").unwrap()),
            request: RequestId::new(&ClientId::from_number(1), time, 1, None),
            mode: Mode::Ask,
            lease: time,
            not_after: Arc::new(ServerTime::MAX),
            ticket: None,
            floor: None,
        };
        let returns = Acquire {
            ticket: Some(Ticket(1)),
            ..new.clone()
        };
        // It may not overtake the first call of its own request.
        let first_poll = Acquire {
            mode: Mode::Poll,
            ..new.clone()
        };
        let in_a_quorum = Acquire {
            floor: Fence::new(1),
            ..returns.clone()
        };
        let priorities = [new, first_poll, returns, in_a_quorum].map(|call| call.priority());
        let expected = [Priority::Ask, Priority::Ask, Priority::Return, Priority::Ask];
        assert_eq!(priorities, expected);
    }
}
