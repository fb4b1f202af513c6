//! What the feature `metrics` records, and under which names. `docs/metrics.md` says what each is good for.
//!
//! A handle is asked for once, and kept: for a group when its first call begins, for anything else when there
//! is something to record. So the recorder must be installed before that. Margins, of which a lease has few,
//! have no handle that is kept.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::metrics::{
    Counter, Gauge, Histogram, SharedString, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};
use dashmap::DashMap;

use crate::engine::counters::{Correction, GuardEnd, How, Outcome};
use crate::engine::options::group_of;
use crate::protocol::{CallKind, Failure};
use crate::time::clock::{Clock, LocalTime};
use crate::types::error::HoldEnd;

const ACQUIRE_DURATION: &str = "fairlock_acquire_duration_seconds";
const HOLD_DURATION: &str = "fairlock_hold_duration_seconds";
const WAITERS: &str = "fairlock_waiters";
const HELD: &str = "fairlock_guards_held";
const LEASE_LOST: &str = "fairlock_lease_lost_total";
const LEASE_MARGIN: &str = "fairlock_lease_margin_seconds";
const TURNS_MISSED: &str = "fairlock_turns_missed_total";
const VOTES_CORRECTED: &str = "fairlock_votes_corrected_total";
const CALL_DURATION: &str = "fairlock_server_call_duration_seconds";
const RECONNECTS: &str = "fairlock_reconnects_total";
const RELEASES_PENDING: &str = "fairlock_releases_pending";
const BUILD_INFO: &str = "fairlock_build_info";

/// How many groups a client distinguishes. All further ones are one group, so that names without a colon
/// cannot make ever more time series.
const MAX_GROUPS: usize = 1000;
const OTHER_GROUPS: &str = "other";

fn describe() {
    let seconds = Unit::Seconds;
    describe_histogram!(ACQUIRE_DURATION, seconds, "How long calls waited for a lock.");
    describe_histogram!(HOLD_DURATION, seconds, "How long guards held a lock.");
    describe_gauge!(WAITERS, Unit::Count, "Calls that wait for a lock.");
    describe_gauge!(
        HELD,
        Unit::Count,
        "Guards that hold a lock, permits, or a read/write lock."
    );
    describe_counter!(
        LEASE_LOST,
        Unit::Count,
        "Leases that were lost before their release."
    );
    describe_histogram!(
        LEASE_MARGIN,
        seconds,
        "What was left of a lease when its renewal was confirmed."
    );
    describe_counter!(
        TURNS_MISSED,
        Unit::Count,
        "Times that a request had to queue again."
    );
    describe_counter!(
        VOTES_CORRECTED,
        Unit::Count,
        "Votes of a quorum that were raised, yielded or repaired."
    );
    describe_histogram!(CALL_DURATION, seconds, "How long calls to the server took.");
    describe_counter!(
        RECONNECTS,
        Unit::Count,
        "Lost connections that were replaced by new ones."
    );
    describe_gauge!(
        RELEASES_PENDING,
        Unit::Count,
        "Releases and withdrawals in the background that the server has not confirmed."
    );
    describe_gauge!(
        BUILD_INFO,
        Unit::Count,
        "1 for each process, with the version of its fairlock."
    );
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// The metrics of one client.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    described: OnceLock<()>,
    is_of_quorum: bool,
    groups: DashMap<SharedString, Group>,
    /// By kind, and by [`outcome_of`].
    calls: [[OnceLock<Histogram>; CALL_OUTCOMES.len()]; OPERATIONS.len()],
    pending: OnceLock<Gauge>,
}

const OPERATIONS: [&str; 6] = ["acquire", "release", "withdraw", "renew", "confirm", "inspect"];
const CALL_OUTCOMES: [&str; 5] = ["ok", "unknown", "not_executed", "refused", "closed"];

