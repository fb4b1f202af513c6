//! What goes over the wire, without I/O: the calls to a server, their scripts and replies, and what the
//! scripts do, in Rust.

pub(crate) mod ids;
pub(crate) mod interface;
pub(crate) mod keys;
pub(crate) mod label;
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub(crate) mod operations;
pub(crate) mod push;
pub(crate) mod rules;
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub(crate) mod script;

pub(crate) use self::interface::{
    Answer, Call, ConnectionId, Connections, Failure, Grant, KeepAlive, Listener, OnAnswer, Page, Position,
    RESERVED, ServerId, Stamp, TURNS_AHEAD_US,
};
#[cfg(test)]
pub(crate) use self::interface::{Priority, StoreFuture};
#[cfg(any(fuzzing, test))]
pub(crate) use self::operations::Operation;
#[cfg(all(feature = "redis", any(fuzzing, test)))]
pub(crate) use self::operations::inspect::InspectedHold;
pub(crate) use self::operations::release::Released;
pub(crate) use self::operations::{
    Acquire, Acquired, CallKind, Confirmed, Contended, GetLabel, Inspect, Inspected, Look, Looked,
    MAX_WITHDRAWN, Mode, Rate, RateAsk, RateAsked, RateCaller, RateLook, RateLooked, Release, ReleaseOutcome,
    ReleaseWhat, Renew, Renewed, SetLabel, Shrink, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased,
    Withdraw, Withdrawn,
};
pub(crate) use self::push::Push;
pub(crate) use self::rules::ByRules;
