//! What users hold: managers, locks and guards.

mod awaiting;
pub(crate) mod guard;
#[cfg(any(doc, all(doctest, feature = "redis")))]
pub mod guide;
pub(crate) mod handle;
pub(crate) mod leadership;
pub(crate) mod lock;
pub(crate) mod lock_set;
pub(crate) mod manager;
pub(crate) mod rate_limit;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub mod spin;
