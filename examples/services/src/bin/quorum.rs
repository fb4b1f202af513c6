//! A settlement that must go on when any one of three lock servers is lost.
//!
//!     QUORUM_URLS=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 \
//!         cargo run --package fairlock-examples --bin quorum
//!
//! Start it on several machines: one of them settles at a time. Without the variable, the three servers are
//! in memory. Servers that have just been started grant nothing for the longest lease, here 5 s, and for 2 s
//! more.

use std::error::Error;
use std::time::Duration;

use fairlock::{Error as LockError, Fence, LockManager, MemoryStore, Quorum};
use fairlock_examples::shutdown;

const LEASE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let quorum = match std::env::var("QUORUM_URLS") {
        Ok(urls) => Quorum::of(urls.split(',')),
        Err(_) => Quorum::in_memory(&[(); 3].map(|()| MemoryStore::new())),
    };
    let builder = LockManager::builder().lease(LEASE);
    let locks = builder.connect_quorum(quorum.longest_lease(LEASE)).await?;
    tokio::select! {
        never = settle_for_ever(&locks) => never?,
        () = shutdown() => {}
    }
    // The releases of dropped guards reach a majority.
    locks.close().await?;
    println!("closed");
    Ok(())
}

async fn settle_for_ever(locks: &LockManager) -> fairlock::Result<()> {
    loop {
        match locks
            .lock("settlement")
            .with(async |token| settle(token.fence()).await)
            .await
        {
            Ok(()) => {}
            // No majority of the servers answers: nobody settles until one is back.
            Err(error @ LockError::NoQuorum { .. }) => println!("waiting: {error}"),
            // Another instance may settle already. This one has stopped.
            Err(LockError::Lost(lost)) => println!("stopped: {lost}"),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn settle(fence: Fence) {
    println!("settling under fence {fence}");
    tokio::time::sleep(Duration::from_millis(20)).await;
}
