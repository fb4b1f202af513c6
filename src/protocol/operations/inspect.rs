//! Asks who has the lock, and how many wait.

use std::sync::Arc;

use super::{CallKind, Operation};
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::interface::Priority;
use crate::protocol::keys::Keys;
use crate::protocol::script::{Declared, INSPECTIONS, PubSubMode, ReplyError, ReplyReader, ScriptCall};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;
use crate::types::owner::Owner;
use crate::types::status::Kind;

#[derive(Clone, Debug)]
pub(crate) struct Inspect {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    /// A lock has one at most. Of permits, the first 100, in the order in which their holds end.
    pub(crate) holders: Vec<InspectedHold>,
    /// The number of permits that are in use. For a lock, 1 if it is held.
    pub(crate) in_use: u64,
    pub(crate) waiting: u64,
    /// The ticket of the first request in the queue.
    pub(crate) first: Option<Ticket>,
}

/// Reads the rest of the reply for permits.
fn of_permits(mut words: ReplyReader<'_>) -> Result<(ServerTime, Inspected), ReplyError> {
    let (in_use, waiting) = (words.number()?, words.number()?);
    let (first, listed) = (words.number()?, words.number()?);
    let mut holders = Vec::new();
    for _ in 0..listed {
        let deadline = ServerTime::from_ms(words.number()?);
        let fence = words.fence()?;
        let permits = u32::try_from(words.number()?).map_err(|_| words.malformed())?;
        let slot = words.slot()?;
        let holder = RequestId::from_wire(words.text()?).ok_or_else(|| words.malformed())?;
        holders.push(InspectedHold {
            permits,
            slot,
            ..InspectedHold::of(&holder, fence, deadline)
        });
    }
    let inspected = Inspected {
        holders,
        in_use,
        waiting,
        first: (waiting > 0).then_some(Ticket(first)),
    };
    Ok((words.now, inspected))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InspectedHold {
    pub(crate) owner: Owner,
    /// The client of the request by which the owner holds the lock.
    pub(crate) client: ClientId,
    pub(crate) fence: Fence,
    pub(crate) holds: u64,
    /// The latest deadline of all holds.
    pub(crate) deadline: ServerTime,
    /// The lock was released, and is only kept taken until then.
    pub(crate) kept: bool,
    /// Its client may have it without a guard.
    pub(crate) retains: bool,
    /// How many permits it has, and of how many at most. 1 of 1 for a lock.
    pub(crate) permits: u32,
    pub(crate) of: u32,
    pub(crate) slot: Option<u32>,
}

impl InspectedHold {
    /// A single hold of this request, with all permits that it asked for.
    pub(crate) fn of(request: &RequestId, fence: Fence, deadline: ServerTime) -> InspectedHold {
        InspectedHold {
            owner: Owner::from_wire(request.owner()),
            client: ClientId::from_wire(request.client()),
            fence,
            holds: 1,
            deadline,
            kept: request.is_kept(),
            retains: request.is_retaining(),
            permits: request.weight(),
            of: request.capacity(),
            slot: None,
        }
    }
}

impl Operation for Inspect {
    type Reply = Inspected;
    const KIND: CallKind = CallKind::Inspect;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::Ask
    }

    fn script_call(&self, _: PubSubMode, declared: Declared) -> ScriptCall {
        let Keys {
            kind,
            lock,
            queue,
            timers,
            ..
        } = &*self.keys;
        let script = INSPECTIONS.of(*kind);
        let script_call = match (declared, kind) {
            (Declared::LockAlone, _) => ScriptCall::new(script, &[lock]),
            (Declared::All, Kind::Lock) => ScriptCall::new(script, &[lock, queue]),
            (Declared::All, _) => ScriptCall::new(script, &[lock, queue, timers]),
        };
        script_call.with(&self.request)
    }

    fn goes_alone(&self) -> bool {
        self.keys.may_go_alone()
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Inspected), ReplyError> {
        let mut words = ReplyReader::of(reply, self.request.as_str())?;
        let (holders, waiting) = match words.status {
            1 => {
                let (deadline, fence) = (words.deadline, words.fence()?);
                let (owner, holds) = (words.text()?, words.number()?);
                let (waiting, client) = (words.number()?, words.text()?);
                let request = RequestId::from_wire(owner);
                let holding = InspectedHold {
                    owner: Owner::from_wire(owner),
                    client: ClientId::from_wire(client),
                    fence,
                    holds,
                    deadline,
                    kept: request.as_ref().is_some_and(RequestId::is_kept),
                    retains: request.as_ref().is_some_and(RequestId::is_retaining),
                    permits: 1,
                    of: 1,
                    slot: None,
                };
                (vec![holding], waiting)
            }
            2 => {
                words.skip(3);
                let waiting = words.number()?;
                words.skip(1);
                (Vec::new(), waiting)
            }
            3 => return Err(ReplyError::Elsewhere),
            4 => return of_permits(words),
            _ => return Err(words.malformed()),
        };
        let first = words.number()?;
        let inspected = Inspected {
            in_use: holders.len() as u64,
            holders,
            waiting,
            first: (waiting > 0).then_some(Ticket(first)),
        };
        Ok((words.now, inspected))
    }
}
