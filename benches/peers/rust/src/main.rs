//! One client process of the comparison, for the lock crates of Rust. benches/README.md describes arguments
//! and rows.

mod libraries;
mod plain;
mod polling;
mod waiter;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use libraries::Peer;
use waiter::{Diary, Plan, monotonic_ns, sleep_until};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Takes one lock from several tasks, and writes a row per wait: waiter,asked_ns,granted_ns,released_ns.
#[derive(Debug, Parser)]
struct Args {
    /// Library
    #[arg(long)]
    peer: Peer,
    /// Only prints what the library is
    #[arg(long)]
    version: bool,
    /// Server
    #[arg(long, default_value = "")]
    url: String,
    /// Lock
    #[arg(long, default_value = "")]
    name: String,
    /// Tasks that take it
    #[arg(long, default_value_t = 0)]
    waiters: u32,
    /// Time for which it is held, in µs
    #[arg(long, default_value_t = 0)]
    hold_us: u64,
    /// What they take, which is the library's only kind
    #[arg(long, default_value = "")]
    side: String,
    /// Permits of a semaphore
    #[arg(long, default_value_t = 1)]
    capacity: u32,
    /// Time from a release until the task asks again, in µs
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
    /// Name of this process, which is the first part of its waiters' names
    #[arg(long, default_value = "")]
    id: String,
    /// First time to ask, in ns of CLOCK_MONOTONIC
    #[arg(long, default_value_t = 0)]
    start: i64,
    /// End, in ns of CLOCK_MONOTONIC
    #[arg(long, default_value_t = 0)]
    end: i64,
    /// Where to write the rows
    #[arg(long, default_value = "rows.csv")]
    out: PathBuf,
}

// One worker thread, like the client process of fairlock.
#[tokio::main(worker_threads = 1)]
async fn main() -> ExitCode {
    match run(&Args::parse()).await {
        // The waiters are still running, and their holds must not be released.
        Ok(()) => std::process::exit(0),
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Outcome<()> {
    if args.version {
        println!("{}", args.peer.version());
        return Ok(());
    }
    let library = args.peer.connect(&args.url).await?;
    let diaries: Vec<Diary> = (0..args.waiters).map(|_| Diary::default()).collect();
    for diary in &diaries {
        let plan = Plan {
            start_ns: args.start,
            end_ns: args.end,
            hold: Duration::from_micros(args.hold_us),
            pause: Duration::from_micros(args.pause_us),
            diary: diary.clone(),
        };
        tokio::spawn(plan.run(library.lock(&args.name, args.capacity)));
    }
    let late_ns = monotonic_ns() - args.start;
    if late_ns > 0 {
        eprintln!("ready {} ms too late", late_ns / 1_000_000);
    }
    sleep_until(args.end).await;

    let mut out = std::io::BufWriter::new(std::fs::File::create(&args.out)?);
    for (waiter, diary) in diaries.iter().enumerate() {
        for row in diary.rows_until(args.end) {
            writeln!(out, "{}:{waiter},{row}", args.id)?;
        }
    }
    out.flush()?;
    Ok(())
}
