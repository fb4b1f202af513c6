//! How a lock is acquired, held and released: everything between the public types and the store.

pub(crate) mod acquire;
pub(crate) mod background;
pub(crate) mod client;
pub(crate) mod counters;
pub(crate) mod hold;
pub(crate) mod pending_calls;
pub(crate) mod presence;
pub(crate) mod retry;
pub(crate) mod server_clocks;
pub(crate) mod shared;
pub(crate) mod waitlist;
