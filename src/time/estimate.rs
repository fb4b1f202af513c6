//! An estimate of a time that varies.

use std::time::Duration;

/// The smoothed mean and mean deviation of a time. RFC 6298 (section 2) calculates them like this for round
/// trips.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    known: Option<(Duration, Duration)>,
}

impl Estimate {
    pub(crate) fn record(&mut self, time: Duration) {
        self.known = Some(match self.known {
            None => (time, time / 2),
            Some((mean, deviation)) => ((mean * 7 + time) / 8, (deviation * 3 + mean.abs_diff(time)) / 4),
        });
    }

    /// An upper bound for most times, or zero while nothing is known.
    pub(crate) fn at_most(&self) -> Duration {
        self.known
            .map_or(Duration::ZERO, |(mean, deviation)| mean + 4 * deviation)
    }

    /// The range of most times, or `None` while nothing is known.
    pub(crate) fn range(&self) -> Option<(Duration, Duration)> {
        let (mean, deviation) = self.known?;
        Some((mean.saturating_sub(2 * deviation), self.at_most()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_time_is_known_ever_more_exactly() {
        let mut estimate = Estimate::default();
        assert_eq!((estimate.at_most(), estimate.range()), (Duration::ZERO, None));
        let time = Duration::from_millis(100);
        estimate.record(time);
        assert_eq!(estimate.range(), Some((Duration::ZERO, 3 * time)));
        for _ in 0..100 {
            estimate.record(time);
        }
        assert_eq!((estimate.at_most(), estimate.range()), (time, Some((time, time))));
        // One time that is nine times as long adds an eighth of the difference to the mean, and a quarter of
        // it to the deviation, which counts four times.
        estimate.record(9 * time);
        assert_eq!(estimate.at_most(), 10 * time);
    }

    #[test]
    fn most_samples_of_a_varying_time_are_between_the_two() {
        let mut estimate = Estimate::default();
        let times = [5, 15, 10, 30, 8].map(Duration::from_millis);
        for time in times.into_iter().cycle().take(100) {
            estimate.record(time);
        }
        let (least, most) = estimate.range().unwrap();
        assert!(
            times.iter().all(|time| (least..=most).contains(time)),
            "{estimate:?}"
        );
    }
}
