//! A job of `apalis`, which every instance of a service schedules, and one of them does at each firing.
//!
//!     REDIS_URL=redis://127.0.0.1 cargo run --package fairlock-examples --bin apalis
//!
//! Each firing has a lock of its own, with the time of the firing in its name. So an instance whose clock is
//! late cannot do an older firing again, however short the job is.

use std::error::Error;
use std::io;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use apalis::prelude::{Data, WorkerBuilder};
use apalis_cron::{CronScheduler, Tick};
use cron::Schedule;
use fairlock::LockManager;
use fairlock_examples::{locks, once, shutdown};

/// Every two seconds.
const SCHEDULE: &str = "*/2 * * * * *";
/// The lock of a firing stays taken for this long, and no firing is done that is older. Longer than the
/// instances' clocks differ.
const KEPT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let worker = WorkerBuilder::new("report")
        .backend(CronScheduler::new(Schedule::from_str(SCHEDULE)?))
        .data(locks().await?)
        .build(job);
    let ended = async {
        shutdown().await;
        Ok::<_, io::Error>(())
    };
    worker.run_until(ended).await?;
    Ok(())
}

async fn job(firing: Tick, locks: Data<LockManager>) {
    // An instance that stood still has its old firing yet, whose lock may be free by now.
    let fired = SystemTime::UNIX_EPOCH + Duration::from_secs(firing.get_timestamp());
    if fired.elapsed().is_ok_and(|late| late >= KEPT) {
        return;
    }
    let name = format!("cron:report:{}", firing.get_timestamp());
    if let Err(error) = once(&locks, &name, KEPT, report(firing)).await {
        eprintln!("{error}");
    }
}

async fn report(firing: Tick) {
    println!("report of {}", firing.get_timestamp());
}
