//! A leader: one instance of a service leads for as long as it lives, and the others follow.
//!
//!     REDIS_URL=redis://127.0.0.1:6379 cargo run --package fairlock-examples --bin leader
//!
//! Start it several times, and stop the one that leads, or kill it.

use std::error::Error;
use std::time::Duration;

use fairlock::{HoldToken, Lock};
use fairlock_examples::{locks, shutdown};

/// If the leader dies, another instance leads after at most this time. If it stops, the next one leads at
/// once.
const LEASE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = locks().await?;
    let scheduler = locks.leadership("scheduler").lease(LEASE);
    let watcher = tokio::spawn(watch(locks.lock(scheduler.name())));
    println!("waiting to lead");
    // Leads again and again. At the shutdown it resigns, and waits until the server knows of that.
    let led = scheduler.run_until(shutdown(), work).await;
    watcher.abort();
    let _: Option<()> = led?;
    locks.close().await?;
    println!("resigned");
    Ok(())
}

/// What the leader does. It goes with the fence, because a leader that is paused does not notice at once that
/// another instance leads.
async fn work(token: HoldToken) {
    println!("leading, fence {}", token.fence());
    loop {
        println!("scheduling under fence {}", token.fence());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What a follower needs to know, for instance to send requests to the leader.
async fn watch(scheduler: Lock) {
    let mut watch = scheduler.watch(Duration::from_secs(1));
    while let Some(status) = watch.next().await {
        match status.map(|status| status.holder) {
            Ok(Some(leader)) => println!("the leader is {}", leader.label.as_deref().unwrap_or("unknown")),
            Ok(None) => println!("nobody leads"),
            Err(error) => println!("who leads is not known: {error}"),
        }
    }
}
