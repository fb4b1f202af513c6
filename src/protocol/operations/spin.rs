//! Takes and releases spin locks.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{CallKind, Operation};
use crate::protocol::interface::Priority;
use crate::protocol::keys::Keys;
use crate::protocol::script::{
    Declared, PubSubMode, ReplyError, ReplyReader, SPIN_ACQUIRE, SPIN_RELEASE, ScriptCall,
};
use crate::time::server_time::{ServerTime, millis};
use crate::types::owner::Owner;

#[derive(Clone, Debug)]
pub(crate) struct SpinAcquire {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Owner,
    /// Names the future hold. Repeated calls with this id count once.
    pub(crate) request: Uuid,
    pub(crate) lease: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinAcquired {
    /// The owner holds the lock this many times.
    Held(u64),
    /// Another owner holds the lock.
    Busy,
}

#[derive(Clone, Debug)]
pub(crate) struct SpinRelease {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinReleased {
    /// The owner still holds the lock this many times. 0 means that it is free.
    Left(u64),
    /// The owner does not hold the lock, or holds it no longer.
    NotHeld,
}

impl Operation for SpinAcquire {
    type Reply = SpinAcquired;
    const KIND: CallKind = CallKind::Other;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::Ask
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
    const KIND: CallKind = CallKind::Other;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::End
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
