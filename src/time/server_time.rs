//! Times of the server's clock.

use std::time::Duration;

/// Clocks of servers that differ by more than this are reported.
#[cfg(feature = "redis")]
pub(crate) const CLOCKS_APART: Duration = Duration::from_secs(10);

/// The server's clock, in ms since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct ServerTime(u64);

impl ServerTime {
    /// Later than any time of a server, and still 13 digits long.
    pub(crate) const MAX: ServerTime = ServerTime(9_999_999_999_999);

    pub(crate) const fn from_ms(ms: u64) -> ServerTime {
        ServerTime(ms)
    }

    /// The whole ms of this time, which is in µs.
    pub(crate) fn from_us(us: u64) -> ServerTime {
        ServerTime((us / 1000).min(Self::MAX.0))
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

    /// The time from `earlier` to this one. Returns zero if `earlier` is not earlier.
    pub(crate) fn since(self, earlier: ServerTime) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    pub(super) fn nanos(self) -> i128 {
        i128::from(self.0) * 1_000_000
    }
}

/// A request's place in the queue: the server time, in µs, at which it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

impl Ticket {
    pub(crate) fn time(self) -> ServerTime {
        ServerTime::from_us(self.0)
    }
}

/// The whole milliseconds of a span. The options keep every span far below the limit.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
