//! A job that takes longer than any lease, stops when its lease is lost, and goes on where it stopped.
//!
//!     cargo run --example long_job                              in memory
//!     cargo run --example long_job redis://127.0.0.1:6379
//!
//! The lease is renewed for as long as the job runs. Here an operator takes the lock away in the middle of
//! it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fairlock::{Lock, LockManager};

const STEPS: u32 = 12;

#[tokio::main]
async fn main() -> fairlock::Result<()> {
    let locks = match std::env::args().nth(1) {
        Some(url) => LockManager::connect(&url).await?,
        None => LockManager::in_memory(),
    };
    // A short lease, so that the loss is noticed soon; and a job that hangs must not hold the lock for ever.
    let lock = locks
        .lock("nightly-report")
        .lease(Duration::from_secs(1))
        .max_hold(Duration::from_secs(60));
    let operator = tokio::spawn(take_away(lock.clone()));

    // Progress is kept outside of the job: it may be stopped at any `.await`.
    let done = AtomicU32::new(0);
    while done.load(Ordering::Relaxed) < STEPS {
        let guard = lock.acquire().await?;
        println!("holding, fence {}", guard.fence());
        match guard.run(work(&done)).await {
            Ok(()) => guard.release().await?,
            Err(lost) => println!("stopped: {lost}"),
        }
    }
    println!("all {STEPS} steps done");
    operator.await.unwrap_or(Ok(()))
}

async fn work(done: &AtomicU32) {
    while done.load(Ordering::Relaxed) < STEPS {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let step = done.fetch_add(1, Ordering::Relaxed) + 1;
        println!("step {step}");
    }
}

/// What an operator can do: look who holds the lock, and end that hold, named by its fence.
async fn take_away(lock: Lock) -> fairlock::Result<()> {
    tokio::time::sleep(Duration::from_millis(700)).await;
    if let Some(holder) = lock.status().await?.holder {
        let ended = lock.force_release(holder.fence).await?;
        println!("operator: hold {} ended: {ended}", holder.fence);
    }
    Ok(())
}
