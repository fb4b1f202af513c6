//! Relates the clock of a server to the local clock.

use std::time::Duration;

use crate::time::clock::LocalTime;
use crate::time::deadline::{MARGIN, drift};
use crate::time::server_time::ServerTime;

/// One call to a server and its reply, which relate the two clocks. The server read its clock (`now`) between
/// `sent` and `received`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) sent: LocalTime,
    pub(crate) received: LocalTime,
    pub(crate) now: ServerTime,
}

impl Sample {
    /// A local time at which the server's `deadline` has not passed, however slow the network was. It counts
    /// from the sending of the call, because the server read its clock after that.
    pub(crate) fn local(&self, deadline: ServerTime) -> LocalTime {
        let span = deadline.since(self.now);
        self.sent.after(span.saturating_sub(drift(span) + MARGIN))
    }

    /// The server time at the local time `now`, or a slightly later time, in µs.
    pub(crate) fn latest_us(&self, now: LocalTime) -> u64 {
        let since = u64::try_from(now.since(self.sent).as_micros()).unwrap_or(u64::MAX);
        self.now.ms().saturating_mul(1000).saturating_add(since)
    }

    /// The lower bound of `local − server`, in ns.
    fn offset_at_least(&self) -> i128 {
        // Server times are cut to whole ms, so the clock may have shown up to 1 ms more.
        i128::from(self.sent.as_nanos()) - self.now.nanos() - 1_000_000
    }

    /// The upper bound of `local − server`, in ns.
    fn offset_at_most(&self) -> i128 {
        i128::from(self.received.as_nanos()) - self.now.nanos()
    }
}

/// Recent samples of one server. They turn deadlines that the server pushed into local ones.
///
/// Each sample gives a lower bound of `local − server`. The largest bound is the tightest one, and it is
/// still safe. Two samples are kept: the best one of this [`ClockOffset::PERIOD`] and the best one of an
/// earlier period. They belong to one server. A reconnect discards them, because it may lead to another
/// server.
///
/// A push may be read long after it was sent. If the server's clock was set back in between, the samples are
/// newer than the push, and its deadline would seem to be later than it is. But the server has ended that
/// hold, since it keeps no hold for longer than its lease. So this type notices when the clock was set back,
/// even across a reconnect. As long as such a push could seem to be in time, no deadline is converted.
#[derive(Debug, Default)]
pub(crate) struct ClockOffset {
    recent: Option<Sample>,
    older: Option<Sample>,
    offset: Option<Offset>,
    /// A deadline may come from the clock before the set-back, until its own span has passed after this local
    /// time.
    set_back_until: Option<LocalTime>,
}

/// The bounds of `local − server`, in ns, from all samples since the clock was last set.
#[derive(Clone, Copy, Debug)]
struct Offset {
    at_least: i128,
    at_most: i128,
    at: LocalTime,
}

impl ClockOffset {
    const PERIOD: Duration = Duration::from_secs(1);

    pub(crate) fn record(&mut self, sample: Sample) {
        self.notice_a_set_back(&sample);
        // This sample contradicts a larger lower bound. Then the server's clock was set, and the bound is
        // void.
        let at_most = sample.offset_at_most();
        for kept in [&mut self.recent, &mut self.older] {
            if kept.is_some_and(|kept| kept.offset_at_least() > at_most) {
                *kept = None;
            }
        }
        match &mut self.recent {
            Some(recent) if sample.sent.since(recent.sent) < Self::PERIOD => {
                if sample.offset_at_least() > recent.offset_at_least() {
                    // The replaced sample becomes the older one, if there is none yet.
                    self.older = self.older.or(Some(*recent));
                    *recent = sample;
                }
            }
            recent => {
                self.older = recent.take();
                *recent = Some(sample);
            }
        }
    }

    fn notice_a_set_back(&mut self, sample: &Sample) {
        let now = Offset::of(sample);
        let Some(before) = self.offset else {
            self.offset = Some(now);
            return;
        };
        let before = before.at(now.at);
        // Smaller differences are covered by the margin.
        if now.at_least > before.at_most + nanos(MARGIN) {
            let by = u64::try_from(now.at_most - before.at_least).unwrap_or(u64::MAX);
            let until = now.at.after(Duration::from_nanos(by));
            self.set_back_until = self.set_back_until.max(Some(until));
        }
        self.offset = Some(before.and(now));
    }

    /// Discards the samples, but not the knowledge that the clock was set back.
    pub(crate) fn clear(&mut self) {
        (self.recent, self.older) = (None, None);
    }

    /// A local time at which the server's `deadline` has not passed. The deadline belongs to something that
    /// lasts for `span`. Returns `None` if it cannot be known.
    pub(crate) fn local(&self, deadline: ServerTime, now: LocalTime, span: Duration) -> Option<LocalTime> {
        if self.set_back_until.is_some_and(|until| now < until.after(span)) {
            return None;
        }
        self.offsets().map(|sample| sample.local(deadline)).max()
    }

