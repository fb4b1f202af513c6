//! What a client knows of its servers' clocks.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::protocol::{Answer, ServerId};
use crate::sync::locked;
use crate::time::clock::{Clock, LocalTime};
use crate::time::clock_offset::ClockOffset;
use crate::time::clock_offset::Sample;
use crate::time::deadline::NOT_AFTER;
use crate::time::server_time::ServerTime;

/// The clock offsets and newest samples of all servers. A deadline of one server is never converted with the
/// clock offset of another.
#[derive(Debug)]
pub(crate) struct ServerClocks {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    known: HashMap<ServerId, Known>,
    /// The newest sample of any server, used for the first call to an unknown server. If that server's clock
    /// is too far ahead, the call does nothing, and the reply gives the time.
    newest: Option<Sample>,
}

#[derive(Debug)]
struct Known {
    offsets: ClockOffset,
    /// The newest sample. It is kept over a reconnect: it is good enough for a `not_after`, on which no
    /// promise depends.
    newest: Sample,
}

impl Known {
    fn latest_us(&self, now: LocalTime) -> u64 {
        (self.offsets.latest_us(now)).unwrap_or_else(|| self.newest.latest_us(now))
    }
}

impl ServerClocks {
    /// Of servers that have not answered yet, unless `first` is an answer of one.
    pub(super) fn new(clock: Clock, first: Option<&Answer<()>>) -> ServerClocks {
        let clocks = ServerClocks {
            clock,
            state: Mutex::new(State {
                known: HashMap::new(),
                newest: None,
            }),
        };
        if let Some(first) = first {
            clocks.record(first.on.server, first.at);
        }
        clocks
    }

    pub(super) fn record(&self, from: ServerId, sample: Sample) {
        // A script that has not read its clock tells no time.
        if sample.now == ServerTime::default() {
            return;
        }
        let mut state = locked(&self.state);
        let known = state.known.entry(from).or_insert_with(|| Known {
            offsets: ClockOffset::default(),
            newest: sample,
        });
        known.offsets.record(sample);
        known.newest = sample;
        state.newest = Some(sample);
    }

    /// The time of this server now, or a slightly later one. `None` if no server has answered yet.
    pub(super) fn server_time(&self, server: ServerId) -> Option<ServerTime> {
        let now = self.clock.now();
        let state = locked(&self.state);
        let us = match state.known.get(&server) {
            Some(known) => known.latest_us(now),
            None => state.newest?.latest_us(now),
        };
        Some(ServerTime::from_us(us))
    }

    /// The same in µs. `None` if the server has not answered yet.
    pub(super) fn latest_us(&self, server: ServerId) -> Option<u64> {
        let now = self.clock.now();
        Some(locked(&self.state).known.get(&server)?.latest_us(now))
    }

    /// The likely time of this server now, in µs. `None` if it has not answered yet.
    pub(super) fn likely_us(&self, server: ServerId) -> Option<u64> {
        let state = locked(&self.state);
        state.known.get(&server)?.offsets.likely_us(self.clock.now())
    }

    /// The server time until which a call to this server may run if it is written now. `None` if its caller
    /// has given up. Before any server has answered, that time is long over: the call does nothing, and the
    /// reply gives the time.
    pub(crate) fn not_after(&self, server: ServerId, until: Option<LocalTime>) -> Option<ServerTime> {
        let left = match until {
            Some(until) => until.since(self.clock.now()).min(NOT_AFTER),
            None => NOT_AFTER,
        };
        (!left.is_zero()).then(|| self.server_time(server).unwrap_or_default().after(left))
    }

    /// A local time at which this server's `deadline`, of something that lasts for `span`, has not passed
    /// yet. `None` while there is no clock offset.
    pub(super) fn local(&self, server: ServerId, deadline: ServerTime, span: Duration) -> Option<LocalTime> {
        let now = self.clock.now();
        let state = locked(&self.state);
        state.known.get(&server)?.offsets.local(deadline, now, span)
    }

