//! A lock: a name and options. Making one does no I/O.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tracing::Instrument;
use tracing::field::Empty;

use crate::engine::acquire;
use crate::engine::acquire::{AcquireParams, Attempt};
use crate::engine::client::Client;
use crate::engine::counters::count;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::retry::until_answered;
use crate::engine::shared::Shared;
use crate::error::{Error, Invalid, Result};
use crate::fence::Fence;
use crate::guard::{LockGuard, after_work};
use crate::options::LockOptions;
use crate::owner::Owner;
use crate::status::{Busy, Holder, Status, TryAcquire};
use crate::store::keys::Keys;
use crate::store::{Inspect, Release, ReleaseOutcome, ReleaseWhat};
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;

/// A named lock and the options for acquiring it.
///
/// A `Lock` is cheap to create and to clone, and neither does any I/O. A name or an option that is not
/// allowed makes the first call fail with [`Error::Invalid`].
///
/// # Order
/// Waiters get the lock in the order in which the server queued them. Waiters of one process get it in the
/// order in which their futures were **first polled**: a future that was never polled has no place in the
/// queue. In a `select!` loop, `pin!` the future outside the loop. A future that is created again in each
/// iteration goes to the end of the queue each time.
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
pub struct Lock {
    shared: Arc<Shared>,
    name: Arc<str>,
    /// The keys and the channel, or the reason why the name is refused. The first call returns it.
    place: Result<(Arc<Keys>, Arc<str>), Invalid>,
    options: LockOptions,
    owner: Option<Owner>,
}

impl Lock {
    pub(crate) fn new(shared: Arc<Shared>, name: &str) -> Lock {
        let place = Keys::new(&shared.client().options.prefix, name).map(|keys| {
            let channel = keys.channel_of(&shared.client().id);
            (Arc::new(keys), channel)
        });
        Lock {
            shared,
            name: name.into(),
            place,
            options: LockOptions::default(),
            owner: None,
        }
    }

    /// Returns the name, as it was given to [`LockManager::lock`](crate::LockManager::lock).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the length of the lease: the server keeps a hold for this long without a renewal (100 ms to 1
    /// day; the default is [that of the manager](crate::LockManagerBuilder::lease)). The lease is renewed for
    /// as long as the guard lives.
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

    /// Sets a lease that is never extended (100 ms to 1 day): the hold ends this long after its grant,
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

    /// Sets the owner on whose behalf the lock is acquired. The lock is re-entrant for its owner.
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

