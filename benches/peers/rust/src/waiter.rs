//! A waiter: it takes the lock, holds it, releases it and comes again, and records the times.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::libraries::Lock;

/// The pause after an error, which keeps errors from turning into a flood of calls.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The time of the machine's monotonic clock.
pub(crate) fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

pub(crate) async fn sleep_until(ns: i64) {
    let left = u64::try_from(ns - monotonic_ns()).unwrap_or(0);
    tokio::time::sleep(Duration::from_nanos(left)).await;
}

/// One wait. `None` is for what has not happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    asked: i64,
    granted: Option<i64>,
    released: Option<i64>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_empty = |ns: Option<i64>| ns.map(|ns| ns.to_string()).unwrap_or_default();
        write!(
            f,
            "{},{},{}",
            self.asked,
            or_empty(self.granted),
            or_empty(self.released)
        )
    }
}

/// What one waiter has done so far. The process reads it at the end, whatever the waiter is doing then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Diary(Arc<Mutex<Vec<Row>>>);

impl Diary {
    fn edit<T>(&self, edit: impl FnOnce(&mut Vec<Row>) -> T) -> T {
        edit(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn asked(&self) {
        let row = Row {
            asked: monotonic_ns(),
            granted: None,
            released: None,
        };
        self.edit(|rows| rows.push(row));
    }

    fn granted(&self) {
        self.edit(|rows| rows.last_mut().map(|row| row.granted = Some(monotonic_ns())));
    }

    fn released(&self) {
        self.edit(|rows| rows.last_mut().map(|row| row.released = Some(monotonic_ns())));
    }

    /// The rows so far. A grant after the end does not count.
    pub(crate) fn rows_until(&self, end_ns: i64) -> Vec<Row> {
        let mut rows = self.edit(|rows| rows.clone());
        for row in rows.iter_mut().filter(|row| row.granted > Some(end_ns)) {
            (row.granted, row.released) = (None, None);
        }
        rows
    }
}

/// What every waiter has to do.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
    pub(crate) hold: Duration,
    pub(crate) pause: Duration,
    pub(crate) diary: Diary,
}

impl Plan {
    pub(crate) async fn run(self, mut lock: Lock) {
        sleep_until(self.start_ns).await;
        while monotonic_ns() < self.end_ns {
            self.diary.asked();
            // A call that is repeated after an error continues the same wait.
            while let Err(e) = lock.acquire().await {
                eprintln!("acquire: {e}");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
            self.diary.granted();
            if !self.hold.is_zero() {
                tokio::time::sleep(self.hold).await;
            }
            self.diary.released();
            if let Err(e) = lock.release().await {
                eprintln!("release: {e}");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
        }
    }
}
