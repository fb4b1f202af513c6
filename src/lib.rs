//! A fair distributed lock for async Rust on Redis and Valkey.

mod clock;
mod error;
mod key;
mod lease;
mod script;
mod store;

pub use error::{Error, Invalid, Lost, LostReason, Result, ServerError, Unreleased};
pub use key::Owner;
pub use lease::{Fence, Lease, LeaseState};
