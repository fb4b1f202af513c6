//! Leases: their terms, and the calculation of their deadlines.
//!
//! Two clocks matter here. The server's clock decides who holds. By the local clock, a holder must know that
//! its lease has ended *before* the server does. Time is always an argument; nothing here reads a clock.

use std::time::Duration;

use super::clock::LocalTime;

/// How long after its sending an acquire still has an effect, and how long its reply is awaited.
pub(crate) const NOT_AFTER: Duration = Duration::from_secs(2);
/// Server times are whole milliseconds, and the client only estimates them.
pub(crate) const PRECISION: Duration = Duration::from_millis(10);
/// Part of every local deadline's margin: 1 ‰ of the span, since clocks run at different rates.
const DRIFT_PER_MILLE: u32 = 1;
/// Part of every local deadline's margin: the resolution of server times (1 ms), and the time to notice.
pub(super) const MARGIN: Duration = Duration::from_millis(5);
/// The minimum time before a failed renewal is repeated.
const MIN_RENEWAL_RETRY: Duration = Duration::from_millis(50);

/// The terms of a hold's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    pub(crate) length: Duration,
    /// The lease is never extended beyond its length.
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    /// A release keeps the lock taken until this long after the grant.
    pub(crate) at_least: Option<Duration>,
    /// A shorter lease has a shorter claim window.
    pub(crate) longest_claim_window: Duration,
}

impl LeaseTerms {
    /// The lease of a grant in the reply to the request's own call, and of each renewal.
    pub(crate) fn lease(&self) -> Duration {
        self.max_hold.map_or(self.length, |max| max.min(self.length))
    }

    /// The lease of a pushed grant until it is claimed.
    pub(crate) fn claim_window(&self) -> Duration {
        self.longest_claim_window.min(self.lease())
    }

    /// Whether a grant with so much time left is late: it might end before its caller could renew it. No turn
    /// begins then, either.
    pub(crate) fn is_late(&self, left: Duration) -> bool {
        left < self.claim_window() / 4
    }

    /// The maximum time that a hold lasts after its grant.
    pub(crate) fn longest(&self) -> Duration {
        let max_hold = self.max_hold.unwrap_or(Duration::MAX);
        if self.fixed {
            max_hold.min(self.length)
        } else {
            max_hold
        }
    }

    /// Whether `max_hold` is the reason why a hold ends at its cap.
    pub(crate) fn ends_by_max_hold(&self) -> bool {
        self.max_hold.is_some_and(|max| !self.fixed || max < self.length)
    }
}

/// When to renew a hold that lasts from `now` until `deadline`: when a third of that time is used up.
pub(crate) fn renewal_due(now: LocalTime, deadline: LocalTime) -> LocalTime {
    now.after(deadline.since(now) / 3)
}

/// When to repeat a renewal that failed or goes unanswered: after a third of the remaining time, but not too
/// soon.
pub(crate) fn renewal_retry(now: LocalTime, deadline: LocalTime) -> LocalTime {
    now.after((deadline.since(now) / 3).max(MIN_RENEWAL_RETRY))
}

/// The maximum difference that two clocks can develop in this time.
pub(super) fn drift(span: Duration) -> Duration {
    span * DRIFT_PER_MILLE / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn no_grant_lasts_longer_than_its_lease() {
        let terms = |length, max_hold| LeaseTerms {
            length,
            fixed: false,
            max_hold,
            at_least: None,
            longest_claim_window: 5_000 * MS,
        };
        assert_eq!(terms(1_000 * MS, None).claim_window(), 1_000 * MS);
        assert_eq!(terms(30_000 * MS, Some(2_000 * MS)).claim_window(), 2_000 * MS);
        assert_eq!(terms(30_000 * MS, None).claim_window(), 5_000 * MS);
    }

    #[test]
    fn a_fixed_lease_ends_with_the_shorter_of_its_length_and_its_maximum_hold() {
        for (length, max_hold, lasts) in [(10, 4, 4), (4, 10, 4), (4, 4, 4)] {
            let terms = LeaseTerms {
                length: length * 1_000 * MS,
                fixed: true,
                max_hold: Some(max_hold * 1_000 * MS),
                at_least: None,
                longest_claim_window: 5_000 * MS,
            };
            assert_eq!(terms.longest(), lasts * 1_000 * MS);
            assert_eq!(terms.ends_by_max_hold(), max_hold < length);
        }
    }

    #[test]
    fn renewal_is_due_after_a_third_of_the_lease() {
        let now = LocalTime::ZERO.after(1_000 * MS);
        assert_eq!(renewal_due(now, now.after(3_000 * MS)), now.after(1_000 * MS));
    }

    #[test]
    fn failed_renewal_is_repeated_at_a_third_of_the_remaining_time_but_not_at_once() {
        let now = LocalTime::ZERO.after(1_000 * MS);
        assert_eq!(renewal_retry(now, now.after(3_000 * MS)), now.after(1_000 * MS));
        for left in [0, 1, 100] {
            assert_eq!(
                renewal_retry(now, now.after(left * MS)),
                now.after(50 * MS),
                "{left}"
            );
        }
    }
}
