//! What a holder knows of its lease.

use std::time::Duration;

/// What a guard knows of its lease at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    length: Duration,
    remaining: Duration,
    state: LeaseState,
}

/// Whether a lease is still good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// It is, and the last renewal succeeded.
    Held,
    /// It is, but renewals fail: unless one succeeds, it will be over in [`Lease::remaining`].
    InDoubt,
    /// It is over: somebody else may hold the lock.
    Lost,
}

impl Lease {
    pub(crate) fn new(length: Duration, remaining: Duration, state: LeaseState) -> Lease {
        Lease {
            length,
            remaining,
            state,
        }
    }

    /// How long the server keeps the hold after each renewal.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// For how long the hold is good even if no renewal gets through any more; zero when it is lost.
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Whether the lease is still good.
    pub fn state(&self) -> LeaseState {
        self.state
    }
}
