//! Readers of several clients wait while a writer has the lock. Its release lets all of them in at once. This
//! shows how long after the call of the release the last one has its guard.

use std::time::{Duration, Instant};

use clap::Args;
use fairlock_benches::Outcome;
use fairlock_testkit::Server;
use tokio::task::JoinSet;

use crate::{connect, in_ms, spread_of};

/// The longest time that may take.
const BAR_MS: f64 = 5.0;

/// Time for all readers to be queued.
const QUEUED: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Readers that wait
    #[arg(long, default_value_t = 400)]
    readers: usize,
    /// Clients that share them, all in this process
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Measured rounds
    #[arg(long, default_value_t = 50)]
    rounds: usize,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let server = Server::start().await;
    let clients = connect(&server, arguments.clients).await?;
    let watched = connect(&server, 1).await?.remove(0).rw_lock("readers");
    let (mut first, mut last) = (Vec::new(), Vec::new());
    // The first round only warms up.
    for round in 0..=arguments.rounds {
        let writing = watched.write().acquire().await?;
        let mut readers = JoinSet::new();
        for reader in 0..arguments.readers {
            let lock = clients[reader % clients.len()].rw_lock("readers").read();
            readers.spawn(async move {
                let guard = lock.acquire().await;
                (Instant::now(), guard)
            });
        }
        let deadline = Instant::now() + QUEUED;
        while watched.status().await?.waiting < arguments.readers as u64 {
            if Instant::now() > deadline {
                return Err("the readers did not queue in time".into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let released = Instant::now();
        writing.release().await?;
        let (mut times, mut guards) = (Vec::new(), Vec::new());
        for (granted, guard) in readers.join_all().await {
            times.push(in_ms(granted - released));
            guards.push(guard?);
        }
        for guard in guards {
            guard.release().await?;
        }
        if round > 0 {
            first.extend(times.iter().copied().reduce(f64::min));
            last.extend(times.into_iter().reduce(f64::max));
        }
    }
    let Arguments {
        readers,
        clients,
        rounds,
    } = arguments;
    println!(
        "{readers} readers of {clients} clients wait for a writer; {rounds} rounds; from its release until"
    );
    println!("the first has its guard: {}", spread_of(&mut first));
    println!(
        "the last has its guard:  {}; bar {BAR_MS} ms",
        spread_of(&mut last)
    );
    Ok(())
}
