//! Taking a lock, and giving it back.

use std::pin::pin;
use std::time::{Duration, Instant};

use fairlock::{Error, HoldEnd, Lock, LockGuard, LockManager, Owner};
use tokio::time::{sleep, timeout};

use crate::args::Taking;
use crate::connection::Place;
use crate::exit::Failure;
use crate::nesting::Nesting;
use crate::report::{Report, hint};
use crate::signals::Signals;

/// Who is in front is told when a wait lasts for this long, and then from time to time.
const FIRST_NOTICE: Duration = Duration::from_secs(1);
const NEXT_NOTICE: Duration = Duration::from_secs(30);
/// How long the end waits for a server, before it leaves what it holds to its lease.
const PATIENCE: Duration = Duration::from_secs(2);

/// A lock that is held, and the client that holds it.
pub(crate) struct Held {
    locks: LockManager,
    pub(crate) guard: LockGuard,
    pub(crate) since: Instant,
}

impl Held {
    /// Waits for the lock. A signal ends the wait at once, and leaves no place in the queue.
    pub(crate) async fn take(
        taking: &Taking,
        place: &Place,
        nesting: Option<&Nesting>,
        signals: &mut Signals,
        report: &Report,
    ) -> Result<Held, Failure> {
        let began = Instant::now();
        let owner = nesting.and_then(Nesting::owner);
        let options = |locks: &LockManager| with_options(locks.lock(&taking.name), taking, owner.as_ref());
        place.check(options).await?;
        if let Some(hint) = hint(&taking.name).filter(|_| !report.is_quiet()) {
            report.words(&hint);
        }
        let locks = tokio::select! {
            connected = place.connect() => connected?,
            signal = signals.next() => return Err(Failure::of_signal(signal)),
        };
        let lock = options(&locks);
        let end = {
            let mut acquired = pin!(join_or_acquire(nesting, &lock, taking, began));
            tokio::select! {
                biased;
                signal = signals.next() => Err(Failure::of_signal(signal)),
                acquired = &mut acquired => acquired.map_err(|error| refusal(error, taking, report)),
                never = tell_who_is_in_front(&lock, report, began) => match never {},
            }
        };
        match end {
            Ok(guard) => {
                report.acquired(guard.fence().get(), began.elapsed());
                Ok(Held {
                    locks,
                    guard,
                    since: Instant::now(),
                })
            }
            Err(failure) => {
                close(&locks).await;
                Err(failure)
            }
        }
    }

    /// Releases the lock. The wait for the server's answer ends at a signal.
    pub(crate) async fn give_back(self, signals: &mut Signals, report: &Report) {
        let locks = self.locks.clone();
        self.release(signals, report).await;
        close(&locks).await;
    }

    /// The same for a lock under which nothing was done. It is not kept for `--at-least`, so that another
    /// machine can do the work.
    pub(crate) async fn give_back_unused(self, signals: &mut Signals, report: &Report) {
        let locks = self.locks.clone();
        let (lock, fence) = (locks.lock(self.guard.name()), self.guard.fence());
        self.release(signals, report).await;
        let free = async {
            let holder = lock.status().await?.holder;
            // An outer `run` may still hold it under the same fence.
            if holder.is_some_and(|holder| holder.kept && holder.fence == fence) {
                lock.force_release(fence).await?;
            }
            Ok::<(), Error>(())
        };
        if let Ok(Err(error)) = timeout(PATIENCE, free).await {
            report.words(&format!("{} may stay taken: {error}", lock.name()));
        }
        close(&locks).await;
    }

    async fn release(self, signals: &mut Signals, report: &Report) {
        let (name, fence) = (self.guard.name().to_owned(), self.guard.fence().get());
        let released = tokio::select! {
            released = self.guard.release() => released,
            _ = signals.next() => return,
        };
        match released {
            Ok(()) => report.released(fence, self.since.elapsed()),
            Err(Error::Lost(lost)) => {
                let why = format!("{lost}; what was done last may have overlapped with another holder");
                report.lost(fence, reason(lost.reason), &why);
            }
            Err(error) => report.words(&format!("the release of {name} is not confirmed: {error}")),
        }
    }

    /// Tells of the end of the lease, if it is over.
    pub(crate) fn tell_of_loss(&self, report: &Report) {
        if let Err(lost) = self.guard.check() {
            report.lost(self.guard.fence().get(), reason(lost.reason), &lost.to_string());
        }
    }

    /// Gives up what may be left of a lock whose lease is over or in doubt.
    pub(crate) async fn give_up(self) {
        drop(self.guard);
        close(&self.locks).await;
    }
}

/// The reason of a loss, for machines.
pub(crate) fn reason(end: HoldEnd) -> &'static str {
    match end {
        HoldEnd::Expired => "expired",
        HoldEnd::Taken => "taken",
        HoldEnd::MaxHold => "max_hold",
        _ => "other",
    }
}

fn with_options(mut lock: Lock, taking: &Taking, owner: Option<&Owner>) -> Lock {
    if let Some(lease) = taking.lease {
        lock = lock.lease(lease);
    }
    if let Some(owner) = owner {
        lock = lock.owner(owner);
    }
    lock.max_hold(taking.max_hold).at_least(taking.at_least)
}

async fn join_or_acquire(
    nesting: Option<&Nesting>,
    lock: &Lock,
    taking: &Taking,
    began: Instant,
) -> fairlock::Result<LockGuard> {
    if let Some(nesting) = nesting {
        if let Some(joined) = nesting.join(lock).await? {
            return Ok(joined);
        }
    }
    acquire(lock, taking, began).await
}

/// The time to connect is a part of the wait. No wait at all is still one attempt.
async fn acquire(lock: &Lock, taking: &Taking, began: Instant) -> fairlock::Result<LockGuard> {
    let wait = if taking.nonblock {
        Some(Duration::ZERO)
    } else {
        taking.wait
    };
    let guard = match wait {
        Some(wait) => lock.acquire_timeout(wait.saturating_sub(began.elapsed())).await?,
        None => lock.acquire().await?,
    };
    // A lock that was handed over has a short lease until it is renewed. One failed renewal would end CMD as
    // soon as it began, so it does not begin before that.
    let lease = guard.lease();
    if lease.remaining < lease.length / 2 {
        guard.renew().await?;
    }
    Ok(guard)
}

fn refusal(error: Error, taking: &Taking, report: &Report) -> Failure {
    let message = match &error {
        // Nobody knows how long it is held.
        Error::Timeout { ttl, .. } if ttl.is_zero() => {
            format!("{} was not acquired in time", taking.name)
        }
        Error::Timeout { ttl, .. } => {
            let after = crate::spans::show(*ttl);
            format!("{} is busy; it may be free in {after}", taking.name)
        }
        error => error.to_string(),
    };
    // Only a busy lock is what `-E` and `-q` are for.
    if !matches!(error, Error::Timeout { .. }) {
        return Failure::new(Failure::from(error).status, message);
    }
    Failure {
        status: taking.conflict_exit_code,
        message: (!report.is_quiet()).then_some(message),
        signal: None,
    }
}

async fn tell_who_is_in_front(lock: &Lock, report: &Report, began: Instant) -> std::convert::Infallible {
    sleep(FIRST_NOTICE).await;
    loop {
        if let Ok(status) = lock.status().await {
            report.waiting(&status, began.elapsed());
        }
        sleep(NEXT_NOTICE).await;
    }
}

/// Sends what is left to take back: a request that was given up, or a release.
async fn close(locks: &LockManager) {
    let _ = timeout(PATIENCE, locks.close()).await;
}
