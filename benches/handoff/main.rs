//! Where the time of one hand-off goes, on a server that this program starts. `benches/README.md` says how to
//! run it and how to read it.

mod holder;
mod line;
mod script;
#[path = "../../src/protocol/script/texts.rs"]
#[expect(dead_code, reason = "this bench only acquires and releases")]
mod texts;
mod waiter;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use fairlock_benches::wire::Wire;
use fairlock_benches::{NO_SERVER, Outcome, exit_code, is_called_by_cargo_bench};
use fairlock_testkit::Server;
use tokio::runtime::{Builder, Runtime};

use holder::{ByGuard, Holder, Publisher, Thread};
use line::Line;
use script::Desk;
use waiter::{Acquirer, Reader, Waiter};

/// Takes one hand-off apart: each line has one part more than the line before.
#[derive(Debug, Parser)]
#[command(name = "handoff")]
struct Arguments {
    /// Rounds, in each of which every line has its turn
    #[arg(long, default_value_t = 150)]
    rounds: usize,
    /// Hand-offs of a line in each round
    #[arg(long, default_value_t = 40)]
    hand_offs: usize,
    /// Worker threads of each of the two clients
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Only this line, counted from 1: for strace, perf and similar tools
    #[arg(long)]
    only: Option<usize>,
    /// What `cargo bench` adds to every call
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    if !is_called_by_cargo_bench("handoff") {
        return ExitCode::SUCCESS;
    }
    exit_code("handoff", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome<()> {
    if !Server::is_installed() {
        return Err(NO_SERVER.into());
    }
    let [holders, waiters] = [(); 2].map(|()| {
        Builder::new_multi_thread()
            .worker_threads(arguments.workers)
            .enable_all()
            .build()
    });
    let (holders, waiters) = (holders?, waiters?);
    let server = holders.block_on(Server::start());
    let mut lines = lines(&server, &holders, &waiters)?;
    if let Some(only) = arguments.only {
        let index = only.checked_sub(1).filter(|index| *index < lines.len());
        lines = vec![lines.swap_remove(index.ok_or("there is no such line")?)];
    }
    let mut wire = Wire::connect(&server.url())?;
    // The first round only warms up.
    for round in 0..=arguments.rounds {
        for turn in 0..lines.len() {
            let index = if round % 2 == 0 {
                turn
            } else {
                lines.len() - 1 - turn
            };
            lines[index].block(arguments.hand_offs, round > 0, &mut wire)?;
        }
    }
    println!("{}", fairlock_benches::machine::machine());
    println!(
        "{} rounds of {} hand-offs of each line; times in µs: the median of the medians of the rounds",
        arguments.rounds, arguments.hand_offs
    );
    line::print(&lines);
    Ok(())
}

fn lines<'a>(server: &Server, holders: &'a Runtime, waiters: &'a Runtime) -> Outcome<Vec<Line<'a>>> {
    let url = server.url();
    let address = format!("127.0.0.1:{}", server.port());
    // Each line has a lock of its own.
    let first = |line: &str| Desk::open(&url, line, 1);
    let next = |line: &str| Desk::open(&url, line, 2);
    let mut wire = Wire::connect(&url)?;
    let ping = move || {
        // After the first PING nothing is asleep.
        let pings = wire.ping(2)?;
        pings.last().copied().ok_or_else(|| "no PING".into())
    };
    let messages = Reader::in_thread(&address, next("messages")?)?.of_messages();
    let publisher = Publisher::connect(&url, next("messages")?.channel())?;
    Ok(vec![
        Line::new("PING, on a bare socket", None, Box::new(ping)),
        Line::new(
            "PUBLISH, read by another thread",
            Some("publish"),
            hand_off(publisher, messages),
        ),
        Line::new(
            "... by the release script",
            Some("evalsha"),
            hand_off(
                Thread::connect(&url, first("thread")?)?,
                Reader::in_thread(&address, next("thread")?)?,
            ),
        ),
        Line::new(
            "... read by a task",
            None,
            hand_off(
                Thread::connect(&url, first("task")?)?,
                Reader::in_task(waiters, &address, next("task")?)?,
            ),
        ),
        Line::new(
            "... sent by LockGuard::release",
            None,
            hand_off(
                ByGuard::connect(holders, &url, "release")?,
                Reader::in_task(waiters, &address, next("release")?)?,
            ),
        ),
        Line::new(
            "... read by Lock::acquire",
            None,
            hand_off(
                ByGuard::connect(holders, &url, "acquire")?,
                Acquirer::connect(waiters, &url, "acquire", next("acquire")?)?,
            ),
        ),
        Line::new(
            "... behind an acquire of another lock",
            None,
            hand_off(
                ByGuard::connect(holders, &url, "behind")?.behind_an_acquire()?,
                Acquirer::connect(waiters, &url, "behind", next("behind")?)?,
            ),
        ),
    ])
}

fn hand_off<'a>(
    mut holder: impl Holder + 'a,
    mut waiter: impl Waiter + 'a,
) -> Box<dyn FnMut() -> Outcome<Duration> + 'a> {
    Box::new(move || {
        holder.hold()?;
        waiter.queue()?;
        let took = holder.release(&mut || waiter.heard())?;
        waiter.give_back()?;
        Ok(took)
    })
}
