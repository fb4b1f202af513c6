//! Ends a hold.

use std::sync::Arc;
use std::time::Duration;

use super::{CallKind, Operation};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::Priority;
use crate::protocol::keys::Keys;
use crate::protocol::script::{Declared, PubSubMode, RELEASES, ReplyError, ReplyReader, ScriptCall};
use crate::time::server_time::{ServerTime, millis};
use crate::types::fence::Fence;
use crate::types::status::Kind;

#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) what: ReleaseWhat,
    /// In a quorum: the least fence of the next owner, which takes the place of the server's time.
    pub(crate) floor: Option<Fence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseWhat {
    /// Releases the grant with this fence. Never removes a queue entry or a newer grant of the request.
    Grant(Fence),
    /// The same for a hold that has used several fences, from the first one to the last one.
    Turns { first: Fence, last: Fence },
    /// Releases the grant with this fence, but keeps the lock taken until the server time `until`, and for
    /// `at_least` at the longest. After that time it is a release as above.
    Keep {
        fence: Fence,
        at_least: Duration,
        until: ServerTime,
    },
    /// Releases every hold under this fence, of any request. The request only names the call. Of permits,
    /// there may be very many holds, and a call searches some of them, `from` what [`Released::searched`]
    /// said, or 0.
    Force { fence: Fence, from: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) outcome: ReleaseOutcome,
    /// The server's ACL does not let this client publish. Waiters depend on their timers.
    pub(crate) denied: bool,
    /// The call removed so many unreachable waiters that the hand-over stopped half-way. It must be repeated.
    pub(crate) more: bool,
    /// A forced release has not found the hold yet, and goes on from here.
    pub(crate) searched: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// The last hold is gone, and the lock is handed over or free.
    Released,
    /// The owner still has other holds.
    OneFewer,
    /// The request holds no longer: the lease expired, and nobody has had the lock since.
    Expired,
    /// The request holds no longer: the lock has another owner, or was released before.
    Taken,
}

impl Released {
    /// Reads the reply to a call of this request.
    pub(super) fn read(
        reply: &str,
        kind: Kind,
        request: &RequestId,
    ) -> Result<(ServerTime, Released), ReplyError> {
        let mut words = ReplyReader::of(reply, request.as_str())?;
        let outcome = match words.status {
            1 => ReleaseOutcome::Released,
            2 => ReleaseOutcome::OneFewer,
            3 => ReleaseOutcome::Expired,
            4 => ReleaseOutcome::Taken,
            5 => return Err(ReplyError::Elsewhere),
            6 => return Err(ReplyError::ClockBehind),
            _ => return Err(words.malformed()),
        };
        let released = Released {
            outcome,
            denied: words.flag()?,
            more: words.flag()?,
            searched: match kind {
                Kind::Lock => None,
                Kind::Semaphore | Kind::ReadWrite => Some(words.number()?).filter(|place| *place > 0),
            },
        };
        Ok((words.now, released))
    }
}

impl Operation for Release {
    type Reply = Released;
    const KIND: CallKind = CallKind::Release;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::End
    }

    fn floor(&self) -> Option<Fence> {
        self.floor
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn script_call(&self, mode: PubSubMode, declared: Declared) -> ScriptCall {
        let script_call = ScriptCall::of_lock(&RELEASES, &self.keys, declared);
        let script_call = script_call.with(&self.request);
        let (what, fence) = match self.what {
            ReleaseWhat::Grant(fence) => ("grant", fence),
            ReleaseWhat::Turns { first, .. } => ("grant", first),
            ReleaseWhat::Keep { fence, .. } => ("keep", fence),
            ReleaseWhat::Force { fence, .. } => ("force", fence),
        };
        let script_call = script_call.with(what).with(fence).with_address(mode, &self.keys);
        let (last, kept) = match self.what {
            ReleaseWhat::Grant(_) | ReleaseWhat::Force { from: 0, .. } => {
                return script_call.with_floor(self.floor);
            }
            ReleaseWhat::Force { from, .. } => return script_call.with("").with("").with(from),
            ReleaseWhat::Turns { last, .. } => (last, None),
            ReleaseWhat::Keep { at_least, until, .. } => (fence, Some((at_least, until))),
        };
        let script_call = match self.floor {
            None => script_call.with(""),
            floor => script_call.with_floor(floor),
        };
        let script_call = script_call.with_floor(Some(last));
        match kept {
            None => script_call,
            Some((at_least, until)) => script_call.with(millis(at_least)).with(until.ms()),
        }
    }

    fn goes_alone(&self) -> bool {
        self.keys.may_go_alone()
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Released), ReplyError> {
        Released::read(reply, self.keys.kind, &self.request)
    }
}
