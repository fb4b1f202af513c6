//! Leases, fences, and the arithmetic of deadlines.
//!
//! Two clocks meet here: the server's, which decides who holds, and the local one, by which a holder must know
//! *before* the server does that its lease is over. Time comes in as an argument; nothing here reads a clock.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::clock::Tick;

/// After so long an acquire that was sent does nothing any more, and its reply is not waited for any longer.
pub(crate) const NOT_AFTER: Duration = Duration::from_secs(2);
/// Taken off every local deadline, since clocks run at rates of their own: 1 ‰ of the span.
const DRIFT_PER_MILLE: u32 = 1;
/// Taken off every local deadline: the resolution of server times (1 ms), and what it takes to notice.
pub(crate) const MARGIN: Duration = Duration::from_millis(5);
/// A failed renewal is not repeated sooner than this.
const MIN_RENEWAL_RETRY: Duration = Duration::from_millis(50);

/// A fencing token: the number of a change of owner, strictly increasing per lock.
///
/// Hand it to the resource that the lock protects, and have that refuse smaller numbers than the largest it has
/// seen: then no stale write is accepted, whatever happens to leases and clocks ([Kleppmann 2016]).
///
/// It is the server's clock in µs at the change of owner, or one more than the last fence where that is larger.
///
/// [Kleppmann 2016]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// As an integer: non-zero and less than 2⁶³.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn new(number: u64) -> Option<Fence> {
        i64::try_from(number).ok()?;
        NonZeroU64::new(number).map(Fence)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> u64 {
        fence.get()
    }
}

/// For SQL, which has no unsigned integers.
impl From<Fence> for i64 {
    fn from(fence: Fence) -> i64 {
        i64::try_from(fence.get()).unwrap_or(i64::MAX)
    }
}

impl TryFrom<u64> for Fence {
    type Error = crate::Error;

    /// # Errors
    /// [`Invalid`](crate::Error::Invalid) for 0 and for 2⁶³ and more.
    fn try_from(number: u64) -> Result<Fence, crate::Error> {
        Fence::new(number).ok_or_else(|| {
            crate::error::Invalid::new(format!("fence {number}: must be from 1 to {}", i64::MAX)).into()
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Fence {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Fence {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Fence, D::Error> {
        let number = u64::deserialize(deserializer)?;
        Fence::new(number).ok_or_else(|| serde::de::Error::custom("a fence is from 1 to 2^63 - 1"))
    }
}

/// What a guard knows of its lease at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    length: Duration,
    remaining: Duration,
    state: LeaseState,
}

/// Whether a lease is still good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// It is, and the last renewal succeeded.
    Held,
    /// It is, but renewals fail: unless one succeeds, it will be over in [`Lease::remaining`].
    InDoubt,
    /// It is over: somebody else may hold the lock.
    Lost,
}

impl Lease {
    pub(crate) fn new(length: Duration, remaining: Duration, state: LeaseState) -> Lease {
        Lease {
            length,
            remaining,
            state,
        }
    }

    /// How long the server keeps the hold after each renewal.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// For how long the hold is good even if no renewal gets through any more; zero when it is lost.
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Whether the lease is still good.
    pub fn state(&self) -> LeaseState {
        self.state
    }
}

/// The server's clock, in ms since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct ServerTime(u64);

impl ServerTime {
    /// Later than any that a server tells, and still of 13 digits.
    pub(crate) const MAX: ServerTime = ServerTime(9_999_999_999_999);

    pub(crate) const fn from_ms(ms: u64) -> ServerTime {
        ServerTime(ms)
    }

    pub(crate) fn ms(self) -> u64 {
        self.0
    }

    pub(crate) fn after(self, span: Duration) -> ServerTime {
        ServerTime(self.0.saturating_add(millis(span)).min(Self::MAX.0))
    }

    pub(crate) fn before(self, span: Duration) -> ServerTime {
        ServerTime(self.0.saturating_sub(millis(span)))
    }

    /// The time from `earlier` until this one; zero when it is not earlier.
    pub(crate) fn since(self, earlier: ServerTime) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    fn nanos(self) -> i128 {
        i128::from(self.0) * 1_000_000
    }
}

/// The server time, in µs, at which a request was queued: its place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

/// Whole milliseconds of a span; the options keep every span far below the limit.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// How long a hold is to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) length: Duration,
    /// Never extended beyond its length.
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) claim_window: Duration,
}

impl Terms {
    /// The lease of a grant in the reply to the request's own call, and of each renewal.
    pub(crate) fn lease(&self) -> Duration {
        self.max_hold.map_or(self.length, |max| max.min(self.length))
    }

    /// The lease of a pushed grant, until it is claimed.
    pub(crate) fn grant(&self) -> Duration {
        self.claim_window.min(self.lease())
    }

    /// How long a hold lasts at most, from its grant on.
    pub(crate) fn longest(&self) -> Duration {
        let max_hold = self.max_hold.unwrap_or(Duration::MAX);
        if self.fixed {
            max_hold.min(self.length)
        } else {
            max_hold
        }
    }

