//! A lock: a name and options. Making one does no I/O.

use std::fmt;
use std::time::Duration;

use crate::api::guard::{HoldToken, LockGuard};
use crate::api::handle::Handle;
#[cfg(doc)]
use crate::types::error::Error;
use crate::types::error::Result;
use crate::types::fence::Fence;
use crate::types::owner::Owner;
use crate::types::status::{LockStream, Status};

/// A named lock and the options for acquiring it.
///
/// A `Lock` is cheap to create and to clone, and neither does any I/O. A name or an option that is not
/// allowed makes the first call fail with [`Error::Invalid`].
///
/// Awaiting a lock acquires it: `locks.lock("report").await?`. A lock that is neither awaited nor acquired
/// protects nothing, and no compiler warns of `let _lock = locks.lock("report");`.
///
/// # Order
/// Waiters get the lock in the order in which the server queued them, in a
/// [quorum](crate::Quorum) in the order of their first polls, by the servers' clocks.
/// Waiters of one process get it in the order in which their futures were **first polled**: a future that was
/// never polled has no place in the queue. In a `select!` loop, `pin!` the future outside the loop. A future
/// that is created again in each iteration goes to the end of the queue each time.
///
/// # Exclusion
/// Without an [`owner`](Self::owner), every acquisition excludes every other one, even within one task:
/// acquiring a lock again while holding it waits for itself. Two applications that use the same server share
/// the names, unless their managers have different prefixes.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use std::time::Duration;
///
/// let report = locks.lock("report:nightly").max_hold(Duration::from_secs(600));
/// let guard = report.acquire().await?;
/// println!("{} is held", report.name());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[doc(alias = "mutex")]
#[doc(alias = "Mutex")]
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(pub(super) Handle);

