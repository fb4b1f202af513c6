//! What users hold: managers, locks and guards.

mod awaiting;
pub(crate) mod guard;
pub(crate) mod leadership;
pub(crate) mod lock;
pub(crate) mod lock_set;
pub(crate) mod manager;
pub(crate) mod rw_lock;
pub mod spin;
