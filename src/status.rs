//! The answers of a lock's calls.

use std::time::Duration;

use crate::fence::Fence;
use crate::guard::LockGuard;
use crate::owner::Owner;

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

    /// Returns how many requests wait for the lock. [`Status::waiting`] says which ones count.
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

/// A lock at one moment, as the server sees it, or a majority of the servers of a quorum.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let lock = locks.lock("invoice:42");
/// let status = lock.status().await?;
/// assert!(status.holder.is_none() && status.waiting == 0 && status.longest_wait.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The holder, if there is one.
    pub holder: Option<Holder>,
    /// The number of requests in the server's queue. Under overload, a client does not queue all of its
    /// callers; [`Stats::waiting`](crate::Stats::waiting) counts all of one client. With [local
    /// hand-off](crate::Lock::local_handoffs), a process counts once. In a quorum it is the largest number of
    /// a server, and counts a request with too few votes where it is queued.
    pub waiting: u64,
    /// For how long the first request in the server's queue has waited, by the server's clock. Nobody in that
    /// queue has waited for longer. `None` if it is empty. Too small if the clock was set back. In a quorum
    /// it is the longest of a server.
    pub longest_wait: Option<Duration>,
}

/// The holder of a lock.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::Owner;
///
/// let lock = locks.lock("invoice:42").owner(&Owner::named("job:7"));
/// let guard = lock.acquire().await?;
/// if let Some(holder) = lock.status().await?.holder {
///     assert_eq!((&holder.owner, holder.fence), (&Owner::named("job:7"), guard.fence()));
///     println!("held by {:?} for {:?}, and for another {:?}", holder.label, holder.held_for, holder.ttl);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The label of the client that holds the lock, by default its host and process
    /// ([`LockManagerBuilder::label`](crate::LockManagerBuilder::label)). `None` if that client has not been
    /// heard of for a minute, if the server has recently lost its data or has something else in place of the
    /// label, or if it did not answer the call for the label in time.
    pub label: Option<String>,
    /// The owner, equal to [`LockGuard::owner`] of the guards that hold the lock. In a quorum it is an owner
    /// of that one guard.
    pub owner: Owner,
    /// The fencing token, for [`Lock::force_release`](crate::Lock::force_release). In a quorum it is that of
    /// a majority of the servers; while they do not agree on one yet, it is the smallest.
    pub fence: Fence,
    /// The number of this owner's guards that hold the lock. In a quorum it is 1.
    pub holds: u64,
    /// For how long this owner has held the lock, by the server's clock. The time begins with its first hold,
    /// also if that one was released since. It is too small if the clock was set back, and by 2 ms if the
    /// server did not know the lock. In a quorum it counts from the release that handed the lock over.
    /// Without one, it counts from the call that found the lock free.
    pub held_for: Duration,
    /// The time until the latest lease of these guards ends, unless it is renewed. In a quorum, the time
    /// until fewer leases than a majority are left.
    pub ttl: Duration,
    /// Whether the lock was released, and stays taken until the end of this time
    /// ([`at_least`](crate::Lock::at_least)). It then has an owner of its own. Label and fence are those of
    /// the guard that released it.
    pub kept: bool,
}

/// A lock in the list of [`LockManager::list`](crate::LockManager::list).
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use futures_util::TryStreamExt;
///
/// let _guard = locks.lock("invoice:42").acquire().await?;
/// let listed: Vec<_> = locks.list("invoice:*").try_collect().await?;
/// assert_eq!(listed[0].name, "invoice:42");
/// assert_eq!(listed[0].status.waiting, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The name of the lock.
    pub name: String,
    /// Its holder, and how many requests wait for it.
    pub status: Status,
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
