//! The schedule of faults. About once a second, one hits a client process or all of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fairlock_testkit::{Server, now_ns};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::round::{LEASE_MS, Scene, Setting};
use crate::contention::contender::Contender;
use crate::contention::record::Disturbance;
use crate::contention::verdict::Forgetting;

/// A kind of fault. Each lasts for a number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    // Faults of one client process, or of its network.
    Stopped,
    StoppedPastLease,
    Killed,
    Cut,
    Refused,
    Frozen,
    HalfOpen,
    Stranded,
    BlackHole,
    Delayed,
    ReplyLost,
    // Faults of the server, which affect all clients.
    ConnectionsKilled,
    Paused,
    ScriptsFlushed,
    Full,
    ServerStopped,
    Restarted,
    Flushed,
}

const TO_ONE: [Fault; 11] = [
    Fault::Stopped,
    Fault::StoppedPastLease,
    Fault::Killed,
    Fault::Cut,
    Fault::Refused,
    Fault::Frozen,
    Fault::HalfOpen,
    Fault::Stranded,
    Fault::BlackHole,
    Fault::Delayed,
    Fault::ReplyLost,
];

const TO_ALL: [Fault; 5] = [
    Fault::ConnectionsKilled,
    Fault::Paused,
    Fault::ScriptsFlushed,
    Fault::Full,
    Fault::ServerStopped,
];

/// Faults that affect all clients, in settings that allow them.
const TO_MEMORY: [Fault; 2] = [Fault::Restarted, Fault::Flushed];

impl Fault {
    /// All faults, in the order of the table.
    pub(crate) fn all() -> impl Iterator<Item = Fault> {
        TO_ONE.into_iter().chain(TO_ALL).chain(TO_MEMORY)
    }

    /// The name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Stopped => "  client stopped, for less than its lease",
            Fault::StoppedPastLease => "  client stopped past its lease",
            Fault::Killed => "  client killed and replaced",
            Fault::Cut => "  client's connections cut",
            Fault::Refused => "  … and new ones refused",
            Fault::Frozen => "  client's network frozen",
            Fault::HalfOpen => "  client's connections half-open",
            Fault::Stranded => "  client's calls run after their connection",
            Fault::BlackHole => "  client in a black hole",
            Fault::Delayed => "  client's network slow",
            Fault::ReplyLost => "  reply lost",
            Fault::ConnectionsKilled => "  connections killed",
            Fault::Paused => "  clients paused by the server",
            Fault::ScriptsFlushed => "  scripts flushed",
            Fault::Full => "  server full",
            Fault::ServerStopped => "  server stopped for a while",
            Fault::Restarted => "  server killed and restarted",
            Fault::Flushed => "  all data flushed",
        }
    }

    /// How long the fault lasts, in ms. For a slow network it is the delay, and for a lost reply the number
    /// of the reply.
    fn range(self) -> Range<u64> {
        match self {
            Fault::Stopped => 20..LEASE_MS / 4,
            Fault::StoppedPastLease => LEASE_MS..LEASE_MS * 5 / 2,
            Fault::Refused => 50..1_000,
            Fault::Frozen | Fault::HalfOpen => 50..1_500,
            Fault::Stranded | Fault::BlackHole => 100..2_500,
            Fault::Delayed => 1..100,
            Fault::ReplyLost => 1..10,
            Fault::Paused | Fault::ServerStopped => 50..1_000,
            Fault::Full => 50..500,
            Fault::Restarted => 1..300,
            _ => 0..1,
        }
    }

    /// Whether waiters may miss their turn because of the fault. Lost scripts are loaded again before
    /// anything else is sent.
    fn disturbs(self) -> bool {
        self != Fault::ScriptsFlushed
    }
}

/// How often each fault was caused.
pub(crate) type Counts = BTreeMap<Fault, u64>;

