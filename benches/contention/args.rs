//! The command line of both modes: the comparison, and one of its client processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use fairlock_benches::Outcome;

use crate::condition::Condition;
use crate::strategy::Strategy;
use crate::topology::Topology;
use crate::workload::{Load, Side, Workload};

/// The turns in one tenure, unless the command line says otherwise.
pub(crate) const LOCAL_HANDOFFS: u32 = 64;

/// Compares strategies on one contended lock, semaphore or read/write lock, with processes of their own as
/// clients.
///
/// The servers are started on free loopback ports and ended afterwards, unless --url names a running one.
#[derive(Clone, Debug, Parser)]
#[command(name = "contention", args_override_self = true)]
pub(crate) struct CompareArgs {
    /// What the waiters share
    #[arg(long, value_enum, default_value_t = Workload::Lock)]
    pub(crate) kind: Workload,
    /// Permits of a semaphore
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) capacity: u32,
    /// How many of the waiters of `rw` write, in a process of their own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) writers: u32,
    /// Time from a writer's release until it asks again, in µs
    #[arg(long, default_value_t = 20_000)]
    pub(crate) pause_us: u64,
    /// Numbers of client processes that share the waiters, one after the other [default: 4; for readers
    /// 1,2,4,8]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) processes: Vec<u32>,
    /// Numbers of waiters, one after the other [default: 4,64,256 for a lock, 4,64 for a semaphore, else 64]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) waiters: Vec<u32>,
    /// Times of a hold in µs, one after the other; tokio's timers round them up to whole milliseconds
    /// [default: 0; for a semaphore 0,5000; for rw 5000]
    #[arg(long, value_delimiter = ',')]
    pub(crate) hold_us: Vec<u64>,
    /// Measured time of a round
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Rounds of each strategy with each number of waiters
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Unmeasured time at the start of a round, in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) warmup: f64,
    /// Strategies, in the order of the first round: spin, publish, fairlock, local, and the peers of
    /// benches/README.md
    #[arg(long, value_parser = Strategy::parse, value_delimiter = ',', default_value = "spin,publish,fairlock")]
    pub(crate) strategies: Vec<Strategy>,
    /// Servers that are started
    #[arg(long, value_enum, default_value_t = Topology::Standalone, conflicts_with = "url")]
    pub(crate) topology: Topology,
    /// Servers of a quorum
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=9))]
    pub(crate) servers: u32,
    /// Conditions of a quorum's servers, each with servers of its own [default: near, or network with
    /// --delay-us]
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "locks")]
    pub(crate) conditions: Vec<Condition>,
    /// Instead of the comparison: this many tasks, each with a lock of its own, on clusters of --masters
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["waiters", "strategies", "topology", "url", "delay_us", "svg"])]
    pub(crate) locks: Option<u32>,
    /// Numbers of masters; for each of them there is a cluster without replicas, and the clusters take turns
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3], value_parser = clap::value_parser!(u32).range(1..=32), requires = "locks")]
    pub(crate) masters: Vec<u32>,
    /// Beside fairlock also fairlock with local hand-off: this many turns of a process in one tenure
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) local_handoffs: Option<u32>,
    /// Waiters of each process in place of equal shares: 1,4,16,43
    #[arg(
        long,
        value_delimiter = ',',
        conflicts_with_all = ["waiters", "processes", "locks"],
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) shares: Vec<u32>,
    /// Delay that is added to the network in each direction, in µs; standalone and quorum only
    #[arg(long, default_value_t = 0)]
    pub(crate) delay_us: u64,
    /// Delay of the one server of a quorum that is far
    #[arg(long, default_value_t = 50_000)]
    pub(crate) delay_one_us: u64,
    /// Where to write the figures of every round
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Where to draw throughput and waits over the number of waiters
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Where to write a summary in Markdown; what is printed goes to a .txt beside it
    #[arg(long, value_name = "FILE", conflicts_with = "locks")]
    pub(crate) record: Option<PathBuf>,
    /// Folder of the peers' programs
    #[arg(long, value_name = "FOLDER", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers"))]
    pub(crate) programs: PathBuf,
    /// Folder that keeps the rows of every wait, with one file per client process
    #[arg(long, value_name = "FOLDER")]
    pub(crate) rows: Option<PathBuf>,
    /// A running server to use, e.g. redis://127.0.0.1:6379; it should have no other users
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// What `cargo bench` adds to every call
    #[arg(long, hide = true)]
    bench: bool,
}

