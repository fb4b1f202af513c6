//! A fair distributed lock for async Rust on Redis and Valkey.

#![warn(missing_docs)]

mod acquire;
mod attendant;
mod client;
mod clock;
mod error;
mod guard;
mod held;
mod hold;
mod keeper;
mod key;
mod lease;
mod lock;
mod manager;
mod options;
mod retry;
mod room;
mod rooms;
mod script;
pub mod spin;
mod store;

pub use error::{Error, Invalid, Lost, LostReason, Result, ServerError, Unreleased};
pub use guard::LockGuard;
pub use key::Owner;
pub use lease::{Fence, Lease, LeaseState};
pub use lock::{Busy, Holder, Lock, Status, TryAcquire};
pub use manager::{LockManager, LockManagerBuilder, Stats};
pub use store::memory::MemoryStore;
