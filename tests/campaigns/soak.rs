//! A soak test: client processes contend for locks, while a random schedule stops, kills and cuts off them
//! and their server, and fills its memory. Each process records what its holders believe, and the records are
//! checked afterwards.
//!
//! The test runs in rounds. Each round has a server and a seed of its own, and can be repeated alone with
//! that seed:
//!
//! - `round`: one round, from the start of its processes to its verdict;
//! - `faults`: the schedule of faults;
//! - `part`: the client process;
//! - `record`: the records of a process; `verdict`: their checks;
//! - `report`: the table.
//!
//! `FAIRLOCK_SOAK_SECONDS` and `FAIRLOCK_SOAK_SEED` set the duration and the first seed; `scripts/campaign
//! soak` sets them.

mod faults;
mod part;
mod record;
mod report;
mod round;
mod verdict;

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use report::Report;
use round::Setting;

/// The longest time that a round works before its tasks stop.
const LONGEST_WORK: Duration = Duration::from_secs(60);
/// The time that a round takes in addition to its work.
const TIME_BESIDES_WORK: Duration = Duration::from_secs(8);

/// An unsigned number from the environment.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: not a number")),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_promise_is_broken_under_random_faults() {
    let budget = Duration::from_secs(setting("FAIRLOCK_SOAK_SECONDS").unwrap_or(60));
    let seed = setting("FAIRLOCK_SOAK_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    // Each setting must be used at least once.
    let settings = u32::try_from(Setting::ALL.len()).unwrap();
    let work = (budget / settings)
        .saturating_sub(TIME_BESIDES_WORK)
        .clamp(Duration::from_secs(5), LONGEST_WORK);
    let started = Instant::now();
    let mut report = Report::default();
    for round_seed in seed.. {
        let enough = report.rounds() >= Setting::ALL.len();
        if enough && started.elapsed() + work + TIME_BESIDES_WORK > budget {
            break;
        }
        let outcome = round::run(round_seed, work).await;
        eprintln!(
            "{:>6.0?} round {round_seed}: {}",
            started.elapsed(),
            outcome.summary()
        );
        report.add(&outcome);
    }
    println!("\nSeed {seed}, {:.0?}.\n{report}", started.elapsed());
    assert!(report.violations() == 0, "{} violations", report.violations());
    assert!(report.stale_writes_refused() > 0, "no stale write was attempted");
}
