//! Prolongs a hold.

use std::sync::Arc;
use std::time::Duration;

use super::{CallKind, Operation};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::{Answer, Call, Priority};
use crate::protocol::keys::Keys;
use crate::protocol::script::{Declared, PubSubMode, RENEWALS, ReplyError, ReplyReader, ScriptCall};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;
use crate::types::status::Kind;

#[derive(Clone, Debug)]
pub(crate) struct Renew {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) fence: Fence,
    pub(crate) lease: Duration,
    /// The deadline never gets later than this.
    pub(crate) cap: ServerTime,
    /// A caller asks for it. The background renews the hold in time anyway.
    pub(crate) on_demand: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Until(ServerTime),
    /// The request holds no longer: the lease expired, and nobody has had the lock since.
    Expired,
    /// The request holds no longer: the lock has another owner, or was released.
    Taken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) renewed: Renewed,
    /// How many of the wanted servers have the renewal, and therefore the grant before it.
    pub(crate) got: u32,
}

impl Answer<Renewed> {
    /// Adds the number of servers that are known to have the renewal.
    pub(crate) fn confirmed(self, got: u32) -> Answer<Confirmed> {
        Answer {
            on: self.on,
            at: self.at,
            reply: Confirmed {
                renewed: self.reply,
                got,
            },
        }
    }
}

/// A renewal that no other server was asked to confirm.
pub(crate) fn unreplicated(renewal: Call<Renewed>) -> Call<Confirmed> {
    Box::pin(async move { Ok(renewal.await?.confirmed(0)) })
}

impl Operation for Renew {
    type Reply = Renewed;
    const KIND: CallKind = CallKind::Renew;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        match self.on_demand {
            true => Priority::End,
            false => Priority::Keep,
        }
    }

    fn script_call(&self, _: PubSubMode, declared: Declared) -> ScriptCall {
        let Keys { lock, timers, .. } = &*self.keys;
        let script_call = match declared {
            Declared::All if self.prolongs_timers() => {
                ScriptCall::new(RENEWALS.of(self.keys.kind), &[lock, timers])
            }
            _ => ScriptCall::of_lock(&RENEWALS, &self.keys, Declared::LockAlone),
        };
        renewal(script_call, self)
    }

    /// A renewal of a lock has no other key anyway.
    fn goes_alone(&self) -> bool {
        self.prolongs_timers()
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Renewed), ReplyError> {
        let words = ReplyReader::of(reply, self.request.as_str())?;
        Ok((words.now, renewed(&words)?))
    }
}

impl Renew {
    /// Permits may be held for as long as their holders live, with no call but renewals. So these keep the
    /// timers, too.
    fn prolongs_timers(&self) -> bool {
        self.keys.kind != Kind::Lock
    }
}

/// Adds the arguments of a renewal.
pub(super) fn renewal(script_call: ScriptCall, renew: &Renew) -> ScriptCall {
    script_call
        .with(&renew.request)
        .with(renew.fence)
        .with_lease(renew.lease)
        .with(renew.cap.ms())
}

/// Reads what became of the hold.
pub(super) fn renewed(words: &ReplyReader<'_>) -> Result<Renewed, ReplyError> {
    match words.status {
        1 => Ok(Renewed::Until(words.deadline)),
        2 => Ok(Renewed::Expired),
        3 => Ok(Renewed::Taken),
        _ => Err(words.malformed()),
    }
}
