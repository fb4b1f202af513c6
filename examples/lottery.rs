//! A lottery that several instances of a service may draw, and one does.
//!
//!     cargo run --example lottery                              in memory
//!     cargo run --example lottery redis://127.0.0.1:6379       each instance with a connection of its own
//!
//! The lock lets one instance draw at a time. It does not make the draw happen *once*: an instance that comes
//! late finds the lock free again. So each instance first reads, under the lock, whether there is a result.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fairlock::{Fence, LockManager, MemoryStore};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

const INSTANCES: u32 = 5;

/// A row in the database of the service.
type Record = Arc<Mutex<Option<(u32, Fence)>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    let store = MemoryStore::new();
    let record = Record::default();

    let mut instances = JoinSet::new();
    for number in 1..=INSTANCES {
        let locks = match &url {
            Some(url) => LockManager::connect(url).await?,
            None => LockManager::builder().in_memory(&store)?,
        };
        instances.spawn(instance(number, locks, Arc::clone(&record)));
    }
    while let Some(ended) = instances.join_next().await {
        ended??;
    }
    let drawn = record.lock().await.ok_or("nobody has drawn")?;
    println!("the winner is ticket {}", drawn.0);
    Ok(())
}

async fn instance(number: u32, locks: LockManager, record: Record) -> fairlock::Result<()> {
    let drew = locks
        .lock("lottery:2031-05-04")
        .with(async |token| draw(number, token.fence(), &record).await)
        .await?;
    println!(
        "instance {number} {}",
        if drew { "has drawn" } else { "came too late" }
    );
    Ok(())
}

async fn draw(number: u32, fence: Fence, record: &Record) -> bool {
    if record.lock().await.is_some() {
        return false;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let ticket = 1_000 + number * 37;
    *record.lock().await = Some((ticket, fence));
    true
}
