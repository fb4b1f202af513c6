//! How many calls may be in flight: as many as keep the server busy. Calls in flight cannot be taken back,
//! but calls in the backlog can.
//!
//! The minimum latency is that of a call that does not wait for others. The difference between the mean and
//! the minimum shows how many calls in flight wait at the server. The window is set so that the wanted number
//! of calls wait there, as TCP Vegas does it (Brakmo, O'Malley and Peterson, 1994). If calls always wait, the
//! minimum cannot be observed. So from time to time the window is small for a moment, as BBR does it
//! (Cardwell and others, 2016).
//!
//! Renewals do not wait for the window, but the server answers them after all calls that were written before.
//! With a constant window of 1,024 calls, the renewals behind a flood at a slow server came too late.

use std::time::Duration;

use crate::time::clock::LocalTime;

/// How many calls should wait at the server at least, so that it is busy until others arrive.
const QUEUED: u64 = 64;
/// This share of the calls in flight may wait there, because calls are written in bursts.
const QUEUED_SHARE: u64 = 4;
/// The minimum size of the window.
const FEWEST: u64 = 16;
/// How long a minimum latency is used. A minimum may be used for twice this time.
const LEAST_KEPT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Window {
    most: u64,
    size: u64,
    round: Round,
    /// The minimum latency of this period and of the previous one. `since` is the start of this period.
    least: [Duration; 2],
    since: LocalTime,
    probe: Option<Probe>,
    /// The longest latency of the last round.
    latency: Duration,
    /// The smoothed latency: the mean of the rounds, of which later ones count for more.
    smoothed: Option<Duration>,
}

/// The calls that are answered after the previous round, up to the last call that was written when the
/// previous round ended.
#[derive(Debug)]
struct Round {
    last: u64,
    answers: u32,
    sum: Duration,
    longest: Duration,
    /// Some calls had to wait for the window.
    was_full: bool,
}

/// A search for the minimum latency is under way.
#[derive(Debug)]
struct Probe {
    size_before: u64,
    /// The calls from before the search are answered, and only a few are in flight.
    is_empty: bool,
}

impl Round {
    fn after(last: u64) -> Round {
        Round {
            last,
            answers: 0,
            sum: Duration::ZERO,
            longest: Duration::ZERO,
            was_full: false,
        }
    }
}