    /// Waits for the lock, first come, first served.
    ///
    /// The future borrows nothing, so it can be spawned. It takes its place in the queue when it is first
    /// polled.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if no server has answered for the
    ///   [`server_timeout`](crate::LockManagerBuilder::server_timeout) (10 s by default). A wait without a
    ///   bound ends too.
    /// - [`Error::NotReplicated`] if the grant has to be confirmed by
    ///   [`replicas`](crate::LockManagerBuilder::replicas) or [disks](crate::LockManagerBuilder::fsynced) and
    ///   is not.
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
        self.clone().acquire_within(Bound::None)
    }

    /// Waits for the lock for this long at most. With zero it makes one attempt, as
    /// [`try_acquire`](Self::try_acquire) does.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the time is over, and otherwise as for [`acquire`](Self::acquire).
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
    ///     Err(Error::Timeout { retry_after, .. }) => println!("busy, try again in {retry_after:?}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "try_lock_for")]
    #[doc(alias = "wait")]
    pub fn acquire_timeout(&self, wait: Duration) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.clone().acquire_within(Bound::Within(wait))
    }

    /// Waits for the lock until this instant at most. It takes the `Instant` of std or that of Tokio.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the instant has come, and otherwise as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::{Duration, Instant};
    ///
    /// // Two seconds for both locks together.
    /// let deadline = Instant::now() + Duration::from_secs(2);
    /// let from = locks.lock("account:1").acquire_deadline(deadline).await?;
    /// let to = locks.lock("account:2").acquire_deadline(deadline).await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "try_lock_until")]
    pub fn acquire_deadline(&self, deadline: impl Into<Instant>) -> BoxFuture<'static, Result<LockGuard>> {
        // Boxed, since an opaque type would capture the generic one.
        Box::pin(self.clone().acquire_within(Bound::Until(deadline.into())))
    }

    /// Takes the lock if it is free and has no waiters. The call never waits for the lock, and never
    /// overtakes a waiter.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire). A lock that is held is no error but [`TryAcquire::Busy`].
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves no holder.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::TryAcquire;
    ///
    /// match locks.lock("cron:cleanup").try_acquire().await? {
    ///     TryAcquire::Acquired(guard) => guard.release().await?, // after the clean-up
    ///     TryAcquire::Busy(busy) => println!("runs elsewhere, {} wait", busy.waiting()),
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> impl Future<Output = Result<TryAcquire>> + Send + use<> {
        self.clone().attempt()
    }

    /// Returns the holder of the lock, if there is one, and the number of waiters.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Invalid`] or [`Error::Closed`].
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
    ///     println!("held by {} for another {:?}, {} wait", holder.owner, holder.ttl, status.waiting);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "is_locked")]
    #[doc(alias = "who")]
    pub fn status(&self) -> impl Future<Output = Result<Status>> + Send + use<> {
        let lock = self.clone();
        async move {
            let (keys, terms) = lock.open()?;
            let client = lock.client();
            let call = Inspect {
                keys,
                request: client.next_request(&terms, None),
            };
            let (answer, _) = until_answered(client, || client.store.inspect(call.clone())).await?;
            let holder = answer.reply.holder.map(|holding| Holder {
                owner: holding.owner,
                fence: holding.fence,
                holds: holding.holds,
                ttl: holding.deadline.since(answer.at.now),
            });
            Ok(Status {
                holder,
                waiting: answer.reply.waiting,
            })
        }
    }

    /// Takes the lock away from the holder with this fence, and hands it to the next waiter. Returns whether
    /// the lock was held under that fence.
    ///
    /// [`status`](Self::status) shows the fence of the holder. Because of it, a repeated call never takes the
    /// lock from the next holder. The former holder learns of its loss at its next renewal.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Invalid`] or [`Error::Closed`].
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
        let lock = self.clone();
        async move {
            let (keys, terms) = lock.open()?;
            let client = lock.client();
            let call = Release {
                keys,
                request: client.next_request(&terms, None),
                what: ReleaseWhat::Force(fence),
            };
            let mut released = false;
            loop {
                let (answer, unknown) = until_answered(client, || client.release(call.clone())).await?;
                // What an earlier attempt did, whose reply was lost, is this call's doing.
                let done_before = unknown && answer.reply.outcome == ReleaseOutcome::Taken;
                released |= done_before || answer.reply.outcome == ReleaseOutcome::Released;
                if !answer.reply.more {
                    return Ok(released);
                }
            }
        }
    }

    /// Waits for the lock, runs the work, and releases the lock.
    ///
    /// The work gets the fencing token. If the lease is lost, the work is dropped, as by [`LockGuard::run`].
    /// The future does not borrow the lock, so it can be spawned. It takes its place in the
    /// queue when it is first polled.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), and [`Error::Lost`] if the work was stopped, or if the lease no
    /// longer covered its end. The work's own result stays nested, as with `tokio::time::timeout`.
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
    ///     set.spawn(lock.with(async move |fence| settle(account, fence).await));
    /// }
    /// for settled in set.join_all().await {
    ///     settled?;
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "synchronized")]
    pub fn with<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        self.clone().run_within(Bound::None, work)
    }

    /// Does the same as [`with`](Self::with), and waits for the lock for `wait` at most. The work itself has
    /// no time limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the time is over, and otherwise as for [`with`](Self::with).
    ///
    /// # Cancel safety
    /// As for [`with`](Self::with).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// # async fn charge(_fence: fairlock::Fence) -> u32 { 7 }
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
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        self.clone().run_within(Bound::Within(wait), work)
    }

    fn client(&self) -> &Arc<Client> {
        self.shared.client()
    }

    /// Refuses what is wrong before anything is sent.
    fn open(&self) -> Result<(Arc<Keys>, LeaseTerms)> {
        let terms = self.options.terms(&self.client().options)?;
        let (keys, _) = self.place.clone()?;
        self.client().check_open()?;
        self.shared.start()?;
        Ok((keys, terms))
    }

    fn params(&self) -> Result<AcquireParams> {
        let (keys, terms) = self.open()?;
        let (_, channel) = self.place.clone()?;
        Ok(AcquireParams {
            keys,
            channel,
            terms,
            owner: self.owner.clone(),
        })
    }

    async fn acquire_within(self, bound: Bound) -> Result<LockGuard> {
        let began = self.client().now();
        let span = tracing::debug_span!(
            "fairlock.acquire",
            lock.name = &*self.name,
            lock.fence = Empty,
            lock.outcome = Empty,
            wait_ms = Empty
        );
        let acquired = self.acquire_held(began, bound).instrument(span.clone()).await;
        let waited = self.client().now().since(began);
        let outcome = match &acquired {
            Ok(held) => {
                span.record("lock.fence", held.hold().fence.get());
                "acquired"
            }
            Err(Error::Timeout { .. }) => "timeout",
            Err(_) => "error",
        };
        let wait_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        span.record("lock.outcome", outcome).record("wait_ms", wait_ms);
        if self
            .client()
            .options
            .slow_acquire
            .is_some_and(|slow| waited >= slow)
        {
            tracing::warn!(
                lock.name = &*self.name,
                lock.outcome = outcome,
                wait_ms,
                "slow acquire"
            );
        }
        acquired.map(LockGuard::new)
    }

    async fn run_within<F, W>(self, bound: Bound, work: F) -> Result<W::Output>
    where
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        let guard = self.acquire_within(bound).await?;
        let output = guard.run(work(guard.fence())).await?;
        after_work(output, guard.release().await)
    }

    async fn acquire_held(&self, began: LocalTime, bound: Bound) -> Result<OwnedHold> {
        let params = self.params()?;
        let waitlists = self.shared.waitlists();
        let now = Instant::now();
        let until = match bound {
            Bound::None => None,
            // Beyond the end of time is no bound.
            Bound::Within(wait) => now.checked_add(wait),
            Bound::Until(deadline) => Some(deadline),
        };
        if until.is_none_or(|until| until > now) {
            return acquire::acquire(waitlists, &params, until).await;
        }
        // On the heap, so that those that wait do not carry it along.
        match Box::pin(acquire::try_acquire(Arc::clone(waitlists), params)).await? {
            Attempt::Held(held) => Ok(held),
            Attempt::Busy(contended) => {
                count(&self.client().counters.timed_out);
                let waited = self.client().now().since(began);
                Err(Error::Timeout {
                    waited,
                    retry_after: Busy::of(contended.ttl, contended.ahead).retry_after(),
                })
            }
        }
    }

    async fn attempt(self) -> Result<TryAcquire> {
        let params = self.params()?;
        Ok(
            match acquire::try_acquire(Arc::clone(self.shared.waitlists()), params).await? {
                Attempt::Held(held) => TryAcquire::Acquired(LockGuard::new(held)),
                Attempt::Busy(contended) => TryAcquire::Busy(Busy::of(contended.ttl, contended.ahead)),
            },
        )
    }
}

/// Until when to wait.
#[derive(Clone, Copy)]
enum Bound {
    None,
    Within(Duration),
    Until(Instant),
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("options", &self.options)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
