//! Removes whatever the server has of requests that are never used again.

use std::fmt::Write;
use std::sync::Arc;

use super::{CallKind, Operation};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::Priority;
use crate::protocol::keys::Keys;
use crate::protocol::script::{Declared, PubSubMode, ReplyError, ReplyReader, ScriptCall, WITHDRAWALS};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;

/// Removes the queue entries and holds of these requests of one client. The requests are never used again.
#[derive(Clone, Debug)]
pub(crate) struct Withdraw {
    pub(crate) keys: Arc<Keys>,
    /// Contains between one and [`MAX_WITHDRAWN`] requests.
    pub(crate) requests: Vec<RequestId>,
    /// As for a release.
    pub(crate) floor: Option<Fence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withdrawn {
    /// The call removed so many unreachable waiters that a hand-over stopped half-way. It must be repeated.
    pub(crate) more: bool,
}

/// How many requests one call may withdraw. That many take one or two ms of the server.
pub(crate) const MAX_WITHDRAWN: usize = 250;

impl Operation for Withdraw {
    type Reply = Withdrawn;
    const KIND: CallKind = CallKind::Withdraw;

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
        let mut script_call = ScriptCall::of_lock(&WITHDRAWALS, &self.keys, declared);
        let start = script_call.text.len();
        for request in &self.requests {
            let space = if script_call.text.len() > start { " " } else { "" };
            write!(script_call.text, "{space}{request}").expect("a string takes what it is given");
        }
        script_call.words.push(start..script_call.text.len());
        script_call.with_address(mode, &self.keys).with_floor(self.floor)
    }

    fn goes_alone(&self) -> bool {
        self.keys.may_go_alone()
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
