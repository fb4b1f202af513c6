//! Local time, as the deadlines of this process are told in.

use std::time::Duration;

/// An instant of a [`Clock`]: the time since that clock's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LocalTime(Duration);

impl LocalTime {
    pub(crate) const ZERO: LocalTime = LocalTime(Duration::ZERO);

    /// Nanoseconds since the clock's origin: fits 64 bits for 584 years.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time from `earlier` until this instant; zero when it is not earlier.
    pub(crate) fn since(self, earlier: LocalTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn after(self, span: Duration) -> LocalTime {
        LocalTime(self.0.saturating_add(span))
    }

    fn origin_to(self) -> Duration {
        self.0
    }
}

/// Where local time comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The time since boot, that in which the machine was suspended included: a lease goes on running out on
    /// the server while the machine sleeps, and `Instant` would not notice (`CLOCK_BOOTTIME`,
    /// clock_gettime(2)).
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

    pub(crate) fn now(&self) -> LocalTime {
        match self {
            Clock::Boot => LocalTime(since_boot()),
            Clock::Tokio { origin } => LocalTime(origin.elapsed()),
        }
    }

    /// Sleeps until `due`, at the precision of tokio's timer (1 ms).
    pub(crate) async fn sleep_until(&self, due: LocalTime) {
        match self {
            Clock::Boot => sleep_in_steps(|| self.now(), due).await,
            Clock::Tokio { origin } => tokio::time::sleep_until(*origin + due.origin_to()).await,
        }
    }
}

/// Tokio's timer stands still while the machine is suspended, so it is not trusted for longer than a second:
/// a lease that ran out meanwhile is noticed within a second of waking up.
async fn sleep_in_steps(now: impl Fn() -> LocalTime, due: LocalTime) {
    loop {
        let left = due.since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_time_that_came_while_the_machine_was_suspended_is_noticed_within_a_second_of_waking_up() {
        let timers = Clock::tokio();
        let suspended = Cell::new(Duration::ZERO);
        let now = || timers.now().after(suspended.get());
        let sleep = sleep_in_steps(now, LocalTime::ZERO.after(Duration::from_secs(100)));
        let suspend = async {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            // Meanwhile no timer goes on.
            suspended.set(Duration::from_secs(100));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = sleep => {}
            () = suspend => {}
        }
        assert_eq!(timers.now(), LocalTime::ZERO.after(Duration::from_secs(3)));
    }

    /// In a namespace in which the machine was suspended for a day (time_namespaces(7)), where the system
    /// lets one make it.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_for_which_the_machine_was_suspended_counts() {
        const INSIDE: &str = "FAIRLOCK_TEST_SUSPENDED";
        let day = Duration::from_secs(24 * 60 * 60);
        let awake =
            Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic)).unwrap();
        let counted = Clock::Boot.now().since(LocalTime::ZERO);
        if std::env::var_os(INSIDE).is_some() {
            assert!(counted >= awake + day, "{counted:?}, {awake:?}");
            return;
        }
        let name = std::thread::current().name().unwrap().to_owned();
        let inside = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--time", "--boottime"])
            .arg((day + Duration::from_secs(60)).as_secs().to_string())
            .args([
                &*std::env::current_exe().unwrap().to_string_lossy(),
                "--exact",
                &name,
            ])
            .env(INSIDE, "1")
            .output();
        match inside {
            Ok(inside) if String::from_utf8_lossy(&inside.stdout).contains("running 1 test") => {
                assert!(
                    inside.status.success(),
                    "{}",
                    String::from_utf8_lossy(&inside.stdout)
                );
            }
            other => println!("no time namespace can be had here: {other:?}"),
        }
    }
}
