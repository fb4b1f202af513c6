//! How a lock is held: its lease, the limit of its hold, and its owner.

use std::time::Duration;

use super::Lock;
use crate::owner::Owner;

impl Lock {
    /// Sets the length of the lease: the server keeps a hold for this long without a renewal (100 ms to 1
    /// day; the default is [that of the manager](crate::LockManagerBuilder::lease)). In a quorum it is at
    /// most the [`longest_lease`](crate::Quorum::longest_lease). The lease is renewed for as long as the
    /// guard lives.
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
    /// assert_eq!(guard.lease().length, Duration::from_secs(5));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ttl")]
    pub fn lease(mut self, lease: Duration) -> Lock {
        self.options.lease = Some(lease);
        self
    }

    /// Sets whether the lease is renewed while the guard lives (default `true`). If it is not, the hold ends
    /// one lease after its grant, whatever happens, and the lease can have up to 30 days (in a quorum up to
    /// the [`longest_lease`](crate::Quorum::longest_lease)).
    /// [`LockGuard::renew`](crate::LockGuard::renew) is [`Error::Invalid`](crate::Error::Invalid) then.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let lock = locks.lock("newsletter").lease(Duration::from_millis(100)).renew(false);
    /// let guard = lock.acquire().await?;
    /// tokio::time::sleep(Duration::from_millis(200)).await;
    /// assert!(guard.is_lost()); // nothing has renewed it
    /// # Ok(()) }
    /// ```
    #[doc(alias = "fixed_lease")]
    pub fn renew(mut self, renew: bool) -> Lock {
        self.options.fixed = !renew;
        self
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
    /// use fairlock::{Error, HoldEnd};
    ///
    /// let guard = locks.lock("import").max_hold(Duration::from_secs(60)).acquire().await?;
    /// let stuck = guard.run(std::future::pending::<()>()).await;
    /// assert!(matches!(stuck, Err(Error::Lost(lost)) if lost.reason == HoldEnd::MaxHold));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "watchdog")]
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Lock {
        self.options.max_hold = max_hold.into();
        self
    }

    /// Keeps the lock taken until so long after its grant, even if it is released earlier (1 ms to 30 days,
    /// and no longer than [`max_hold`](Self::max_hold) or a lease that is not [renewed](Self::renew); `None`
    /// is the default). In a quorum this is [`Invalid`](crate::Error::Invalid): keep the guard for that long
    /// there.
    ///
    /// This is for jobs that all instances of a service start at about the same time. One of them takes the
    /// lock with [`try_acquire`](Self::try_acquire), and does the work. If it was done within a moment, an
    /// instance whose clock is late would still find the lock free, and do the work again. So choose a time
    /// that is longer than the clocks differ, and shorter than the interval of the job. ShedLock calls it
    /// `lockAtLeastFor`.
    ///
    /// While the work goes on, the lease is renewed as usual. A release sets the time until which the lock
    /// stays taken, and nobody renews that. The time counts from the grant, by the server's clock in whole
    /// milliseconds, so it can be shorter by less than one. Others can wait for its end: they sleep, and
    /// learn the time when they ask. [`status`](Self::status) shows the lock as
    /// [`kept`](crate::Holder::kept), and [`force_release`](Self::force_release) ends it.
    ///
    /// It needs a release, which dropping the guard is too. If the process dies, or the lease is lost, the
    /// lock is free when the lease is over, so that another instance can do the work.
    ///
    /// If the lock has an [`owner`](Self::owner), the guard that is released last counts. While the lock is
    /// kept, its owner has to wait like all others. A lock with `at_least` takes no part in [local
    /// hand-off](Self::local_handoffs).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::Error;
    ///
    /// let nightly = locks
    ///     .lock("job:nightly")
    ///     .at_least(Duration::from_secs(50)) // no second run within the minute
    ///     .max_hold(Duration::from_secs(3600)); // a job that hangs loses the lock
    /// let guard = nightly.try_acquire().await?;
    /// // ... the work, which takes a second today ...
    /// guard.release().await?;
    /// assert!(matches!(nightly.try_acquire().await, Err(Error::Busy { .. })));
    /// tokio::time::sleep(Duration::from_secs(50)).await;
    /// assert!(nightly.try_acquire().await.is_ok());
    /// # Ok(()) }
    /// ```
    #[doc(alias = "lockAtLeastFor")]
    #[doc(alias = "cooldown")]
    pub fn at_least(mut self, at_least: impl Into<Option<Duration>>) -> Lock {
        self.options.at_least = at_least.into();
        self
    }

    /// Sets how many guards of this process may have the lock one after the other before it is handed to the
    /// next process (1 to 1,000; 1 is off; the default is
    /// [that of the manager](crate::LockManagerBuilder::local_handoffs)).
    ///
    /// A hand-over to another process takes a round trip. With this setting, a process that has the lock
    /// hands it on inside itself first, which takes about a microsecond and no call. This is a *tenure*: one
    /// hold on the server or in the quorum, with one lease, in which up to `turns` guards have their turns.
    /// Each has a fence of its own, larger than all before.
    ///
    /// # Order
    /// Inside a process, waiters have the lock in arrival order. Processes take their turns first come, first
    /// served. But the order over all waiters of all processes is lost. A waiter is delayed by at most
    /// one tenure of each process that queued before: `turns` turns, or 10 ms and one turn. A process whose
    /// waiters have this setting off has one turn at a time.
    ///
    /// # When to use it
    /// It is worth it if several tasks of a process want the lock at the same time and hold it for less than
    /// a round trip. It changes nothing if each process has one waiter, or if turns last longer than 10 ms.
    ///
    /// # What is different
    /// - A release that hands the lock on inside the process does not ask the server. It checks the lease by
    ///   the local clock, and returns at once.
    /// - [`status`](Self::status) shows the first fence of the tenure for all of its turns, and counts each
    ///   process that waits once. [`force_release`](Self::force_release) with that fence ends the tenure.
    /// - If the lease is lost, so is that of the present turn. Those that wait in the process wait on.
    /// - [`try_acquire`](Self::try_acquire) finds the lock busy, without a call, while somebody in this
    ///   process has it or waits for it.
    /// - A lock with an [`owner`](Self::owner), a lease that is not [renewed](Self::renew), a
    ///   [`max_hold`](Self::max_hold) or an [`at_least`](Self::at_least) takes no part. Neither does
    ///   [`SpinLock`](crate::spin::SpinLock). Locks of one name with other leases or another number of turns
    ///   have tenures of their own.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use tokio::task::JoinSet;
    ///
    /// let counter = locks.lock("counter").local_handoffs(64);
    /// let mut set = JoinSet::new();
    /// for _ in 0..1_000 {
    ///     set.spawn(counter.with(async |fence| fence)); // a step that is over in a moment
    /// }
    /// let fences: Vec<_> = set.join_all().await.into_iter().collect::<fairlock::Result<_>>()?;
    /// # let mut sorted = fences.clone();
    /// # sorted.sort();
    /// # sorted.dedup();
    /// # assert_eq!(sorted.len(), 1_000);
    /// assert!(locks.stats().local_handoffs > 0);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "cohort")]
    pub fn local_handoffs(mut self, turns: u32) -> Lock {
        self.options.local_handoffs = Some(turns);
        self
    }

    /// Sets the group in which the [metrics](https://docs.rs/crate/fairlock/latest/source/docs/metrics.md)
    /// count the lock (1 to 64 bytes without control characters). It changes nothing else.
    ///
    /// The default is the name up to its first colon: `invoice` for `invoice:42`. Of a hash tag, the braces
    /// do not count: `user` for `{user:7}:cart`. A name without a colon is a group of its own, and each group
    /// is a set of time series. So set the group of locks whose names have no colon, unless there are few of
    /// them. A client distinguishes 1,000 groups, and counts all further ones as `other`.
    ///
    /// Without the feature `metrics` it has no effect, and is checked all the same. So a library can name the
    /// groups of its locks, and its application decides whether to record them.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let customer = "b9ef64a2-6b0f-4bb8-a3a4-2d1f4a3d8f6c";
    /// let guard = locks.lock(customer).group("customer").acquire().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "label")]
    #[doc(alias = "metrics")]
    pub fn group(mut self, group: impl AsRef<str>) -> Lock {
        self.options.group = Some(group.as_ref().into());
        self
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
    pub fn owner(mut self, owner: &Owner) -> Lock {
        self.owner = Some(owner.clone());
        self
    }

    /// The same lock, whose waits are campaigns.
    pub(crate) fn led(mut self) -> Lock {
        self.options.is_led = true;
        self
    }
}
