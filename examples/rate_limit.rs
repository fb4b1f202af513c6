//! A fair rate limit over several clients: their calls begin at even distances, in the order in which they
//! asked.
//!
//! `cargo run --example rate_limit` needs no server. With a URL as its argument it uses that server.

use std::time::Duration;

use fairlock::{LockManager, MemoryStore};
use tokio::task::JoinSet;
use tokio::time::Instant;

const TURNS: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);

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
        let mail = locks.rate_limit("mail", TURNS, PERIOD);
        for message in 0..5 {
            let turn = mail.acquire();
            set.spawn(async move {
                turn.await?;
                // The call goes here. It may take as long as it likes, and nothing is held meanwhile.
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
    println!("{} messages, at most {TURNS} within {PERIOD:?}", sent.len());
    Ok(())
}
