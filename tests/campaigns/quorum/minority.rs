//! Faults of a minority of the servers, one after the other, and of the clients.

use std::sync::Arc;
use std::time::Duration;

use fairlock_testkit::{Proxy, now_ns};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::faults::{Counts, Deck, Fault, OF_A_CLIENT, OF_ONE_SERVER, millis};
use super::round::{LEASE, Scene};
use crate::contention::contender::Contender;
use crate::contention::record::Disturbance;

/// How long a server is left alone after a fault that it did not restart for.
const CALM: Duration = Duration::from_millis(500);

/// Causes faults until `until`, and ends each of them.
pub(crate) async fn inject_faults(scene: &Arc<Scene>, seed: u64, until: Instant) -> Counts {
    let mut running = JoinSet::new();
    let minority = (scene.servers.all.len() - 1) / 2;
    for number in 0..minority {
        let rng = SmallRng::seed_from_u64(seed ^ (number as u64) << 32);
        running.spawn(fail_servers(Arc::clone(scene), rng, until));
    }
    let rng = SmallRng::seed_from_u64(!seed);
    running.spawn(fail_clients(Arc::clone(scene), rng, until));
    let mut counts = Counts::new();
    while let Some(done) = running.join_next().await {
        for (fault, count) in done.expect("faults that end") {
            *counts.entry(fault).or_default() += count;
        }
    }
    counts
}

/// Makes one server faulty at a time.
async fn fail_servers(scene: Arc<Scene>, mut rng: SmallRng, until: Instant) -> Counts {
    let mut deck = Deck::new(&OF_ONE_SERVER);
    loop {
        sleep(millis(&mut rng, 200, 800)).await;
        if Instant::now() >= until {
            return deck.counts;
        }
        let mut servers: Vec<usize> = (0..scene.servers.all.len()).collect();
        servers.shuffle(&mut rng);
        let free = servers
            .into_iter()
            .find_map(|at| Some((at, scene.faulty[at].try_lock().ok()?)));
        let (at, _faulty) = free.expect("a minority of the servers is faulty");
        let fault = deck.draw(&mut rng);
        scene.note(format!("server {at}: {fault:?}"));
        fail_server(&scene, at, fault, &mut rng).await;
        scene.note(format!("server {at}: {fault:?} is over"));
        if matches!(fault, Fault::Restarted(_)) {
            if let Err(violation) = scene.servers.returned(at).await {
                scene.violated(violation);
            }
        } else {
            sleep(CALM).await;
        }
    }
}

/// A fault of a minority disturbs no waiter: who is queued on the others is served in its turn.
async fn fail_server(scene: &Scene, at: usize, fault: Fault, rng: &mut SmallRng) {
    let server = &scene.servers.all[at];
    match fault {
        Fault::Restarted(memory) => {
            server.kill();
            sleep(millis(rng, 1, 1_500)).await;
            scene.servers.restart(at, memory).await;
        }
        Fault::Hung => {
            server.pause();
            sleep(millis(rng, 50, 3_000)).await;
            server.resume();
        }
        Fault::CutOff => {
            let count = rng.random_range(1..=scene.contenders.len());
            let contenders: Vec<_> = scene.contenders.choose_multiple(rng, count).collect();
            let manner = rng.random_range(0..3);
            for contender in &contenders {
                cut_off(&contender.lock().await.proxies[at], manner);
            }
            sleep(millis(rng, 50, 3_000)).await;
            for contender in &contenders {
                contender.lock().await.proxies[at].heal();
            }
        }
        Fault::Slow => {
            let delay = millis(rng, 1, 150);
            for contender in &scene.contenders {
                contender.lock().await.proxies[at].delay(delay);
            }
            sleep(Duration::from_secs(2)).await;
            for contender in &scene.contenders {
                contender.lock().await.proxies[at].heal();
            }
        }
        Fault::ScriptsFlushed => drop(server.command(&["SCRIPT", "FLUSH"]).await),
        Fault::ConnectionsKilled => {
            server.kill_clients().await;
        }
        _ => unreachable!("{fault:?} is no fault of one server"),
    }
}

/// Keeps a client from a server in one of several manners.
pub(crate) fn cut_off(proxy: &Proxy, manner: u32) {
    match manner {
        0 => proxy.black_hole(),
        1 => proxy.freeze(),
        _ => {
            proxy.refuse();
            proxy.cut();
        }
    }
}

async fn fail_clients(scene: Arc<Scene>, mut rng: SmallRng, until: Instant) -> Counts {
    let mut deck = Deck::new(&OF_A_CLIENT);
    loop {
        sleep(millis(&mut rng, 500, 2_500)).await;
        if Instant::now() >= until {
            return deck.counts;
        }
        let contender = scene.contenders.choose(&mut rng).expect("a client");
        let fault = deck.draw(&mut rng);
        let number = contender.lock().await.number();
        scene.note(format!("process {number}: {fault:?}"));
        fail_client(&scene, contender, fault, &mut rng).await;
        scene.note(format!("process {number}: {fault:?} is over"));
    }
}

async fn fail_client(
    scene: &Scene,
    contender: &tokio::sync::Mutex<Contender>,
    fault: Fault,
    rng: &mut SmallRng,
) {
    let lease = u64::try_from(LEASE.as_millis()).expect("a lease");
    let from_ns = now_ns();
    let number = contender.lock().await.number();
    // The faults of servers need the networks of this client meanwhile, so it is not locked for long.
    match fault {
        Fault::Stopped | Fault::StoppedPastLease => {
            let length = match fault {
                Fault::Stopped => millis(rng, 20, lease / 4),
                _ => millis(rng, lease, lease * 5 / 2),
            };
            contender.lock().await.process().stop();
            sleep(length).await;
            contender.lock().await.process().cont();
        }
        Fault::Killed => {
            let mut contender = contender.lock().await;
            contender.process().kill();
            contender.replace();
        }
        _ => unreachable!("{fault:?} is no fault of a client"),
    }
    scene.disturbed(Disturbance {
        process: Some(number),
        from_ns,
        until_ns: now_ns(),
    });
}
