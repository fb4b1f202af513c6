//! A lock: a name and options. Making one does no I/O.

mod settings;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument;
use tracing::field::Empty;

use crate::engine::acquire::{AcquireParams, Tried, timed_out};
use crate::engine::client::Client;
use crate::engine::counters::{Ask, How, Outcome};
use crate::engine::operator::{Labels, Seen};
use crate::error::{Error, Invalid, Result};
use crate::fence::Fence;
use crate::guard::LockGuard;
use crate::local_queue::{LocalQueues, TenureParams};
use crate::options::{LockOptions, check_group};
use crate::owner::Owner;
use crate::place::Place;
use crate::status::Status;
use crate::store::keys::Keys;
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;

/// A named lock and the options for acquiring it.
///
/// A `Lock` is cheap to create and to clone, and neither does any I/O. A name or an option that is not
/// allowed makes the first call fail with [`Error::Invalid`].
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
        self.clone().acquire_within(None)
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
    ///     Err(Error::Timeout { waited, .. }) => println!("busy for {waited:?}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "try_lock_for")]
    #[doc(alias = "wait")]
    pub fn acquire_timeout(&self, wait: Duration) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.clone().acquire_within(Some(wait))
    }

    /// Takes the lock if it is free and has no waiters. The call never waits for the lock, and never
    /// overtakes a waiter. It waits for the server's answer alone, for 2 s at most (or a shorter
    /// [`server_timeout`](crate::LockManagerBuilder::server_timeout)). In a quorum, several such calls at the
    /// same moment may all find it busy.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), but sooner: [`Error::Unavailable`] or [`Error::NoQuorum`] if there
    /// is no answer within those 2 s. [`Error::Busy`] if the lock is held, or others wait for it.
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
        self.clone().attempt(Outcome::Busy)
    }

    /// Waits for the lock, runs the work, and releases the lock.
    ///
    /// The work gets the fencing token. If the lease is lost, the work is dropped, as by
    /// [`LockGuard::run`]. The future does not borrow the lock, so it can be spawned.
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
        self.clone().run_within(None, work)
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
        self.clone().run_within(Some(wait), work)
    }

    /// Returns the holder of the lock, if there is one, and how many requests wait. If there is a holder, a
    /// second call asks for its label, for at most 50 ms longer than the first one took.
    /// [`LockManager::list`](crate::LockManager::list) does this for many locks.
    ///
    /// In a quorum, the holder is the client with holds on a majority of the servers. There is none while
    /// several clients have a minority each.
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
        self.status_with(Arc::default())
    }

    /// The status of one of several locks, whose holders may be the same clients.
    pub(crate) fn status_with(
        &self,
        labels: Arc<Labels>,
    ) -> impl Future<Output = Result<Status>> + Send + use<> {
        let lock = self.clone();
        async move {
            let (keys, terms, _) = lock.open()?;
            let asking = pin!(async {
                let began = Instant::now();
                let Seen { mut status, client } = lock.place().inspect(&keys, &terms).await?;
                let took = began.elapsed();
                if let (Some(holder), Some(client)) = (&mut status.holder, client) {
                    let label = labels.within(took, &client, || lock.place().label_of(&client));
                    holder.label = label.await;
                }
                Ok(status)
            });
            lock.client().runtime.serves(asking).await
        }
    }

    /// Takes the lock away from the holder with this fence, and hands it to the next waiter. Returns whether
    /// the lock was held under that fence.
    ///
    /// [`status`](Self::status) shows the fence of the holder. Because of it, a repeated call never takes the
    /// lock from the next holder. The former holder learns of its loss at its next renewal, so until then
    /// both may believe that they hold the lock. If its lease is not [renewed](Self::renew), it learns of it
    /// when the lease ends.
    ///
    /// In a quorum the call ends the holds on all servers, and waits for the servers that showed this holder.
    /// It returns `true` if too few are left for the holder to keep the lock.
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
        let lock = self.clone();
        async move {
            let (keys, terms, _) = lock.open()?;
            let releasing = pin!(lock.place().force_release(&keys, &terms, fence));
            lock.client().runtime.serves(releasing).await
        }
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
        self.place().start();
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

    fn params(&self) -> Result<TenureParams> {
        let (keys, terms, turns) = self.open()?;
        let (_, channel) = self.keys()?;
        // A hold with an owner, or whose length is limited, is for one guard alone.
        let is_plain =
            self.owner.is_none() && !terms.fixed && terms.max_hold.is_none() && terms.at_least.is_none();
        let metrics = &self.place().counters().metrics;
        let hold = AcquireParams {
            keys,
            channel: Arc::clone(channel),
            terms,
            owner: self.owner.clone(),
            group: metrics.group(&self.name, self.options.group.as_ref()),
            vote: None,
        };
        Ok(TenureParams {
            hold,
            turns: if is_plain { turns } else { 1 },
        })
    }

    async fn acquire_within(self, wait: Option<Duration>) -> Result<LockGuard> {
        let began = self.client().now();
        let span = tracing::debug_span!(
            "fairlock.acquire",
            lock.name = &*self.name,
            lock.fence = Empty,
            lock.votes = Empty,
            lock.local_handoff = Empty,
            lock.outcome = Empty,
            wait_ms = Empty
        );
        let mut ask = None;
        let acquired = {
            // Pinned here, since a future that is passed on is copied.
            let asking = pin!(self.acquire_held(began, wait, &mut ask));
            let asking = asking.instrument(span.clone());
            self.client().runtime.serves(asking).await
        };
        let now = self.client().now();
        let waited = now.since(began);
        if let Some(ask) = &mut ask {
            match &acquired {
                Ok(guard) => guard.begin(self.place().counters(), ask.acquired(guard.how(), waited, now)),
                Err(error) => ask.failed(error),
            }
        }
        let outcome = match &acquired {
            Ok(guard) => {
                span.record("lock.fence", guard.fence().get());
                if let Some(votes) = guard.votes() {
                    span.record("lock.votes", votes);
                }
                if guard.how() == How::LocalHandoff {
                    span.record("lock.local_handoff", true);
                }
                "acquired"
            }
            Err(Error::Timeout { .. }) => "timeout",
            Err(_) => "error",
        };
        let wait_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        span.record("lock.outcome", outcome).record("wait_ms", wait_ms);
        acquired
    }

    /// `ask` is set once the call asks for the lock.
    async fn acquire_held<'a>(
        &'a self,
        began: LocalTime,
        wait: Option<Duration>,
        ask: &mut Option<Ask<'a>>,
    ) -> Result<LockGuard> {
        // Beyond the end of time is no bound.
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        if until.is_none_or(|until| until > Instant::now()) {
            let tenure = self.params()?;
            let group = &tenure.hold.group;
            let counters = self.place().counters();
            *ask = Some(match self.options.is_led {
                true => counters.campaign(group),
                false => counters.wait(group, began),
            });
            // A tenure is no caller: those that wait for it are counted.
            let _permit = self.place().count_caller()?;
            if tenure.turns > 1 {
                // On the heap, so that those without it do not carry it along.
                let turn = Box::pin(self.queues.acquire(&tenure, began, until));
                return Ok(LockGuard::of_turn(turn.await?));
            }
            return Ok(LockGuard::new(
                self.queues.gate().acquire(&tenure.hold, until).await?,
            ));
        }
        // On the heap, so that those that wait do not carry it along.
        match Box::pin(self.clone().attempt(Outcome::Timeout)).await {
            Err(Error::Busy { ttl, .. }) => Err(timed_out(self.client(), began, ttl)),
            tried => tried,
        }
    }

    /// Asks once. If the lock is busy, the call counts as ended in this way.
    async fn attempt(self, if_busy: Outcome) -> Result<LockGuard> {
        let tenure = self.params()?;
        let mut ask = self.place().counters().attempt(&tenure.hold.group);
        let trying = pin!(async {
            if tenure.turns > 1 {
                let tried = Box::pin(self.queues.try_acquire(tenure)).await;
                held(tried?, LockGuard::of_turn)
            } else {
                let tried = self.place().try_acquire(tenure.hold).await;
                held(tried?, LockGuard::new)
            }
        });
        let tried = self.client().runtime.serves(trying).await;
        match &tried {
            Ok(guard) => {
                let now = self.client().now();
                guard.begin(
                    self.place().counters(),
                    ask.acquired(guard.how(), Duration::ZERO, now),
                );
            }
            Err(Error::Busy { .. }) => ask.end(if_busy),
            Err(error) => ask.failed(error),
        }
        tried
    }

    async fn run_within<F, W>(self, wait: Option<Duration>, work: F) -> Result<W::Output>
    where
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        let guard = self.acquire_within(wait).await?;
        let output = guard.run(work(guard.fence())).await?;
        guard.check()?;
        guard.release_after_work().await?;
        Ok(output)
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

/// The guard of what a try got.
fn held<T>(tried: Tried<T>, guard: impl FnOnce(T) -> LockGuard) -> Result<LockGuard> {
    match tried {
        Tried::Held(held) => Ok(guard(held)),
        Tried::Busy { ttl, ahead: waiting } => Err(Error::Busy { ttl, waiting }),
    }
}
