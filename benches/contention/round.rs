//! One round: client processes take locks from one instant to another, and the cost on the servers meanwhile
//! is measured.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::analysis::Wait;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::process::{Child, Command};

use crate::args::{CompareArgs, LOCAL_HANDOFFS};
use crate::client::{monotonic_ns, sleep_until};
use crate::cost::Cost;
use crate::place::Place;
use crate::strategy::Strategy;
use crate::workload::{Load, Side};

/// Time for the client processes to start and connect, and a little more for each waiter.
const READY: Duration = Duration::from_millis(400);
const READY_PER_WAITER: Duration = Duration::from_micros(500);

/// The end of the complaint of a client process that was not ready in time; and a time that is enough for any
/// process.
const LATE: &str = "too late";
const MOST_READY: Duration = Duration::from_secs(30);

/// Time for a client process to write its rows and end.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The task of the client processes.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) place: &'a Place,
    pub(crate) strategy: Strategy,
    pub(crate) load: Load,
    /// Whether each waiter has a lock of its own.
    pub(crate) apart: bool,
    /// The name of the round.
    pub(crate) label: String,
}

/// The result of a round.
#[derive(Debug)]
pub(crate) struct Played {
    /// The rows of all processes.
    pub(crate) history: Vec<Wait>,
    /// The measured time.
    pub(crate) begin_ns: i64,
    pub(crate) end_ns: i64,
    /// The cost on each server within that time.
    pub(crate) spent: Vec<Cost>,
    /// What client processes complained about.
    pub(crate) errors: Vec<String>,
    /// How many client processes failed, and so have no rows.
    pub(crate) failed: usize,
}

/// The environment in which rounds run one after the other.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    args: &'a CompareArgs,
    scratch: Scratch,
    bar: ProgressBar,
}

