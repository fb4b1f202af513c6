//! A soak test of quorums: client processes contend for locks over three and five servers, while a random
//! schedule breaks one server after the other, and the clients.
//!
//! A round has two parts on the same servers. In the first a minority of the servers is faulty at any time,
//! counting the time in which a server that came back grants nothing. So nobody may notice. In the second a
//! majority fails at once. Then callers are told, and after it everybody is served.
//!
//! - `round`: one round, from the start of its servers to its verdict;
//! - `servers`: the servers, and what they remember when they come back;
//! - `minority`, `majority`: the schedules of faults; `faults`: the faults of both;
//! - `checks`: what is checked of quorums besides the [verdict](crate::contention::verdict);
//! - `report`: the table;
//! - [`contention`](crate::contention): the client process, its records, and their checks.
//!
//! `FAIRLOCK_QUORUM_SECONDS` and `FAIRLOCK_QUORUM_SEED` set the duration and the first seed;
//! `scripts/campaign quorum` sets them.

mod checks;
mod faults;
mod majority;
mod minority;
mod report;
mod round;
mod servers;

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use report::{VIOLATIONS, new_table};

use crate::contention::setting;

/// The longest time for which either part of a round causes faults.
const LONGEST_WORK: Duration = Duration::from_secs(40);
/// The time that a round takes in addition to both parts: its servers get old enough to grant locks, the last
/// faults end, and the clients come to rest.
const TIME_BESIDES_WORK: Duration = Duration::from_secs(25);
/// In the short form there is time for one fault or two in the first part, and for one in the second.
const SHORTEST_WORK: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_keeps_its_promises_under_random_faults() {
    let budget = Duration::from_secs(setting("FAIRLOCK_QUORUM_SECONDS").unwrap_or(0));
    let seed = setting("FAIRLOCK_QUORUM_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    if !servers::can_be_a_quorum().await {
        println!("The installed server is too old for a quorum.");
        return;
    }
    let longest_round = 2 * LONGEST_WORK + TIME_BESIDES_WORK;
    let rounds = budget.as_secs().div_ceil(longest_round.as_secs()).max(1);
    let work = (budget.as_secs() / rounds).saturating_sub(TIME_BESIDES_WORK.as_secs()) / 2;
    let work = Duration::from_secs(work).max(SHORTEST_WORK);
    let started = Instant::now();
    let mut table = new_table();
    for round_seed in seed..seed + rounds {
        // Most of the time is spent waiting, so that both kinds of quorum can be tested at once.
        let rounds = tokio::join!(round::run(round_seed, 3, work), round::run(round_seed, 5, work));
        for outcome in rounds.0.into_iter().chain(rounds.1) {
            let at = started.elapsed();
            eprintln!("{at:>6.0?} round {round_seed}: {}", outcome.summary());
            outcome.add_to(&mut table);
        }
    }
    println!("\nSeed {seed}, {:.0?}.\n{table}", started.elapsed());
    assert!(table.sum(VIOLATIONS) == 0, "{} violations", table.sum(VIOLATIONS));
}
