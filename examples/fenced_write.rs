//! A writer that lost its lease without noticing, and a resource that refuses what it writes.
//!
//!     cargo run --example fenced_write                              in memory
//!     cargo run --example fenced_write redis://127.0.0.1:6379
//!
//! No lock service can stop a process that was paused for longer than its lease and then goes on. The
//! resource can: it refuses a smaller fence than the largest that it has seen. In SQL that is one statement:
//! `UPDATE document SET body = $1, fence = $2 WHERE id = $3 AND fence <= $2`.

use std::time::Duration;

use fairlock::{Fence, LockManager};

/// What the lock protects.
#[derive(Debug, Default)]
struct Document {
    body: String,
    fence: Option<Fence>,
}

impl Document {
    fn write(&mut self, body: &str, fence: Fence) -> Result<(), String> {
        match self.fence {
            Some(seen) if fence < seen => Err(format!("refused: fence {fence} is older than {seen}")),
            _ => {
                self.body = body.to_owned();
                self.fence = Some(fence);
                Ok(())
            }
        }
    }
}

#[tokio::main]
async fn main() -> fairlock::Result<()> {
    let locks = match std::env::args().nth(1) {
        Some(url) => LockManager::connect(&url).await?,
        None => LockManager::in_memory(),
    };
    // A fixed lease is not renewed: it stands for a holder that is frozen, and whose renewals stop with it.
    let lock = locks
        .lock("document:7")
        .lease(Duration::from_millis(300))
        .renew(false);
    let mut document = Document::default();

    let slow = lock.acquire().await?;
    println!("slow writer: has fence {}, and is paused", slow.fence());

    // Waits until the server takes the lease of the slow writer to be over.
    let quick = lock.acquire().await?;
    println!("quick writer: has fence {}", quick.fence());
    println!("quick writer: {:?}", document.write("new", quick.fence()));

    // The slow writer goes on where it was, and does not look at its guard first.
    println!("slow writer: {:?}", document.write("old", slow.fence()));
    println!("slow writer: its guard would have told: {:?}", slow.check());
    println!("the document says {:?}", document.body);
    Ok(())
}
