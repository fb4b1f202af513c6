//! Two instances of a service, of which one leads. The leader is deposed, and later stops.
//!
//!     cargo run --example leader                              in memory
//!     cargo run --example leader redis://127.0.0.1:6379
//!
//! With a server, start it twice at the same time: all four instances take part.

use std::time::Duration;

use fairlock::{HoldToken, Leadership, Lock, LockManager};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> fairlock::Result<()> {
    let url = std::env::args().nth(1);
    let (one, other) = match url {
        Some(url) => (
            LockManager::builder().label("one").connect(&url).await?,
            LockManager::builder().label("other").connect(&url).await?,
        ),
        None => {
            let store = fairlock::MemoryStore::new();
            (
                LockManager::builder().label("one").in_memory(&store)?,
                LockManager::builder().label("other").in_memory(&store)?,
            )
        }
    };
    // If a leader dies, the next one leads after two seconds.
    let scheduler = |locks: &LockManager| locks.leadership("scheduler").lease(2 * SECOND);
    let watcher = tokio::spawn(watch(one.lock("scheduler")));

    // An instance leads again and again. Here it stops after some seconds; a service waits for a signal.
    let first = tokio::spawn(instance("one", scheduler(&one), 3 * SECOND));
    let second = tokio::spawn(instance("other", scheduler(&other), 5 * SECOND));

    // What an operator can do: end the lead that is shown. The leader notices at its next renewal.
    tokio::time::sleep(SECOND).await;
    if let Some(leader) = scheduler(&one).leader().await? {
        one.lock("scheduler").force_release(leader.fence).await?;
        println!("operator: the lead under fence {} is over", leader.fence);
    }

    for instance in [first, second] {
        instance.await.unwrap_or(Ok(()))?;
    }
    watcher.abort();
    for locks in [one, other] {
        if let Err(unreleased) = locks.close().await {
            eprintln!("{unreleased}");
        }
    }
    Ok(())
}

async fn instance(name: &str, scheduler: Leadership, lasts: Duration) -> fairlock::Result<()> {
    let shutdown = tokio::time::sleep(lasts);
    let led = scheduler.run_until(shutdown, |token| schedule(name, token));
    let _: Option<()> = led.await?;
    println!("{name}: stopped");
    Ok(())
}

/// What the leader does. It is dropped when its term is over.
async fn schedule(name: &str, token: HoldToken) {
    println!("{name}: leads under fence {}", token.fence());
    loop {
        tokio::time::sleep(SECOND / 4).await;
        println!("{name}: schedules");
    }
}

/// Others learn by label who leads.
async fn watch(scheduler: Lock) {
    let mut watch = scheduler.watch(SECOND / 4);
    while let Some(status) = watch.next().await {
        match status.map(|status| status.holder) {
            Ok(Some(leader)) => println!("watcher: {} leads", leader.label.unwrap_or_default()),
            Ok(None) => println!("watcher: nobody leads"),
            Err(error) => println!("watcher: {error}"),
        }
    }
}