impl Lock {
    /// Returns the name, as it was given to [`LockManager::lock`](crate::LockManager::lock).
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Waits for the lock, first come, first served.
    ///
    /// The future borrows nothing, so it can be spawned. It takes its place in the queue when it is first
    /// polled.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if no server has answered for the
    ///   [`server_timeout`](crate::LockManagerBuilder::server_timeout) (10 s by default). A wait without a
    ///   bound ends too.
    /// - [`Error::NoQuorum`] in its place in a quorum, if no majority of the servers has answered for that
    ///   long, or if they have [started recently](crate::Quorum::longest_lease) and grant nothing
    ///   yet.
    /// - [`Error::NotReplicated`] if the grant has to be confirmed by
    ///   [`replicas`](crate::LockManagerBuilder::replicas) and is not.
    /// - [`Error::TooManyHolds`] if the [`Owner`] already holds the lock 256 times.
    /// - [`Error::Refused`], [`Error::Invalid`], [`Error::QueueFull`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves no holder and no queue entry. A grant that was already on its
    /// way goes to the next waiter at once. The place in the queue is lost.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lock = locks.lock("invoice:42");
    /// let guard = lock.acquire().await?;
    /// let next = tokio::spawn(lock.acquire()); // waits until `guard` is released
    /// guard.release().await?;
    /// # next.await.unwrap()?.release().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "lock")]
    pub fn acquire(&self) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.0.acquire(None)
    }

    /// Waits for the lock for this long at most. With zero it makes one attempt, as
    /// [`try_acquire`](Self::try_acquire) does, and this takes as long as the server takes to answer.
    ///
    /// An outage is reported after the [`server_timeout`](crate::LockManagerBuilder::server_timeout), or at
    /// the bound if that comes first: then up to 20 ms late, because the last replies are still read.
    ///
    /// # Errors
    /// [`Error::Timeout`] when this time has passed. If no server has answered any call meanwhile, it is
    /// [`Error::Unavailable`], and in a quorum [`Error::NoQuorum`] if too few have. Otherwise as for
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// use std::time::Duration;
    /// use fairlock::Error;
    ///
    /// # let _held = lock.acquire().await?;
    /// match lock.acquire_timeout(Duration::from_secs(2)).await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(Error::Timeout { waited, .. }) => println!("busy for {waited:?}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "try_lock_for")]
    #[doc(alias = "wait")]
    pub fn acquire_timeout(&self, wait: Duration) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.0.acquire(Some(wait))
    }

    /// Takes the lock if it is free and has no waiters. The call never waits for the lock, and never
    /// overtakes a waiter. It waits for the server's answer alone, for 2 to 4 s while the server is away (or
    /// a shorter [`server_timeout`](crate::LockManagerBuilder::server_timeout)). In a quorum, several such
    /// calls at the same moment may all find it busy.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), but sooner: [`Error::Unavailable`] or [`Error::NoQuorum`] if there
    /// is no answer within that time. [`Error::Busy`] if the lock is held, or others wait for it.
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves no holder.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::Error;
    ///
    /// match locks.lock("cron:cleanup").try_acquire().await {
    ///     Ok(guard) => guard.release().await?, // after the clean-up
    ///     Err(Error::Busy { .. }) => println!("runs elsewhere"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.0.try_acquire()
    }

    /// Waits for the lock, runs the work, and releases the lock.
    ///
    /// The work gets a [`HoldToken`]: the fence, and the state of the hold. If the lease is lost, the work is
    /// dropped, as by [`LockGuard::run`]. The future does not borrow the lock, so it can be spawned.
    /// It takes its place in the queue when it is first polled.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), and [`Error::Lost`] if the work was stopped, or
    /// if the lease no longer covered its end. The work's own result stays nested, as with
    /// `tokio::time::timeout`.
    ///
    /// The result of work that is done waits for the server for 10 ms at most. A release that is confirmed
    /// later goes on by itself, and a failure of it is reported at WARN alone. Await
    /// [`LockManager::close`](crate::LockManager::close) before the program ends, so that nothing is cut off.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn settle(_account: u32, _fence: fairlock::Fence) {}
    /// use tokio::task::JoinSet;
    ///
    /// let mut set = JoinSet::new();
    /// for account in [1, 2, 3] {
    ///     let lock = locks.lock(format!("account:{account}"));
    ///     set.spawn(lock.with(async move |token| settle(account, token.fence()).await));
    /// }
    /// for settled in set.join_all().await {
    ///     settled?;
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "synchronized")]
    pub fn with<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(HoldToken) -> W,
        W: Future,
    {
        self.0.with(None, work)
    }

    /// Does the same as [`with`](Self::with), and waits for the lock for `wait` at most. The work itself has
    /// no time limit.
    ///
    /// # Errors
    /// As for [`acquire_timeout`](Self::acquire_timeout) and [`with`](Self::with).
    ///
    /// # Cancel safety
    /// As for [`with`](Self::with).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// # async fn charge(_token: fairlock::HoldToken) -> u32 { 7 }
    /// use std::time::Duration;
    ///
    /// let receipt = lock.with_timeout(Duration::from_secs(2), charge).await?;
    /// assert_eq!(receipt, 7);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "synchronized")]
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

