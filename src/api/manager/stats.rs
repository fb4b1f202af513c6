//! The counts of a client, for its user.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::caller::place::Place;
use crate::engine::counters::{GuardEnd, How, Outcome, read};
use crate::types::error::HoldEnd;

/// The counts of one client: its present state, and its history since it was created. The history only
/// grows. Clones of a manager are one client.
///
/// The feature `metrics` records these events and more, by groups of locks and with histograms. Another
/// exporter needs no feature: [metrics](crate::guide::metrics#opentelemetry-and-other-exporters) has an
/// example.
///
/// # Calls
/// Every call that asks for a lock (`acquire`, `acquire_timeout`, `with`, `with_timeout`, `try_acquire`)
/// counts once, when it ends: as acquired, as cancelled, or by its error. Errors that are not named here,
/// like [`Error::Invalid`](crate::Error::Invalid) and [`Error::Closed`](crate::Error::Closed), don't count.
///
/// # Holds
/// A hold lasts from the moment when its guard is returned until the guard is released or dropped, or
/// until the lease is lost. With [local hand-off](crate::Lock::local_handoffs), each guard has its own.
///
/// # In a quorum
/// Calls and holds count once, not once for each server. `renewals`, `reconnects` and `unconfirmed` are sums
/// over the servers.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let guard = locks.lock("invoice:42").acquire().await?;
/// let stats = locks.stats();
/// assert_eq!((stats.held, stats.waiting), (1, 0)); // gauges
/// assert_eq!((stats.acquired, stats.timed_out), (1, 0)); // counters
/// # Ok(()) }
/// ```
#[doc(alias = "metrics")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Locks that this manager holds now. Guards that hand a lock on inside this process count once.
    pub held: usize,
    /// Calls that wait for a lock, whether or not they are in the server's queue.
    pub waiting: usize,
    /// Calls that returned a guard.
    pub acquired: u64,
    /// These of `acquired` were granted by the release of the holder before, without a call by this client.
    pub handed_over: u64,
    /// These of `acquired` were handed over by another guard of this process, without a call
    /// ([`local_handoffs`](crate::Lock::local_handoffs)).
    pub local_handoffs: u64,
    /// These of `acquired` found the lock [retained](crate::Lock::retain) here, without a call. The rest of
    /// `acquired` found it free on the server.
    pub retained: u64,
    /// The time for which the calls in `acquired` waited together, each from its first poll. Those that make
    /// one attempt, as `try_acquire` does, count as no wait, and so do campaigns of leaders. Divided by
    /// `acquired`, it is the mean wait.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "waited_ms",
            serialize_with = "crate::types::status::in_ms::serialize"
        )
    )]
    pub waited: Duration,
    /// Calls that ended with [`Error::Timeout`](crate::Error::Timeout).
    pub timed_out: u64,
    /// Calls of `try_acquire` that ended with [`Error::Busy`](crate::Error::Busy).
    pub busy: u64,
    /// Calls whose futures were dropped after their first polls, before they ended.
    pub cancelled: u64,
    /// Calls that ended with [`Error::QueueFull`](crate::Error::QueueFull).
    pub queue_full: u64,
    /// Calls that ended with [`Error::Unavailable`](crate::Error::Unavailable),
    /// [`Error::NoQuorum`](crate::Error::NoQuorum) or
    /// [`Error::NotReplicated`](crate::Error::NotReplicated).
    pub unavailable: u64,
    /// How long all holds that have ended lasted together, however they ended.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "held_for_ms",
            serialize_with = "crate::types::status::in_ms::serialize"
        )
    )]
    pub held_for: Duration,
    /// Holds that were lost before their release, for [`HoldEnd::Expired`](crate::HoldEnd::Expired).
    pub lost_expired: u64,
    /// Holds that were lost for [`HoldEnd::Taken`](crate::HoldEnd::Taken).
    pub lost_taken: u64,
    /// Holds that were lost for [`HoldEnd::MaxHold`](crate::HoldEnd::MaxHold).
    pub lost_max_hold: u64,
    /// Renewals that the server confirmed, in the background or by a call. A claim is one.
    pub renewals: u64,
    /// Connections that were lost and replaced.
    pub reconnects: u64,
    /// Releases, and waits that were given up, for which the server has not yet confirmed that nothing is
    /// left, and calls of `try_acquire` under way. The count shows how far the server is behind.
    pub unconfirmed: usize,
}

impl Stats {
    pub(super) fn of(place: &Place) -> Stats {
        let (held, waiting, unconfirmed) = match place {
            Place::One(shared) => (
                shared.background().held_count(),
                shared.waitlists().waiting(),
                shared.background().pending(),
            ),
            Place::Quorum(quorum) => (quorum.held().len(), quorum.waiting(), quorum.pending()),
        };
        let counters = place.counters();
        let acquired = |how| counters.ended(Outcome::Acquired(how));
        let lost = |reason| counters.holds_ended(GuardEnd::Lost(reason));
        let handed_over = acquired(How::HandedOver);
        let local_handoffs = acquired(How::LocalHandoff);
        let retained = acquired(How::Retained);
        let mut stats = Stats {
            held,
            waiting,
            acquired: acquired(How::Free) + handed_over + local_handoffs + retained + acquired(How::Polled),
            handed_over,
            local_handoffs,
            retained,
            waited: counters.waited(),
            timed_out: counters.ended(Outcome::Timeout),
            busy: counters.ended(Outcome::Busy),
            cancelled: counters.ended(Outcome::Cancelled),
            queue_full: counters.ended(Outcome::QueueFull),
            unavailable: counters.ended(Outcome::Unavailable),
            held_for: counters.held_for(),
            lost_expired: lost(HoldEnd::Expired),
            lost_taken: lost(HoldEnd::Taken),
            lost_max_hold: lost(HoldEnd::MaxHold),
            renewals: 0,
            reconnects: 0,
            unconfirmed,
        };
        // What each server does is counted by its client.
        for client in place.clients() {
            let counters = &client.counters;
            stats.renewals += read(&counters.renewals);
            stats.reconnects += read(&counters.reconnects);
        }
        stats
    }
}
