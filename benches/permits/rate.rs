//! A semaphore with `at_least` as a rate limit: of any `limit + 1` grants in a row, the last may come one
//! window after the first. Several clients have tasks that always wait for their next turn. This shows how
//! much later than that each grant is.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use fairlock::Semaphore;
use fairlock_benches::Outcome;
use fairlock_testkit::Server;
use tokio::task::JoinSet;

use crate::{connect, in_ms, spread_of};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Grants in a window
    #[arg(long, default_value_t = 10)]
    limit: u32,
    /// The window, in ms
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
    /// Clients, all in this process
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Tasks of each client
    #[arg(long, default_value_t = 8)]
    tasks: usize,
    /// Measured time
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Let the first grants come at once, and not evenly over the first window
    #[arg(long)]
    together: bool,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let server = Server::start().await;
    let clients = connect(&server, arguments.clients).await?;
    let window = Duration::from_millis(arguments.window_ms);
    let limited = |client: usize| {
        clients[client]
            .semaphore("rate", arguments.limit)
            .at_least(window)
    };
    let end = Instant::now() + window + Duration::from_secs_f64(arguments.seconds);
    let times = Arc::new(Mutex::new(Vec::new()));

    if !arguments.together {
        // So each of the first permits comes back at a time of its own.
        let first = limited(0);
        for _ in 0..arguments.limit {
            turn(&first, &times).await?;
            tokio::time::sleep(window / arguments.limit).await;
        }
    }
    let mut tasks = JoinSet::new();
    for client in 0..arguments.clients {
        for _ in 0..arguments.tasks {
            tasks.spawn(take_turns(limited(client), Arc::clone(&times), end));
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }

    let mut times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort_unstable();
    let limit = arguments.limit as usize;
    let mut late: Vec<f64> = times
        .iter()
        .zip(times.get(limit..).unwrap_or_default())
        .map(|(before, granted)| in_ms(*granted - *before) - in_ms(window))
        .collect();
    let Arguments { clients, tasks, .. } = arguments;
    println!(
        "{limit} grants in {window:?}, {clients} clients with {tasks} tasks each; {} grants",
        times.len()
    );
    println!("how late they are: {}", spread_of(&mut late));
    let rate =
        late.len() as f64 / late.iter().map(|ms| (ms + in_ms(window)) / 1e3).sum::<f64>() * limit as f64;
    println!(
        "rate: {rate:.2} of {:.2} per second",
        limit as f64 / window.as_secs_f64()
    );
    Ok(())
}

async fn take_turns(lock: Semaphore, times: Arc<Mutex<Vec<Instant>>>, end: Instant) -> fairlock::Result<()> {
    while Instant::now() < end {
        turn(&lock, &times).await?;
    }
    Ok(())
}

async fn turn(lock: &Semaphore, times: &Mutex<Vec<Instant>>) -> fairlock::Result<()> {
    let guard = lock.acquire().await?;
    let granted = Instant::now();
    times.lock().unwrap_or_else(PoisonError::into_inner).push(granted);
    guard.release().await
}
