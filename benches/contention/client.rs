//! A client process: its waiters take one lock, hold it, release it and come again, from one instant to
//! another.
//!
//! The process ends without cleaning up. It writes rows only for grants before the end. Another process may
//! record a grant after this one has written its rows; the release before that grant would be missing from
//! the rows, so the grant would look like an overlap.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::analysis::Wait;
use rustix::time::{ClockId, clock_gettime};

use crate::args::ClientArgs;
use crate::strategy::{Strategy, Taker};

/// The pause of a waiter after an error. It keeps errors from turning into a flood of calls.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The time of the machine's monotonic clock, in nanoseconds.
pub(crate) fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Sleeps until the machine's clock shows that time.
pub(crate) async fn sleep_until(ns: i64) {
    let left = u64::try_from(ns - monotonic_ns()).unwrap_or(0);
    tokio::time::sleep(Duration::from_nanos(left)).await;
}

/// One turn of a waiter.
#[derive(Clone, Copy, Debug)]
struct Row {
    asked_ns: i64,
    granted_ns: Option<i64>,
    released_ns: Option<i64>,
    fence: Option<u64>,
}

/// What one waiter has done so far. The process reads it at the end, whatever the waiter is doing then.
#[derive(Clone, Debug, Default)]
struct Diary(Arc<Mutex<Vec<Row>>>);

impl Diary {
    fn write<T>(&self, edit: impl FnOnce(&mut Vec<Row>) -> T) -> T {
        edit(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn asked(&self) {
        let asked_ns = monotonic_ns();
        self.write(|rows| {
            rows.push(Row {
                asked_ns,
                granted_ns: None,
                released_ns: None,
                fence: None,
            });
        });
    }

    fn granted(&self, fence: Option<u64>) {
        let granted_ns = Some(monotonic_ns());
        self.write(|rows| {
            rows.last_mut()
                .map(|row| (row.granted_ns, row.fence) = (granted_ns, fence))
        });
    }

    fn released(&self) {
        let released_ns = Some(monotonic_ns());
        self.write(|rows| rows.last_mut().map(|row| row.released_ns = released_ns));
    }
}

/// Runs the waiters and writes their rows. Does not return before the given end.
pub(crate) async fn run(args: &ClientArgs) -> Outcome<()> {
    let strategy = Strategy::named(&args.peer);
    if args.apart && strategy == Strategy::Publish {
        return Err("publish has one lock for all waiters of a process".into());
    }
    let connected = strategy
        .connect(&args.url, &args.name, args.local_handoffs)
        .await?;
    let diaries: Vec<Diary> = (0..args.waiters).map(|_| Diary::default()).collect();
    for (waiter, diary) in diaries.iter().enumerate() {
        let name = match args.apart {
            true => format!("{}:{}:{waiter}", args.name, args.id),
            false => args.name.clone(),
        };
        let plan = Plan {
            start_ns: args.start,
            end_ns: args.end,
            hold: Duration::from_micros(args.hold_us),
            pause: Duration::from_micros(args.pause_us),
            diary: diary.clone(),
        };
        tokio::spawn(plan.run(connected.taker(&name, args.side, args.capacity)));
    }
    sleep_until(args.end).await;

    let mut out = std::io::BufWriter::new(std::fs::File::create(&args.out)?);
    for (waiter, diary) in diaries.iter().enumerate() {
        for row in diary.write(|rows| rows.clone()) {
            let granted_ns = row.granted_ns.filter(|granted| *granted <= args.end);
            writeln!(
                out,
                "{}",
                Wait {
                    waiter: format!("{}:{waiter}", args.id),
                    asked_ns: row.asked_ns,
                    granted_ns,
                    released_ns: row.released_ns.filter(|_| granted_ns.is_some()),
                    fence: row.fence.filter(|_| args.fences && granted_ns.is_some()),
                    permits: 1,
                }
            )?;
        }
    }
    out.flush()?;
    Ok(())
}

/// What one waiter has to do.
#[derive(Debug)]
struct Plan {
    start_ns: i64,
    end_ns: i64,
    hold: Duration,
    pause: Duration,
    diary: Diary,
}

impl Plan {
    async fn run(self, mut taker: Taker) {
        sleep_until(self.start_ns).await;
        while monotonic_ns() < self.end_ns {
            self.diary.asked();
            // A wait that begins again after an error is still the same wait: the waiter has not had the lock
            // yet.
            let fence = loop {
                match taker.acquire().await {
                    Ok(fence) => break fence,
                    Err(e) => complain("acquire", &*e).await,
                }
            };
            self.diary.granted(fence);
            if !self.hold.is_zero() {
                tokio::time::sleep(self.hold).await;
            }
            self.diary.released();
            if let Err(e) = taker.release().await {
                complain("release", &*e).await;
            }
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
        }
    }
}

async fn complain(what: &str, error: &(dyn std::error::Error + Send + Sync)) {
    eprintln!("{what}: {error}");
    tokio::time::sleep(ERROR_PAUSE).await;
}
