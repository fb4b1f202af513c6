//! A client process. Its tasks take locks again and again, hold them for no time, and give up when their
//! patience is over. A bystander takes another lock now and then, and some locks are held all the time.

use std::io::BufRead;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fairlock::spin::SpinLock;
use fairlock::{Lock, LockGuard, LockManager};
use fairlock_benches::Outcome;
use fairlock_benches::memory::own_memory;
use fairlock_benches::quantile::quantile;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Strategy {
    /// Callers give up by `acquire_timeout`
    Fairlock,
    /// The same, but callers give up by `tokio::time::timeout`, which drops the call
    Dropped,
    Spin,
}

impl Strategy {
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

/// The lease of the locks that are held all the time; it is renewed when a third is used up.
const HELD_LEASE: Duration = Duration::from_secs(3);

const MIB: f64 = 1_048_576.0;

/// The load.
#[derive(Clone, Debug, Args)]
pub(crate) struct Load {
    /// Tasks of all processes together
    #[arg(long, default_value_t = 1000)]
    pub(crate) tasks: usize,
    /// Locks
    #[arg(long, default_value_t = 10)]
    pub(crate) locks: usize,
    /// Client processes
    #[arg(long, default_value_t = 1)]
    pub(crate) processes: usize,
    /// Locks that each process holds all the time, and renews
    #[arg(long, default_value_t = 1000)]
    pub(crate) held: usize,
    /// Adds a client process with four tasks that have much patience, and one lock of its own
    #[arg(long)]
    pub(crate) neighbour: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    #[arg(long)]
    url: String,
    #[arg(long, value_enum)]
    strategy: Strategy,
    #[arg(long)]
    patience_us: u64,
    #[arg(long)]
    seconds: usize,
    /// The beginning of the names of the locks
    #[arg(long)]
    names: String,
}

/// What one process or several have seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Locks acquired in each second.
    pub(crate) acquired: Vec<u64>,
    pub(crate) gave_up: u64,
    /// The most memory that a process used in addition to that before the load, in MiB.
    pub(crate) memory: f64,
    /// How long `close` took.
    pub(crate) close: Duration,
    /// How many releases `close` left unconfirmed.
    pub(crate) unconfirmed: u64,
    /// The 99th percentile of the bystander's waits, in ms.
    pub(crate) bystander: f64,
    /// How late a renewal of a held lock was at most, as a share of the period.
    pub(crate) late: f64,
    /// How many locks the neighbour acquired per second.
    pub(crate) neighbour: f64,
}

impl Load {
    /// Starts the processes, which begin when all of them are ready, and returns what they have seen.
    pub(crate) async fn run(
        &self,
        url: &str,
        strategy: Strategy,
        patience: Duration,
        seconds: usize,
        meanwhile: impl AsyncFnOnce(),
    ) -> Outcome<Seen> {
        let mut processes = Vec::new();
        for _ in 0..self.processes {
            processes.push(self.start(url, strategy, patience, seconds, "overload")?);
        }
        if self.neighbour {
            let load = Load {
                tasks: 4,
                locks: 1,
                processes: 1,
                held: 0,
                neighbour: false,
            };
            let much = Duration::from_secs(10);
            processes.push(load.start(url, Strategy::Fairlock, much, seconds, "neighbour")?);
        }
        for process in &mut processes {
            let stdout = process.stdout.as_mut().ok_or("no stdout")?;
            stdout.read_exact(&mut [0; 6]).await?;
        }
        for process in &mut processes {
            process.stdin.take().ok_or("no stdin")?.write_all(b"go\n").await?;
        }
        meanwhile().await;
        let mut all = Seen {
            acquired: vec![0; seconds],
            ..Seen::default()
        };
        for (number, process) in processes.into_iter().enumerate() {
            let output = process.wait_with_output().await?;
            if !output.status.success() {
                return Err(format!("a client process ended with {}", output.status).into());
            }
            let seen = Seen::read(&String::from_utf8(output.stdout)?)?;
            if number < self.processes {
                all.add(&seen);
            } else {
                all.neighbour = seen.rate();
            }
        }
        Ok(all)
    }

    fn start(
        &self,
        url: &str,
        strategy: Strategy,
        patience: Duration,
        seconds: usize,
        names: &str,
    ) -> Outcome<Child> {
        let process = Command::new(std::env::current_exe()?)
            .args(["--bench", "part", "--url", url])
            .args(["--names", names])
            .args(["--strategy", &strategy.name()])
            .args(["--held", &self.held.to_string()])
            .args(["--tasks", &(self.tasks / self.processes).to_string()])
            .args(["--locks", &self.locks.to_string()])
            .args(["--patience-us", &patience.as_micros().to_string()])
            .args(["--seconds", &seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(process)
    }
}

impl Seen {
    /// The rate per second, without the first second, in which everything starts.
    pub(crate) fn rate(&self) -> f64 {
        let seconds = &self.acquired[1.min(self.acquired.len() - 1)..];
        seconds.iter().sum::<u64>() as f64 / seconds.len() as f64
    }

    fn add(&mut self, other: &Seen) {
        for (sum, acquired) in self.acquired.iter_mut().zip(&other.acquired) {
            *sum += acquired;
        }
        self.gave_up += other.gave_up;
        self.memory = self.memory.max(other.memory);
        self.close = self.close.max(other.close);
        self.unconfirmed += other.unconfirmed;
        self.bystander = self.bystander.max(other.bystander);
        self.late = self.late.max(other.late);
    }

    fn write(&self) -> String {
        let Seen {
            acquired,
            gave_up,
            memory,
            close,
            unconfirmed,
            bystander,
            late,
            neighbour: _,
        } = self;
        let acquired: Vec<String> = acquired.iter().map(u64::to_string).collect();
        format!(
            "{} {gave_up} {memory} {} {unconfirmed} {bystander} {late}",
            acquired.join(","),
            close.as_secs_f64()
        )
    }

    fn read(line: &str) -> Outcome<Seen> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [acquired, gave_up, memory, close, unconfirmed, bystander, late] = words[..] else {
            return Err(format!("a client process said {line:?}").into());
        };
        Ok(Seen {
            acquired: acquired.split(',').map(str::parse).collect::<Result<_, _>>()?,
            gave_up: gave_up.parse()?,
            memory: memory.parse()?,
            close: Duration::from_secs_f64(close.parse()?),
            unconfirmed: unconfirmed.parse()?,
            bystander: bystander.parse()?,
            late: late.parse()?,
            neighbour: 0.0,
        })
    }
}

#[derive(Debug)]
struct Counts {
    started: Instant,
    acquired: Vec<AtomicU64>,
    gave_up: AtomicU64,
}

impl Counts {
    fn is_over(&self) -> bool {
        self.started.elapsed().as_secs() >= self.acquired.len() as u64
    }

