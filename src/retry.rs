//! How long to wait between two attempts at the same call.

use std::time::Duration;

/// 10, 20, 40 … 1,000 ms, each with up to a quarter of jitter, so that clients that failed together do not
/// come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Backoff {
        Backoff { next: Self::FIRST }
    }

    pub(crate) fn step(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(Self::LONGEST);
        step + jitter(step / 4)
    }

    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.step()).await;
    }
}

/// A random part of `span`.
pub(crate) fn jitter(span: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    // Each state is keyed anew; that is all the randomness that jitter needs.
    let random = RandomState::new().hash_one(0u8);
    let part = u32::try_from(random % 1024).unwrap_or_default();
    span * part / 1024
}
