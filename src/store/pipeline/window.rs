//! How many calls may be in flight: as many as keep the server busy, since what is in flight can't be taken
//! back, and what waits here can.
//!
//! The least latency is that of a call which waits for no other. By how much the mean is longer tells how
//! many of those in flight wait at the server, and the window is set so that as many do as are wanted: as TCP
//! Vegas does it (Brakmo, O'Malley and Peterson, 1994). Calls that always wait hide what the least latency
//! is, so now and then there are few in flight for a moment (as BBR does it: Cardwell and others, 2016).

use std::time::Duration;

use crate::time::clock::LocalTime;

/// How many calls are to wait at the server at least: enough for it to do until others come.
const QUEUED: u64 = 64;
/// This share of those in flight may wait there: they are written in bursts.
const QUEUED_SHARE: u64 = 4;
/// How many may be in flight at least.
const FEWEST: u64 = 16;
/// For how long a least latency counts, at most twice.
const LEAST_KEPT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Window {
    most: u64,
    size: u64,
    round: Round,
    /// The least latency of this period and of the one before, and when this one began.
    least: [Duration; 2],
    since: LocalTime,
    probe: Option<Probe>,
    /// Of the last round, the longest.
    latency: Duration,
}

/// All calls from the one that was first written after another round was over, to the one that was last
/// written when that was answered.
#[derive(Debug)]
struct Round {
    last: u64,
    answers: u32,
    sum: Duration,
    longest: Duration,
    /// Some had to wait for room.
    was_full: bool,
}

/// The least latency is being looked for.
#[derive(Debug)]
struct Probe {
    size_before: u64,
    /// What was in flight is answered: these are the few.
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
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Most calls are answered after no more than that.
    pub(super) fn latency(&self) -> Duration {
        self.latency
    }

    /// A call has to wait for room.
    pub(super) fn is_full(&mut self) {
        self.round.was_full = true;
    }

    /// This call was answered, after that time; `sent` is the last that is written.
    pub(super) fn answered(&mut self, number: u64, sent: u64, now: LocalTime, latency: Duration) {
        let round = &mut self.round;
        round.answers += 1;
        round.sum += latency;
        round.longest = round.longest.max(latency);
        self.least[0] = self.least[0].min(latency);
        if number >= round.last {
            self.latency = round.longest;
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

    /// A client that has always more to write, and a server that a call takes `path` to and fro, and `work`
    /// of.
    struct Fixture {
        window: Window,
        path: Duration,
        work: Duration,
        now: LocalTime,
        /// When the calls in flight were written.
        in_flight: VecDeque<LocalTime>,
        answered: u64,
        /// When the server has done all that it has got.
        idle_at: LocalTime,
        /// It writes when half of those in flight are answered.
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

        /// Writes what there is room for, and reads an answer.
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

        /// How many are in flight after so many seconds.
        fn after(&mut self, seconds: u64) -> u64 {
            let until = self.now.after(Duration::from_secs(seconds));
            while self.now < until || self.window.probe.is_some() {
                self.step();
            }
            self.window.size()
        }
    }

    #[test]
    fn as_many_as_may_be_are_in_flight_while_nobody_waits_for_room() {
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
    fn a_server_that_is_far_away_has_always_enough_to_do() {
        assert_eq!(Fixture::new(200, 40).after(5), MOST);
    }

    #[test]
    fn that_they_are_written_in_bursts_is_not_taken_for_a_queue_of_a_far_server() {
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
    fn a_path_that_has_become_longer_is_found_out() {
        let mut fixture = Fixture::new(1, 40);
        fixture.after(5);
        fixture.path = Duration::from_millis(200);
        let misled = fixture.after(5);
        assert!(misled < 3 * QUEUED, "{misled}");
        assert_eq!(fixture.after(25), MOST);
    }

    #[test]
    fn the_least_latency_stays_known_though_there_are_always_as_many_in_flight_as_may_be() {
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
