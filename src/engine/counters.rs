//! What a client counts. Each event is counted in one place, for [`Stats`](crate::Stats) and for the metrics.
//!
//! A call is a [`CountedCall`] from its first poll on. It ends once, by an outcome or by its drop. What a
//! guard holds is a [`Holding`]. It is kept in the state of the hold, in a quorum in that of the votes. The
//! code that ends the hold, or the turn, takes it out under the same mutex. So no gauge drifts, in any order
//! of these ends. Votes, and grants of which no guard is made, have none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::metrics::{Group, Metrics, Pending, Timer};
use crate::time::clock::{Clock, LocalTime};
use crate::types::error::{Error, HoldEnd};

/// The counts of one client, or of a quorum. They begin at 0.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) metrics: Metrics,
    clock: Clock,
    /// By [`Outcome::index`].
    outcomes: [AtomicU64; Outcome::COUNT],
    /// Nanoseconds.
    waited: AtomicU64,
    /// By [`GuardEnd::index`].
    ends: [AtomicU64; GuardEnd::COUNT],
    /// Nanoseconds.
    held_for: AtomicU64,
    pub(crate) renewals: AtomicU64,
    pub(crate) reconnects: AtomicU64,
    /// By [`Correction`].
    corrections: [AtomicU64; Correction::COUNT],
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// How a lock was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// By the first call that was answered: nobody had the lock.
    Free,
    /// By the release of the holder before, without a further call.
    HandedOver,
    /// By another guard of this process.
    LocalHandoff,
    /// From the tenure that its client retained, without a call.
    Retained,
    /// By a later call: the lease of the holder before had ended, or a message was lost.
    Polled,
}

/// How a call that asked for a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acquired(How),
    Timeout,
    /// A try found that the lock is held or waited for.
    Busy,
    /// Its future was dropped.
    Cancelled,
    QueueFull,
    /// No server has answered, no majority, or too few replicas.
    Unavailable,
    Failed,
}

impl Outcome {
    pub(super) const COUNT: usize = 11;

    pub(super) const fn index(self) -> usize {
        match self {
            Outcome::Acquired(how) => how as usize,
            Outcome::Timeout => 5,
            Outcome::Busy => 6,
            Outcome::Cancelled => 7,
            Outcome::QueueFull => 8,
            Outcome::Unavailable => 9,
            Outcome::Failed => 10,
        }
    }

    fn of(error: &Error) -> Outcome {
        match error {
            Error::Timeout { .. } => Outcome::Timeout,
            Error::QueueFull { .. } => Outcome::QueueFull,
            Error::Unavailable(_) | Error::NoQuorum { .. } | Error::NotReplicated { .. } => {
                Outcome::Unavailable
            }
            _ => Outcome::Failed,
        }
    }
}

/// How the hold of a guard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardEnd {
    Released,
    /// The guard was dropped without a release.
    Dropped,
    /// The lease had ended before. It is never lost by a release.
    Lost(HoldEnd),
}

impl GuardEnd {
    pub(super) const COUNT: usize = 5;

    pub(super) const fn index(self) -> usize {
        match self {
            GuardEnd::Released | GuardEnd::Lost(HoldEnd::Released) => 0,
            GuardEnd::Dropped => 1,
            GuardEnd::Lost(HoldEnd::Expired) => 2,
            GuardEnd::Lost(HoldEnd::Taken) => 3,
            GuardEnd::Lost(HoldEnd::MaxHold) => 4,
        }
    }
}

/// What a quorum does to a vote, beyond the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    /// Its fence was raised to that of the others.
    Raised,
    /// It was given up for another request.
    Yielded,
    /// A hold got it later than at its beginning, or again.
    Repaired,
}

impl Correction {
    pub(super) const COUNT: usize = 3;
}

impl Counters {
    pub(crate) fn new(clock: Clock) -> Counters {
        Counters::with(Metrics::default(), clock)
    }

    /// The counters of a quorum. Its clients have their own.
    pub(crate) fn of_quorum(clock: Clock) -> Counters {
        Counters::with(Metrics::of_quorum(), clock)
    }

    fn with(metrics: Metrics, clock: Clock) -> Counters {
        Counters {
            metrics,
            clock,
            outcomes: Default::default(),
            waited: AtomicU64::default(),
            ends: Default::default(),
            held_for: AtomicU64::default(),
            renewals: AtomicU64::default(),
            reconnects: AtomicU64::default(),
            corrections: Default::default(),
        }
    }

    pub(crate) fn ended(&self, outcome: Outcome) -> u64 {
        read(&self.outcomes[outcome.index()])
    }

