//! More is asked for than can be served, and callers give up. `benches/README.md` says how to run it and how
//! to read it.

mod crowd;
mod part;
mod patience;
mod patient;
mod picture;
mod stall;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fairlock_benches::{NO_SERVER, exit_code, is_called_by_cargo_bench};
use fairlock_testkit::Server;

/// Measures what is still served when callers give up.
#[derive(Debug, Parser)]
#[command(name = "overload")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// What `cargo bench` adds to every call
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Goodput over patience
    Patience(patience::Arguments),
    /// How long callers that never give up wait among those that do
    Patient(patient::Arguments),
    /// What other locks of a client feel while very many of its callers give up
    Crowd(crowd::Arguments),
    /// Goodput second by second, while the server stops for a time
    Stall(stall::Arguments),
    /// One client process
    #[command(hide = true)]
    Part(part::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    if !is_called_by_cargo_bench("overload") {
        return ExitCode::SUCCESS;
    }
    if !Server::is_installed() {
        return exit_code("overload", Err(NO_SERVER.into()));
    }
    let outcome = match Arguments::parse().what {
        What::Patience(arguments) => patience::run(&arguments).await,
        What::Patient(arguments) => patient::run(&arguments).await,
        What::Crowd(arguments) => crowd::run(&arguments).await,
        What::Stall(arguments) => stall::run(&arguments).await,
        What::Part(arguments) => part::run(&arguments).await,
    };
    exit_code("overload", outcome)
}
