//! The calls to a server. An operation is one type: its arguments, its reply, the script that executes it and
//! the reader of that script's reply.

mod acquire;
pub(crate) mod inspect;
pub(crate) mod label;
mod look;
mod rate;
pub(crate) mod release;
pub(crate) mod renew;
mod shrink;
mod spin;
mod withdraw;

use std::fmt;

pub(crate) use self::acquire::{Acquire, Acquired, Contended, Mode};
pub(crate) use self::inspect::{Inspect, Inspected};
pub(crate) use self::label::{GetLabel, SetLabel};
pub(crate) use self::look::{Look, Looked};
pub(crate) use self::rate::{Rate, RateAsk, RateAsked, RateCaller, RateLook, RateLooked};
pub(crate) use self::release::{Release, ReleaseOutcome, ReleaseWhat};
pub(crate) use self::renew::{Confirmed, Renew, Renewed};
pub(crate) use self::shrink::Shrink;
pub(crate) use self::spin::{SpinAcquire, SpinAcquired, SpinRelease, SpinReleased};
pub(crate) use self::withdraw::{MAX_WITHDRAWN, Withdraw, Withdrawn};
use crate::protocol::interface::{Priority, Stamp};
use crate::protocol::script::{Declared, PubSubMode, ReplyError, ScriptCall};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;

/// A call to a server. It can be repeated.
pub(crate) trait Operation: Clone + fmt::Debug + Send + Sync + 'static {
    type Reply: fmt::Debug + Send + 'static;
    const KIND: CallKind;

    /// A key of the call's lock. Any key will do, because all keys of a lock are in one slot.
    fn key(&self) -> &str;

    fn priority(&self) -> Priority;

    /// In a quorum: the least fence that the call gives. If it is too far ahead, the call does nothing.
    fn floor(&self) -> Option<Fence> {
        None
    }

    /// Gives the server time past which the call must do nothing new.
    fn stamp(&self) -> Option<&dyn Stamp> {
        None
    }

    /// Whether the call may make a waiter the holder. While a slot moves, such a call waits for a moment
    /// until the slot has arrived, because the waiter's client does not listen where the keys are.
    fn hands_over(&self) -> bool {
        false
    }

    /// Whether the call can declare the lock's own key alone, which is enough if nobody is queued. While a
    /// slot moves, a server of the cluster runs a call for several keys only if it has all of them. No
    /// server has a key that does not exist.
    fn goes_alone(&self) -> bool {
        false
    }

    /// The script call to send. If the call does not go alone, it declares all its keys in any case.
    fn script_call(&self, mode: PubSubMode, declared: Declared) -> ScriptCall;

    /// Reads a reply, which is one line of words. Returns the server time and the content.
    fn read(&self, reply: &str) -> Result<(ServerTime, Self::Reply), ReplyError>;
}

/// What a call asks of the server, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub(crate) enum CallKind {
    Acquire,
    Release,
    Withdraw,
    Renew,
    Confirm,
    Inspect,
    /// A call that is not measured.
    Other,
}
