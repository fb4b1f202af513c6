//! Renews a hold in a quorum, raises its fence, and says whether an earlier request is queued.

use super::renew::{renewal, renewed};
use super::{CallKind, Operation, Renew, Renewed};
use crate::protocol::interface::Priority;
use crate::protocol::script::{Declared, LOOK, PubSubMode, ReplyError, ReplyReader, ScriptCall};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;

/// Renews a hold in a quorum that is not one of a majority under one fence yet.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) renew: Renew,
    /// Raises a smaller fence to this one. The fence of `renew` itself raises nothing.
    pub(crate) floor: Fence,
    /// The place that the request has in the queues of all servers.
    pub(crate) ticket: Ticket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) renewed: Renewed,
    /// The fence of the hold after the call. If the hold is gone, the fence that the call named.
    pub(crate) fence: Fence,
    /// The first request in the queue has an earlier ticket. Of equal tickets, that of the first client by id
    /// is earlier. Never true if the hold is gone.
    pub(crate) earlier: bool,
}

impl Operation for Look {
    type Reply = Looked;
    const KIND: CallKind = CallKind::Renew;

    fn key(&self) -> &str {
        self.renew.key()
    }

    fn priority(&self) -> Priority {
        Priority::Keep
    }

    /// The floor, if it raises the fence.
    fn floor(&self) -> Option<Fence> {
        Some(self.floor).filter(|floor| *floor != self.renew.fence)
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
