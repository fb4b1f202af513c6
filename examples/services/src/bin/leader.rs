//! A leader: one instance of a service leads for as long as it lives, and another one follows.
//!
//!     REDIS_URL=redis://127.0.0.1:6379 cargo run --package fairlock-examples --bin leader
//!
//! Start it several times, and stop the one that leads, or kill it.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use fairlock::{Fence, Lock};
use fairlock_examples::{locks, shutdown};

/// If the leader dies, another instance leads after at most this time. If it stops, the next one leads at
/// once.
const LEASE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = locks().await?;
    let lock = locks.lock("leader:scheduler").lease(LEASE);
    tokio::select! {
        never = campaign(&lock) => match never {},
        // Dropping the campaign stops the work, and resigns.
        () = shutdown() => {}
    }
    // The next leader need not wait for the lease: this waits until the server knows of the release.
    locks.close().await?;
    println!("resigned");
    Ok(())
}

/// Leads again and again, for as long as it is polled.
async fn campaign(lock: &Lock) -> Infallible {
    loop {
        println!("waiting to lead");
        let Err(error) = lead(lock).await;
        println!("not leading: {error}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Leads until the lease is lost.
async fn lead(lock: &Lock) -> fairlock::Result<Infallible> {
    let guard = lock.acquire().await?;
    println!("leading, fence {}", guard.fence());
    guard.run(work(guard.fence())).await
}

/// What the leader does. It goes with the fence, because a leader that is paused does not notice at once that
/// another instance leads.
async fn work(fence: Fence) -> Infallible {
    loop {
        println!("scheduling under fence {fence}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
