//! One contended lock, semaphore or read/write lock: compares the spin lock, publish-then-compete, fairlock
//! and what others use. `benches/README.md` says how to run it and how to read it.
//!
//! The program has two modes. With `--peer` it is one client process, which takes the lock from several tasks
//! and writes a row for every wait. Otherwise it is the comparison: it starts servers and client processes
//! (itself, with `--peer`), merges their rows into one history, and reports what the history shows. With
//! `--locks` there is no contention: every task has a lock of its own, and the comparison is between numbers
//! of masters.

mod args;
mod bars;
mod client;
mod compare;
mod condition;
mod cost;
mod others;
mod peer;
mod permits;
mod picture;
mod place;
mod publish;
mod record;
mod report;
mod round;
mod spread;
mod strategy;
mod topology;
mod workload;

use std::io::Write;
use std::process::ExitCode;

use fairlock_benches::{Outcome, exit_code, say_how_to_run};

use args::{CompareArgs, Face};
use topology::Topology;
use workload::Workload;

// One worker thread. The client processes and the server already outnumber the cores of most machines, and
// every strategy loses throughput to threads that wake each other.
#[tokio::main(worker_threads = 1)]
async fn main() -> ExitCode {
    if std::env::args().len() == 1 {
        // `cargo test --all-targets` runs the program like this. A test run should not take minutes of load.
        say_how_to_run("contention");
        return ExitCode::SUCCESS;
    }
    let outcome = match Face::from_command_line() {
        Face::Client(args) => match client::run(&args).await {
            // The waiters are still running, and their holds must not be released.
            Ok(()) => std::process::exit(0),
            failed => failed,
        },
        Face::Compare(args) => tokio::select! {
            outcome = compare(*args) => outcome,
            // The servers and the client processes end when the comparison is dropped.
            signal = interrupted() => Err(signal.into()),
        },
    };
    exit_code("contention", outcome)
}

async fn compare(args: CompareArgs) -> Outcome<()> {
    let mut args = args.fitting()?;
    let text = args.record.as_deref().map(record::text_beside);
    for path in [&args.csv, &args.svg, &args.record, &text].into_iter().flatten() {
        // It is better to fail now than after minutes.
        std::fs::File::create(path).map_err(|e| format!("{} can't be written: {e}", path.display()))?;
    }
    match args.locks {
        None => contended(&mut args).await,
        Some(locks) => spread(&args, locks).await,
    }
}

async fn contended(args: &mut CompareArgs) -> Outcome<()> {
    let field = record::Field::prepare(args).await?;
    let rounds = compare::run(args, &field.places).await?;
    let lines = report::pooled(args, &rounds);
    let table = match args.kind {
        Workload::Lock => report::table(args, &lines),
        _ => permits::table(args, &lines) + "\n" + permits::LEGEND,
    };
    let bars = match args.topology {
        Topology::Quorum => bars::of_quorum(&rounds),
        _ => String::new(),
    };
    let printed = [table, bars.clone(), field.describe(), report::complaints(&rounds)].join("\n");
    print(&printed)?;
    if let Some(path) = &args.record {
        let page = match args.kind {
            Workload::Lock => record::page(args, path, &lines, &bars, &field),
            _ => record::section(args, &lines, &field),
        };
        std::fs::write(path, page)?;
        std::fs::write(record::text_beside(path), printed.trim().to_owned() + "\n")?;
        print(&format!("record:      {}", path.display()))?;
    }
    if let Some(path) = &args.csv {
        let csv = match args.kind {
            Workload::Lock => report::csv(args, &rounds),
            _ => permits::csv(args, &rounds),
        };
        std::fs::write(path, csv)?;
        print(&format!("every round: {}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        picture::draw(path, &lines)?;
        print(&format!("picture:     {}", path.display()))?;
    }
    report::failure(&rounds).map_or(Ok(()), |failure| Err(failure.into()))
}

async fn spread(args: &CompareArgs, locks: u32) -> Outcome<()> {
    let rounds = spread::run(args, locks).await?;
    print(&spread::table(args, locks, &rounds))?;
    if let Some(path) = &args.csv {
        std::fs::write(path, spread::csv(args, locks, &rounds))?;
        print(&format!("every round: {}", path.display()))?;
    }
    print_errors(rounds.iter().flat_map(|round| &round.errors))?;
    Ok(())
}

fn print_errors<'a>(errors: impl Iterator<Item = &'a String>) -> std::io::Result<()> {
    let errors: Vec<&String> = errors.collect();
    errors.first().map_or(Ok(()), |first| {
        print(&format!(
            "{} errors in client processes; the first one: {first}",
            errors.len()
        ))
    })
}

/// Unlike `println!`, this does not panic when its output is closed. The server would still end, but with the
/// noise of a panic.
fn print(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

/// Resolves when the user or the system wants the program to end.
async fn interrupted() -> &'static str {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminated.recv() => return "terminated",
                _ = tokio::signal::ctrl_c() => return "interrupted",
            }
        }
    }
    let _ = tokio::signal::ctrl_c().await;
    "interrupted"
}
