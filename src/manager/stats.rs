//! The counts of a client, for its user.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::engine::counters::{End, How, Outcome, read};
use crate::error::HoldEnd;
use crate::place::Place;

/// The counts of one client: its present state, and its history since it was created. The history only grows,
/// except for `least_margin`. Clones of a manager are one client.
///
/// The feature `metrics` records the same events by groups of locks, with histograms. An exporter of its own
/// needs no feature: [metrics](https://docs.rs/crate/fairlock/latest/source/docs/metrics.md) has an example.
///
/// # Calls
/// Every call that asks for a lock (`acquire`, `acquire_timeout`, `with`, `with_timeout`, `try_acquire`)
/// counts once when it is first polled, and once when it ends. Those that are refused before, with
/// [`Error::Invalid`](crate::Error::Invalid) or [`Error::Closed`](crate::Error::Closed), don't count. So
/// `acquire_started` is the sum of `acquired`, `timed_out`, `busy`, `cancelled`, `queue_full`,
/// `not_replicated`, `unavailable`, the calls that ended with any other error, and those under way.
///
/// # Holds
/// A hold lasts from the moment when its guard is returned until the guard is released or dropped, or
/// until the lease is lost. With [local hand-off](crate::Lock::local_handoffs), each guard has its own.
///
/// # In a quorum
/// Calls and holds count once, not once for each server. `late`, `unconfirmed`, `renewals`, `reconnects` and
/// `missed_turns` are sums over the servers, and `least_margin` is the least of all.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let guard = locks.lock("invoice:42").acquire().await?;
/// let stats = locks.stats();
/// assert_eq!((stats.held, stats.waiting), (1, 0)); // gauges
/// assert_eq!((stats.acquired, stats.lost), (1, 0)); // counters
/// # Ok(()) }
/// ```
#[doc(alias = "metrics")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Locks that this manager holds now. Guards that hand a lock on inside this process count once.
    pub held: usize,
    /// Calls that wait for a lock, whether or not they are in the server's queue.
    pub waiting: usize,
    /// Calls that asked for a lock.
    pub acquire_started: u64,
    /// Calls that returned a guard.
    pub acquired: u64,
    /// These of `acquired` did not queue: the first call to the server that was answered granted the lock.
    pub acquired_at_once: u64,
    /// These of `acquired` were granted by the release of the holder before, without a call by this client.
    pub handed_over: u64,
    /// These of `acquired` were handed over by another guard of this process, without a call
    /// ([`local_handoffs`](crate::Lock::local_handoffs)). What is in none of these three of `acquired` was
    /// queued, and found the lock free by a later call: the lease of the holder before had ended, or a
    /// message was lost.
    pub local_handoffs: u64,
    /// The time for which the calls in `acquired` waited together, each from its first poll. Those that make
    /// one attempt, as `try_acquire` does, count as no wait, and so do campaigns of leaders. Divided by
    /// `acquired`, it is the mean wait.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "waited_ms", serialize_with = "crate::status::in_ms::of")
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
    /// Calls that ended with [`Error::NotReplicated`](crate::Error::NotReplicated).
    pub not_replicated: u64,
    /// Calls that ended with [`Error::Unavailable`](crate::Error::Unavailable) or
    /// [`Error::NoQuorum`](crate::Error::NoQuorum).
    pub unavailable: u64,
    /// The time that all holds together lasted that are over, however they ended.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "held_for_ms", serialize_with = "crate::status::in_ms::of")
    )]
    pub held_for: Duration,
    /// Holds that ended because their guards were dropped without a release.
    pub released_by_drop: u64,
    /// Holds whose leases were over before their release: the sum of the next three.
    pub lost: u64,
    /// Lost for [`HoldEnd::Expired`](crate::HoldEnd::Expired).
    pub lost_expired: u64,
    /// Lost for [`HoldEnd::Taken`](crate::HoldEnd::Taken).
    pub lost_taken: u64,
    /// Lost for [`HoldEnd::MaxHold`](crate::HoldEnd::MaxHold).
    pub lost_max_hold: u64,
    /// Renewals that the server confirmed, in the background or by a call. A claim is one.
    pub renewals: u64,
    /// The least time that was left of a lease when its renewal was confirmed, by the local clock. `None`
    /// until a whole lease was renewed. It is about two thirds of the lease when all is well, and 0 if a
    /// renewal came too late. Renewals of a claim window, which is shorter than the lease, do not count.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "least_margin_ms",
            serialize_with = "crate::status::in_ms::of_option"
        )
    )]
    pub least_margin: Option<Duration>,
    /// Connections that were lost and replaced.
    pub reconnects: u64,
    /// Times that a waiting call had to queue again, because the server had removed it: its turn came while
    /// this client could not be reached, or was used too late, or the server lost its data. The call keeps
    /// its ticket.
    pub missed_turns: u64,
    /// Calls that reached the server too late to be of use: 2 s after they were sent, or after their caller
    /// gave up. The server did nothing for them.
    pub late: u64,
    /// Releases, and waits that were given up, for which the server has not yet confirmed that nothing is
    /// left, and calls of `try_acquire` under way. The count shows how far the server is behind.
    pub unconfirmed: usize,
    /// In a quorum: grants of single servers that were raised to the fence of the others.
    pub raised: u64,
    /// In a quorum: grants of single servers that were given up for another request, since there were too few
    /// of them.
    pub yielded: u64,
    /// In a quorum: grants of single servers that a hold got later than at its beginning, or again.
    pub repaired: u64,
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
        let lost = |reason| counters.holds_ended(End::Lost(reason));
        let acquired_at_once = acquired(How::Free);
        let handed_over = acquired(How::HandedOver);
        let local_handoffs = acquired(How::LocalHandoff);
        let lost_expired = lost(HoldEnd::Expired);
        let lost_taken = lost(HoldEnd::Taken);
        let lost_max_hold = lost(HoldEnd::MaxHold);
        let mut stats = Stats {
            held,
            waiting,
            acquire_started: read(&counters.acquire_started),
            acquired: acquired_at_once + handed_over + local_handoffs + acquired(How::Polled),
            acquired_at_once,
            handed_over,
            local_handoffs,
            waited: counters.waited(),
            timed_out: counters.ended(Outcome::Timeout),
            busy: counters.ended(Outcome::Busy),
            cancelled: counters.ended(Outcome::Cancelled),
            queue_full: counters.ended(Outcome::QueueFull),
            not_replicated: counters.ended(Outcome::NotReplicated),
            unavailable: counters.ended(Outcome::Unavailable),
            held_for: counters.held_for(),
            released_by_drop: counters.holds_ended(End::Dropped),
            lost: lost_expired + lost_taken + lost_max_hold,
            lost_expired,
            lost_taken,
            lost_max_hold,
            renewals: 0,
            least_margin: None,
            reconnects: 0,
            missed_turns: 0,
            late: 0,
            unconfirmed,
            raised: read(&counters.raised),
            yielded: read(&counters.yielded),
            repaired: read(&counters.repaired),
        };
        // What each server does is counted by its client.
        for client in place.clients() {
            let counters = &client.counters;
            stats.renewals += read(&counters.renewals);
            stats.reconnects += read(&counters.reconnects);
            stats.missed_turns += read(&counters.missed_turns);
            stats.late += read(&counters.late);
            let least = [stats.least_margin, counters.least_margin()]
                .into_iter()
                .flatten();
            stats.least_margin = least.min();
        }
        stats
    }
}