/// The place of a call's outcome in [`CALL_OUTCOMES`]. `None` if nobody waits for it any more.
fn outcome_of(answer: Result<LocalTime, &Failure>) -> Option<usize> {
    match answer {
        Ok(_) => Some(0),
        Err(Failure::Unknown(_)) => Some(1),
        Err(Failure::NotExecuted(_)) => Some(2),
        Err(Failure::Refused(_)) => Some(3),
        Err(Failure::Closed) => Some(4),
        Err(Failure::GivenUp) => None,
    }
}

impl Metrics {
    pub(crate) fn of_quorum() -> Metrics {
        Metrics {
            is_of_quorum: true,
            ..Metrics::default()
        }
    }

    /// The group of the lock with this name. By default it is the name up to its first colon.
    pub(crate) fn group(&self, lock: &str, group: Option<&Arc<str>>) -> Group {
        let name = group.map_or(group_of(lock), |group| &**group);
        if let Some(known) = self.groups.get(name) {
            return known.clone();
        }
        self.described.get_or_init(describe);
        let name = if self.groups.len() < MAX_GROUPS {
            name
        } else {
            OTHER_GROUPS
        };
        let name = SharedString::from_owned(name.to_owned());
        let make = || Group(Some(Arc::new(Handles::new(&name, self.is_of_quorum))));
        self.groups.entry(name.clone()).or_insert_with(make).clone()
    }

    /// Something that the server has to confirm, until this is dropped.
    pub(crate) fn pending(&self) -> Pending {
        let gauge = self.pending.get_or_init(|| {
            self.described.get_or_init(describe);
            gauge!(RELEASES_PENDING)
        });
        Pending::begin(gauge)
    }

    pub(crate) fn timer(&self, clock: &Clock) -> Timer {
        Timer(clock.now())
    }

    /// A call to the server is over: it was answered at this time, or has failed now.
    pub(crate) fn called(
        &self,
        Timer(began): &Timer,
        kind: CallKind,
        clock: &Clock,
        over: Result<LocalTime, &Failure>,
    ) {
        let Some(outcome) = outcome_of(over) else {
            return;
        };
        let of = kind as usize;
        let Some(calls) = self.calls.get(of) else {
            return;
        };
        let calls = calls[outcome].get_or_init(|| {
            self.described.get_or_init(describe);
            let outcome = CALL_OUTCOMES[outcome];
            histogram!(CALL_DURATION, "operation" => OPERATIONS[of], "outcome" => outcome)
        });
        let over = over.unwrap_or_else(|_| clock.now());
        calls.record(over.since(*began));
    }

    pub(crate) fn reconnected(&self, connection: &'static str, server: &str) {
        self.described.get_or_init(describe);
        let server = server.to_owned();
        counter!(RECONNECTS, "connection" => connection, "server" => server).increment(1);
    }
}

/// When a call to the server began.
#[derive(Debug)]
pub(crate) struct Timer(LocalTime);

impl Timer {
    pub(crate) fn since(began: LocalTime) -> Timer {
        Timer(began)
    }
}

/// Counts one in a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct Pending(Gauge);

