//! One round: a server, client processes behind networks of their own, faults, a quiet end, and the verdict.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fairlock::{LockManager, LockManagerBuilder};
use fairlock_testkit::resource::{Writes, writes};
use fairlock_testkit::{Client, Process, Proxy, Server, TempDir, now_ns};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep};

use super::faults::{self, Counts};
use super::part::{self, LATE, key, lock_name};
use super::record::{self, Disturbance, End};
use super::verdict::{Forgetting, History, Verdict};

pub(crate) const PREFIX: &str = "soak";
pub(crate) const LEASE_MS: u64 = 1_500;
const LEASE: Duration = Duration::from_millis(LEASE_MS);
const PROCESSES: usize = 4;
pub(crate) const LOCKS: usize = 6;
/// Tasks of each process for each lock.
pub(crate) const TASKS: usize = 3;
/// The longest time after the last fault until all tasks have had their turn and stopped.
const REST: Duration = Duration::from_secs(30);
/// After this time all calls have run or never will, the last withdrawals have run, and the leases of killed
/// processes have expired.
const SETTLED: Duration = Duration::from_secs(6);

/// The leases are short, so that faults often outlast them.
pub(crate) fn settings() -> LockManagerBuilder {
    LockManager::builder()
        .prefix(PREFIX)
        .lease(LEASE)
        .claim_window(LEASE / 2)
        .heartbeat(Duration::from_secs(2))
}

/// The faults that the server has, which decide what is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// The server keeps running.
    StaysUp,
    /// The server is killed and restarted with everything saved.
    Remembers,
    /// The server is killed and restarted, or flushed, and loses all data. Two holders may overlap for one
    /// lease.
    Forgets,
}

impl Setting {
    pub(crate) const ALL: [Setting; 3] = [Setting::StaysUp, Setting::Remembers, Setting::Forgets];

    fn of(seed: u64) -> Setting {
        let place = seed % u64::try_from(Self::ALL.len()).expect("a number");
        Self::ALL[usize::try_from(place).expect("a place")]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Setting::StaysUp => "stays up",
            Setting::Remembers => "remembers",
            Setting::Forgets => "forgets",
        }
    }
}

/// What all parts of a round share.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) setting: Setting,
    pub(crate) server: Server,
    resource: Server,
    pub(crate) victims: Vec<Arc<tokio::sync::Mutex<Victim>>>,
    notes: Mutex<Notes>,
}

/// The effects of faults on the order, and the times at which the server lost its data.
#[derive(Debug, Default)]
struct Notes {
    disturbances: Vec<Disturbance>,
    forgettings: Vec<Forgetting>,
}

/// A client process behind a network of its own.
#[derive(Debug)]
pub(crate) struct Victim {
    process: Option<Process>,
    pub(crate) proxy: Proxy,
    resource_port: u16,
    /// The path of the records of its processes, without the number of the start.
    records: PathBuf,
    place: usize,
    starts: usize,
    seed: u64,
}

/// The result of a round.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) setting: Setting,
    pub(crate) faults: Counts,
    pub(crate) handoffs: u64,
    pub(crate) lost: u64,
    pub(crate) given_up: u64,
    pub(crate) unavailable: u64,
    pub(crate) writes: Writes,
    pub(crate) verdict: Verdict,
}

impl Scene {
    pub(crate) fn disturbed(&self, disturbance: Disturbance) {
        self.notes.lock().unwrap().disturbances.push(disturbance);
    }

    pub(crate) fn forgot(&self, forgetting: Forgetting) {
        if self.setting == Setting::Forgets {
            self.notes.lock().unwrap().forgettings.push(forgetting);
        }
    }
}

impl Victim {
    fn start(server: &Server, resource: &Server, dir: &TempDir, place: usize, seed: u64) -> Victim {
        let proxy = Proxy::start(server.port());
        let mut victim = Victim {
            process: None,
            proxy,
            resource_port: resource.port(),
            records: dir.path().join(format!("process-{place}")),
            place,
            starts: 0,
            seed: seed ^ (place as u64) << 48,
        };
        victim.replace();
        victim
    }

    /// Starts another process in place of a dead one.
    pub(crate) fn replace(&mut self) {
        self.starts += 1;
        let seed = self.seed.wrapping_add(self.starts as u64);
        let record = self.record(self.starts);
        self.process = Some(part::client(&self.proxy.url(), self.resource_port, seed, &record));
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("a process")
    }

    /// The number of the process that runs now. All processes of a round have different numbers.
    pub(crate) fn number(&self) -> usize {
        self.number_of(self.starts)
    }

    fn number_of(&self, start: usize) -> usize {
        self.place * 1_000 + start
    }

    fn record(&self, start: usize) -> String {
        format!("{}-{start}", self.records.display())
    }

    /// Reads the records of all processes of this place. A process that was killed at once has none.
    fn read(&self, history: &mut History) {
        for start in 1..=self.starts {
            let path = self.record(start);
            if let Some((waits, disturbances)) = record::read(&path, self.number_of(start)) {
                history.waits.extend(waits);
                history.disturbances.extend(disturbances);
            }
        }
    }

    /// The next line of the process, unless the process ends or takes too long.
    async fn says(&mut self) -> String {
        let place = self.place;
        let said = self.process().line_within(REST).await;
        said.unwrap_or_else(|| format!("process {place} sent no line for {REST:?}"))
    }
}

