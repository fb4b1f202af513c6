//! A lock: a name and options. Making one does no I/O.

mod asking;
mod operator;
mod settings;
#[cfg(test)]
mod tests;
mod with;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use self::asking::Bound;
use crate::engine::acquire::AcquireParams;
use crate::engine::client::Client;
use crate::engine::counters::Outcome;
use crate::error::{Error, Invalid, Result};
use crate::guard::LockGuard;
use crate::local_queue::LocalQueues;
use crate::options::{LockOptions, check_group};
use crate::owner::Owner;
use crate::place::Place;
use crate::status::TryAcquire;
use crate::store::keys::Keys;
use crate::time::deadline::LeaseTerms;

/// A named lock and the options for acquiring it.
///
/// A `Lock` is cheap to create and to clone, and neither does any I/O. A name or an option that is not
/// allowed makes the first call fail with [`Error::Invalid`].
///
/// # Order
/// Waiters get the lock in the order in which the server queued them, in a
/// [quorum](crate::LockManagerBuilder::quorum) in the order of their first polls, by the servers' clocks.
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
pub struct Lock {
    queues: Arc<LocalQueues>,
    name: Arc<str>,
    /// The keys and the channel, or the reason why the name is refused. The first call returns it.
    keys: Result<(Arc<Keys>, Arc<str>), Invalid>,
    options: LockOptions,
    owner: Option<Owner>,
}

impl Lock {
    pub(crate) fn new(queues: &Arc<LocalQueues>, name: &str) -> Lock {
        let client = queues.place().client();
        let keys = Keys::new(&client.options.prefix, name).map(|keys| {
            let channel = keys.channel_of(&client.id);
            (Arc::new(keys), channel)
        });
        Lock {
            queues: Arc::clone(queues),
            name: name.into(),
            keys,
            options: LockOptions::default(),
            owner: None,
        }
    }

    /// Returns the name, as it was given to [`LockManager::lock`](crate::LockManager::lock).
    ///
    /// # Examples
    /// ```
    /// let locks = fairlock::LockManager::in_memory();
    /// assert_eq!(locks.lock("invoice:42").name(), "invoice:42");
    /// ```
    pub fn name(&self) -> &str {
        &self.name
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
    ///   long, or if they have [started recently](crate::LockManagerBuilder::longest_lease) and grant nothing
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
        self.clone().acquire_within(Bound::None)
    }

    /// Waits for the lock for this long at most. With zero it makes one attempt, as
    /// [`try_acquire`](Self::try_acquire) does, and this takes as long as the server takes to answer. An
    /// outage is told up to 20 ms after the time is over, since the last replies are still read.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the time is over. If no server has answered any call meanwhile, it is
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

    /// Waits for the lock until this instant at most. It takes the `Instant` of std or that of Tokio. If the
    /// instant has passed, it makes one attempt, as [`acquire_timeout`](Self::acquire_timeout) does with
    /// zero.
    ///
    /// # Errors
    /// As for [`acquire_timeout`](Self::acquire_timeout).
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
    /// overtakes a waiter. It waits for the server's answer alone, for 2 s at most (or a shorter
    /// [`server_timeout`](crate::LockManagerBuilder::server_timeout)). In a quorum, several such calls at the
    /// same moment may all find it busy.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), but sooner: [`Error::Unavailable`] or [`Error::NoQuorum`] if there
    /// is no answer within those 2 s. A lock that is held is no error but [`TryAcquire::Busy`].
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
        self.clone().attempt(Outcome::Busy)
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.place().client()
    }

    fn place(&self) -> &Place {
        self.queues.place()
    }

    /// Refuses what is wrong before anything is sent. Returns the keys, the terms of the lease, and how many
    /// turns a hold may serve.
    fn open(&self) -> Result<(Arc<Keys>, LeaseTerms, u16)> {
        if let Place::Quorum(_) = self.place() {
            self.check_in_a_quorum()?;
        }
        let terms = self.options.terms(&self.client().options)?;
        let turns = self.options.turns(&self.client().options)?;
        if let Some(group) = &self.options.group {
            check_group(group)?;
        }
        let (keys, _) = self.keys()?;
        self.client().check_open()?;
        self.place().start()?;
        Ok((Arc::clone(keys), terms, turns))
    }

    fn check_in_a_quorum(&self) -> Result<(), Invalid> {
        if self.owner.is_some() {
            return Err(Invalid::new(
                "owner: must not be set in a quorum, where no lock is re-entrant",
            ));
        }
        if self.options.at_least.is_some() {
            return Err(Invalid::new(
                "at_least: must not be set in a quorum; keep the guard for that long, or use one server",
            ));
        }
        Ok(())
    }

    fn keys(&self) -> Result<&(Arc<Keys>, Arc<str>)> {
        self.keys
            .as_ref()
            .map_err(|invalid| Error::Invalid(invalid.clone()))
    }

    fn params(&self) -> Result<AcquireParams> {
        let (keys, terms, turns) = self.open()?;
        let (_, channel) = self.keys()?;
        // A hold with an owner, or whose length is limited, is for one guard alone.
        let is_plain =
            self.owner.is_none() && !terms.fixed && terms.max_hold.is_none() && terms.at_least.is_none();
        Ok(AcquireParams {
            keys,
            channel: Arc::clone(channel),
            terms,
            owner: self.owner.clone(),
            turns: if is_plain { turns } else { 1 },
            group: self
                .place()
                .counters()
                .metrics
                .group(&self.name, self.options.group.as_ref()),
            vote: None,
        })
    }
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