impl<'a> Stage<'a> {
    /// `rounds` has the strategy of each round, and its number of waiters.
    pub(crate) fn new(
        args: &'a CompareArgs,
        rounds: impl Iterator<Item = (Strategy, u32)>,
    ) -> io::Result<Stage<'a>> {
        Ok(Stage {
            args,
            scratch: Scratch::new(args.rows.clone())?,
            bar: progress_bar(args, rounds),
        })
    }

    /// Runs a round. On a busy machine the processes of some languages are not ready in time. The round is
    /// then repeated with more time.
    pub(crate) async fn play(&self, task: &Task<'_>) -> Outcome<Played> {
        let mut ready = ready(task.strategy, task.load.waiters);
        loop {
            let played = self.play_after(ready, task).await?;
            if !played.errors.iter().any(|e| e.ends_with(LATE)) || ready > MOST_READY {
                return Ok(played);
            }
            ready *= 2;
        }
    }

    async fn play_after(&self, ready: Duration, task: &Task<'_>) -> Outcome<Played> {
        let start_ns = monotonic_ns() + nanos(ready);
        let begin_ns = start_ns + nanos(Duration::from_secs_f64(self.args.warmup));
        let end_ns = begin_ns + nanos(Duration::from_secs_f64(self.args.seconds));
        let mut clients = Vec::new();
        for &side in self.args.kind.sides() {
            let waiters = side.waiters(task.load);
            let processes = side.processes(task.load);
            for id in 0..processes {
                let equal = waiters / processes + u32::from(id < waiters % processes);
                let share = *self.args.shares.get(id as usize).unwrap_or(&equal);
                clients.push(self.client(task, side, share, id, start_ns, end_ns)?);
            }
        }

        self.pass_time(begin_ns).await;
        task.place.disturb();
        let before = task.place.costs()?;
        self.pass_time(end_ns).await;
        let after = task.place.costs()?;

        let (mut history, mut errors, mut failed) = (Vec::new(), Vec::new(), 0);
        for client in clients {
            match (client.join(&mut history).await, task.strategy) {
                (Ok(complaints), _) => errors.extend(complaints),
                // The figures of the other strategies are still useful.
                (Err(e), Strategy::Peer(_)) => {
                    errors.push(e.to_string());
                    failed += 1;
                }
                (Err(e), _) => return Err(e),
            }
        }
        task.place.repair().await;
        Ok(Played {
            history,
            begin_ns,
            end_ns,
            spent: before
                .iter()
                .zip(&after)
                .map(|(before, after)| after.since(before))
                .collect(),
            errors,
            failed,
        })
    }

    fn client(
        &self,
        task: &Task<'_>,
        side: Side,
        waiters: u32,
        id: u32,
        start_ns: i64,
        end_ns: i64,
    ) -> io::Result<Client> {
        let id = match side {
            Side::Write => format!("write{id}"),
            _ => id.to_string(),
        };
        let rows = self.scratch.folder.join(format!("{}-{id}.csv", task.label));
        // Every round has a lock of its own, so that it does not meet the leftovers of an earlier one.
        let name = format!("contention:{}:{start_ns}", task.label);
        let program = match task.strategy {
            Strategy::Peer(peer) => peer.command(&self.args.programs),
            _ => {
                let mut own = std::process::Command::new(std::env::current_exe()?);
                // The programs of peers take the arguments below only.
                let turns = self.args.local_handoffs.unwrap_or(LOCAL_HANDOFFS).to_string();
                own.args(["--fences", "--local-handoffs", &turns]);
                Some(own)
            }
        };
        let program = program.ok_or_else(|| io::Error::other("the program of a peer is missing"))?;
        let mut command = Command::from(program);
        if side != Side::Lock {
            let pause_us = if side == Side::Write {
                self.args.pause_us
            } else {
                0
            };
            command
                .args(["--side", side.name(), "--pause-us", &pause_us.to_string()])
                .args(["--capacity", &self.args.capacity.to_string()]);
        }
        let process = command
            .args(["--peer", task.strategy.name(), "--url", task.place.url()])
            .args(["--name", &name])
            .args(["--waiters", &waiters.to_string()])
            .args(["--hold-us", &task.load.hold_us.to_string()])
            .args(["--id", &id])
            .args(["--start", &start_ns.to_string(), "--end", &end_ns.to_string()])
            .args(task.apart.then_some("--apart"))
            .arg("--out")
            .arg(&rows)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let permits = side.party(task.load, self.args.capacity).permits;
        Ok(Client {
            process,
            rows,
            permits,
        })
    }

    /// Shows what is running.
    pub(crate) fn announce(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Lets time pass, and shows the progress.
    async fn pass_time(&self, until_ns: i64) {
        const STEP: Duration = Duration::from_millis(100);
        while monotonic_ns() + nanos(STEP) < until_ns {
            tokio::time::sleep(STEP).await;
            self.bar.inc(1);
        }
        sleep_until(until_ns).await;
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The time that the processes of a round get before its waiters start.
fn ready(strategy: Strategy, waiters: u32) -> Duration {
    match strategy {
        Strategy::Peer(peer) => peer.ready(waiters),
        _ => READY + READY_PER_WAITER * waiters,
    }
}

/// A running client process. It is killed when this is dropped.
#[derive(Debug)]
struct Client {
    process: Child,
    rows: PathBuf,
    permits: u32,
}

impl Client {
    /// Waits for the end of the process, and adds its rows to the history. Returns its complaints.
    async fn join(self, history: &mut Vec<Wait>) -> Outcome<Vec<String>> {
        let output = tokio::time::timeout(WRITE_TIMEOUT, self.process.wait_with_output())
            .await
            .map_err(|_| "a client process did not end in time")??;
        let complaints: Vec<String> = String::from_utf8_lossy(&output.stderr)
            .lines()
            .map(str::to_owned)
            .collect();
        if !output.status.success() {
            let last = complaints.last().map_or("no output", String::as_str);
            return Err(format!("a client process failed ({}): {last}", output.status).into());
        }
        for line in std::fs::read_to_string(&self.rows)?.lines() {
            let mut wait = Wait::parse(line)
                .ok_or_else(|| format!("a client process wrote an invalid row: {line:?}"))?;
            wait.permits = self.permits;
            history.push(wait);
        }
        Ok(complaints)
    }
}

/// The folder of the rows: either the user's, or a temporary one that is removed when this is dropped.
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

/// A bar that counts tenths of a second. It is hidden unless stderr is a terminal.
fn progress_bar(args: &CompareArgs, rounds: impl Iterator<Item = (Strategy, u32)>) -> ProgressBar {
    let total_s: f64 = rounds
        .map(|(strategy, waiters)| ready(strategy, waiters).as_secs_f64() + args.warmup + args.seconds)
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