    /// Forgets the clock offset, because a connection to this server was replaced. The server that now
    /// answers at its address may have another clock.
    pub(super) fn forget(&self, server: ServerId) {
        if let Some(known) = locked(&self.state).known.get_mut(&server) {
            known.offsets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ConnectionId;

    const SPAN: Duration = Duration::from_secs(5);
    const FIRST: ServerId = ServerId(0);
    const OTHER: ServerId = ServerId(1);

    fn answer(now_ms: u64) -> Answer<()> {
        let at = Sample {
            sent: LocalTime::ZERO,
            received: LocalTime::ZERO,
            now: ServerTime::from_ms(now_ms),
        };
        Answer {
            on: ConnectionId::default(),
            at,
            reply: (),
        }
    }

    fn ms(clocks: &ServerClocks, server: ServerId) -> u64 {
        clocks.server_time(server).unwrap().ms()
    }

    fn deadline() -> ServerTime {
        ServerTime::from_ms(1_000_000).after(SPAN)
    }

    #[tokio::test(start_paused = true)]
    async fn no_deadline_is_taken_by_the_clock_from_before_a_reconnect() {
        let clocks = ServerClocks::new(Clock::tokio(), Some(&answer(1_000_000)));
        assert!(clocks.local(FIRST, deadline(), SPAN).is_some());
        clocks.forget(FIRST);
        assert_eq!(clocks.local(FIRST, deadline(), SPAN), None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_deadline_is_taken_by_the_clock_of_another_server() {
        let clocks = ServerClocks::new(Clock::tokio(), Some(&answer(1_000_000)));
        assert_eq!(clocks.local(OTHER, deadline(), SPAN), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_server_is_never_told_too_early() {
        let mut first = answer(1_000_000);
        first.at.received = LocalTime::ZERO.after(Duration::from_millis(500));
        let clocks = ServerClocks::new(Clock::tokio(), Some(&first));
        tokio::time::sleep(SPAN).await;
        for _ in 0..2 {
            // The server may have read its clock as soon as the call was sent.
            assert_eq!(ms(&clocks, FIRST), 1_005_000);
            clocks.forget(FIRST);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_server_has_its_own_time_and_at_first_the_newest_of_the_others() {
        let clocks = ServerClocks::new(Clock::tokio(), Some(&answer(1_000_000)));
        assert_eq!(ms(&clocks, OTHER), 1_000_000);
        tokio::time::sleep(SPAN).await;
        let other = Sample {
            sent: clocks.clock.now(),
            received: clocks.clock.now(),
            now: ServerTime::from_ms(7_000_000),
        };
        clocks.record(OTHER, other);
        assert_eq!(ms(&clocks, OTHER), 7_000_000);
        assert_eq!(ms(&clocks, FIRST), 1_005_000);
        assert_eq!(ms(&clocks, ServerId(2)), 7_000_000);
        // The newest sample is kept over a reconnect, and is good enough for this.
        clocks.forget(FIRST);
        assert_eq!(ms(&clocks, FIRST), 1_005_000);
    }

    /// A ticket or a deadline by no clock at all would be that of 1970.
    #[tokio::test(start_paused = true)]
    async fn before_the_first_answer_no_time_is_known_and_no_call_can_run() {
        let clocks = ServerClocks::new(Clock::tokio(), None);
        assert_eq!(clocks.server_time(FIRST), None);
        let not_after = clocks.not_after(FIRST, None).unwrap();
        assert!(not_after < ServerTime::from_ms(10_000), "{not_after:?}");
        clocks.record(OTHER, answer(1_000_000).at);
        assert_eq!(ms(&clocks, FIRST), 1_000_000);
        assert_eq!(clocks.local(FIRST, deadline(), SPAN), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_may_run_until_its_caller_gives_up_and_for_two_seconds_at_most() {
        let clocks = ServerClocks::new(Clock::tokio(), Some(&answer(1_000_000)));
        let after = |wait: u64| Some(clocks.clock.now().after(Duration::from_millis(wait)));
        for (until, ms) in [(None, 2_000), (after(9_000), 2_000), (after(30), 30)] {
            let not_after = clocks.not_after(FIRST, until);
            assert_eq!(not_after, Some(ServerTime::from_ms(1_000_000 + ms)));
        }
        assert_eq!(clocks.not_after(FIRST, after(0)), None);
    }
}