/// Runs one round, whose faults go on for `work`.
pub(crate) async fn run(seed: u64, work: Duration) -> Outcome {
    let setting = Setting::of(seed);
    let server = match setting {
        Setting::Remembers => Server::builder()
            .config("appendonly", "yes")
            .config("appendfsync", "always"),
        Setting::StaysUp | Setting::Forgets => Server::builder(),
    };
    let (server, resource, dir) = (server.start().await, Server::start().await, TempDir::create());
    let victims = (0..PROCESSES)
        .map(|place| {
            Arc::new(tokio::sync::Mutex::new(Victim::start(
                &server, &resource, &dir, place, seed,
            )))
        })
        .collect();
    let scene = Arc::new(Scene {
        setting,
        server,
        resource,
        victims,
        notes: Mutex::default(),
    });
    let beat = tokio::spawn(beat(Arc::clone(&scene)));
    let rng = SmallRng::seed_from_u64(seed);
    let faults = faults::inject_faults(&scene, rng, Instant::now() + work).await;
    let mut violations = rest(&scene).await;
    beat.abort();
    violations.extend(left_behind(&scene).await);

    let mut history = History {
        lease: LEASE,
        ..History::default()
    };
    for victim in &scene.victims {
        victim.lock().await.read(&mut history);
    }
    let notes = std::mem::take(&mut *scene.notes.lock().unwrap());
    history.disturbances.extend(notes.disturbances);
    history.forgettings = notes.forgettings;
    let mut verdict = history.judge();
    verdict.violations.extend(violations);
    let mut all_writes = Writes::default();
    for lock in 0..LOCKS {
        let writes = writes(&scene.resource, lock).await;
        if writes.number != writes.accepted {
            let lost = format!("a stale write was accepted under lock {lock}: {writes:?}");
            verdict.violations.push(lost);
        }
        all_writes.accepted += writes.accepted;
        all_writes.refused += writes.refused;
    }
    if !verdict.violations.is_empty() {
        eprintln!(
            "The records of the processes of round {seed} are kept in {}",
            dir.path().display()
        );
        std::mem::forget(dir);
    }
    let ended = |end| history.waits.iter().filter(|wait| wait.end == Some(end)).count() as u64;
    Outcome {
        setting,
        faults,
        handoffs: history.waits.iter().filter(|wait| wait.belief.is_some()).count() as u64,
        lost: ended(End::Lost),
        given_up: ended(End::GivenUp),
        unavailable: ended(End::Unavailable),
        writes: all_writes,
        verdict,
    }
}

/// Makes all processes finish their work and close. Returns the violations that this shows.
async fn rest(scene: &Scene) -> Vec<String> {
    let mut violations = Vec::new();
    for (order, expected) in [("stop", &["idle 0 0"][..]), ("close", &["closed", "tasks 0"][..])] {
        for victim in &scene.victims {
            victim.lock().await.process().tell(order);
        }
        for victim in &scene.victims {
            let mut victim = victim.lock().await;
            for line in expected {
                let said = victim.says().await;
                if said != *line {
                    violations.push(format!("after {order}, {line:?} was expected, not {said:?}"));
                }
            }
        }
    }
    violations
}

/// Returns what is left on the server after all clients have closed. Only keys with a TTL may be left.
async fn left_behind(scene: &Scene) -> Vec<String> {
    let server = &scene.server;
    let mut violations = Vec::new();
    let locks = settings().connect(&server.url()).await.expect("a server at rest");
    for lock in 0..LOCKS {
        // This request is served after those of dead clients are skipped and their leases have expired.
        match locks.lock(lock_name(lock)).acquire_timeout(SETTLED).await {
            Ok(guard) => guard.release().await.expect("a release at rest"),
            Err(error) => violations.push(format!("lock {lock} cannot be acquired: {error}")),
        }
        if waiting(server, lock).await > 0 || is_held(server, lock).await {
            violations.push(format!(
                "lock {lock} is still held or queued for, though all clients are closed"
            ));
        }
    }
    locks.close().await.expect("a closed client");
    drop(locks);
    let started = Instant::now();
    loop {
        // One of them is this connection.
        let connections = server.info("clients").await["connected_clients"].clone();
        let channels = server.command(&["PUBSUB", "CHANNELS"]).await.texts();
        if connections == "1" && channels.is_empty() {
            break;
        }
        if started.elapsed() > SETTLED {
            violations.push(format!("{connections} connections and {channels:?} were left"));
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    for key in server.keys("").await {
        if server.command(&["PTTL", &key]).await.int() == -1 {
            violations.push(format!("{key} would stay forever"));
        }
    }
    violations
}

async fn waiting(server: &Server, lock: usize) -> i64 {
    server.command(&["ZCARD", &key("queue:", lock)]).await.int()
}

async fn is_held(server: &Server, lock: usize) -> bool {
    let summary = server.lock_summary(&key("", lock)).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // The server runs on this machine, so both have the same clock.
    u128::from(summary.until) > now.expect("a time").as_millis()
}

/// Notes when the machine or the server is slow, because a waiter may then miss its turn.
async fn beat(scene: Arc<Scene>) {
    let port = scene.server.port();
    let mut client = None;
    loop {
        let from_ns = now_ns();
        sleep(Duration::from_millis(10)).await;
        let pong = async {
            let mut client = match client.take() {
                Some(client) => client,
                None => Client::connect(port).await.ok()?,
            };
            client.command(&["PING"]).await.ok()?;
            Some(client)
        };
        client = pong.await;
        if client.is_none() || Duration::from_nanos(now_ns() - from_ns) > LATE {
            scene.disturbed(Disturbance {
                process: None,
                from_ns,
                until_ns: now_ns(),
            });
        }
    }
}
