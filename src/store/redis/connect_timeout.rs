//! How long an attempt to connect may take.
//!
//! An attempt makes several calls, one after the other. A server that is busy or far away may answer each of
//! them in the time that one call has, and not all of them together. If no attempt had more time than that,
//! a connection to such a server would never be replaced. So an attempt that is not answered in time gives
//! the next one twice as long. The first one is short, because a server that is silent is noticed sooner.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// With this many, the time is enough for four calls. That is how many fred makes at most: it authenticates,
/// selects the database, and asks for the id of the connection and for the version of the server.
const DOUBLINGS: u32 = 2;

/// How long the attempts to connect to one server may take.
pub(super) struct ConnectTimeout {
    first: Duration,
    doublings: AtomicU32,
}

impl ConnectTimeout {
    /// The first attempt may take as long as one call.
    pub(super) fn new(first: Duration) -> ConnectTimeout {
        ConnectTimeout {
            first,
            doublings: AtomicU32::new(0),
        }
    }

    /// How long the next attempt may take.
    pub(super) fn within(&self) -> Duration {
        self.first * 2_u32.pow(self.doublings.load(Ordering::Relaxed))
    }

    /// Learns from an attempt that was allowed to take `within`.
    pub(super) fn learn(&self, within: Duration, took: Duration, connected: bool) {
        let doublings = self.doublings.load(Ordering::Relaxed);
        let next = if connected && took <= self.first {
            0
        } else if !connected && took >= within {
            DOUBLINGS.min(doublings + 1)
        } else {
            doublings
        };
        self.doublings.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(2);

    /// Makes an attempt, and returns how long the next one may take, in units of the first one.
    fn after(timeout: &ConnectTimeout, took: Duration, connected: bool) -> u32 {
        timeout.learn(timeout.within(), took, connected);
        (timeout.within().as_secs() / FIRST.as_secs()).try_into().unwrap()
    }

    #[test]
    fn attempts_without_an_answer_double_the_time_of_the_next_one_up_to_four_calls() {
        let timeout = ConnectTimeout::new(FIRST);
        for next in [2, 4, 4] {
            assert_eq!(after(&timeout, timeout.within(), false), next);
        }
    }

    #[test]
    fn refusal_says_nothing_about_the_pace_of_the_server() {
        let timeout = ConnectTimeout::new(FIRST);
        assert_eq!(after(&timeout, Duration::ZERO, false), 1);
        after(&timeout, FIRST, false);
        assert_eq!(after(&timeout, Duration::ZERO, false), 2);
    }

    #[test]
    fn only_a_connection_that_took_no_longer_than_a_call_shortens_the_time() {
        let timeout = ConnectTimeout::new(FIRST);
        after(&timeout, FIRST, false);
        assert_eq!(after(&timeout, FIRST * 3 / 2, true), 2);
        assert_eq!(after(&timeout, FIRST, true), 1);
    }
}
