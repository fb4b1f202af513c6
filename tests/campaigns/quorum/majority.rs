//! Faults of a majority of the servers at once.

use std::sync::Arc;
use std::time::Duration;

use fairlock_testkit::now_ns;
use futures_util::future::join_all;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};

use super::checks::{ANSWERED, Outage};
use super::faults::{Counts, Deck, Fault, OF_A_MAJORITY, millis};
use super::minority::cut_off;
use super::round::Scene;
use super::servers::MUTE;
use crate::contention::record::Disturbance;
use crate::contention::verdict::Forgetting;

/// Causes faults until `until`, and ends each of them.
pub(crate) async fn inject_faults(scene: &Arc<Scene>, seed: u64, until: Instant) -> Counts {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut deck = Deck::new(&OF_A_MAJORITY);
    loop {
        sleep(millis(&mut rng, 500, 1_500)).await;
        if Instant::now() >= until {
            return deck.counts;
        }
        let servers = scene.servers.all.len();
        let mut failing: Vec<usize> = (0..servers).collect();
        failing.shuffle(&mut rng);
        failing.truncate(rng.random_range(servers / 2 + 1..=servers));
        let fault = deck.draw(&mut rng);
        scene.note(format!("servers {failing:?}: {fault:?}"));
        fail_servers(scene, &failing, fault, &mut rng).await;
        scene.note(format!("servers {failing:?}: {fault:?} is over"));
    }
}

async fn fail_servers(scene: &Scene, failing: &[usize], fault: Fault, rng: &mut SmallRng) {
    let servers = &scene.servers;
    let began_ns = now_ns();
    let enough = ANSWERED + millis(rng, 200, 1_000);
    let mut mute_until = None;
    let from_ns;
    match fault {
        Fault::Restarted(memory) => {
            failing.iter().for_each(|at| servers.all[*at].kill());
            from_ns = now_ns();
            sleep(millis(rng, 1, 2_500)).await;
            // They are mute from their start on, which may be long before all of them have answered.
            mute_until = Some(now_ns() + u64::try_from(MUTE.as_nanos()).expect("a time"));
            join_all(failing.iter().map(|at| servers.restart(*at, memory))).await;
        }
        Fault::Hung => {
            failing.iter().for_each(|at| servers.all[*at].pause());
            from_ns = now_ns();
            sleep(enough).await;
        }
        Fault::CutOff => {
            let manner = rng.random_range(0..3);
            for contender in &scene.contenders {
                let contender = contender.lock().await;
                failing
                    .iter()
                    .for_each(|at| cut_off(&contender.proxies[*at], manner));
            }
            from_ns = now_ns();
            sleep(enough).await;
        }
        Fault::Flushed => {
            for at in failing {
                servers.all[*at].command(&["FLUSHALL"]).await;
            }
            from_ns = now_ns();
        }
        _ => unreachable!("{fault:?} is no fault of a majority"),
    }
    let until_ns = mute_until.unwrap_or_else(now_ns);
    match fault {
        Fault::Restarted(_) => {
            for returned in join_all(failing.iter().map(|at| servers.returned(*at))).await {
                returned.unwrap_or_else(|violation| scene.violated(violation));
            }
        }
        Fault::Hung => failing.iter().for_each(|at| servers.all[*at].resume()),
        Fault::CutOff => {
            for contender in &scene.contenders {
                let contender = contender.lock().await;
                failing.iter().for_each(|at| contender.proxies[*at].heal());
            }
        }
        _ => scene.forgot(Forgetting {
            from_ns: began_ns,
            until_ns,
        }),
    }
    let over_ns = now_ns();
    if fault != Fault::Flushed {
        scene.out(Outage {
            from_ns,
            until_ns,
            over_ns,
        });
    }
    scene.disturbed(Disturbance {
        process: None,
        from_ns: began_ns,
        until_ns: over_ns,
    });
    sleep(Duration::from_secs(1)).await;
}
