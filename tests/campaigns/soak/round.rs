//! One round: a server, client processes behind networks of their own, faults, a quiet end, and the verdict.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock_testkit::resource::Writes;
use fairlock_testkit::{Client, Server, TempDir, now_ns};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep};

use super::faults::{self, Counts};
use crate::contention::Load;
use crate::contention::client::LATE;
use crate::contention::contender::{Contender, rest};
use crate::contention::record::{Disturbance, End};
use crate::contention::residue;
use crate::contention::verdict::{Forgetting, History, Verdict, judge_writes};

pub(crate) const LEASE_MS: u64 = 1_500;
const PROCESSES: usize = 4;
const LOAD: Load = Load {
    locks: 6,
    tasks: 3,
    local: 2,
    lease: Duration::from_millis(LEASE_MS),
    server_timeout: Duration::from_secs(10),
};
/// One client wants more than twice as many calls at once as it may have in flight. Each round lasts for
/// longer than the time after which it would take its server for dead.
const SATURATED: Load = Load {
    locks: 240,
    tasks: 10,
    local: 40,
    lease: Duration::from_secs(10),
    server_timeout: Duration::from_secs(2),
};

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
    /// There are no faults, but one client with thousands of callers.
    Saturated,
}

impl Setting {
    pub(crate) const ALL: [Setting; 4] = [
        Setting::StaysUp,
        Setting::Remembers,
        Setting::Forgets,
        Setting::Saturated,
    ];

    fn of(seed: u64) -> Setting {
        let place = seed % u64::try_from(Self::ALL.len()).expect("a number");
        Self::ALL[usize::try_from(place).expect("a place")]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Setting::StaysUp => "stays up",
            Setting::Remembers => "remembers",
            Setting::Forgets => "forgets",
            Setting::Saturated => "is well",
        }
    }

    fn load(self) -> (Load, usize) {
        match self {
            Setting::Saturated => (SATURATED, 1),
            _ => (LOAD, PROCESSES),
        }
    }
}

/// What all parts of a round share.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) setting: Setting,
    pub(crate) server: Server,
    resource: Server,
    pub(crate) victims: Vec<Arc<tokio::sync::Mutex<Contender>>>,
    notes: Mutex<Notes>,
}

/// The effects of faults on the order, and the times at which the server lost its data.
#[derive(Debug, Default)]
struct Notes {
    disturbances: Vec<Disturbance>,
    forgettings: Vec<Forgetting>,
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

/// Runs one round, whose faults go on for `work`.
pub(crate) async fn run(seed: u64, work: Duration) -> Outcome {
    let setting = Setting::of(seed);
    let server = match setting {
        Setting::Remembers => Server::builder()
            .config("appendonly", "yes")
            .config("appendfsync", "always"),
        _ => Server::builder(),
    };
    let (load, processes) = setting.load();
    let (server, resource, dir) = (server.start().await, Server::start().await, TempDir::create());
    let victims = (0..processes)
        .map(|place| {
            let (servers, resource) = ([server.port()], resource.port());
            let contender = Contender::start(load, &servers, resource, dir.path(), place, seed);
            Arc::new(tokio::sync::Mutex::new(contender))
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
    let (mut violations, _) = rest(&scene.victims).await;
    beat.abort();
    violations.extend(residue::on(&scene.server, &load).await);

    let mut history = History {
        lease: load.lease,
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
    let writes = judge_writes(&scene.resource, load.locks, &mut verdict).await;
    let unavailable = history.ended(End::Unavailable);
    // Something happens all the time, unless the machine stands still.
    let stood_still = history.longest_standstill() >= load.server_timeout;
    if setting == Setting::Saturated && unavailable > 0 && !stood_still {
        let told = format!("{unavailable} callers were told that a server is unavailable that is well");
        verdict.violations.push(told);
    }
    if !verdict.violations.is_empty() {
        eprintln!(
            "The records of the processes of round {seed} are kept in {}",
            dir.path().display()
        );
        std::mem::forget(dir);
    }
    Outcome {
        setting,
        faults,
        handoffs: history.holds(),
        lost: history.ended(End::Lost),
        given_up: history.ended(End::GivenUp),
        unavailable,
        writes,
        verdict,
    }
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
