//! The comparison: rounds of client processes, all strategies once before any of them the next time, and what the
//! server did meanwhile.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::process::{Child, Command};

use crate::Outcome;
use crate::analysis::{Findings, Wait, analyse};
use crate::args::CompareArgs;
use crate::client::{monotonic_ns, sleep_until};
use crate::delay;
use crate::info::{commands_sent, cpu_seconds};
use crate::server::Server;
use crate::strategy::Strategy;
use crate::wire::{self, Wire};

/// Time for the client processes to start and connect, and a little more for each waiter.
const READY: Duration = Duration::from_millis(400);
const READY_PER_WAITER: Duration = Duration::from_micros(500);

/// Time for a client process to write its rows and end.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// PINGs before each round. Their median is the network's round trip.
const PINGS: usize = 200;

/// One round of one strategy.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) strategy: Strategy,
    pub(crate) waiters: u32,
    pub(crate) round: u32,
    pub(crate) findings: Findings,
    /// Commands that clients sent within the window.
    pub(crate) commands: u64,
    /// CPU time of the server within the window.
    pub(crate) server: Duration,
    /// Round trip of a PING just before.
    pub(crate) ping: Duration,
    /// What client processes complained of.
    pub(crate) errors: Vec<String>,
}

/// Runs all rounds, on a server of its own unless the arguments name one.
pub(crate) async fn run(args: &CompareArgs) -> Outcome<Vec<Round>> {
    let own = if args.url.is_none() {
        Some(Server::start()?)
    } else {
        None
    };
    let direct = match (&args.url, &own) {
        (Some(url), _) => url.clone(),
        (None, server) => server
            .as_ref()
            .map(|server| server.url().to_owned())
            .unwrap_or_default(),
    };
    Wire::connect(&direct)
        .and_then(|mut wire| wire.ping(1))
        .map_err(|e| format!("no server to measure at {direct}: {e}"))?;
    let url = match args.delay_us {
        0 => direct.clone(),
        delay_us => {
            let address = wire::address(&direct)?;
            let proxy = delay::start(address, Duration::from_micros(delay_us))?;
            direct.replacen(address, &proxy.to_string(), 1)
        }
    };

    let scratch = Scratch::new(args.rows.clone())?;
    let bar = progress_bar(args);
    let mut rounds = Vec::new();
    for &waiters in &args.waiters {
        for round in 0..args.rounds {
            // A drift of the machine, or what one strategy leaves behind, hits no strategy more than another.
            let first = round as usize % args.strategies.len();
            for &strategy in args.strategies[first..].iter().chain(&args.strategies[..first]) {
                bar.set_message(format!("{} with {waiters} waiters", strategy.name()));
                let work = Work {
                    args,
                    direct: &direct,
                    url: &url,
                    folder: &scratch.folder,
                    bar: &bar,
                };
                rounds.push(work.round(strategy, waiters, round).await?);
            }
        }
    }
    bar.finish_and_clear();
    Ok(rounds)
}

#[derive(Debug)]
struct Work<'a> {
    args: &'a CompareArgs,
    /// The server itself, for INFO.
    direct: &'a str,
    /// The server as clients see it, perhaps through a delay.
    url: &'a str,
    folder: &'a Path,
    bar: &'a ProgressBar,
}