    /// Whether it is `max_hold` that ends a hold at its cap.
    pub(crate) fn ends_by_max_hold(&self) -> bool {
        self.max_hold.is_some_and(|max| !self.fixed || max < self.length)
    }
}

/// When to renew what lasts from `now` until `deadline`: once a third of it is used up.
pub(crate) fn renewal_due(now: Tick, deadline: Tick) -> Tick {
    now.after(deadline.since(now) / 3)
}

/// When to repeat a renewal that failed, or goes unanswered: at a third of what is left, though not in a rush.
pub(crate) fn renewal_retry(now: Tick, deadline: Tick) -> Tick {
    now.after((deadline.since(now) / 3).max(MIN_RENEWAL_RETRY))
}

/// One call to a server and its reply: the only link between the two clocks. The server read its clock (`now`)
/// some time between `sent` and `received`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) sent: Tick,
    pub(crate) received: Tick,
    pub(crate) now: ServerTime,
}

impl Exchange {
    /// A local time at which the server's `deadline` has not passed yet, whatever the network did: counted from
    /// the moment of sending, since the server read its clock later than that.
    pub(crate) fn local(&self, deadline: ServerTime) -> Tick {
        let span = deadline.since(self.now);
        self.sent.after(span.saturating_sub(drift(span) + MARGIN))
    }

    /// `local − server`, at least: in ns.
    pub(crate) fn offset_at_least(&self) -> i128 {
        // Server times are cut to whole ms, so the clock may have shown up to 1 ms more.
        i128::from(self.sent.as_nanos()) - self.now.nanos() - 1_000_000
    }

    /// `local − server`, at most: in ns.
    pub(crate) fn offset_at_most(&self) -> i128 {
        i128::from(self.received.as_nanos()) - self.now.nanos()
    }
}

/// When a lease of that length is over on the server too, whose local `deadline` is on the safe side: unless the server took longer
/// for the last call than one waits for it.
pub(crate) fn over_everywhere(deadline: Tick, span: Duration) -> Tick {
    deadline.after(NOT_AFTER + 2 * (drift(span) + MARGIN))
}

/// How far two clocks may go apart in that time.
pub(crate) fn drift(span: Duration) -> Duration {
    span * DRIFT_PER_MILLE / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn no_grant_lasts_longer_than_its_lease() {
        let terms = |length, max_hold| Terms {
            length,
            fixed: false,
            max_hold,
            claim_window: 5_000 * MS,
        };
        assert_eq!(terms(1_000 * MS, None).grant(), 1_000 * MS);
        assert_eq!(terms(30_000 * MS, Some(2_000 * MS)).grant(), 2_000 * MS);
        assert_eq!(terms(30_000 * MS, None).grant(), 5_000 * MS);
    }

    #[test]
    fn a_fixed_lease_ends_with_the_shorter_of_its_length_and_its_maximum_hold() {
        for (length, max_hold, lasts) in [(10, 4, 4), (4, 10, 4)] {
            let terms = Terms {
                length: length * 1_000 * MS,
                fixed: true,
                max_hold: Some(max_hold * 1_000 * MS),
                claim_window: 5_000 * MS,
            };
            assert_eq!(terms.longest(), lasts * 1_000 * MS);
            assert_eq!(terms.ends_by_max_hold(), max_hold < length);
        }
    }

    #[test]
    fn a_renewal_that_failed_is_repeated_at_a_third_of_what_is_left_and_not_in_a_rush() {
        let now = Tick::ZERO.after(1_000 * MS);
        assert_eq!(renewal_retry(now, now.after(3_000 * MS)), now.after(1_000 * MS));
        for left in [0, 1, 100] {
            assert_eq!(
                renewal_retry(now, now.after(left * MS)),
                now.after(50 * MS),
                "{left}"
            );
        }
    }

    #[test]
    fn a_local_deadline_never_comes_after_the_servers() {
        let server_ahead = Duration::from_secs(1_000_000);
        for span in [100 * MS, 3_000 * MS, 30_000 * MS, 86_400_000 * MS] {
            for (up, down) in [(0, 0), (0, 900), (900, 0), (40, 40)] {
                // The server reads its clock just before the next ms begins, and tells the one that goes by.
                let read = server_ahead + Duration::from_micros(999);
                let at = Tick::ZERO.after(up * MS);
                let exchange = Exchange {
                    sent: Tick::ZERO,
                    received: at.after(down * MS),
                    now: ServerTime::from_ms(u64::try_from(read.as_millis()).unwrap()),
                };
                let deadline = exchange.now.after(span);
                // It comes sooner by what was cut off, and by the drift: its clock makes 1,001 s in 1,000.
                let ends = at.after((span - Duration::from_micros(999)) * 1000 / 1001);
                let local = exchange.local(deadline);
                assert!(local <= ends, "{span:?}, {up} and {down} ms: {local:?}, {ends:?}");
                let wasted = ends.since(local);
                assert!(
                    wasted <= up * MS + drift(span) + MARGIN,
                    "{span:?}: {wasted:?} wasted"
                );
            }
        }
    }
}
