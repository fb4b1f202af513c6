//! A writer that lost its lease without noticing, and an account that refuses what it writes.
//!
//!     cargo run --example fenced_write                              in memory
//!     cargo run --example fenced_write redis://127.0.0.1:6379
//!
//! No lock service can stop a process that was paused for longer than its lease and then goes on. The
//! resource can: it notes the largest fence that it has seen, when it is read too, and refuses smaller ones.
//! In SQL these are the two statements of docs/guide.md, "Writing with the fence".

use std::time::Duration;

use fairlock::{Fence, LockManager};

/// What the lock protects.
#[derive(Debug)]
struct Account {
    balance: i64,
    /// The largest fence that it has seen.
    seen: Option<Fence>,
}

impl Account {
    fn read(&mut self, fence: Fence) -> Result<i64, String> {
        if let Some(seen) = self.seen.filter(|seen| *seen > fence) {
            return Err(refusal(fence, seen));
        }
        self.seen = Some(fence);
        Ok(self.balance)
    }

    fn write(&mut self, balance: i64, fence: Fence) -> Result<(), String> {
        match self.seen {
            Some(seen) if seen != fence => return Err(refusal(fence, seen)),
            _ => self.balance = balance,
        }
        Ok(())
    }
}

fn refusal(fence: Fence, seen: Fence) -> String {
    format!("refused: fence {fence} is not the last one seen, {seen}")
}

#[tokio::main]
async fn main() -> fairlock::Result<()> {
    let locks = match std::env::args().nth(1) {
        Some(url) => LockManager::connect(&url).await?,
        None => LockManager::in_memory(),
    };
    // A fixed lease is not renewed: it stands for a holder that is frozen, and whose renewals stop with it.
    let lock = locks
        .lock("account:7")
        .lease(Duration::from_millis(300))
        .auto_renew(false);
    let mut account = Account {
        balance: 100,
        seen: None,
    };

    let slow = lock.acquire().await?;
    let of_slow = account.read(slow.fence());
    println!(
        "slow writer: reads {of_slow:?} under fence {}, and is paused",
        slow.fence()
    );

    // Waits until the server takes the lease of the slow writer to be over.
    let quick = lock.acquire().await?;
    let of_quick = account.read(quick.fence());
    println!("quick writer: reads {of_quick:?} under fence {}", quick.fence());

    // The slow writer goes on where it was, and does not look at its guard first. Nobody has written since it
    // read, but the quick writer would undo what it writes.
    let written = of_slow.and_then(|balance| account.write(balance + 10, slow.fence()));
    println!("slow writer: adds 10: {written:?}");
    println!("slow writer: its guard would have told: {:?}", slow.check());
    let written = of_quick.and_then(|balance| account.write(balance + 1, quick.fence()));
    println!("quick writer: adds 1: {written:?}");
    println!("the balance is {}", account.balance);
    Ok(())
}
