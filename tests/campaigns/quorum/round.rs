//! One round: servers, and in each of its two parts client processes, faults, a quiet end, and the verdict.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock_testkit::resource::Writes;
use fairlock_testkit::{Server, TempDir, now_ns};
use tokio::time::{Instant, sleep};

use super::checks::{self, Longest, Outage};
use super::faults::Counts;
use super::servers::Servers;
use super::{majority, minority};
use crate::contention::Load;
use crate::contention::client::LATE;
use crate::contention::contender::{Contender, Rare, rest};
use crate::contention::record::{Disturbance, End};
use crate::contention::residue;
use crate::contention::verdict::{Forgetting, History, Verdict, judge_writes};

/// The longest lease too, so that a server that came back counts again soon.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// How long a majority may answer nothing before callers are told.
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_millis(1_500);
const PROCESSES: usize = 3;
const LOAD: Load = Load {
    locks: 4,
    tasks: 2,
    local: 1,
    lease: LEASE,
    server_timeout: SERVER_TIMEOUT,
};

/// What the tasks of one part share.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) servers: Arc<Servers>,
    /// Locked while the server has a fault.
    pub(crate) faulty: Vec<tokio::sync::Mutex<()>>,
    pub(crate) contenders: Vec<Arc<tokio::sync::Mutex<Contender>>>,
    notes: Mutex<Notes>,
    /// The schedule of faults as it was.
    faults: File,
}

#[derive(Debug, Default)]
struct Notes {
    disturbances: Vec<Disturbance>,
    forgettings: Vec<Forgetting>,
    outages: Vec<Outage>,
    violations: Vec<String>,
}

/// The result of one part of a round.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) servers: usize,
    pub(crate) majority_failed: bool,
    pub(crate) faults: Counts,
    pub(crate) holds: u64,
    pub(crate) lost: u64,
    pub(crate) given_up: u64,
    pub(crate) no_quorum: u64,
    pub(crate) outages: u64,
    pub(crate) rare: Rare,
    pub(crate) writes: Writes,
    pub(crate) longest: Longest,
    pub(crate) verdict: Verdict,
}

impl Scene {
    pub(crate) fn disturbed(&self, disturbance: Disturbance) {
        self.notes.lock().unwrap().disturbances.push(disturbance);
    }

    pub(crate) fn forgot(&self, forgetting: Forgetting) {
        self.notes.lock().unwrap().forgettings.push(forgetting);
    }

    pub(crate) fn out(&self, outage: Outage) {
        self.notes.lock().unwrap().outages.push(outage);
    }

    /// Notes what happens to whom, beside the records of the processes.
    pub(crate) fn note(&self, what: impl fmt::Display) {
        let line = format!("{} {what}\n", now_ns());
        (&self.faults)
            .write_all(line.as_bytes())
            .expect("a file to write to");
    }

    pub(crate) fn violated(&self, violation: String) {
        self.notes.lock().unwrap().violations.push(violation);
    }
}

/// Runs one round, whose faults go on for `work` in either part.
pub(crate) async fn run(seed: u64, servers: usize, work: Duration) -> [Outcome; 2] {
    let servers = Arc::new(Servers::start(servers).await);
    [
        run_part(seed, &servers, work, false).await,
        run_part(seed, &servers, work, true).await,
    ]
}

async fn run_part(seed: u64, servers: &Arc<Servers>, work: Duration, majority_fails: bool) -> Outcome {
    let (resource, dir) = (Server::start().await, TempDir::create());
    let contenders = (0..PROCESSES).map(|place| {
        let (servers, resource) = (servers.ports(), resource.port());
        let contender = Contender::start(LOAD, &servers, resource, dir.path(), place, seed);
        Arc::new(tokio::sync::Mutex::new(contender))
    });
    let scene = Arc::new(Scene {
        servers: Arc::clone(servers),
        faulty: servers.all.iter().map(|_| tokio::sync::Mutex::new(())).collect(),
        contenders: contenders.collect(),
        notes: Mutex::default(),
        faults: File::create(dir.path().join("faults")).expect("a file to write to"),
    });
    let beat = tokio::spawn(beat(Arc::clone(&scene)));
    let until = Instant::now() + work;
    let faults = if majority_fails {
        majority::inject_faults(&scene, seed, until).await
    } else {
        minority::inject_faults(&scene, seed, until).await
    };
    let (mut violations, rare) = rest(&scene.contenders).await;
    beat.abort();
    violations.extend(left_behind(servers).await);

    let notes = std::mem::take(&mut *scene.notes.lock().unwrap());
    let mut history = History {
        lease: LEASE,
        disturbances: notes.disturbances,
        forgettings: notes.forgettings,
        ..History::default()
    };
    for contender in &scene.contenders {
        contender.lock().await.read(&mut history);
    }
    violations.extend(notes.violations);
    let longest = if majority_fails {
        checks::of_majority(&history, &notes.outages, &mut violations)
    } else {
        checks::of_minority(&history, &mut violations)
    };
    let mut verdict = history.judge();
    verdict.violations.extend(violations);
    let writes = judge_writes(&resource, LOAD.locks, &mut verdict).await;
    if !verdict.violations.is_empty() {
        eprintln!(
            "The records of the processes of round {seed} are kept in {}",
            dir.path().display()
        );
        std::mem::forget(dir);
    }
    Outcome {
        servers: servers.all.len(),
        majority_failed: majority_fails,
        faults,
        holds: history.holds(),
        lost: history.ended(End::Lost),
        given_up: history.ended(End::GivenUp),
        no_quorum: history.ended(End::NoQuorum),
        outages: notes.outages.len() as u64,
        rare,
        writes,
        longest,
        verdict,
    }
}

/// Returns what is left on the servers after all clients have closed.
async fn left_behind(servers: &Servers) -> Vec<String> {
    let mut left = residue::in_the_way(&LOAD, &servers.urls()).await;
    for (at, server) in servers.all.iter().enumerate() {
        // A server that came back with older data knows requests that ended since. They are skipped like
        // those of dead clients, once somebody asks that server.
        let here = residue::on(server, &LOAD).await;
        left.extend(here.iter().map(|left| format!("on server {at}: {left}")));
    }
    left
}

/// Notes when the machine is slow, because a waiter may then miss its turn.
async fn beat(scene: Arc<Scene>) {
    loop {
        let from_ns = now_ns();
        sleep(Duration::from_millis(10)).await;
        if Duration::from_nanos(now_ns() - from_ns) > LATE {
            scene.disturbed(Disturbance {
                process: None,
                from_ns,
                until_ns: now_ns(),
            });
        }
    }
}
