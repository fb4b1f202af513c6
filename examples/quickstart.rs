//! Takes a lock, works under it and gives it back, in the three ways that there are.
//!
//!     cargo run --example quickstart                              in memory: nothing to install
//!     cargo run --example quickstart redis://127.0.0.1:6379       on a Redis or Valkey server

use std::time::Duration;

use fairlock::{Error, LockManager};

#[tokio::main]
async fn main() -> fairlock::Result<()> {
    let locks = match std::env::args().nth(1) {
        Some(url) => LockManager::connect(&url).await?,
        None => LockManager::in_memory(),
    };
    let lock = locks.lock("report:42");

    // First come, first served: this waits for its turn, for ten seconds at most.
    let guard = lock.acquire_timeout(Duration::from_secs(10)).await?;
    println!("holding {} with fence {}", guard.name(), guard.fence());

    // Who does not want to wait is told at once.
    match lock.try_acquire().await {
        Ok(_) => println!("never printed: the lock is held"),
        Err(Error::Busy { waiting, .. }) => println!("busy, and {waiting} wait"),
        Err(error) => return Err(error),
    }

    // The work is stopped, with `Err(Lost)`, should the lease be lost meanwhile.
    guard.run(write("report 42")).await?;
    guard.release().await?;

    // The same in one call.
    let written = lock
        .with(async |token| format!("written under fence {}", token.fence()))
        .await?;
    println!("{written}");

    if let Err(unreleased) = locks.close().await {
        eprintln!("{unreleased}");
    }
    Ok(())
}

async fn write(what: &str) {
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("written: {what}");
}
