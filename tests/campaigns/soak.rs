//! A soak test: client processes contend for locks, while a random schedule stops, kills and cuts off them
//! and their server, and fills its memory. Each process records what its holders believe, and the records are
//! checked afterwards.
//!
//! The test runs in rounds. Each round has a server and a seed of its own, and can be repeated alone with
//! that seed:
//!
//! - `round`: one round, from the start of its processes to its verdict;
//! - `faults`: the schedule of faults;
//! - `report`: the table;
//! - [`contention`](crate::contention): the client process, its records, and their checks.
//!
//! `FAIRLOCK_SOAK_SECONDS` and `FAIRLOCK_SOAK_SEED` set the duration and the first seed; `scripts/campaign
//! soak` sets them.

mod faults;
mod report;
mod round;

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use report::{REFUSED, ROUNDS, VIOLATIONS, new_table};
use round::Setting;

use crate::contention::setting;

/// The longest time that a round works before its tasks stop.
const LONGEST_WORK: Duration = Duration::from_secs(60);
/// The time that a round takes in addition to its work.
const TIME_BESIDES_WORK: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_promise_is_broken_under_random_faults() {
    let budget = Duration::from_secs(setting("FAIRLOCK_SOAK_SECONDS").unwrap_or(30));
    let seed = setting("FAIRLOCK_SOAK_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    // Each setting must be used at least once.
    let settings = u32::try_from(Setting::ALL.len()).unwrap();
    let work = (budget / settings)
        .saturating_sub(TIME_BESIDES_WORK)
        .clamp(Duration::from_secs(5), LONGEST_WORK);
    let started = Instant::now();
    let mut table = new_table();
    let rounds = u64::try_from(Setting::ALL.len()).unwrap();
    for round_seed in seed.. {
        let enough = table.sum(ROUNDS) >= rounds;
        if enough && started.elapsed() + work + TIME_BESIDES_WORK > budget {
            break;
        }
        let outcome = round::run(round_seed, work).await;
        eprintln!(
            "{:>6.0?} round {round_seed}: {}",
            started.elapsed(),
            outcome.summary()
        );
        outcome.add_to(&mut table);
    }
    println!("\nSeed {seed}, {:.0?}.\n{table}", started.elapsed());
    assert!(table.sum(VIOLATIONS) == 0, "{} violations", table.sum(VIOLATIONS));
    assert!(table.sum(REFUSED) > 0, "no stale write was attempted");
}
