//! Many locks in one client, on a server that this program starts. `benches/README.md` says how to run it and
//! how to read it.

mod held;
mod hot;
mod own;
mod restart;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use fairlock_benches::{NO_SERVER, Outcome, exit_code, is_called_by_cargo_bench};
use fairlock_testkit::Server;

/// Measures one client with many locks.
#[derive(Debug, Parser)]
#[command(name = "many")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// What `cargo bench` adds to every call
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Tasks that each acquire and release a lock of their own, beside bare scripts that do nothing
    Own(own::Arguments),
    /// Hot locks, each with tasks that contend for it
    Hot(hot::Arguments),
    /// Locks that are held and renewed
    Held(held::Arguments),
    /// Waiters of one lock whose server restarts
    Restart(restart::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    if !is_called_by_cargo_bench("many") {
        return ExitCode::SUCCESS;
    }
    if !Server::is_installed() {
        return exit_code("many", Err(NO_SERVER.into()));
    }
    let outcome = match Arguments::parse().what {
        What::Own(arguments) => own::run(&arguments).await,
        What::Hot(arguments) => hot::run(&arguments).await,
        What::Held(arguments) => held::run(&arguments).await,
        What::Restart(arguments) => restart::run(&arguments).await,
    };
    exit_code("many", outcome)
}

/// The value that so many percent of the values do not exceed. The values must be sorted.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let index = sorted.len() * percent / 100;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// CPU time of this process so far.
fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// A number from the server's INFO.
async fn told(server: &Server, section: &str, key: &str) -> Outcome<f64> {
    let info = server.info(section).await;
    let value = info
        .get(key)
        .ok_or_else(|| format!("no {key} in INFO {section}"))?;
    Ok(value.parse()?)
}
