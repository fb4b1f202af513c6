//! What a try found.

use std::time::Duration;

use crate::guard::LockGuard;

/// The outcome of [`Lock::try_acquire`](crate::Lock::try_acquire).
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::TryAcquire;
///
/// match locks.lock("invoice:42").try_acquire().await? {
///     TryAcquire::Acquired(guard) => guard.release().await?,
///     TryAcquire::Busy(busy) => println!("retry in {:?}", busy.retry_after()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a lock that was acquired is released as soon as its guard is dropped"]
pub enum TryAcquire {
    /// The lock is held now.
    Acquired(LockGuard),
    /// The lock is held, or others wait for it.
    Busy(Busy),
}

impl TryAcquire {
    /// Returns the guard, if the lock was acquired.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let Some(guard) = locks.lock("cron:cleanup").try_acquire().await?.acquired() else {
    ///     return Ok(()); // it runs elsewhere
    /// };
    /// # Ok(()) }
    /// ```
    pub fn acquired(self) -> Option<LockGuard> {
        match self {
            TryAcquire::Acquired(guard) => Some(guard),
            TryAcquire::Busy(_) => None,
        }
    }
}

/// A lock that could not be taken at once.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::TryAcquire;
///
/// # let _guard = locks.lock("invoice:42").acquire().await?;
/// if let TryAcquire::Busy(busy) = locks.lock("invoice:42").try_acquire().await? {
///     println!("429 Too Many Requests\nRetry-After: {}", busy.retry_after_secs());
///     println!("({:?}, {} wait)", busy.retry_after(), busy.waiting());
/// }
/// # Ok(()) }
/// ```
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

    /// Returns the hold's time to live: the holder's lease ends after this if it is not renewed. Never zero.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::TryAcquire;
    ///
    /// if let TryAcquire::Busy(busy) = locks.lock("invoice:42").try_acquire().await? {
    ///     println!("come back in {:?}", busy.retry_after());
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ttl")]
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// Returns the same time in whole seconds, rounded up, for an HTTP `Retry-After`. Never zero.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::TryAcquire;
    ///
    /// if let TryAcquire::Busy(busy) = locks.lock("invoice:42").try_acquire().await? {
    ///     println!("Retry-After: {}", busy.retry_after_secs());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn retry_after_secs(&self) -> u64 {
        let secs = self.retry_after.as_millis().div_ceil(1000);
        u64::try_from(secs).unwrap_or(u64::MAX)
    }

    /// Returns how many requests wait for the lock. [`Status::waiting`](crate::Status::waiting) says which
    /// ones count.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::TryAcquire;
    ///
    /// if let TryAcquire::Busy(busy) = locks.lock("invoice:42").try_acquire().await? {
    ///     println!("{} wait already", busy.waiting());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn waiting(&self) -> u64 {
        self.waiting
    }
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
