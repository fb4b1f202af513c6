//! A job of `apalis`, which every instance of a service schedules, and one of them does at each firing.
//!
//!     REDIS_URL=redis://127.0.0.1 cargo run --package fairlock-examples --bin apalis
//!
//! Each firing has a lock of its own, with the time of the firing in its name. So an instance whose clock is
//! late cannot do an older firing again, however short the job is.

use std::error::Error;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use apalis::prelude::{Data, WorkerBuilder};
use apalis_cron::{CronScheduler, Tick};
use cron::Schedule;
use fairlock::LockManager;
use fairlock_examples::{locks, shutdown};

/// Every two seconds.
const SCHEDULE: &str = "*/2 * * * * *";
/// The lock of a firing stays taken for this long. Longer than the instances' clocks differ.
const KEPT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let worker = WorkerBuilder::new("report")
        .backend(CronScheduler::new(Schedule::from_str(SCHEDULE)?))
        .data(locks().await?)
        .build(once);
    let ended = async {
        shutdown().await;
        Ok::<_, io::Error>(())
    };
    worker.run_until(ended).await?;
    Ok(())
}

/// Does the job, unless another instance does or has done it.
async fn once(firing: Tick, locks: Data<LockManager>) -> fairlock::Result<()> {
    let name = format!("cron:report:{}", firing.get_timestamp());
    match locks.lock(name).at_least(KEPT).try_acquire().await {
        Ok(guard) => {
            guard.run(report(firing)).await?;
            guard.release().await
        }
        Err(fairlock::Error::Busy { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn report(firing: Tick) {
    println!("report of {}", firing.get_timestamp());
}