    /// The server time at the local time `now`, or a slightly later time, in µs. Returns `None` without a
    /// sample.
    pub(crate) fn latest_us(&self, now: LocalTime) -> Option<u64> {
        self.offsets().map(|sample| sample.latest_us(now)).min()
    }

    /// The likely time of the server now, in µs: in the middle of what all replies allow. It is off by no
    /// more than half of the shortest round trip, half a ms, and the drift.
    pub(crate) fn likely_us(&self, now: LocalTime) -> Option<u64> {
        let Offset {
            at_least, at_most, ..
        } = self.offset?.at(now);
        let likely = i128::from(now.as_nanos()) - (at_least + at_most) / 2;
        u64::try_from(likely / 1000).ok()
    }

    fn offsets(&self) -> impl Iterator<Item = &Sample> {
        [&self.recent, &self.older].into_iter().flatten()
    }
}

impl Offset {
    fn of(sample: &Sample) -> Offset {
        Offset {
            at_least: sample.offset_at_least(),
            at_most: sample.offset_at_most(),
            at: sample.received,
        }
    }

    /// The bounds at a later time, widened by the possible drift of the clocks.
    fn at(self, later: LocalTime) -> Offset {
        let drifted = nanos(drift(later.since(self.at)));
        Offset {
            at_least: self.at_least - drifted,
            at_most: self.at_most + drifted,
            at: self.at.max(later),
        }
    }

    /// The intersection of both bounds, or `now` if they contradict each other.
    fn and(self, now: Offset) -> Offset {
        if now.at_least > self.at_most || now.at_most < self.at_least {
            return now;
        }
        Offset {
            at_least: self.at_least.max(now.at_least),
            at_most: self.at_most.min(now.at_most),
            at: now.at,
        }
    }
}

