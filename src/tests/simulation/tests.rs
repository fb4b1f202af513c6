//! Checks the promises over many seeds.

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::history::Fault;
use super::run::Outcome;
use super::summary::Summary;
use crate::sync::locked;

/// Runs one seed. If it breaks a promise, prints how to run it again.
fn examine(seed: u64, summary: &mut Summary) {
    let outcome = Outcome::of(seed);
    summary.add(&outcome);
    for violation in &outcome.violations {
        println!("seed {seed}: {violation}");
    }
    if !outcome.violations.is_empty() {
        println!("for its whole history: scripts/campaign simulate --seconds 0 --seed {seed}\n");
    }
}

/// Examines the seeds from `first` on, for as long as they go on, on all cores.
fn examine_all(first: u64, goes_on: impl Fn(u64) -> bool + Sync) -> Summary {
    let next = AtomicU64::new(first);
    let total = Mutex::new(Summary::default());
    let work = || {
        let mut summary = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !goes_on(seed) {
                break;
            }
            examine(seed, &mut summary);
        }
        locked(&total).merge(summary);
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    total.into_inner().expect("no seed panicked")
}

/// A debug build takes about half a minute for these. The campaign runs more.
const SEEDS: u64 = 400;

#[test]
fn no_seed_breaks_a_promise() {
    let summary = examine_all(0, |seed| seed < SEEDS);
    println!("{summary}");
    assert_eq!(summary.broken, Vec::<u64>::new(), "seeds that broke a promise");
    for fault in Fault::OF_MESSAGES.into_iter().chain(Fault::OF_THE_WORLD) {
        assert!(summary.faults(fault) > 0, "{fault:?} never happened");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let first = Outcome::of(seed).transcript();
        let second = thread::spawn(move || Outcome::of(seed).transcript())
            .join()
            .unwrap();
        assert!(first == second, "seed {seed} gives different histories");
    }
}

/// Runs seeds from `FAIRLOCK_SIMULATE_SEED` on for `FAIRLOCK_SIMULATE_SECONDS`. At 0 seconds, runs only that
/// seed and prints its whole history.
#[test]
#[ignore = "a campaign: scripts/campaign simulate"]
fn campaign() {
    let number = |name: &str| env::var(name).ok().map(|value| value.parse().expect("a number"));
    let first: u64 = number("FAIRLOCK_SIMULATE_SEED").unwrap_or_default();
    let seconds = number("FAIRLOCK_SIMULATE_SECONDS").unwrap_or(60);
    if seconds == 0 {
        println!("{}", Outcome::of(first).transcript());
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let total = examine_all(first, |seed| seed == first || Instant::now() < end);
    println!("{:<34}{first:>12}", "first seed");
    println!("{total}");
    assert!(
        total.broken.is_empty(),
        "seeds that broke a promise: {:?}",
        total.broken
    );
}
