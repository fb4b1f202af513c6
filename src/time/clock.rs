//! Local time, in which the deadlines of this process are measured.

use std::time::Duration;

/// An instant of a [`Clock`]: the time since that clock's origin.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LocalTime(Duration);

impl LocalTime {
    pub(crate) const ZERO: LocalTime = LocalTime(Duration::ZERO);

    /// Nanoseconds since the clock's origin. 64 bits are enough for 584 years.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time from `earlier` to this instant. Returns zero if `earlier` is not earlier.
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

/// A source of local time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The time since boot, including the time in which the machine was suspended. A lease on the server
    /// expires even while the machine sleeps, and `Instant` would not notice (`CLOCK_BOOTTIME`,
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

    /// Sleeps until `due`. Tokio's timer has a precision of 1 ms.
    pub(crate) async fn sleep_until(&self, due: LocalTime) {
        match self {
            Clock::Boot => sleep_in_steps(|| self.now(), due).await,
            Clock::Tokio { origin } => tokio::time::sleep_until(*origin + due.origin_to()).await,
        }
    }
}

/// Sleeps until `due`, in steps of at most a second. Tokio's timer stops while the machine is suspended. With
/// these steps, a lease that expired meanwhile is noticed within a second after the machine wakes up.
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

/// Darwin's `CLOCK_MONOTONIC` includes the time asleep. On other systems, it is the best available clock.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn since_boot() -> Duration {
    clock_gettime(rustix::time::ClockId::Monotonic)
}

#[cfg(unix)]
fn clock_gettime(id: rustix::time::ClockId) -> Duration {
    // The kernel never returns a negative time since boot.
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

    /// Race: A machine is suspended for longer than the lease of a holder.
    #[tokio::test(start_paused = true)]
    async fn deadline_passed_in_suspension_is_noticed_within_a_second_of_waking_up() {
        let timers = Clock::tokio();
        let suspended = Cell::new(Duration::ZERO);
        let now = || timers.now().after(suspended.get());
        let sleep = sleep_in_steps(now, LocalTime::ZERO.after(Duration::from_secs(100)));
        let suspend = async {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            // The timers stand still in the meantime.
            suspended.set(Duration::from_secs(100));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = sleep => {}
            () = suspend => {}
        }
        assert_eq!(timers.now(), LocalTime::ZERO.after(Duration::from_secs(3)));
    }

    /// Runs in a time namespace in which the machine was suspended for a day (time_namespaces(7)), if the
    /// system permits to create one.
    ///
    /// Race: A machine is suspended for longer than the lease of a holder.
    #[cfg(target_os = "linux")]
    #[test]
    fn time_in_suspension_counts() {
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
            other => println!("no time namespace is available here: {other:?}"),
        }
    }
}