fn nanos(span: Duration) -> i128 {
    i128::try_from(span.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SPAN: Duration = Duration::from_secs(5);
    /// How far the server's clock is ahead of the local one.
    const AHEAD_MS: u64 = 100_000_000;

    fn tick(ms: u32) -> LocalTime {
        LocalTime::ZERO.after(ms * MS)
    }

    fn server(ms: u32) -> ServerTime {
        ServerTime::from_ms(AHEAD_MS + u64::from(ms))
    }

    /// A call that takes `up_ms` and `down_ms` each way. The server's clock shows `back_ms` less than at
    /// first.
    fn sample(sent_ms: u32, up_ms: u32, down_ms: u32, back_ms: u32) -> Sample {
        Sample {
            sent: tick(sent_ms),
            received: tick(sent_ms + up_ms + down_ms),
            now: server(sent_ms + up_ms).before(back_ms * MS),
        }
    }

    /// The local time for a deadline of the server's first clock.
    fn local(offsets: &ClockOffset, deadline_ms: u32, now_ms: u32) -> Option<LocalTime> {
        offsets.local(server(deadline_ms), tick(now_ms), SPAN)
    }

    #[test]
    fn without_an_exchange_no_time_is_known() {
        let mut offsets = ClockOffset::default();
        assert_eq!(local(&offsets, 5000, 0), None);
        offsets.record(sample(0, 1, 1, 0));
        assert!(local(&offsets, 5000, 2).is_some());
        offsets.clear();
        assert_eq!(local(&offsets, 5000, 2), None);
        assert_eq!(offsets.latest_us(tick(2)), None);
    }

    #[test]
    fn likely_time_is_off_by_half_of_the_shortest_round_trip_at_most() {
        let mut offsets = ClockOffset::default();
        assert_eq!(offsets.likely_us(tick(0)), None);
        let mut shortest = u32::MAX;
        for (sent, up, down) in [(0, 90, 0), (200, 0, 60), (400, 4, 6), (600, 500, 10)] {
            offsets.record(sample(sent, up, down, 0));
            shortest = shortest.min(up + down);
            let now = sent + up + down;
            let likely = offsets.likely_us(tick(now)).unwrap();
            let off = likely.abs_diff(1000 * server(now).ms());
            // The server's time is cut to whole ms.
            assert!(off <= u64::from(500 * shortest + 1000), "{off} µs at {now} ms");
        }
    }

    #[test]
    fn the_fastest_way_there_of_the_last_exchanges_counts_and_is_never_too_late() {
        let mut offsets = ClockOffset::default();
        let mut best = None;
        for (sent, up) in [(0, 400), (500, 3), (600, 90), (1700, 50), (1800, 200)] {
            offsets.record(sample(sent, up, 5, 0));
            let found = local(&offsets, 9000, sent + up + 5);
            assert!(found < Some(tick(9000)), "a local deadline is the earlier one");
            best = best.max(found);
        }
        assert_eq!(local(&offsets, 9000, 2005), best, "the sample of 3 ms counts");
        assert!(
            best > Some(tick(9000 - 3 - 20)),
            "only drift and margin are taken off"
        );
        // All earlier samples are two periods old by then.
        offsets.record(sample(3000, 60, 5, 0));
        offsets.record(sample(4100, 60, 5, 0));
        assert!(local(&offsets, 9000, 4200) < best);
    }

    #[test]
    fn samples_contradicted_by_a_clock_set_forward_are_void() {
        let mut offsets = ClockOffset::default();
        offsets.record(sample(0, 1, 1, 2000));
        offsets.record(sample(100, 50, 50, 0));
        let deadline = local(&offsets, 5000, 200);
        assert!(deadline.is_some_and(|at| at < tick(5000)), "{deadline:?}");
    }

    /// Race: A push that was sent before the server's clock was set back is read afterwards.
    #[test]
    fn deadline_from_before_a_step_back_is_never_taken_for_a_later_one() {
        // In each case, the push was sent just before the clock was set back.
        for (back_ms, reconnected) in [(30, false), (3000, false), (3000, true), (3_600_000, true)] {
            let mut offsets = ClockOffset::default();
            offsets.record(sample(0, 1, 1, 0));
            offsets.record(sample(900, 7, 9, 0));
            if reconnected {
                offsets.clear();
            }
            let sent_ms = 2000;
            offsets.record(sample(sent_ms, 2, 2, back_ms));
            let ends_ms = sent_ms + 5000;
            for now_ms in (sent_ms + 4..ends_ms + back_ms + 10_000).step_by(1 + back_ms as usize / 1000) {
                let found = local(&offsets, ends_ms, now_ms);
                let is_believed = found.is_some_and(|until| tick(now_ms) < until);
                assert!(
                    !is_believed || found <= Some(tick(ends_ms)),
                    "set back by {back_ms} ms, read at {now_ms}"
                );
            }
            // Later on, deadlines are converted again.
            let later_ms = ends_ms + 2 * back_ms + 1000;
            offsets.record(sample(later_ms - 10, 2, 2, back_ms));
            let after = server(later_ms + 5000).before(back_ms * MS);
            let found = offsets.local(after, tick(later_ms), SPAN);
            assert!(
                found.is_some_and(|until| until > tick(later_ms + 4000) && until < tick(later_ms + 5000))
            );
        }
    }

    #[test]
    fn a_second_smaller_step_back_ends_no_doubt() {
        let mut offsets = ClockOffset::default();
        offsets.record(sample(0, 1, 1, 0));
        offsets.record(sample(2000, 1, 1, 3_600_000));
        offsets.record(sample(3000, 1, 1, 3_601_000));
        assert_eq!(
            local(&offsets, 7000, 20_000),
            None,
            "a push from before the first step back"
        );
    }

    #[test]
    fn a_correction_within_the_margin_is_no_reason_for_doubt() {
        let mut offsets = ClockOffset::default();
        offsets.record(sample(0, 1, 1, 0));
        offsets.record(sample(100, 1, 1, 4));
        assert!(local(&offsets, 5000, 102).is_some());
    }

    #[test]
    fn the_time_is_told_by_the_fastest_way_there() {
        let mut offsets = ClockOffset::default();
        for (sent, up) in [(0, 400), (500, 3), (600, 90)] {
            offsets.record(sample(sent, up, 5, 0));
        }
        assert_eq!(offsets.latest_us(tick(900)), Some(1000 * server(903).ms()));
    }

    #[test]
    fn slow_answers_and_drifting_clocks_are_no_reason_for_doubt() {
        let mut offsets = ClockOffset::default();
        let mut sent_ms = 0;
        for n in 0..1000_u32 {
            let (up, down) = (n * 7 % 40, n * 11 % 900);
            // The server's clock is slower by 1 in 1,000.
            offsets.record(sample(sent_ms, up, down, sent_ms / 1000));
            sent_ms += up + down + n % 13 * 100;
            assert!(
                local(&offsets, sent_ms + 5000, sent_ms).is_some(),
                "after {sent_ms} ms"
            );
        }
    }

    #[test]
    fn a_local_deadline_never_comes_after_the_servers() {
        let server_ahead = Duration::from_secs(1_000_000);
        for span in [100 * MS, 3_000 * MS, 30_000 * MS, 86_400_000 * MS] {
            for (up, down) in [(0, 0), (0, 900), (900, 0), (40, 40)] {
                // The server reads its clock just before the next ms begins, and reports the ms that is about
                // to end.
                let read = server_ahead + Duration::from_micros(999);
                let at = LocalTime::ZERO.after(up * MS);
                let sample = Sample {
                    sent: LocalTime::ZERO,
                    received: at.after(down * MS),
                    now: ServerTime::from_ms(u64::try_from(read.as_millis()).unwrap()),
                };
                let deadline = sample.now.after(span);
                // The deadline comes sooner by the part that was cut off, and by the drift: the server's
                // clock counts 1,001 s in 1,000 s.
                let ends = at.after((span - Duration::from_micros(999)) * 1000 / 1001);
                let local = sample.local(deadline);
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
