//! A job of `tokio-cron-scheduler`, which every instance of a service schedules, and one of them does at each
//! firing.
//!
//!     REDIS_URL=redis://127.0.0.1 cargo run --package fairlock-examples --bin cron_scheduler
//!
//! Each firing has a lock of its own, with the time of the firing in its name. So an instance whose clock is
//! late cannot do an older firing again, however short the job is.

use std::error::Error;
use std::time::Duration;

use chrono::{DateTime, Utc};
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds};
use fairlock::LockManager;
use fairlock_examples::{locks, once, shutdown};
use tokio_cron_scheduler::{Job, JobScheduler};
use tokio_util::task::TaskTracker;

/// Every two seconds.
const SCHEDULE: &str = "*/2 * * * * *";
/// The lock of a firing stays taken for this long. Longer than the instances' clocks differ.
const KEPT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = locks().await?;
    let schedule = CronParser::builder()
        .seconds(Seconds::Required)
        .build()
        .parse(SCHEDULE)?;
    let mut scheduler = JobScheduler::new().await?;
    let running = TaskTracker::new();
    let tracker = running.clone();
    let job = Job::new_async(SCHEDULE, move |_, _| {
        // The scheduler does not say which firing this is: the last one before now.
        let firing = schedule.find_previous_occurrence(&Utc::now(), true);
        let locks = locks.clone();
        Box::pin(tracker.track_future(async move {
            if let Err(error) = job(&locks, firing).await {
                eprintln!("{error}");
            }
        }))
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    shutdown().await;
    scheduler.shutdown().await?;
    // The scheduler does not wait for jobs that run.
    running.close();
    running.wait().await;
    Ok(())
}

async fn job(
    locks: &LockManager,
    firing: Result<DateTime<Utc>, CronError>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let firing = firing?;
    let name = format!("cron:report:{}", firing.timestamp());
    Ok(once(locks, &name, KEPT, report(firing)).await?)
}

async fn report(firing: DateTime<Utc>) {
    println!("report of {}", firing.timestamp());
}
