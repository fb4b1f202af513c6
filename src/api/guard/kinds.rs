//! The guards of semaphores and read/write locks: each is a [`LockGuard`], and what its kind alone can do.

use std::ops::Deref;
use std::pin::pin;

use super::{Kept, LockGuard};
use crate::caller::place::held::Held;
#[cfg(doc)]
use crate::types::error::Error;
use crate::types::error::{Invalid, Result};
use crate::types::permits::Permits;

/// What a call that acquires returns.
pub(crate) trait Guard {
    fn of(guard: LockGuard) -> Self;
}

impl Guard for LockGuard {
    fn of(guard: LockGuard) -> LockGuard {
        guard
    }
}

/// Permits of a semaphore that are held until the guard is released or dropped, or until its lease is lost.
///
/// It has all methods of a [`LockGuard`], and what is said there of drops and lost leases is true of it too.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let permit = locks.semaphore("api", 10).await?;
/// permit.check()?; // right before the call
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the permits are released as soon as their guard is dropped"]
pub struct SemaphoreGuard {
    guard: LockGuard,
    permits: u32,
}

impl SemaphoreGuard {
    /// Returns how many permits the guard has.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let bulk = locks.semaphore("api", 10).permits(3).await?;
    /// assert_eq!(bulk.permits(), 3);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "num_permits")]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns the slot of one permit: a number below the capacity that no other guard has, from the grant to
    /// the end of the hold. It is the smallest that was free. `None` for a guard that took several permits,
    /// also after it has [given some back](Self::shrink_to), and for a capacity above 1,000. So where slots
    /// name things, take one permit for each, and several of them as a [set](crate::LockSet) of semaphores.
    ///
    /// A slot is for what there is a fixed number of: the ids of nodes, GPUs, ports. The fences of the guards
    /// of one slot increase, so what belongs to a slot can refuse a stale guard as with a lock. While
    /// [`at_least`](crate::Semaphore::at_least) keeps the permit taken, it keeps the slot too. While callers
    /// name different capacities, each gets a slot below its own.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let gpus = locks.semaphore("gpu", 4);
    /// let (first, second) = (gpus.acquire().await?, gpus.acquire().await?);
    /// assert_eq!((first.slot(), second.slot()), (Some(0), Some(1)));
    /// first.release().await?;
    /// assert_eq!(gpus.acquire().await?.slot(), Some(0));
    /// # Ok(()) }
    /// ```
    pub fn slot(&self) -> Option<u32> {
        self.guard.hold().slot()
    }

    /// Gives back permits, and keeps this number of them, in one round trip. The fence and the lease stay.
    ///
    /// # Errors
    /// - [`Error::Invalid`] if the guard has fewer, and for none at all.
    /// - [`Error::Lost`] if the permits are no longer held.
    /// - [`Error::Unavailable`] if the server did not answer for the
    ///   [`server_timeout`](crate::LockManagerBuilder::server_timeout), and [`Error::Refused`] if it refuses
    ///   this client. The permits may be given back or not, and a further call settles it.
    ///
    /// # Cancel safety
    /// If the future is dropped midway, the permits may be given back or not. A further call settles it.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let mut bulk = locks.semaphore("api", 10).permits(8).await?;
    /// // ... the large part is done ...
    /// bulk.shrink_to(1).await?;
    /// assert!(locks.semaphore("api", 10).permits(9).try_acquire().await.is_ok());
    /// # Ok(()) }
    /// ```
    #[doc(alias = "split")]
    pub async fn shrink_to(&mut self, permits: u32) -> Result<()> {
        if !(1..=self.permits).contains(&permits) {
            let has = self.permits;
            return Err(Invalid::new(format!(
                "permits {permits}: must be from 1 to those that the guard has, {has}"
            ))
            .into());
        }
        self.guard.shrink(permits).await?;
        self.permits = permits;
        Ok(())
    }

