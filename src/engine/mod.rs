//! How a lock is acquired, held and released: everything between the public types and the store.

pub(crate) mod acquire;
pub(crate) mod any_hold;
mod background;
pub(crate) mod client;
pub(crate) mod counters;
pub(crate) mod floor;
pub(crate) mod heard;
pub(crate) mod hold;
pub(crate) mod metrics;
pub(crate) mod operator;
pub(crate) mod options;
mod pending_calls;
pub(crate) mod retry;
pub(crate) mod runtime;
mod server_clocks;
pub(crate) mod shared;
pub(crate) mod waitlist;
