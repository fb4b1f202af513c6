//! Compares the scripts on a real server with the rules. Random calls go to both, under a clock that the test
//! sets. The replies, all data and all pushes must be equal after each call.

mod dump;
mod edges;
mod expected;
mod lifetimes;
mod model;
mod odd;
mod permits;
mod quorum;
mod rate;
mod server;
mod step;
mod times;
mod world;

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use proptest::prelude::{ProptestConfig, Strategy};
use proptest::test_runner::{RngAlgorithm, RngSeed, TestRunner};

use self::model::KINDS;
use self::world::{Setting, World};

/// Number of runs. A run has 60 steps on average.
const CASES: u32 = 3_000;
/// From this number of runs on, every kind of reply must occur.
const ENOUGH_CASES: u32 = 10_000;

/// How many runs there are, and the seed that repeats them.
fn config(cases: u32) -> (ProptestConfig, u64) {
    let mut config = ProptestConfig {
        failure_persistence: None,
        // Proptest creates a new generator for each choice, and this kind is cheap to create.
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    config.rng_seed = RngSeed::Fixed(seed);
    (config, seed)
}

/// Random runs on one server. From `enough` runs on, every one of these kinds of replies must occur.
/// `PROPTEST_CASES` sets the number of runs, and `PROPTEST_RNG_SEED` repeats them.
fn run_at_random<S: Strategy>(
    cases: u32,
    (enough, kinds): (u32, &[&str]),
    steps: S,
    run: impl Fn(&mut Setting, S::Value),
) {
    let (config, seed) = config(cases);
    let cases = config.cases;
    let setting = RefCell::new(Setting::start());
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        run(&mut setting.borrow_mut(), steps);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("with PROPTEST_RNG_SEED={seed}: {failure}");
    }
    let Setting { calls, reached, .. } = setting.into_inner();
    println!("{cases} cases, {calls} calls, PROPTEST_RNG_SEED={seed}");
    if cases >= enough {
        let missed: Vec<_> = kinds.iter().filter(|kind| !reached.contains(*kind)).collect();
        assert!(missed.is_empty(), "never happened: {missed:?}");
    }
}

#[test]
fn scripts_follow_the_rules() {
    run_at_random(CASES, (ENOUGH_CASES, &KINDS), step::steps(), |setting, steps| {
        World::new(setting).run(&steps);
    });
}
