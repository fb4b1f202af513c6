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

/// A lock by its name, with the options for acquiring it. Cheap to make and to clone, and free of I/O.
///
/// # Order
/// Waiters get the lock in the order in which the server queued them, and those of one process in the order in which
/// their futures were **first polled**: a future that is made but not polled has no place. In a `select!` loop, `pin!`
/// the future outside the loop; made anew in each turn it goes to the end of the queue each time.
///
/// # Who excludes whom
/// Without an [`owner`](Self::owner) every acquisition excludes every other one, also within a task: acquiring a lock
/// again while holding it waits for itself. Two applications that use the same server share the names, unless
/// their managers have different prefixes.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    shared: Arc<Shared>,
    /// The keys and the channel; or why the name is refused, which the first call tells.
    name: Arc<str>,
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

    /// The name, as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same lock with a lease of this length: how long the server keeps a hold without a renewal (100 ms to 1 day).
    /// It is renewed for as long as the guard lives.
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

    /// The same lock with a lease that is never extended (100 ms to 1 day): the hold ends so long after its grant,
    /// whatever happens.
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

    /// The same lock, held for so long at most (at least 100 ms): a stuck job does not hold it for ever. It ends so long
    /// after its grant by the clocks of the server and of this machine, whichever comes first.
    pub fn max_hold(self, max_hold: impl Into<Option<Duration>>) -> Lock {
        Lock {
            options: LockOptions {
                max_hold: max_hold.into(),
                ..self.options
            },
            ..self
        }
    }

    /// The same lock, acquired for this owner, for whom it is re-entrant.
    pub fn owner(self, owner: &Owner) -> Lock {
        Lock {
            owner: Some(owner.clone()),
            ..self
        }
    }

    /// Waits for the lock: first come, first served.
    ///
    /// The future borrows nothing, so it can be spawned. Its place in the queue is taken at its first poll.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no server has answered for the `server_timeout` (10 s by default): a wait without a
    /// bound ends too. [`Error::NotReplicated`] if the grant is to be confirmed by
    /// [`replicas`](crate::LockManagerBuilder::replicas) or [`disks`](crate::LockManagerBuilder::fsynced) and is not.
    /// [`Error::TooManyHolds`] for an [`Owner`] that holds it too often.
    /// [`Error::Refused`], [`Error::Invalid`], [`Error::QueueFull`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropped at any point it leaves no holder and no queue entry, and a grant that was on its way goes to the
    /// next waiter at once. Its place in the queue is lost.
    pub fn acquire(&self) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.clone().acquire_within(Bound::None)
    }

    /// Waits for the lock for so long at most. Zero means one attempt, as with [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// [`Error::Timeout`] when the time is over; else as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_timeout(&self, wait: Duration) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.clone().acquire_within(Bound::Within(wait))
    }

    /// Waits for the lock until this instant at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the instant has come; else as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// It takes the `Instant` of std and that of tokio. (Boxed, since an opaque type would capture the generic one.)
    pub fn acquire_deadline(&self, deadline: impl Into<Instant>) -> BoxFuture<'static, Result<LockGuard>> {
        Box::pin(self.clone().acquire_within(Bound::Until(deadline.into())))
    }

    /// Takes the lock if it is free and nobody waits for it. Never waits for it, and never overtakes a waiter.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire); that the lock is held is no error, but [`TryAcquire::Busy`].
    ///
    /// # Cancel safety
    /// Dropped at any point it leaves no holder.
    pub fn try_acquire(&self) -> impl Future<Output = Result<TryAcquire>> + Send + use<> {
        self.clone().attempt()
    }

    /// Tells who holds the lock, and how many wait.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Invalid`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
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

    /// Takes the lock away from whoever holds it under this fence, and hands it to the next waiter. The fence is what
    /// [`status`](Self::status) showed: so a repeated call never takes it from the next holder. Returns whether it was held under
    /// that fence. The former holder learns of it at its next renewal.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Invalid`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropped midway, it may have happened or not.
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

    /// Waits for the lock, runs the work, and releases the lock. The work gets the fencing token, and is dropped if the
    /// lease is lost, as by [`LockGuard::run`].
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire); and [`Error::Lost`] when the work was stopped, or when its end was no longer
    /// under the lease. A result of the work's own stays nested, as with `tokio::time::timeout`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work, and releases the lock.
    pub async fn with<F, W>(&self, work: F) -> Result<W::Output>
    where
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        run_and_release(self.acquire().await?, work).await
    }

    /// The same, with a bound for the wait (not for the work).
    ///
    /// # Errors
    /// [`Error::Timeout`] when the time is over; else as for [`with`](Self::with).
    ///
    /// # Cancel safety
    /// As for [`with`](Self::with).
    pub async fn with_timeout<F, W>(&self, wait: Duration, work: F) -> Result<W::Output>
    where
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        run_and_release(self.acquire_timeout(wait).await?, work).await
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

async fn run_and_release<F, W>(guard: LockGuard, work: F) -> Result<W::Output>
where
    F: FnOnce(Fence) -> W,
    W: Future,
{
    let output = guard.run(work(guard.fence())).await?;
    after_work(output, guard.release().await)
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