    /// Releases the permits, as [`LockGuard::release`] does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let permit = locks.semaphore("api", 10).await?;
    /// permit.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}

impl Guard for SemaphoreGuard {
    fn of(guard: LockGuard) -> SemaphoreGuard {
        let permits = guard.held().map_or(1, Held::permits);
        SemaphoreGuard { guard, permits }
    }
}

/// A read/write lock that is held together with other readers.
///
/// It has all methods of a [`LockGuard`], and what is said there of drops and lost leases is true of it too.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let reading = locks.rw_lock("config").read().await?;
/// println!("reads under fence {}", reading.fence());
/// reading.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct ReadGuard(LockGuard);

impl ReadGuard {
    /// Releases the lock, as [`LockGuard::release`] does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let reading = locks.rw_lock("config").read().await?;
    /// reading.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }
}

impl Guard for ReadGuard {
    fn of(guard: LockGuard) -> ReadGuard {
        ReadGuard(guard)
    }
}

/// A read/write lock that one writer holds.
///
/// It has all methods of a [`LockGuard`], and what is said there of drops and lost leases is true of it too.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let writing = locks.rw_lock("config").write().await?;
/// println!("writes under fence {}", writing.fence());
/// writing.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct WriteGuard(LockGuard);

impl WriteGuard {
    /// Makes the writer a reader, in one round trip. The readers behind it come in, and no other writer does
    /// before them. The fence and the lease stay.
    ///
    /// There is no way back: a reader that wants to write releases its guard, and acquires the other side.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the lock is no longer held.
    /// - [`Error::Unavailable`] if the server did not answer for the
    ///   [`server_timeout`](crate::LockManagerBuilder::server_timeout), and [`Error::Refused`] if it refuses
    ///   this client. The guard is gone then, and the lock is released as by a drop.
    ///
    /// # Cancel safety
    /// If the future is dropped midway, the lock is released as by a drop.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let config = locks.rw_lock("config");
    /// let writing = config.write().await?;
    /// // ... a write, and now a long look at what was written ...
    /// let reading = writing.downgrade().await?;
    /// assert!(config.read().try_acquire().await.is_ok());
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(self) -> Result<ReadGuard> {
        self.0.shrink(Permits::READER.weight).await?;
        Ok(ReadGuard(self.0))
    }

    /// Releases the lock, as [`LockGuard::release`] does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let writing = locks.rw_lock("config").write().await?;
    /// writing.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }
}

impl Guard for WriteGuard {
    fn of(guard: LockGuard) -> WriteGuard {
        WriteGuard(guard)
    }
}

impl LockGuard {
    /// Leaves the hold this number of its permits.
    pub(crate) async fn shrink(&self, permits: u32) -> Result<()> {
        let runtime = &self.client().runtime;
        runtime.check();
        let Some(held) = self.held() else { return Ok(()) };
        runtime.serves(pin!(held.shrink(permits))).await
    }

    /// What the guard holds, unless it has a turn. Only a plain lock has turns.
    fn held(&self) -> Option<&Held> {
        match &self.kept {
            Kept::Hold(held) => Some(held),
            Kept::Turn(_) => None,
        }
    }
}

impl Deref for SemaphoreGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl Deref for ReadGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

impl Deref for WriteGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

/// For guards of several kinds in one place, such as a `Vec<LockGuard>`. What the kind alone can do is gone.
impl From<SemaphoreGuard> for LockGuard {
    fn from(guard: SemaphoreGuard) -> LockGuard {
        guard.guard
    }
}

/// For guards of several kinds in one place, such as a `Vec<LockGuard>`. What the kind alone can do is gone.
impl From<ReadGuard> for LockGuard {
    fn from(guard: ReadGuard) -> LockGuard {
        guard.0
    }
}

/// For guards of several kinds in one place, such as a `Vec<LockGuard>`. What the kind alone can do is gone.
impl From<WriteGuard> for LockGuard {
    fn from(guard: WriteGuard) -> LockGuard {
        guard.0
    }
}
