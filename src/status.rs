//! What the calls of a lock answer.

use std::time::Duration;

use crate::fence::Fence;
use crate::guard::LockGuard;
use crate::owner::Owner;

/// What [`Lock::try_acquire`](crate::Lock::try_acquire) came to.
#[derive(Debug)]
#[must_use = "a lock that was acquired is released as soon as its guard is dropped"]
pub enum TryAcquire {
    /// The lock is held now.
    Acquired(LockGuard),
    /// Somebody else holds it.
    Busy(Busy),
}

impl TryAcquire {
    /// The guard, if the lock was acquired.
    pub fn acquired(self) -> Option<LockGuard> {
        match self {
            TryAcquire::Acquired(guard) => Some(guard),
            TryAcquire::Busy(_) => None,
        }
    }
}

/// A lock that somebody else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    retry_after: Duration,
    waiting: u64,
}

impl Busy {
    pub(crate) fn of(ttl: Duration, waiting: u64) -> Busy {
        Busy {
            retry_after: ttl.max(Duration::from_millis(1)),
            waiting,
        }
    }

    /// When the holder's lease ends if it is not renewed: the hold's time to live. Never zero.
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// The same in whole seconds, rounded up: for an HTTP `Retry-After`. Never zero.
    pub fn retry_after_secs(&self) -> u64 {
        let secs = self.retry_after.as_millis().div_ceil(1000);
        u64::try_from(secs).unwrap_or(u64::MAX)
    }

    /// How many wait for the lock.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }
}

/// A lock at one moment, as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Who holds it, if anybody does.
    pub holder: Option<Holder>,
    /// How many wait.
    pub waiting: u64,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Equal to [`LockGuard::owner`] of the guards that hold it.
    pub owner: Owner,
    /// What [`Lock::force_release`](crate::Lock::force_release) takes.
    pub fence: Fence,
    /// How many guards of this owner hold it.
    pub holds: u64,
    /// When the latest of their leases ends unless it is renewed.
    pub ttl: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_lock_never_says_to_try_again_at_once_or_too_early() {
        for (ttl_ms, after_ms, secs) in [(0, 1, 1), (1, 1, 1), (1000, 1000, 1), (1001, 1001, 2)] {
            let busy = Busy::of(Duration::from_millis(ttl_ms), 0);
            assert_eq!(busy.retry_after(), Duration::from_millis(after_ms));
            assert_eq!(busy.retry_after_secs(), secs);
        }
    }
}