impl Pending {
    fn begin(gauge: &Gauge) -> Pending {
        gauge.increment(1.0);
        Pending(gauge.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The group in which a lock is counted. The default is in none: that of a call that no caller made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group(Option<Arc<Handles>>);

/// The handles of one group.
struct Handles {
    group: SharedString,
    waiters: Gauge,
    held: Gauge,
    /// By [`Outcome::index`].
    asked: [OnceLock<Histogram>; Outcome::COUNT],
    /// By [`GuardEnd::index`].
    ended: [OnceLock<Histogram>; GuardEnd::COUNT],
    expired: Counter,
    taken: Counter,
    max_hold: Counter,
    missed_turns: Counter,
    /// By [`Correction`]. Only a quorum has them.
    corrections: Option<[Counter; Correction::COUNT]>,
}

impl Handles {
    /// Counters begin at 0 now. A rule that asks for an increase would not see a first event that comes with
    /// its time series.
    fn new(group: &SharedString, is_of_quorum: bool) -> Handles {
        let lost = |reason| counter!(LEASE_LOST, "group" => group.clone(), "reason" => reason);
        let corrected = |what| counter!(VOTES_CORRECTED, "group" => group.clone(), "correction" => what);
        Handles {
            waiters: gauge!(WAITERS, "group" => group.clone()),
            held: gauge!(HELD, "group" => group.clone()),
            asked: Default::default(),
            ended: Default::default(),
            expired: lost("expired"),
            taken: lost("taken"),
            max_hold: lost("max_hold"),
            missed_turns: counter!(TURNS_MISSED, "group" => group.clone()),
            corrections: is_of_quorum.then(|| ["raised", "yielded", "repaired"].map(corrected)),
            group: group.clone(),
        }
    }
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handles").field(&self.group).finish()
    }
}

impl Group {
    /// A call waits for a lock of this group, until this is dropped.
    pub(crate) fn waits(&self) -> Option<Pending> {
        Some(Pending::begin(&self.0.as_ref()?.waiters))
    }

    /// A call that asked for a lock of this group has ended.
    pub(crate) fn asked(&self, outcome: Outcome, Timer(began): &Timer, now: impl FnOnce() -> LocalTime) {
        let Some(handles) = &self.0 else { return };
        let histogram = handles.asked[outcome.index()].get_or_init(|| {
            let (outcome, how) = match outcome {
                Outcome::Acquired(How::Free) => ("acquired", "free"),
                Outcome::Acquired(How::HandedOver) => ("acquired", "handed_over"),
                Outcome::Acquired(How::LocalHandoff) => ("acquired", "local_handoff"),
                Outcome::Acquired(How::Retained) => ("acquired", "retained"),
                Outcome::Acquired(How::Polled) => ("acquired", "polled"),
                Outcome::Timeout => ("timeout", "none"),
                Outcome::Busy => ("busy", "none"),
                Outcome::Cancelled => ("cancelled", "none"),
                Outcome::Unavailable => ("unavailable", "none"),
                Outcome::QueueFull | Outcome::Failed => ("error", "none"),
            };
            let group = handles.group.clone();
            histogram!(ACQUIRE_DURATION, "group" => group, "outcome" => outcome, "how" => how)
        });
        histogram.record(now().since(*began));
    }

    /// A guard holds a lock of this group, until this is dropped.
    pub(crate) fn held(&self) -> Option<Pending> {
        Some(Pending::begin(&self.0.as_ref()?.held))
    }

    /// The hold of a guard is over.
    pub(crate) fn ended(&self, end: GuardEnd, held_for: Duration) {
        let Some(handles) = &self.0 else { return };
        let histogram = handles.ended[end.index()].get_or_init(|| {
            let end = match end {
                GuardEnd::Released | GuardEnd::Lost(HoldEnd::Released) => "released",
                GuardEnd::Dropped => "dropped",
                GuardEnd::Lost(_) => "lost",
            };
            histogram!(HOLD_DURATION, "group" => handles.group.clone(), "end" => end)
        });
        histogram.record(held_for);
        match end {
            GuardEnd::Lost(HoldEnd::Expired) => handles.expired.increment(1),
            GuardEnd::Lost(HoldEnd::Taken) => handles.taken.increment(1),
            GuardEnd::Lost(HoldEnd::MaxHold) => handles.max_hold.increment(1),
            _ => {}
        }
    }

    pub(crate) fn margin(&self, margin: Duration) {
        if let Some(handles) = &self.0 {
            histogram!(LEASE_MARGIN, "group" => handles.group.clone()).record(margin);
        }
    }

    pub(crate) fn missed_turn(&self) {
        if let Some(handles) = &self.0 {
            handles.missed_turns.increment(1);
        }
    }

    /// This was done to a vote of a quorum.
    pub(crate) fn corrected(&self, correction: Correction) {
        let corrections = self.0.as_ref().and_then(|handles| handles.corrections.as_ref());
        if let Some(corrections) = corrections {
            corrections[correction as usize].increment(1);
        }
    }
}
