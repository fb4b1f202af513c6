//! A fair rate limit over several clients: a semaphore whose permits stay taken for a while. A provider that
//! counts 50 calls per second is not exceeded, though calls are on their way for up to 200 ms.
//!
//! `cargo run --example rate_limit` needs no server. With a URL as its argument it uses that server.

use std::time::Duration;

use fairlock::{LockManager, MemoryStore};
use tokio::task::JoinSet;
use tokio::time::Instant;

const PERMITS: u32 = 4;
const AT_LEAST: Duration = Duration::from_millis(100);
/// If a process dies between the grant and the drop of its guard, its permit is taken for so long.
const LEASE: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> fairlock::Result<()> {
    let store = MemoryStore::new();
    let began = Instant::now();
    let mut set = JoinSet::new();
    for client in 0..3 {
        let locks = match std::env::args().nth(1) {
            Some(url) => LockManager::connect(&url).await?,
            None => LockManager::builder().in_memory(&store)?,
        };
        let limited = locks.semaphore("mail", PERMITS).at_least(AT_LEAST).lease(LEASE);
        for message in 0..5 {
            let turn = limited.acquire();
            set.spawn(async move {
                // The guard is dropped before the call, which may take long.
                drop(turn.await?);
                Ok((began.elapsed(), client, message))
            });
        }
    }
    let mut sent = set
        .join_all()
        .await
        .into_iter()
        .collect::<fairlock::Result<Vec<_>>>()?;
    sent.sort();
    for (at, client, message) in &sent {
        println!(
            "{:>5} ms: client {client} sends message {message}",
            at.as_millis()
        );
    }
    println!("{} messages, at most {PERMITS} within {AT_LEAST:?}", sent.len());
    Ok(())
}