impl Work<'_> {
    async fn round(&self, strategy: Strategy, waiters: u32, round: u32) -> Outcome<Round> {
        let mut ping = Wire::connect(self.url)?.ping(PINGS)?;
        ping.sort_unstable();

        let start_ns = monotonic_ns() + nanos(READY + READY_PER_WAITER * waiters);
        let begin_ns = start_ns + nanos(Duration::from_secs_f64(self.args.warmup));
        let end_ns = begin_ns + nanos(Duration::from_secs_f64(self.args.seconds));
        let label = format!("{}-{waiters}-{round}", strategy.name());
        let processes = self.args.processes.min(waiters);
        let mut clients = Vec::new();
        for id in 0..processes {
            let share = waiters / processes + u32::from(id < waiters % processes);
            clients.push(self.client(strategy, &label, share, id, start_ns, end_ns)?);
        }

        self.pass_time(begin_ns).await;
        let before = Cost::of(self.direct)?;
        self.pass_time(end_ns).await;
        let after = Cost::of(self.direct)?;

        let (mut history, mut errors) = (Vec::new(), Vec::new());
        for client in clients {
            errors.extend(client.join(&mut history).await?);
        }
        Ok(Round {
            strategy,
            waiters,
            round,
            findings: analyse(&history, begin_ns, end_ns, waiters as usize),
            commands: after.commands.saturating_sub(before.commands),
            server: Duration::from_secs_f64((after.cpu_s - before.cpu_s).max(0.0)),
            ping: ping[PINGS / 2],
            errors,
        })
    }

    fn client(
        &self,
        strategy: Strategy,
        label: &str,
        waiters: u32,
        id: u32,
        start_ns: i64,
        end_ns: i64,
    ) -> io::Result<Client> {
        let rows = self.folder.join(format!("{label}-{id}.csv"));
        // A lock of its own for every round: what the last one's clients left behind is none of its business.
        let name = format!("contention:{label}:{start_ns}");
        let process = Command::new(std::env::current_exe()?)
            .args(["--peer", strategy.name(), "--url", self.url, "--name", &name])
            .args([
                "--waiters",
                &waiters.to_string(),
                "--hold-us",
                &self.args.hold_us.to_string(),
            ])
            .args([
                "--id",
                &id.to_string(),
                "--start",
                &start_ns.to_string(),
                "--end",
                &end_ns.to_string(),
            ])
            .arg("--out")
            .arg(&rows)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Client { process, rows })
    }

    /// Lets time pass, and shows it.
    async fn pass_time(&self, until_ns: i64) {
        const STEP: Duration = Duration::from_millis(100);
        while monotonic_ns() + nanos(STEP) < until_ns {
            tokio::time::sleep(STEP).await;
            self.bar.inc(1);
        }
        sleep_until(until_ns).await;
    }
}

/// A client process under way. It is killed when this is dropped.
#[derive(Debug)]
struct Client {
    process: Child,
    rows: PathBuf,
}

impl Client {
    /// Waits for its end and adds its rows to the history. Returns what it complained of.
    async fn join(self, history: &mut Vec<Wait>) -> Outcome<Vec<String>> {
        let output = tokio::time::timeout(WRITE_TIMEOUT, self.process.wait_with_output())
            .await
            .map_err(|_| "a client process did not end in time")??;
        let complaints: Vec<String> = String::from_utf8_lossy(&output.stderr)
            .lines()
            .map(str::to_owned)
            .collect();
        if !output.status.success() {
            let last = complaints.last().map_or("it said nothing", String::as_str);
            return Err(format!("a client process failed ({}): {last}", output.status).into());
        }
        for line in std::fs::read_to_string(&self.rows)?.lines() {
            history
                .push(Wait::parse(line).ok_or_else(|| format!("a client process wrote the row {line:?}"))?);
        }
        Ok(complaints)
    }
}

/// What the server has spent so far.
#[derive(Debug)]
struct Cost {
    commands: u64,
    cpu_s: f64,
}

impl Cost {
    fn of(url: &str) -> Outcome<Cost> {
        let mut wire = Wire::connect(url)?;
        let commands = commands_sent(&wire.command(&["INFO", "commandstats"])?);
        let cpu_s = cpu_seconds(&wire.command(&["INFO", "cpu"])?).ok_or("INFO cpu has no used_cpu_user")?;
        Ok(Cost { commands, cpu_s })
    }
}

/// The folder of the rows: the user's, or one that goes when this goes.
#[derive(Debug)]
struct Scratch {
    folder: PathBuf,
    temporary: bool,
}

impl Scratch {
    fn new(wanted: Option<PathBuf>) -> io::Result<Scratch> {
        let temporary = wanted.is_none();
        let folder = wanted.unwrap_or_else(|| {
            std::env::temp_dir().join(format!("fairlock-rows-{}-{}", std::process::id(), monotonic_ns()))
        });
        std::fs::create_dir_all(&folder)?;
        Ok(Scratch { folder, temporary })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// A bar that counts tenths of a second, hidden unless stderr is a terminal.
fn progress_bar(args: &CompareArgs) -> ProgressBar {
    let kinds = f64::from(args.rounds) * args.strategies.len() as f64;
    let total_s: f64 = args
        .waiters
        .iter()
        .map(|&waiters| (READY + READY_PER_WAITER * waiters).as_secs_f64() + args.warmup + args.seconds)
        .map(|round_s| round_s * kinds)
        .sum();
    let bar = ProgressBar::new(Duration::from_secs_f64(total_s * 10.0).as_secs());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3} %  {eta:>4} left  {msg}") {
        bar.set_style(style);
    }
    bar
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