impl Window {
    pub(super) fn new(most: u64) -> Window {
        Window {
            most,
            size: most,
            round: Round::after(0),
            least: [Duration::MAX; 2],
            since: LocalTime::ZERO,
            probe: None,
            latency: Duration::ZERO,
            smoothed: None,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Most calls take no longer than this.
    pub(super) fn latency(&self) -> Duration {
        self.latency
    }

    /// What calls have taken lately, smoothed as in RFC 6298: an outlier counts for an eighth.
    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or_default()
    }

    /// A call has to wait for the window.
    pub(super) fn is_full(&mut self) {
        self.round.was_full = true;
    }

    /// Call `number` was answered after `latency`. `sent` is the number of the last written call.
    pub(super) fn answered(&mut self, number: u64, sent: u64, now: LocalTime, latency: Duration) {
        let round = &mut self.round;
        round.answers += 1;
        round.sum += latency;
        round.longest = round.longest.max(latency);
        self.least[0] = self.least[0].min(latency);
        if number >= round.last {
            self.latency = round.longest;
            let mean = round.sum / round.answers;
            self.smoothed = Some(self.smoothed.map_or(mean, |before| (7 * before + mean) / 8));
            if round.was_full {
                self.resize(now);
            }
            self.round = Round::after(sent);
        }
    }

    fn resize(&mut self, now: LocalTime) {
        match self.probe.take() {
            Some(probe) if probe.is_empty => self.size = probe.size_before,
            Some(probe) => {
                self.least = [Duration::MAX, self.least[0]];
                self.probe = Some(Probe {
                    is_empty: true,
                    ..probe
                });
            }
            None if now.since(self.since) >= LEAST_KEPT => {
                self.since = now;
                self.probe = Some(Probe {
                    size_before: self.size,
                    is_empty: false,
                });
                self.size = FEWEST.min(self.most);
            }
            None => {
                let mean = (self.round.sum / self.round.answers).as_secs_f64();
                let least = self.least[0].min(self.least[1]).as_secs_f64();
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it is a small count"
                )]
                let at_work = (self.size as f64 * least / mean) as u64;
                let queued = QUEUED.max(self.size / QUEUED_SHARE);
                self.size = (at_work + queued).clamp(FEWEST.min(self.most), self.most);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MOST: u64 = 1024;

    /// A client that always has more to write, and a server. A call travels for `path` in both directions
    /// together, and takes `work` of the server's time.
    struct Fixture {
        window: Window,
        path: Duration,
        work: Duration,
        now: LocalTime,
        /// When the calls in flight were written.
        in_flight: VecDeque<LocalTime>,
        answered: u64,
        /// When the server is done with all calls that it has received.
        idle_at: LocalTime,
        /// The client writes only when half of the window is free.
        in_bursts: bool,
    }

    impl Fixture {
        fn new(path_ms: u64, work_us: u64) -> Fixture {
            Fixture {
                window: Window::new(MOST),
                path: Duration::from_millis(path_ms),
                work: Duration::from_micros(work_us),
                now: LocalTime::ZERO,
                in_flight: VecDeque::new(),
                answered: 0,
                idle_at: LocalTime::ZERO,
                in_bursts: false,
            }
        }

        /// Fills the window, and reads a reply.
        fn step(&mut self) {
            let waits = self.in_bursts && self.in_flight.len() as u64 > self.window.size() / 2;
            while !waits && (self.in_flight.len() as u64) < self.window.size() {
                self.in_flight.push_back(self.now);
            }
            let sent = self.answered + self.in_flight.len() as u64;
            let written = self.in_flight.pop_front().unwrap();
            self.idle_at = self.idle_at.max(written.after(self.path / 2)).after(self.work);
            self.now = self.idle_at.after(self.path / 2);
            self.answered += 1;
            self.window.is_full();
            self.window
                .answered(self.answered, sent, self.now, self.now.since(written));
        }

        /// Runs for this many seconds, and returns the size of the window.
        fn after(&mut self, seconds: u64) -> u64 {
            let until = self.now.after(Duration::from_secs(seconds));
            while self.now < until || self.window.probe.is_some() {
                self.step();
            }
            self.window.size()
        }
    }

    #[test]
    fn window_stays_at_its_maximum_while_no_call_waits() {
        let mut window = Window::new(MOST);
        for number in 1..10_000 {
            let latency = Duration::from_millis(number);
            window.answered(number, number, LocalTime::ZERO.after(latency), latency);
            assert_eq!(window.size(), MOST);
        }
    }

    #[test]
    fn no_more_are_in_flight_than_keep_the_server_busy() {
        let size = Fixture::new(1, 40).after(1);
        assert!((QUEUED..3 * QUEUED).contains(&size), "{size}");
    }

    #[test]
    fn distant_server_always_has_enough_to_do() {
        assert_eq!(Fixture::new(200, 40).after(5), MOST);
    }

    #[test]
    fn bursts_are_not_mistaken_for_a_queue_of_a_distant_server() {
        let mut fixture = Fixture::new(200, 100);
        fixture.in_bursts = true;
        let size = fixture.after(5);
        assert!(size > MOST * 9 / 10, "{size}");
    }

    #[test]
    fn more_are_in_flight_again_once_the_server_is_faster() {
        let mut fixture = Fixture::new(20, 1000);
        let slow = fixture.after(5);
        assert!(slow < 4 * QUEUED, "{slow}");
        fixture.work = Duration::from_micros(10);
        assert_eq!(fixture.after(5), MOST);
    }

    #[test]
    fn longer_path_is_noticed() {
        let mut fixture = Fixture::new(1, 40);
        fixture.after(5);
        fixture.path = Duration::from_millis(200);
        let misled = fixture.after(5);
        assert!(misled < 3 * QUEUED, "{misled}");
        assert_eq!(fixture.after(25), MOST);
    }

    #[test]
    fn least_latency_stays_known_while_the_window_is_always_full() {
        let mut fixture = Fixture::new(1, 40);
        let before = fixture.after(1);
        let after = fixture.after(100);
        assert!(after.abs_diff(before) < QUEUED / 4, "{before} {after}");
    }

    #[test]
    fn most_calls_take_no_longer_than_the_longest_of_the_last_round() {
        let mut window = Window::new(MOST);
        assert_eq!(window.latency(), Duration::ZERO);
        let ms = Duration::from_millis;
        for (number, latency) in [(1, 9), (2, 5), (3, 7), (4, 3), (5, 2)] {
            let sent = if number < 4 { 4 } else { 8 };
            window.answered(number, sent, LocalTime::ZERO, ms(latency));
            assert_eq!(window.latency(), ms(if number < 4 { 9 } else { 7 }));
        }
    }
}