impl CompareArgs {
    /// Leaves out the strategies that cannot run like this, and says so. Sets the conditions, and what was
    /// not given.
    pub(crate) fn fitting(mut self) -> Outcome<CompareArgs> {
        let topology = self.topology;
        if self.delay_us > 0 && !matches!(topology, Topology::Standalone | Topology::Quorum) {
            return Err(
                "--delay-us needs fixed servers: in other topologies clients learn other addresses".into(),
            );
        }
        if self.conditions.is_empty() {
            self.conditions.push(match self.delay_us {
                0 => Condition::Near,
                _ => Condition::Network,
            });
        } else if topology != Topology::Quorum {
            return Err("--conditions needs --topology quorum".into());
        }
        if self.conditions.contains(&Condition::Network) && self.delay_us == 0 {
            return Err("the condition network needs --delay-us".into());
        }
        if self.local_handoffs.is_some() && !self.strategies.contains(&Strategy::Local) {
            self.strategies.push(Strategy::Local);
        }
        let kind = self.kind;
        let is_only_of_locks = topology == Topology::Quorum
            || self.svg.is_some()
            || self.locks.is_some()
            || !self.shares.is_empty();
        if kind != Workload::Lock && is_only_of_locks {
            return Err("a quorum, --svg, --locks and --shares are for --kind lock".into());
        }
        if !self.shares.is_empty() {
            self.processes = vec![u32::try_from(self.shares.len())?];
            self.waiters = vec![self.shares.iter().sum()];
        }
        let (waiters, processes, holds) = kind.defaults();
        self.waiters.extend(self.locks);
        or_default(&mut self.waiters, waiters);
        or_default(&mut self.processes, processes);
        or_default(&mut self.hold_us, holds);
        match kind {
            Workload::Rw if self.waiters.iter().any(|&waiters| waiters <= self.writers) => {
                return Err("rw needs more --waiters than --writers".into());
            }
            Workload::Rw => {}
            _ => self.writers = 0,
        }
        self.strategies.retain(|one| {
            let has_waiters = self.waiters.iter().any(|&waiters| one.runs_with(waiters));
            let fits = one.runs_on(topology) && one.takes(kind) && has_waiters;
            if !fits {
                eprintln!("{}: left out, since it does not run like this", one.name());
            }
            fits
        });
        if self.strategies.is_empty() {
            return Err("no strategy is left".into());
        }
        Ok(self)
    }

    /// The numbers of waiters, with the processes and the holds.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let mut loads = Vec::new();
        for &hold_us in &self.hold_us {
            for &waiters in &self.waiters {
                loads.extend(self.processes.iter().map(|&processes| Load {
                    waiters,
                    writers: self.writers,
                    processes,
                    hold_us,
                }));
            }
        }
        loads
    }

    /// The strategies with their conditions, in the order of the first round with this many waiters.
    pub(crate) fn kinds(&self, waiters: u32) -> Vec<(Strategy, Condition)> {
        let all = (self.strategies.iter()).flat_map(|&strategy| {
            self.conditions
                .iter()
                .map(move |&condition| (strategy, condition))
        });
        all.filter(|(strategy, condition)| strategy.runs_under(*condition) && strategy.runs_with(waiters))
            .collect()
    }

    /// The delay in each direction, for this server of a quorum or for a single server (which is the first).
    /// It is always the first server that something happens to.
    pub(crate) fn delay(&self, condition: Condition, server: usize) -> Duration {
        Duration::from_micros(match condition {
            Condition::Near | Condition::Down | Condition::Hung => 0,
            Condition::Far if server == 0 => self.delay_one_us,
            Condition::Network | Condition::Far => self.delay_us,
        })
    }
}

/// Takes one lock from several tasks, and writes a row per wait: waiter,asked_ns,granted_ns,released_ns.
#[derive(Clone, Debug, Parser)]
#[command(name = "contention")]
pub(crate) struct ClientArgs {
    /// `spin`, `publish`, or anything else for fairlock
    #[arg(long)]
    pub(crate) peer: String,
    /// The server, or the servers of a quorum with commas between them
    #[arg(long)]
    pub(crate) url: String,
    /// The lock
    #[arg(long)]
    pub(crate) name: String,
    /// Tasks that take it
    #[arg(long)]
    pub(crate) waiters: u32,
    /// Each task takes a lock of its own, whose name begins with that of the lock
    #[arg(long)]
    pub(crate) apart: bool,
    /// Time for which a task holds the lock, in µs
    #[arg(long)]
    pub(crate) hold_us: u64,
    /// What they take
    #[arg(long, value_enum, default_value_t = Side::Lock)]
    pub(crate) side: Side,
    /// Permits of the semaphore
    #[arg(long, default_value_t = 1)]
    pub(crate) capacity: u32,
    /// Time from a release until the task asks again, in µs
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_us: u64,
    /// Turns in one tenure of `local`
    #[arg(long, default_value_t = LOCAL_HANDOFFS)]
    pub(crate) local_handoffs: u32,
    /// Add the fence of each grant to its row
    #[arg(long)]
    pub(crate) fences: bool,
    /// Name of this process, which is the first part of its waiters' names
    #[arg(long)]
    pub(crate) id: String,
    /// First time to ask, in ns of CLOCK_MONOTONIC
    #[arg(long)]
    pub(crate) start: i64,
    /// End, in ns of CLOCK_MONOTONIC
    #[arg(long)]
    pub(crate) end: i64,
    /// Where to write the rows
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// What `cargo bench` adds to every call
    #[arg(long, hide = true)]
    bench: bool,
}

/// The mode in which the program was started.
#[derive(Debug)]
pub(crate) enum Face {
    Client(ClientArgs),
    Compare(Box<CompareArgs>),
}

impl Face {
    /// Reads the command line. Ends the process if the command line is invalid, or asks for help.
    pub(crate) fn from_command_line() -> Face {
        match std::env::args().any(|arg| arg == "--peer" || arg.starts_with("--peer=")) {
            true => Face::Client(ClientArgs::parse()),
            false => Face::Compare(Box::new(CompareArgs::parse())),
        }
    }
}

fn or_default<T: Clone>(values: &mut Vec<T>, default: &[T]) {
    if values.is_empty() {
        values.extend_from_slice(default);
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|e| format!("{e}"))?;
    let sensible = (0.0..=86_400.0).contains(&seconds);
    sensible
        .then_some(seconds)
        .ok_or_else(|| "from 0 to 86400 seconds".to_owned())
}