// How a lock is held: its lease, the limit of its hold, and its owner.
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
        self.0.options.lease = Some(lease);
        self
    }

    /// Sets whether the lease is renewed while the guard lives (default `true`). If it is not, the hold ends
    /// one lease after its grant, whatever happens, and the lease can have up to 30 days (in a quorum up to
    /// the [`longest_lease`](crate::Quorum::longest_lease)). If the process dies, the lock stays taken until
    /// then. ShedLock calls such a lease `lockAtMostFor`.
    /// [`LockGuard::renew`](crate::LockGuard::renew) is [`Error::Invalid`](crate::Error::Invalid) then.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let lock = locks.lock("newsletter").lease(Duration::from_millis(100)).auto_renew(false);
    /// let guard = lock.acquire().await?;
    /// tokio::time::sleep(Duration::from_millis(200)).await;
    /// assert!(guard.is_lost()); // nothing has renewed it
    /// # Ok(()) }
    /// ```
    #[doc(alias = "fixed_lease")]
    pub fn auto_renew(mut self, renew: bool) -> Lock {
        self.0.options.fixed = !renew;
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
        self.0.options.max_hold = max_hold.into();
        self
    }

    /// Keeps the lock taken until this long after its grant, even if it is released earlier (1 ms to 30 days;
    /// `None` is the default). It must not be longer than [`max_hold`](Self::max_hold), or than a lease that
    /// is not [renewed](Self::auto_renew), since these free the lock whatever happens. In a quorum this is
    /// [`Invalid`](crate::Error::Invalid): keep the guard for that long there.
    ///
    /// This is for jobs that all instances of a service start at about the same time. One of them takes the
    /// lock with [`try_acquire`](Self::try_acquire), and does the work. If it was done within a moment, an
    /// instance whose clock is late would still find the lock free, and do the work again. So choose a time
    /// that is longer than the clocks differ, and shorter than the interval of the job. ShedLock calls it
    /// `lockAtLeastFor`.
    ///
    /// While the work goes on, the lease is renewed as usual. A release sets the time until which the lock
    /// stays taken, and nobody renews that. The time counts from the grant, by the server's clock in whole
    /// milliseconds, so it can be shorter by less than one. In a [set](crate::LockSet) it counts from the
    /// moment when all locks are held. A call that returns no guard keeps nothing. Others can wait for the
    /// end of the time: they sleep, and learn it when they ask. [`status`](Self::status) shows the lock as
    /// [`kept`](crate::Holder::kept), and [`force_release`](Self::force_release) ends it.
    ///
    /// [`LockGuard::at_least`] sets another time, or none, for one guard: for work that has failed, and that
    /// another instance shall do.
    ///
    /// It needs a release, which dropping the guard is too. If the process dies, or the lease is lost, the
    /// lock is free when the lease ends, so that another instance can do the work. If it should stay taken
    /// then, give it a lease of that length which is not [renewed](Self::auto_renew). A server that restarts
    /// without an append-only file forgets both.
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
        self.0.options.at_least = at_least.into();
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
    /// - A lock with an [`owner`](Self::owner), a lease that is not [renewed](Self::auto_renew), a
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
    ///     set.spawn(counter.with(async |token| token.fence())); // a step that takes a moment
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
        self.0.options.local_handoffs = Some(turns);
        self
    }

    /// Lets the lock stay with this client after its last guard, while nobody else wants it, for so long
    /// after its grant at most (1 ms to a third of the lease; off by default, or
    /// [as the manager says](crate::LockManagerBuilder::retain)). 20 ms is a good value for a lock that one
    /// process at a time uses again and again. A lock that is used once only costs a subscription more.
    ///
    /// From the second grant on, an acquire then takes about a microsecond and makes no call, up to 1,000
    /// times, each under its own fence. When somebody else wants the lock, the client or its guard gives it
    /// back: one message later than without. If that message is lost, others wait until the time has passed.
    ///
    /// - A lock whose guard was released is still the client's. **Await
    ///   [`close`](crate::LockManager::close) before the program ends**, which gives it back. If the process
    ///   ends without it, dies, is stopped, or blocks its threads, others wait for the lease at most.
    /// - A [`try_acquire`](Self::try_acquire) of another client is [`Busy`](crate::Error::Busy), and has the
    ///   lock given back. If it is used all the time, each try may be too early: wait for it instead.
    /// - It is [`Invalid`](crate::Error::Invalid) with an `owner`, a lease that is not renewed, a `max_hold`
    ///   or an `at_least`, for permits, and in a quorum.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let account = locks.lock("account:42").retain(std::time::Duration::from_millis(20));
    /// for _ in 0..100 {
    ///     account.acquire().await?.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "delegation")]
    pub fn retain(mut self, retain: Duration) -> Lock {
        self.0.options.retain = Some(retain);
        self
    }

    /// Sets the group in which the [metrics](crate::guide::metrics#groups) count the lock (1 to 64 bytes
    /// without control characters). It changes nothing else.
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
        self.0.options.group = Some(group.as_ref().into());
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
        self.0.owner = Some(owner.clone());
        self
    }
}

