//! How a lock is held: its lease, the limit of its hold, and its owner.

use std::time::Duration;

use super::Lock;
use crate::options::LockOptions;
use crate::owner::Owner;

impl Lock {
    /// Sets the length of the lease: the server keeps a hold for this long without a renewal (100 ms to 1
    /// day; the default is [that of the manager](crate::LockManagerBuilder::lease)). In a quorum it is at
    /// most the [`longest_lease`](crate::LockManagerBuilder::longest_lease). The lease is renewed for as long
    /// as the guard lives.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// // If this process dies, the next waiter gets the lock after about 5 s.
    /// let lock = locks.lock("import").lease(Duration::from_secs(5));
    /// let guard = lock.acquire().await?;
    /// assert_eq!(guard.lease().length(), Duration::from_secs(5));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ttl")]
    pub fn lease(self, lease: Duration) -> Lock {
        Lock {
            options: LockOptions {
                lease: Some(lease),
                fixed: false,
                ..self.options
            },
            ..self
        }
    }

    /// Sets a lease that is never extended (100 ms to 1 day, in a quorum to the
    /// [`longest_lease`](crate::LockManagerBuilder::longest_lease)): the hold ends this long after its grant,
    /// whatever happens.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let lock = locks.lock("newsletter").fixed_lease(Duration::from_millis(100));
    /// let guard = lock.acquire().await?;
    /// tokio::time::sleep(Duration::from_millis(200)).await;
    /// assert!(guard.is_lost()); // nothing has renewed it
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ttl")]
    pub fn fixed_lease(self, lease: Duration) -> Lock {
        Lock {
            options: LockOptions {
                lease: Some(lease),
                fixed: true,
                ..self.options
            },
            ..self
        }
    }

    /// Limits how long the lock can be held (at least 100 ms; `None`, the default, is no limit), so that a
    /// stuck job does not hold it for ever. The hold ends this long after its grant by the clock of the
    /// server or of this machine, whichever comes first.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::{Error, LostReason};
    ///
    /// let guard = locks.lock("import").max_hold(Duration::from_secs(60)).acquire().await?;
    /// let stuck = guard.run(std::future::pending::<()>()).await;
    /// assert!(matches!(stuck, Err(Error::Lost(lost)) if lost.reason() == LostReason::MaxHold));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "watchdog")]
    pub fn max_hold(self, max_hold: impl Into<Option<Duration>>) -> Lock {
        Lock {
            options: LockOptions {
                max_hold: max_hold.into(),
                ..self.options
            },
            ..self
        }
    }

    /// Sets the owner on whose behalf the lock is acquired. The lock is re-entrant for its owner. In a quorum
    /// no lock is re-entrant, and every call of a lock with an owner fails with
    /// [`Error::Invalid`](crate::Error::Invalid).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::Owner;
    ///
    /// let lock = locks.lock("tree").owner(&Owner::new());
    /// let outer = lock.acquire().await?;
    /// let inner = lock.acquire().await?; // without an owner, this would wait for `outer`
    /// assert_eq!(inner.fence(), outer.fence());
    /// # Ok(()) }
    /// ```
    #[doc(alias = "reentrant")]
    pub fn owner(self, owner: &Owner) -> Lock {
        Lock {
            owner: Some(owner.clone()),
            ..self
        }
    }
}