/// Causes faults until `until`, and ends each of them.
pub(crate) async fn inject_faults(scene: &Arc<Scene>, mut rng: SmallRng, until: Instant) -> Counts {
    let mut counts = Counts::new();
    let mut running = JoinSet::new();
    let server_is_free = Arc::new(Mutex::new(()));
    loop {
        sleep(Duration::from_millis(rng.random_range(300..1_500))).await;
        if Instant::now() >= until {
            break;
        }
        if scene.setting == Setting::Saturated {
            continue;
        }
        let mut to_all = TO_ALL.to_vec();
        match scene.setting {
            Setting::StaysUp | Setting::Saturated => {}
            Setting::Remembers => to_all.extend([Fault::Restarted; 2]),
            Setting::Forgets => to_all.extend(TO_MEMORY),
        }
        let is_to_one = rng.random_ratio(3, 4);
        let faults = if is_to_one { &TO_ONE[..] } else { &to_all };
        let fault = *faults.choose(&mut rng).expect("a fault");
        let amount = rng.random_range(fault.range());
        let victim = scene.victims.choose(&mut rng).expect("a victim");
        let scene = Arc::clone(scene);
        if is_to_one {
            // Each process has one fault at a time.
            let Ok(victim) = Arc::clone(victim).try_lock_owned() else {
                continue;
            };
            running.spawn(async move { to_one(&scene, victim, fault, amount).await });
        } else {
            let Ok(free) = Arc::clone(&server_is_free).try_lock_owned() else {
                continue;
            };
            running.spawn(async move { to_all_of_them(&scene, free, fault, amount).await });
        }
        *counts.entry(fault).or_default() += 1;
    }
    while let Some(done) = running.join_next().await {
        done.expect("a fault that ends");
    }
    counts
}

async fn to_one(scene: &Scene, mut victim: OwnedMutexGuard<Contender>, fault: Fault, amount: u64) {
    let (from_ns, number) = (now_ns(), victim.number());
    let ms = Duration::from_millis(amount);
    match fault {
        Fault::Stopped | Fault::StoppedPastLease => {
            victim.process().stop();
            sleep(ms).await;
            victim.process().cont();
        }
        Fault::Killed => {
            victim.process().kill();
            victim.replace();
        }
        Fault::Cut => victim.proxies[0].cut(),
        Fault::Refused => {
            victim.proxies[0].refuse();
            victim.proxies[0].cut();
            sleep(ms).await;
        }
        Fault::Frozen => {
            victim.proxies[0].freeze();
            sleep(ms).await;
        }
        Fault::HalfOpen => {
            victim.proxies[0].freeze_open();
            sleep(ms).await;
        }
        Fault::Stranded => {
            // Calls that are sent now do not arrive.
            victim.proxies[0].freeze_open();
            sleep(Duration::from_millis(20)).await;
            victim.proxies[0].strand();
            sleep(ms).await;
        }
        Fault::BlackHole => {
            victim.proxies[0].black_hole();
            sleep(ms).await;
        }
        Fault::Delayed => {
            victim.proxies[0].delay(ms);
            sleep(Duration::from_secs(1)).await;
        }
        Fault::ReplyLost => {
            let place = usize::try_from(amount).expect("a number");
            victim.proxies[0].lose_reply(place);
        }
        _ => unreachable!("{fault:?} strikes all"),
    }
    victim.proxies[0].heal();
    scene.disturbed(Disturbance {
        process: Some(number),
        from_ns,
        until_ns: now_ns(),
    });
}

async fn to_all_of_them(scene: &Scene, _free: OwnedMutexGuard<()>, fault: Fault, amount: u64) {
    let server = &scene.server;
    let from_ns = now_ns();
    let ms = Duration::from_millis(amount);
    match fault {
        Fault::ConnectionsKilled => server.kill_clients().await,
        Fault::Paused => {
            let mode = if amount % 2 == 0 { "ALL" } else { "WRITE" };
            let words = ["CLIENT", "PAUSE", &amount.to_string(), mode];
            server.command(&words).await;
            sleep(ms).await;
        }
        Fault::ScriptsFlushed => drop(server.command(&["SCRIPT", "FLUSH"]).await),
        Fault::Full => {
            set_memory(server, "1").await;
            sleep(ms).await;
            set_memory(server, "0").await;
        }
        Fault::ServerStopped => {
            server.pause();
            sleep(ms).await;
            server.resume();
        }
        Fault::Restarted => {
            server.kill();
            scene.forgot(Forgetting {
                from_ns,
                until_ns: now_ns(),
            });
            sleep(ms).await;
            server.restart().await;
        }
        Fault::Flushed => {
            server.command(&["FLUSHALL"]).await;
            scene.forgot(Forgetting {
                from_ns,
                until_ns: now_ns(),
            });
        }
        _ => unreachable!("{fault:?} strikes one"),
    }
    if fault.disturbs() {
        scene.disturbed(Disturbance {
            process: None,
            from_ns,
            until_ns: now_ns(),
        });
    }
}

async fn set_memory(server: &Server, bytes: &str) {
    server.command(&["CONFIG", "SET", "maxmemory", bytes]).await;
}