    pub(crate) fn holds_ended(&self, end: GuardEnd) -> u64 {
        read(&self.ends[end.index()])
    }

    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(read(&self.waited))
    }

    pub(crate) fn held_for(&self) -> Duration {
        Duration::from_nanos(read(&self.held_for))
    }

    #[cfg(test)]
    pub(crate) fn corrections(&self, correction: Correction) -> u64 {
        read(&self.corrections[correction as usize])
    }

    /// A call that began then waits for a lock of this group. It counts as a waiter until it ends.
    pub(crate) fn wait(&self, group: &Group, began: LocalTime) -> CountedCall<'_> {
        self.ask(group, Some(Timer::since(began)), group.waits())
    }

    /// The same for a call that waits until nobody else leads. How long that takes is no measure of the lock.
    pub(crate) fn campaign(&self, group: &Group) -> CountedCall<'_> {
        self.ask(group, None, group.waits())
    }

    /// A call asks once for a lock of this group.
    pub(crate) fn attempt(&self, group: &Group) -> CountedCall<'_> {
        self.ask(group, Some(self.metrics.timer(&self.clock)), None)
    }

    fn ask(&self, group: &Group, timer: Option<Timer>, waiting: Option<Pending>) -> CountedCall<'_> {
        CountedCall {
            counters: self,
            group: group.clone(),
            timer,
            waiting,
            is_over: false,
        }
    }

    /// The server has confirmed a renewal. If it prolonged a whole lease, `margin` was left of that.
    pub(crate) fn renewed(&self, group: &Group, margin: Option<Duration>) {
        count(&self.renewals);
        if let Some(margin) = margin {
            group.margin(margin);
        }
    }

    /// This was done to a vote for a lock of this group.
    pub(crate) fn corrected(&self, group: &Group, correction: Correction) {
        count(&self.corrections[correction as usize]);
        group.corrected(correction);
    }

    /// There is another connection in the place of one that was lost.
    pub(crate) fn reconnected(&self, connection: &'static str, server: &str) {
        count(&self.reconnects);
        self.metrics.reconnected(connection, server);
    }
}

/// A call that asks for a lock, until it ends. If it is dropped before, it was cancelled.
#[derive(Debug)]
pub(crate) struct CountedCall<'a> {
    counters: &'a Counters,
    group: Group,
    /// Measures the wait, unless it is a campaign.
    timer: Option<Timer>,
    /// Until the call ends.
    waiting: Option<Pending>,
    is_over: bool,
}

impl CountedCall<'_> {
    /// The caller has the lock, after it waited for this long. Returns the hold, for its guard.
    pub(crate) fn acquired(&mut self, how: How, waited: Duration, now: LocalTime) -> Holding {
        self.end_at(Outcome::Acquired(how), || now);
        if self.timer.is_some() {
            self.counters.waited.fetch_add(nanos(waited), Ordering::Relaxed);
        }
        Holding {
            _held: self.group.held(),
            group: self.group.clone(),
            since: now,
        }
    }

    pub(crate) fn failed(&mut self, error: &Error) {
        self.end(Outcome::of(error));
    }

    pub(crate) fn end(&mut self, outcome: Outcome) {
        let clock = self.counters.clock;
        self.end_at(outcome, || clock.now());
    }

    /// The time is asked for only if it is recorded.
    fn end_at(&mut self, outcome: Outcome, now: impl FnOnce() -> LocalTime) {
        self.is_over = true;
        count(&self.counters.outcomes[outcome.index()]);
        self.waiting = None;
        if let Some(timer) = &self.timer {
            self.group.asked(outcome, timer, now);
        }
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(Outcome::Cancelled);
        }
    }
}

/// What a guard holds. The code that ends the hold takes this out of it, so it is counted once.
#[derive(Debug)]
#[must_use = "a hold that ends is counted"]
pub(crate) struct Holding {
    _held: Option<Pending>,
    group: Group,
    since: LocalTime,
}

impl Holding {
    /// The hold has ended. It counts as released, unless another end is reported.
    pub(crate) fn over(self, counters: &Counters, now: LocalTime) -> Over<'_> {
        let held_for = now.since(self.since);
        Over {
            counters,
            group: self.group,
            held_for,
            end: GuardEnd::Released,
        }
    }

    pub(crate) fn ended(self, counters: &Counters, end: GuardEnd) {
        self.over(counters, counters.clock.now()).end = end;
    }
}

/// A hold that has ended. How it ended is counted when this is dropped.
#[derive(Debug)]
pub(crate) struct Over<'a> {
    counters: &'a Counters,
    group: Group,
    held_for: Duration,
    pub(crate) end: GuardEnd,
}

impl Over<'_> {
    /// Notes what became of its release. The server may know that the lease had ended before.
    pub(crate) fn released<T>(&mut self, released: &Result<T, Error>) {
        if let Err(Error::Lost(lost)) = released {
            self.end = GuardEnd::Lost(lost.reason);
        }
    }
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let held_for = nanos(self.held_for);
        self.counters.held_for.fetch_add(held_for, Ordering::Relaxed);
        count(&self.counters.ends[self.end.index()]);
        self.group.ended(self.end, self.held_for);
    }
}

/// 64 bits are enough for 584 years.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
