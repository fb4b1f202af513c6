//! The pauses between attempts.

use std::time::Duration;

/// Pauses of 10, 20, 40 … 1,000 ms, each with up to a quarter of jitter. The jitter keeps clients that failed
/// together from coming back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
}

impl Backoff {
    const SHORTEST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Backoff {
        Backoff::beginning_with(Self::SHORTEST)
    }

    /// Like [`Backoff::new`], but without a pause before the first attempt, because the cause of the failure
    /// may be gone already.
    #[cfg(feature = "redis")]
    pub(crate) fn at_once() -> Backoff {
        Backoff::beginning_with(Duration::ZERO)
    }

    fn beginning_with(first: Duration) -> Backoff {
        Backoff { next: first, first }
    }

    pub(crate) fn step(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).clamp(Self::SHORTEST, Self::LONGEST);
        step + jitter(step / 4)
    }

    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.step()).await;
    }

    /// Starts again with the first pause if the success lasted for at least the longest pause. Otherwise the
    /// pauses continue to grow.
    pub(crate) fn ended_after(&mut self, lasted: Duration) {
        if lasted >= Self::LONGEST {
            self.next = self.first;
        }
    }
}

/// A random part of `span`.
pub(crate) fn jitter(span: Duration) -> Duration {
    span * fastrand::u32(..1024) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(backoff: &mut Backoff, expected: &[u64]) {
        for expected in expected {
            let (least, step) = (Duration::from_millis(*expected), backoff.step());
            assert!(
                step >= least && step <= least + least / 4,
                "{step:?} for {least:?}"
            );
        }
    }

    #[test]
    fn steps_double_up_to_a_second() {
        steps(&mut Backoff::new(), &[10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }

    #[test]
    fn clients_failing_together_do_not_come_back_together() {
        let step = || {
            let mut backoff = Backoff::new();
            (0..8).map(|_| backoff.step()).sum::<Duration>()
        };
        let first = step();
        assert!((0..100).any(|_| step() != first));
    }

    #[test]
    fn jitter_is_spread_over_its_span() {
        let span = Duration::from_millis(1000);
        let drawn: Vec<Duration> = (0..1000).map(|_| jitter(span)).collect();
        assert!(drawn.iter().all(|drawn| *drawn < span));
        assert!(
            drawn.iter().any(|drawn| *drawn < span / 4) && drawn.iter().any(|drawn| *drawn > span * 3 / 4)
        );
    }

    #[cfg(feature = "redis")]
    #[test]
    fn steps_start_over_after_a_good_connection() {
        let mut backoff = Backoff::at_once();
        steps(&mut backoff, &[0, 10, 20, 40, 80, 160, 320, 640, 1000]);
        backoff.ended_after(Duration::from_millis(999));
        steps(&mut backoff, &[1000]);
        backoff.ended_after(Duration::from_secs(1));
        steps(&mut backoff, &[0]);
    }
}
