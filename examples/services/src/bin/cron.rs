//! A job that every instance of a service starts on the hour, and one of them does.
//!
//!     cargo run --package fairlock-examples --bin cron
//!
//! Each instance tries once and leaves. The instance that gets the lock keeps it for a while after a short
//! job, since clocks differ: an instance that is late would find the lock free again, and do the job twice.

use std::time::Duration;

use fairlock::{Error, LockManager};
use fairlock_examples::locks;
use tokio::task::JoinSet;

/// The lock stays taken for this long, however short the job is. Longer than the instances' clocks differ.
const KEPT: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = locks().await?;
    let mut instances = JoinSet::new();
    for number in 1..=3 {
        instances.spawn(on_the_hour(number, locks.clone()));
    }
    for outcome in instances.join_all().await {
        outcome?;
    }
    Ok(())
}

async fn on_the_hour(number: u64, locks: LockManager) -> fairlock::Result<()> {
    // The instances' clocks differ.
    tokio::time::sleep(Duration::from_millis(200) * u32::try_from(number).unwrap_or(u32::MAX)).await;
    let lock = locks.lock("cron:clean-up").at_least(KEPT);
    let guard = match lock.try_acquire().await {
        Ok(guard) => guard,
        Err(Error::Busy { .. }) => {
            println!("instance {number}: another instance does it");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    // The job is stopped if the lease is lost, so that no other instance does it at the same time.
    guard.run(clean_up(number)).await?;
    guard.release().await
}

async fn clean_up(number: u64) {
    println!("instance {number}: cleaning up");
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("instance {number}: done");
}