    fn acquired(&self) {
        #[expect(clippy::cast_possible_truncation, reason = "seconds of a bench")]
        let second = self.started.elapsed().as_secs() as usize;
        if let Some(count) = self.acquired.get(second) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn gave_up(&self) {
        self.gave_up.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let locks = LockManager::connect(&arguments.url).await?;
    let held = hold(&locks, arguments.load.held).await?;
    let before = own_memory()?;
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let counts = Arc::new(Counts {
        started: Instant::now(),
        acquired: (0..arguments.seconds).map(|_| AtomicU64::new(0)).collect(),
        gave_up: AtomicU64::new(0),
    });
    let patience = Duration::from_micros(arguments.patience_us);
    let mut tasks = JoinSet::new();
    for task in 0..arguments.load.tasks {
        let name = format!("{}:{}", arguments.names, task % arguments.load.locks);
        let counts = Arc::clone(&counts);
        match arguments.strategy {
            Strategy::Spin => tasks.spawn(spin(SpinLock::new(&locks, name), patience, counts)),
            strategy => tasks.spawn(contend(locks.lock(name), patience, strategy, counts)),
        };
    }
    let over = Arc::clone(&counts);
    let watch = tokio::task::spawn_blocking(move || watch(&held, &over));
    let bystander = tokio::spawn(stand_by(locks.lock("bystander"), Arc::clone(&counts)));
    let mut most = before;
    while !counts.is_over() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        most = most.max(own_memory()?);
    }
    let mut waits = bystander.await?;
    let late = watch.await?;
    let closing = Instant::now();
    let unconfirmed = match locks.close().await {
        Ok(()) => 0,
        Err(unreleased) => unreleased.unconfirmed as u64,
    };
    let seen = Seen {
        acquired: counts
            .acquired
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect(),
        gave_up: counts.gave_up.load(Ordering::Relaxed),
        memory: (most - before) as f64 / MIB,
        close: closing.elapsed(),
        unconfirmed,
        bystander: quantile(&mut waits, 0.99),
        late,
        neighbour: 0.0,
    };
    println!("{}", seen.write());
    Ok(())
}

async fn contend(lock: Lock, patience: Duration, strategy: Strategy, counts: Arc<Counts>) {
    while !counts.is_over() {
        let acquired = match strategy {
            Strategy::Fairlock | Strategy::Spin => lock.acquire_timeout(patience).await,
            Strategy::Dropped => match tokio::time::timeout(patience, lock.acquire()).await {
                Ok(acquired) => acquired,
                Err(_) => {
                    counts.gave_up();
                    continue;
                }
            },
        };
        match acquired {
            Ok(guard) => {
                counts.acquired();
                let _ = guard.release().await;
            }
            Err(_) => counts.gave_up(),
        }
    }
}

async fn spin(lock: SpinLock, patience: Duration, counts: Arc<Counts>) {
    while !counts.is_over() {
        match lock.try_lock(patience, Duration::from_secs(30)).await {
            Ok(true) => {
                counts.acquired();
                let _ = lock.unlock().await;
            }
            _ => counts.gave_up(),
        }
    }
}

/// Acquires locks that are renewed each second.
async fn hold(locks: &LockManager, count: usize) -> Outcome<Vec<LockGuard>> {
    let acquire = |number: usize| {
        let lock = locks.lock(format!("held:{}:{number}", std::process::id()));
        lock.lease(HELD_LEASE).acquire()
    };
    Ok(iter((0..count).map(acquire))
        .buffer_unordered(100)
        .try_collect()
        .await?)
}

/// How late the latest renewal of these locks was, as a share of the period.
fn watch(held: &[LockGuard], counts: &Counts) -> f64 {
    let period = HELD_LEASE / 3;
    let mut least = HELD_LEASE - period;
    while !counts.is_over() {
        std::thread::sleep(Duration::from_millis(10));
        let remaining = held.iter().map(|guard| guard.lease().remaining).min();
        least = least.min(remaining.unwrap_or(least));
    }
    (HELD_LEASE - period - least).as_secs_f64() / period.as_secs_f64()
}

/// How long each acquire of another lock took, in ms.
async fn stand_by(lock: Lock, counts: Arc<Counts>) -> Vec<f64> {
    let mut waits = Vec::new();
    while !counts.is_over() {
        let asked = Instant::now();
        if let Ok(guard) = lock.acquire_timeout(Duration::from_secs(10)).await {
            waits.push(asked.elapsed().as_secs_f64() * 1000.0);
            let _ = guard.release().await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    waits
}
