//! Random worlds: some processes with several tasks each, links of random length that fail for a while, waits
//! that are given up, and holders that are cut off. Some processes hand the lock on between their tasks. In
//! some worlds all servers lose their data at one moment. Except across that moment, no two holders overlap.
//! Fences increase in the order of the holds, everybody is served, and nothing is left.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::link::State;
use super::{MS, MemoryStore, Process, SECOND, Servers, tenure};
use crate::Fence;
use crate::caller::local_queue::turn::Turn;
use crate::caller::place::held;
use crate::sync::locked;

/// A hold, as its holder believes in it.
#[derive(Clone, Copy, Debug)]
struct Believed {
    fence: Fence,
    from: Instant,
    until: Instant,
}

/// How many turns a tenure has, where there are several.
const TURNS: u16 = 4;

/// What a task has of the lock.
enum Held {
    Whole(held::Held),
    Turn(Turn),
}

impl Held {
    async fn acquire(process: &Process, turns: u16) -> crate::Result<Held> {
        let (queues, tenure) = (&process.queues, tenure(&process.quorum, turns));
        if turns > 1 {
            let began = process.quorum.client().now();
            return Ok(Held::Turn(queues.acquire(&tenure, began, None).await?));
        }
        Ok(Held::Whole(queues.gate().acquire(&tenure.hold, None).await?))
    }

    fn fence(&self) -> Fence {
        match self {
            Held::Whole(held) => held.fence(),
            Held::Turn(turn) => turn.fence(),
        }
    }

    async fn lost(&self) {
        match self {
            Held::Whole(held) => held.hold().lost().await,
            Held::Turn(turn) => turn.watched().lost().await,
        };
    }

    async fn release(self) {
        let tenure = match self {
            Held::Whole(held) => Some(held),
            Held::Turn(turn) => turn.release(),
        };
        if let Some(held) = tenure {
            drop(held.release().await);
        }
    }
}

fn way(random: &mut SmallRng) -> State {
    State::Up(Duration::from_micros(random.random_range(0..3_000)))
}

async fn run(seed: u64) -> usize {
    let mut random = SmallRng::seed_from_u64(seed);
    let servers = Servers::new(if random.random_bool(0.7) { 3 } else { 5 });
    let count = servers.0.len();
    let processes: Vec<_> = (0..random.random_range(2..5))
        .map(|n| Arc::new(servers.process(n + 1)))
        .collect();
    for process in &processes {
        for server in 0..count {
            process.set(server, way(&mut random));
        }
    }
    let links_fail = random.random_bool(0.7);
    let lose_data_at = (random.random_bool(0.3)).then(|| random.random_range(0..10_000) * MS);
    let lost: Arc<Mutex<Option<Instant>>> = Arc::default();
    let believed: Arc<Mutex<Vec<Believed>>> = Arc::default();
    let mut tasks = JoinSet::new();
    for process in &processes {
        let turns = if random.random_bool(0.5) { TURNS } else { 1 };
        for _ in 0..random.random_range(1..4) {
            let (process, believed) = (Arc::clone(process), Arc::clone(&believed));
            let mut random = SmallRng::seed_from_u64(random.random());
            tasks.spawn(async move {
                for _ in 0..6 {
                    sleep(random.random_range(0..20) * MS).await;
                    let wait = Held::acquire(&process, turns);
                    let patience = match random.random_bool(0.3) {
                        true => random.random_range(0..50) * MS,
                        false => 600 * SECOND,
                    };
                    let Ok(held) = timeout(patience, wait).await else {
                        assert!(patience < SECOND, "a wait that nobody gives up ends");
                        continue;
                    };
                    // No server is down for so long that a majority is.
                    let held = held.unwrap();
                    let from = Instant::now();
                    let hold = match random.random_range(0..10) {
                        0 => random.random_range(1..60) * SECOND,
                        _ => random.random_range(0..5) * MS,
                    };
                    let _ = timeout(hold, held.lost()).await;
                    let until = Instant::now();
                    let fence = held.fence();
                    locked(&believed).push(Believed { fence, from, until });
                    match random.random_bool(0.5) {
                        true => drop(held),
                        false => held.release().await,
                    }
                }
            });
        }
    }
    // At any time a minority of the servers fails for each process, and not the same for all.
    let failing: Vec<_> = processes.iter().map(Arc::clone).collect();
    let (stores, lost_at, began) = (servers.0.clone(), Arc::clone(&lost), Instant::now());
    let failures = tokio::spawn(async move {
        let mut loses_data_at = lose_data_at.map(|at| began + at);
        loop {
            if loses_data_at.take_if(|at| Instant::now() >= *at).is_some() {
                for process in &failing {
                    (0..count).for_each(|server| process.set(server, State::Down));
                }
                // The calls from before are over. They would bring fences from before.
                sleep(10 * MS).await;
                stores.iter().for_each(MemoryStore::flush);
                *locked(&lost_at) = Some(Instant::now());
                for process in &failing {
                    (0..count).for_each(|server| process.set(server, way(&mut random)));
                }
            }
            for process in failing.iter().filter(|_| links_fail) {
                let faulty = random.random_range(0..2 * count);
                for server in 0..count {
                    let state = match (server == faulty, random.random_bool(0.5)) {
                        (true, true) => State::Hung,
                        (true, false) => State::Down,
                        (false, _) => way(&mut random),
                    };
                    process.set(server, state);
                }
            }
            sleep(random.random_range(1..2_000) * MS).await;
        }
    });
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    failures.abort();
    for process in &processes {
        for server in 0..count {
            process.set(server, State::Up(MS));
        }
    }
    // The longest lease, and the time for the outgoing messages.
    sleep(120 * SECOND).await;
    assert_eq!(servers.left().await, 0);

    let mut believed = locked(&believed).clone();
    believed.sort_by_key(|held| held.fence);
    let lost = *locked(&lost);
    for pair in believed.windows(2) {
        let [before, after] = [pair[0], pair[1]];
        assert!(before.fence < after.fence, "{pair:?}");
        // Across a loss of data, the former holder may not know yet.
        let is_across = lost.is_some_and(|lost| before.from <= lost && lost <= after.from);
        assert!(before.until <= after.from || is_across, "{pair:?}");
        assert!(before.from <= after.from, "{pair:?}, lost at {lost:?}");
    }
    believed.len()
}

#[test]
fn random_worlds_keep_the_promises() {
    let seeds = std::env::var("QUORUM_SEEDS").map_or(40, |seeds| seeds.parse().unwrap());
    let mut holds = 0;
    for seed in 0..seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        println!("seed {seed}");
        holds += runtime.block_on(run(seed));
    }
    println!("{seeds} worlds, {holds} holds");
}
