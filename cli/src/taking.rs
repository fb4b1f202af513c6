//! Taking locks, and giving them back.
//!
//! Several locks are taken as by a set of the library: one after the other, in the order of their names, and
//! with one bound for all waits. The library's own set does not tell which lock it waits for, or which one
//! was busy, and it joins no hold of a process above.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::time::{Duration, Instant};

use fairlock::{Error, HoldEnd, HoldToken, LockGuard, LockManager, Owner};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{sleep, timeout};

use crate::any_lock::AnyLock;
use crate::args::Taking;
use crate::connection::Place;
use crate::exit::Failure;
use crate::nesting::Nesting;
use crate::report::{Report, hint};
use crate::signals::Signals;

/// Who is in front is reported when a wait lasts for this long, and then from time to time.
const FIRST_NOTICE: Duration = Duration::from_secs(1);
const NEXT_NOTICE: Duration = Duration::from_secs(30);
/// How long the end waits for a server, before it leaves what it holds to its lease.
const PATIENCE: Duration = Duration::from_secs(2);

/// Locks that are held, and the client that holds them.
pub(crate) struct Held {
    locks: LockManager,
    /// In the order of their names, each once.
    pub(crate) grants: Vec<Grant>,
}

/// One lock that is held.
pub(crate) struct Grant {
    pub(crate) guard: LockGuard,
    /// Of one permit of a semaphore.
    slot: Option<u32>,
    /// How long it stays taken at least once work under it has begun.
    at_least: Option<Duration>,
    pub(crate) since: Instant,
}

impl Grant {
    /// Work begins under the lock. Until then, its end keeps nothing taken, so that another machine can do
    /// the work.
    pub(crate) fn begin_work(&self) {
        // It was checked before a server was asked.
        let _ = self.guard.at_least(self.at_least);
    }
}

