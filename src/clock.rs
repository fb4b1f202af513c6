//! Local time, as the deadlines of this process are told in.

use std::time::Duration;

/// An instant of a [`Clock`]: the time since that clock's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tick(Duration);

impl Tick {
    pub(crate) const ZERO: Tick = Tick(Duration::ZERO);

    /// Nanoseconds since the clock's origin: fits 64 bits for 584 years.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time from `earlier` until this instant; zero when it is not earlier.
    pub(crate) fn since(self, earlier: Tick) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn after(self, span: Duration) -> Tick {
        Tick(self.0.saturating_add(span))
    }

    fn origin_to(self) -> Duration {
        self.0
    }
}

/// Where local time comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The time since boot, that in which the machine was suspended included: a lease goes on running out
    /// on the server while the machine sleeps, and `Instant` would not notice (`CLOCK_BOOTTIME`, clock_gettime(2)).
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    Boot,
    /// Tokio's clock, which tests can pause and advance.
    Tokio { origin: tokio::time::Instant },
}

impl Clock {
    pub(crate) fn tokio() -> Clock {
        Clock::Tokio {
            origin: tokio::time::Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        match self {
            Clock::Boot => Tick(since_boot()),
            Clock::Tokio { origin } => Tick(origin.elapsed()),
        }
    }

    /// Sleeps until `due`, at the precision of tokio's timer (1 ms).
    pub(crate) async fn sleep_until(&self, due: Tick) {
        match self {
            // Tokio's timer stands still while the machine is suspended, so it is not trusted for longer than
            // this: a lease that ran out meanwhile is noticed within a second of waking up.
            Clock::Boot => loop {
                let left = due.since(self.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(Duration::from_secs(1))).await;
            },
            Clock::Tokio { origin } => tokio::time::sleep_until(*origin + due.origin_to()).await,
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    clock_gettime(rustix::time::ClockId::Boottime)
}

/// Darwin's `CLOCK_MONOTONIC` counts the time asleep; elsewhere it is the best there is.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn since_boot() -> Duration {
    clock_gettime(rustix::time::ClockId::Monotonic)
}

#[cfg(unix)]
fn clock_gettime(id: rustix::time::ClockId) -> Duration {
    // The kernel never tells a negative time since boot.
    Duration::try_from(rustix::time::clock_gettime(id)).unwrap_or_default()
}

#[cfg(not(unix))]
fn since_boot() -> Duration {
    static ORIGIN: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    ORIGIN.elapsed()
}
