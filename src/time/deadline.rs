//! Leases: their terms, and the arithmetic of their deadlines.
//!
//! Two clocks meet here: the server's, which decides who holds, and the local one, by which a holder must know
//! *before* the server does that its lease is over. Time comes in as an argument; nothing here reads a clock.

use std::time::Duration;

use super::clock::LocalTime;

/// After so long an acquire that was sent does nothing any more, and its reply is not waited for any longer.
pub(crate) const NOT_AFTER: Duration = Duration::from_secs(2);
/// Taken off every local deadline, since clocks run at rates of their own: 1 ‰ of the span.
const DRIFT_PER_MILLE: u32 = 1;
/// Taken off every local deadline: the resolution of server times (1 ms), and what it takes to notice.
pub(crate) const MARGIN: Duration = Duration::from_millis(5);
/// A failed renewal is not repeated sooner than this.
const MIN_RENEWAL_RETRY: Duration = Duration::from_millis(50);

/// How long a hold is to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    pub(crate) length: Duration,
    /// Never extended beyond its length.
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) claim_window: Duration,
}

impl LeaseTerms {
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
pub(crate) fn renewal_due(now: LocalTime, deadline: LocalTime) -> LocalTime {
    now.after(deadline.since(now) / 3)
}

/// When to repeat a renewal that failed, or goes unanswered: at a third of what is left, though not in a rush.
pub(crate) fn renewal_retry(now: LocalTime, deadline: LocalTime) -> LocalTime {
    now.after((deadline.since(now) / 3).max(MIN_RENEWAL_RETRY))
}

/// When a lease of that length is over on the server too, whose local `deadline` is on the safe side: unless the server took longer
/// for the last call than one waits for it.
pub(crate) fn expired_on_server_by(deadline: LocalTime, span: Duration) -> LocalTime {
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
        let terms = |length, max_hold| LeaseTerms {
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
            let terms = LeaseTerms {
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