impl Held {
    /// Waits for the locks. A signal ends the wait at once, and leaves no place in a queue.
    pub(crate) async fn take(
        taking: &Taking,
        place: &Place,
        nesting: Option<&Nesting>,
        signals: &mut Signals,
        report: &Report,
    ) -> Result<Held, Failure> {
        let began = Instant::now();
        let owner = nesting.and_then(Nesting::owner);
        let options = |locks: &LockManager, name: &str| with_options(locks, name, taking, owner.as_ref());
        for name in taking.names() {
            let kept = |locks: &LockManager| options(locks, name).at_least(taking.at_least);
            place.check(kept).await?;
        }
        for hint in taking.names().filter_map(hint).filter(|_| !report.is_quiet()) {
            report.words(&hint);
        }
        let locks = tokio::select! {
            connected = place.connect() => connected?,
            signal = signals.next() => return Err(Failure::of_signal(signal)),
        };
        let in_order = BTreeSet::from_iter(taking.names());
        let end = {
            let in_order = in_order.into_iter().map(|name| options(&locks, name));
            let mut taken = pin!(take_all(in_order, taking, nesting, report, began));
            tokio::select! {
                biased;
                signal = signals.next() => Err(Failure::of_signal(signal)),
                taken = &mut taken => taken,
            }
        };
        match end {
            Ok(grants) => {
                for grant in &grants {
                    report.acquired(&grant.guard.token(), grant.since - began);
                }
                Ok(Held { locks, grants })
            }
            Err(failure) => {
                close(&locks).await;
                Err(failure)
            }
        }
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = HoldToken> {
        self.grants.iter().map(|grant| grant.guard.token())
    }

    /// The grants in the order of the arguments.
    fn as_named<'a>(&'a self, taking: &'a Taking) -> impl Iterator<Item = &'a Grant> {
        let named = |name| self.grants.iter().find(move |grant| grant.guard.name() == name);
        taking.names().filter_map(named)
    }

    /// The fences in the order of the arguments, as a text.
    pub(crate) fn fences(&self, taking: &Taking) -> String {
        let fences: Vec<_> = self
            .as_named(taking)
            .map(|grant| grant.guard.fence().to_string())
            .collect();
        fences.join(" ")
    }

    /// The slots in the same order, if each has one.
    pub(crate) fn slots(&self, taking: &Taking) -> Option<String> {
        let slots = self.as_named(taking).map(|grant| Some(grant.slot?.to_string()));
        Some(slots.collect::<Option<Vec<_>>>()?.join(" "))
    }

    /// Waits until one of the leases is over.
    pub(crate) async fn lost(&self) {
        first_lost(&self.grants).await;
    }

    /// Releases the locks. The wait for the server's answer ends at a signal.
    pub(crate) async fn give_back(mut self, signals: &mut Signals, report: &Report) {
        self.release(signals, report).await;
        close(&self.locks).await;
    }

    /// Work begins under the locks.
    pub(crate) fn begin_work(&self) {
        self.grants.iter().for_each(Grant::begin_work);
    }

    /// The work could not begin after all.
    pub(crate) fn end_work_undone(&mut self) {
        for grant in &mut self.grants {
            grant.at_least = None;
            grant.begin_work();
        }
    }

    async fn release(&mut self, signals: &mut Signals, report: &Report) {
        let releases = self.grants.drain(..).map(async |Grant { guard, since, .. }| {
            let token = guard.token();
            (token, since, guard.release().await)
        });
        let mut releases: FuturesUnordered<_> = releases.collect();
        while !releases.is_empty() {
            let (token, since, released) = tokio::select! {
                Some(released) = releases.next() => released,
                _ = signals.next() => return,
            };
            match released {
                Ok(()) => report.released(&token, since.elapsed()),
                Err(Error::Lost(lost)) => {
                    let why = format!("{lost}; what was done last may have overlapped with another holder");
                    report.lost(&token, reason(lost.reason), &why);
                }
                Err(error) => report.words(&format!(
                    "the release of {} is not confirmed: {error}",
                    token.name()
                )),
            }
        }
    }

    /// Reports each lease that has ended.
    pub(crate) fn tell_of_loss(&self, report: &Report) {
        for token in self.tokens() {
            if let Err(Error::Lost(lost)) = token.check() {
                report.lost(&token, reason(lost.reason), &lost.to_string());
            }
        }
    }

    /// Gives up what may be left of locks of which a lease has ended or is in doubt.
    pub(crate) async fn give_up(self) {
        drop(self.grants);
        close(&self.locks).await;
    }
}

/// Takes all of the locks, one after the other. If one of them cannot be had, the others are given back.
async fn take_all(
    locks: impl Iterator<Item = AnyLock>,
    taking: &Taking,
    nesting: Option<&Nesting>,
    report: &Report,
    began: Instant,
) -> Result<Vec<Grant>, Failure> {
    let mut grants = Vec::new();
    for lock in locks {
        let acquired = tokio::select! {
            biased;
            Some(lost) = first_lost(&grants) => Err(lost),
            acquired = join_or_acquire(nesting, &lock, taking, began) => acquired,
            never = tell_who_is_in_front(&lock, taking, report, began) => match never {},
        };
        let (guard, slot, at_least) =
            acquired.map_err(|error| refusal(error, lock.name(), taking, report))?;
        let since = Instant::now();
        grants.push(Grant {
            guard,
            slot,
            at_least,
            since,
        });
    }
    Ok(grants)
}

/// Waits until one of the leases is over. There may be no lock yet.
async fn first_lost(grants: &[Grant]) -> Option<Error> {
    let over = grants
        .iter()
        .map(|grant| grant.guard.run(pending::<Infallible>()));
    let mut over: FuturesUnordered<_> = over.collect();
    over.next().await?.err()
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

fn with_options(locks: &LockManager, name: &str, taking: &Taking, owner: Option<&Owner>) -> AnyLock {
    let mut lock = taking.wanted.lock(locks, name);
    if let Some(lease) = taking.lease {
        lock = lock.lease(lease);
    }
    if let Some(owner) = owner {
        lock = lock.owner(owner);
    }
    lock.max_hold(taking.max_hold)
}

/// Returns the slot and how long the lock stays taken at least, too. For a hold that is joined, the process
/// above decides.
async fn join_or_acquire(
    nesting: Option<&Nesting>,
    lock: &AnyLock,
    taking: &Taking,
    began: Instant,
) -> fairlock::Result<(LockGuard, Option<u32>, Option<Duration>)> {
    if let Some(nesting) = nesting
        && let Some(joined) = nesting.join(lock).await?
    {
        return Ok((joined, None, None));
    }
    let (guard, slot) = acquire(lock, taking, began).await?;
    Ok((guard, slot, taking.at_least))
}

/// The time to connect is a part of the wait. No wait at all is still one attempt.
async fn acquire(
    lock: &AnyLock,
    taking: &Taking,
    began: Instant,
) -> fairlock::Result<(LockGuard, Option<u32>)> {
    let wait = match (taking.nonblock, taking.wait) {
        (true, _) => Duration::ZERO,
        (false, Some(wait)) => wait.saturating_sub(began.elapsed()),
        (false, None) => Duration::MAX,
    };
    let (guard, slot) = lock.acquire(wait).await?;
    // A lock that was handed over has a short lease until it is renewed. One failed renewal would end CMD as
    // soon as it began, so it does not begin before that.
    let lease = guard.lease();
    if lease.remaining < lease.length / 2 {
        guard.renew().await?;
    }
    Ok((guard, slot))
}

fn refusal(error: Error, name: &str, taking: &Taking, report: &Report) -> Failure {
    let message = match &error {
        // Nobody knows how long it is held.
        Error::Timeout { ttl, .. } if ttl.is_zero() => format!("{name} was not acquired in time"),
        Error::Timeout { ttl, .. } => {
            let left = crate::spans::show(*ttl);
            format!("{name} is busy; its lease ends in {left} unless it is renewed")
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

async fn tell_who_is_in_front(
    lock: &AnyLock,
    taking: &Taking,
    report: &Report,
    began: Instant,
) -> Infallible {
    sleep(FIRST_NOTICE).await;
    loop {
        if let Ok(status) = lock.status().await {
            report.waiting(lock.name(), taking.wanted.kind(), &status, began.elapsed());
        }
        sleep(NEXT_NOTICE).await;
    }
}

/// Sends what is left to take back: a request that was given up, or a release.
async fn close(locks: &LockManager) {
    let _ = timeout(PATIENCE, locks.close()).await;
}
