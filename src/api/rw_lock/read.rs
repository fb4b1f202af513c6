//! The side of readers.

use std::fmt;
use std::time::Duration;

use crate::api::guard::{HoldToken, ReadGuard};
use crate::api::handle::Handle;
#[cfg(doc)]
use crate::api::manager::LockManager;
#[cfg(doc)]
use crate::api::rw_lock::RwLock;
use crate::types::error::Result;

/// A read/write lock as readers take it. [`RwLock::read`] returns it.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let reading = locks.rw_lock("config").read();
/// let guard = reading.await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct ReadLock(pub(in crate::api) Handle);

impl ReadLock {
    /// Returns the name, as it was given to [`LockManager::rw_lock`].
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Waits for the lock, together with other readers, first come, first served.
    ///
    /// Errors and cancel safety are those of [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.rw_lock("config").read().acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> impl Future<Output = Result<ReadGuard>> + Send + use<> {
        self.0.acquire(None)
    }

    /// Waits for the lock for this long at most. With zero it makes one attempt.
    ///
    /// Errors and cancel safety are those of [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let guard = locks.rw_lock("config").read().acquire_timeout(Duration::from_secs(2)).await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn acquire_timeout(&self, wait: Duration) -> impl Future<Output = Result<ReadGuard>> + Send + use<> {
        self.0.acquire(Some(wait))
    }

    /// Takes the lock if no writer has it and nobody waits.
    ///
    /// Errors and cancel safety are those of [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let config = locks.rw_lock("config");
    /// let guard = config.read().try_acquire().await?;
    /// assert!(config.read().try_acquire().await.is_ok());
    /// assert!(config.write().try_acquire().await.is_err());
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "try_read")]
    pub fn try_acquire(&self) -> impl Future<Output = Result<ReadGuard>> + Send + use<> {
        self.0.try_acquire()
    }

    /// Waits for the lock, runs the work, and releases the lock, as [`Lock::with`](crate::Lock::with) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn load(_fence: fairlock::Fence) -> u32 { 7 }
    /// let config = locks.rw_lock("config");
    /// let version = config.read().with(async |token| load(token.fence()).await).await?;
    /// assert_eq!(version, 7);
    /// # Ok(()) }
    /// ```
    pub fn with<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(HoldToken) -> W,
        W: Future,
    {
        self.0.with(None, work)
    }

    /// Does the same as [`with`](Self::with), and waits for the lock for `wait` at most.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let soon = Duration::from_secs(2);
    /// let version = locks.rw_lock("config").read().with_timeout(soon, async |_token| 7).await?;
    /// assert_eq!(version, 7);
    /// # Ok(()) }
    /// ```
    pub fn with_timeout<F, W>(
        &self,
        wait: Duration,
        work: F,
    ) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(HoldToken) -> W,
        W: Future,
    {
        self.0.with(Some(wait), work)
    }
}

impl fmt::Debug for ReadLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug("ReadLock", f)
    }
}
