//! A fair rate limit over several clients: a semaphore whose permits stay taken for a while.
//!
//! `cargo run --example rate_limit` needs no server. With a URL as its argument it uses that server.

use std::time::Duration;

use fairlock::{LockManager, MemoryStore};
use tokio::task::JoinSet;
use tokio::time::Instant;

const LIMIT: u32 = 5;
const WINDOW: Duration = Duration::from_millis(500);

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
        let limited = locks.semaphore("mail", LIMIT).at_least(WINDOW);
        for message in 0..5 {
            set.spawn(limited.with(async move |_fence| (began.elapsed(), client, message)));
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
    println!("{} messages, at most {LIMIT} within {WINDOW:?}", sent.len());
    Ok(())
}