// Looking at a lock, and freeing it.
impl Lock {
    /// Returns who holds the lock, and how many requests wait. A second call asks for the label of each
    /// holder, for at most 50 ms longer than the first one took.
    /// [`LockManager::list`](crate::LockManager::list) does this for many locks.
    ///
    /// In a quorum, the holder is the client with holds on a majority of the servers. There is none while
    /// several clients have a minority each. All servers are asked. If the answers of a majority leave open
    /// who holds, the call waits for the others, for at most the
    /// [`server_timeout`](crate::LockManagerBuilder::server_timeout).
    ///
    /// # Errors
    /// [`Error::Unavailable`] (in a quorum
    /// [`Error::NoQuorum`]), [`Error::Refused`],
    /// [`Error::Invalid`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let _guard = lock.acquire().await?;
    /// let status = lock.status().await?;
    /// if let Some(holder) = status.holder {
    ///     println!("held by {:?} for {:?}, {} wait", holder.label, holder.held_for, status.waiting);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "is_locked")]
    #[doc(alias = "who")]
    pub fn status(&self) -> impl Future<Output = Result<Status>> + Send + use<> {
        self.0.status()
    }

    /// Takes the lock away from the holder with this fence, and hands it to the next waiter. Returns whether
    /// the lock was held under that fence.
    ///
    /// [`status`](Self::status) shows the fence of the holder. Because of it, a repeated call never takes the
    /// lock from the next holder. The former holder learns of its loss at its next renewal, so until then
    /// both may believe that they hold the lock. If its lease is not [renewed](Self::auto_renew), it learns
    /// of it when the lease ends.
    ///
    /// In a quorum the call ends the holds on all servers, and waits for the servers that showed this holder.
    /// It returns `true` if too few are left for the holder to keep the lock. While several clients have a
    /// minority each, there is no holder, and it returns `false`: they settle that by themselves.
    ///
    /// # Errors
    /// [`Error::Unavailable`] (in a quorum
    /// [`Error::NoQuorum`]), [`Error::Refused`],
    /// [`Error::Invalid`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// If the future is dropped midway, the lock may or may not have been released.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let stuck = lock.acquire().await?;
    /// if let Some(holder) = lock.status().await?.holder {
    ///     assert!(lock.force_release(holder.fence).await?);
    ///     assert!(!lock.force_release(holder.fence).await?); // no longer the holder's fence
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "force_unlock")]
    pub fn force_release(&self, fence: Fence) -> impl Future<Output = Result<bool>> + Send + use<> {
        self.0.force_release(fence)
    }

    /// Watches who holds the lock: reports its status now, and whenever its holders have changed. Asks every
    /// `every` (10 ms to 1 day), less up to a quarter of jitter, and when the lease of the holder ends.
    ///
    /// Servers report a change only to those that wait for the lock. So the watch asks, with the calls of one
    /// [`status`](Self::status) each time. It asks only while it is polled, and dropping it ends it. Between
    /// two calls the holder may change several times: the watch reports who it is when it asks. A label that
    /// was not known is reported once it is. Of more than 100 holders, which a status does not all list, the
    /// watch reports when their number has changed, or the permits of one that is listed.
    ///
    /// # Errors
    /// An item is an error as of [`status`](Self::status), or [`Error::Invalid`] for an interval out of its
    /// range. The watch ends after [`Error::Closed`] and [`Error::Invalid`], but after no other error.
    ///
    /// # Cancel safety
    /// Dropping the stream, or a future that waits for its next item, changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let mut watch = locks.lock("scheduler").watch(Duration::from_millis(100));
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// while let Some(status) = watch.next().await {
    ///     if let Some(leader) = status?.holder {
    ///         assert_eq!(leader.fence, lead.fence());
    ///         break;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "observe")]
    #[doc(alias = "subscribe")]
    pub fn watch(&self, every: Duration) -> LockStream<Status> {
        self.0.watch(every)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug("Lock", f)
    }
}
