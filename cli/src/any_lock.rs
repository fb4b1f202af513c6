//! A lock of any kind, as the arguments name it.

use std::time::Duration;

use fairlock::{Fence, Kind, Lock, LockGuard, LockManager, Owner, Result, RwLock, Semaphore, Status};

#[derive(Clone)]
pub(crate) enum AnyLock {
    Lock(Lock),
    Semaphore(Semaphore),
    Read(RwLock),
    Write(RwLock),
}

/// The same expression for each kind.
macro_rules! each {
    ($any:expr, $lock:ident => $value:expr) => {
        match $any {
            AnyLock::Lock($lock) => $value,
            AnyLock::Semaphore($lock) => $value,
            AnyLock::Read($lock) | AnyLock::Write($lock) => $value,
        }
    };
}

/// The same setting for each kind.
macro_rules! set {
    ($any:expr, $lock:ident => $value:expr) => {
        match $any {
            AnyLock::Lock($lock) => AnyLock::Lock($value),
            AnyLock::Semaphore($lock) => AnyLock::Semaphore($value),
            AnyLock::Read($lock) => AnyLock::Read($value),
            AnyLock::Write($lock) => AnyLock::Write($value),
        }
    };
}

impl AnyLock {
    /// A lock of this kind, to look at.
    pub(crate) fn seen_as(kind: Kind, locks: &LockManager, name: &str) -> AnyLock {
        match kind {
            Kind::Semaphore => AnyLock::Semaphore(locks.semaphore(name, 1)),
            Kind::ReadWrite => AnyLock::Read(locks.rw_lock(name)),
            _ => AnyLock::Lock(locks.lock(name)),
        }
    }

    pub(crate) fn name(&self) -> &str {
        each!(self, lock => lock.name())
    }

    pub(crate) fn lease(self, lease: Duration) -> AnyLock {
        set!(self, lock => lock.lease(lease))
    }

    pub(crate) fn max_hold(self, max_hold: Option<Duration>) -> AnyLock {
        set!(self, lock => lock.max_hold(max_hold))
    }

    pub(crate) fn at_least(self, at_least: Option<Duration>) -> AnyLock {
        set!(self, lock => lock.at_least(at_least))
    }

    /// Only a lock is held for an owner.
    pub(crate) fn owner(self, owner: &Owner) -> AnyLock {
        match self {
            AnyLock::Lock(lock) => AnyLock::Lock(lock.owner(owner)),
            other => other,
        }
    }

    /// Waits for this long at most. Returns the slot, too, if there is one.
    pub(crate) async fn acquire(&self, wait: Duration) -> Result<(LockGuard, Option<u32>)> {
        Ok(match self {
            AnyLock::Lock(lock) => (lock.acquire_timeout(wait).await?, None),
            AnyLock::Semaphore(semaphore) => {
                let guard = semaphore.acquire_timeout(wait).await?;
                let slot = guard.slot();
                (guard.into(), slot)
            }
            AnyLock::Read(lock) => (lock.read().acquire_timeout(wait).await?.into(), None),
            AnyLock::Write(lock) => (lock.write().acquire_timeout(wait).await?.into(), None),
        })
    }

    pub(crate) async fn status(&self) -> Result<Status> {
        each!(self, lock => lock.status().await)
    }

    pub(crate) async fn force_release(&self, fence: Fence) -> Result<bool> {
        each!(self, lock => lock.force_release(fence).await)
    }
}
