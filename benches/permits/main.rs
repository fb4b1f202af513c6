//! Readers that one release lets in, and a semaphore as a rate limit, on a server that this program starts.
//! `benches/README.md` says how to run it and how to read it.

mod rate;
mod readers;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use fairlock::LockManager;
use fairlock_benches::quantile::quantile;
use fairlock_benches::{NO_SERVER, Outcome, exit_code, is_called_by_cargo_bench};
use fairlock_testkit::Server;

/// Measures semaphores and read/write locks.
#[derive(Debug, Parser)]
#[command(name = "permits")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// What `cargo bench` adds to every call
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Readers that wait for a writer: how long after its release the last one is in
    Readers(readers::Arguments),
    /// A rate limit: how late after the window's end the next grant comes
    Rate(rate::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    if !is_called_by_cargo_bench("permits") {
        return ExitCode::SUCCESS;
    }
    if !Server::is_installed() {
        return exit_code("permits", Err(NO_SERVER.into()));
    }
    let outcome = match Arguments::parse().what {
        What::Readers(arguments) => readers::run(&arguments).await,
        What::Rate(arguments) => rate::run(&arguments).await,
    };
    exit_code("permits", outcome)
}

/// This number of clients, each with connections of its own.
async fn connect(server: &Server, clients: usize) -> Outcome<Vec<LockManager>> {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(LockManager::connect(&server.url()).await?);
    }
    Ok(all)
}

/// The quantiles of values in ms, on one line.
fn spread_of(values: &mut [f64]) -> String {
    let mut at = |part| quantile(values, part);
    let (p0, p50, p90, p99, p100) = (at(0.0), at(0.5), at(0.9), at(0.99), at(1.0));
    format!("least {p0:.2} ms, p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, most {p100:.2}")
}

fn in_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
