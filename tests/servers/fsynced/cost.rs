//! Measures the cost of waiting for disks on this machine. `docs/guarantees.md` has its figures: `cargo test
//! --release --all-features --test servers -- --ignored --nocapture fsynced::cost`.

use std::time::Duration;

use fairlock::{Error, LockManager};
use fairlock_testkit::Server;
use tokio::time::{Instant, timeout_at};

use super::with_file;

const ROUNDS: usize = 3;
const TIME: Duration = Duration::from_secs(5);
const CLIENTS: usize = 4;
const TASKS: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn cost_of_waiting_for_disks() {
    println!("acquisitions/s of {TASKS} tasks of {CLIENTS} clients, in turn for {TIME:?}, {ROUNDS} times\n");
    println!("appendfsync  fsynced  locks");
    for appendfsync in ["no", "everysec", "always"] {
        let Some(server) = with_file(appendfsync).await else {
            return;
        };
        for locks in [1, TASKS] {
            let mut rates = [const { Vec::new() }; 2];
            for _ in 0..ROUNDS {
                for fsynced in [false, true] {
                    // A file that is never synced confirms nothing.
                    if !fsynced || appendfsync != "no" {
                        rates[usize::from(fsynced)].push(rate(&server, fsynced, locks).await);
                    }
                }
            }
            for (fsynced, rates) in [false, true].into_iter().zip(rates) {
                println!("{appendfsync:<11}  {fsynced:<7}  {locks:<5}  {rates:.1?}");
            }
        }
    }
}

/// Returns the acquisitions per second of all tasks together, on `locks` locks.
async fn rate(server: &Server, fsynced: bool, locks: usize) -> f64 {
    let builder = LockManager::builder()
        .prefix(fairlock_testkit::prefix())
        .fsynced(fsynced);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(builder.clone().connect(&server.url()).await.unwrap());
    }
    let end = Instant::now() + TIME;
    let tasks = (0..TASKS).map(|n| {
        let lock = clients[n % CLIENTS].lock((n % locks).to_string());
        tokio::spawn(async move {
            let mut count = 0;
            loop {
                match timeout_at(end, lock.acquire()).await {
                    Ok(Ok(guard)) => {
                        count += 1;
                        guard.release().await.unwrap();
                    }
                    Ok(Err(Error::NotReplicated { .. })) => {}
                    Ok(Err(error)) => panic!("{error:?}"),
                    Err(_) => return count,
                }
            }
        })
    });
    let tasks: Vec<tokio::task::JoinHandle<u32>> = tasks.collect();
    let mut all = 0;
    for task in tasks {
        all += task.await.unwrap();
    }
    f64::from(all) / TIME.as_secs_f64()
}
