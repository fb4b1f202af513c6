//! A client process: waiters that take one lock, hold it, release it and come again, from one instant to another.
//!
//! It ends without cleaning up. Rows are written for what was granted until the end and no later: a grant that another
//! process records after this one wrote its rows could come from a release that is no longer in them, and would
//! look like an overlap.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::analysis::Wait;
use rustix::time::{ClockId, clock_gettime};

use crate::args::ClientArgs;
use crate::strategy::{Strategy, Taker};

/// The pause after an error, which a waiter takes before it tries again: it must not turn into a flood.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The machine's one clock, in nanoseconds.
pub(crate) fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Sleeps until the machine's clock shows that time.
pub(crate) async fn sleep_until(ns: i64) {
    let left = u64::try_from(ns - monotonic_ns()).unwrap_or(0);
    tokio::time::sleep(Duration::from_nanos(left)).await;
}

/// Asked, granted, released; the last two are nothing as long as they didn't happen.
type Row = (i64, Option<i64>, Option<i64>);

/// What one waiter did so far; the process reads it at the end, whatever the waiter is at then.
#[derive(Clone, Debug, Default)]
struct Diary(Arc<Mutex<Vec<Row>>>);

impl Diary {
    fn write<T>(&self, edit: impl FnOnce(&mut Vec<Row>) -> T) -> T {
        edit(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn asked(&self) {
        self.write(|rows| rows.push((monotonic_ns(), None, None)));
    }

    fn granted(&self) {
        self.write(|rows| rows.last_mut().map(|row| row.1 = Some(monotonic_ns())));
    }

    fn released(&self) {
        self.write(|rows| rows.last_mut().map(|row| row.2 = Some(monotonic_ns())));
    }
}

/// Runs the waiters and writes their rows. Never returns before the end that it was given.
pub(crate) async fn run(args: &ClientArgs) -> Outcome<()> {
    let strategy = Strategy::named(&args.peer);
    if args.apart && strategy == Strategy::Publish {
        return Err("publish has one lock for all waiters of a process".into());
    }
    let connected = strategy.connect(&args.url, &args.name).await?;
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
            diary: diary.clone(),
        };
        tokio::spawn(plan.run(connected.taker(&name)));
    }
    sleep_until(args.end).await;

    let mut out = std::io::BufWriter::new(std::fs::File::create(&args.out)?);
    for (waiter, diary) in diaries.iter().enumerate() {
        for (asked_ns, granted_ns, released_ns) in diary.write(|rows| rows.clone()) {
            let granted_ns = granted_ns.filter(|granted| *granted <= args.end);
            let released_ns = released_ns.filter(|_| granted_ns.is_some());
            writeln!(
                out,
                "{}",
                Wait {
                    waiter: format!("{}:{waiter}", args.id),
                    asked_ns,
                    granted_ns,
                    released_ns
                }
            )?;
        }
    }
    out.flush()?;
    Ok(())
}

/// What one waiter is to do.
#[derive(Debug)]
struct Plan {
    start_ns: i64,
    end_ns: i64,
    hold: Duration,
    diary: Diary,
}

impl Plan {
    async fn run(self, mut taker: Taker) {
        sleep_until(self.start_ns).await;
        while monotonic_ns() < self.end_ns {
            self.diary.asked();
            // A wait that begins again after an error is still the same wait: the waiter has got nothing yet.
            while let Err(e) = taker.acquire().await {
                complain("acquire", &*e).await;
            }
            self.diary.granted();
            if !self.hold.is_zero() {
                tokio::time::sleep(self.hold).await;
            }
            self.diary.released();
            if let Err(e) = taker.release().await {
                complain("release", &*e).await;
            }
        }
    }
}

async fn complain(what: &str, error: &(dyn std::error::Error + Send + Sync)) {
    eprintln!("{what}: {error}");
    tokio::time::sleep(ERROR_PAUSE).await;
}
