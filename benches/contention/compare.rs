//! The comparison: rounds of one contended lock. All strategies run once before any of them runs again.

use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::analysis::{Findings, analyse};

use crate::args::CompareArgs;
use crate::condition::Condition;
use crate::cost::Cost;
use crate::place::Place;
use crate::round::{Stage, Task};
use crate::strategy::Strategy;

/// PINGs before each round. Their median is the network's round trip.
const PINGS: usize = 200;

/// One round of one strategy.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) strategy: Strategy,
    pub(crate) condition: Condition,
    pub(crate) waiters: u32,
    pub(crate) round: u32,
    pub(crate) findings: Findings,
    /// Commands that clients sent within the window.
    pub(crate) commands: u64,
    /// CPU time of the servers within the window.
    pub(crate) server: Duration,
    /// Round trip of a PING just before.
    pub(crate) ping: Duration,
    /// What client processes complained about.
    pub(crate) errors: Vec<String>,
    /// How many client processes failed.
    pub(crate) failed: usize,
}

/// Runs all rounds, each on the servers of its strategy.
pub(crate) async fn run(args: &CompareArgs, places: &[Place]) -> Outcome<Vec<Round>> {
    let kinds = args.kinds();
    let all = args.waiters.iter().flat_map(|&waiters| {
        let all = kinds.iter().map(move |&(strategy, _)| (strategy, waiters));
        all.flat_map(|kind| std::iter::repeat_n(kind, args.rounds as usize))
    });
    let stage = Stage::new(args, all)?;
    let mut rounds = Vec::new();
    for &waiters in &args.waiters {
        for round in 0..args.rounds {
            // Every round begins with another strategy. So a drift of the machine, or the leftovers of one
            // strategy, affect all strategies equally.
            let first = round as usize % kinds.len();
            for &(strategy, condition) in kinds[first..].iter().chain(&kinds[..first]) {
                stage.announce(format!(
                    "{} with {waiters} waiters, {}",
                    strategy.name(),
                    condition.name()
                ));
                let place = (places.iter())
                    .find(|place| place.kind == strategy.kind() && place.condition == condition);
                let place = place.ok_or("a strategy has no server")?;
                rounds.push(play(&stage, place, strategy, waiters, round).await?);
            }
        }
    }
    Ok(rounds)
}

async fn play(
    stage: &Stage<'_>,
    place: &Place,
    strategy: Strategy,
    waiters: u32,
    round: u32,
) -> Outcome<Round> {
    let ping = place.ping(PINGS)?;
    let task = Task {
        place,
        strategy,
        waiters,
        apart: false,
        label: format!("{}-{}-{waiters}-{round}", strategy.name(), place.condition.name()),
    };
    let played = stage.play(&task).await?;
    let spent = Cost::sum(&played.spent);
    Ok(Round {
        strategy,
        condition: place.condition,
        waiters,
        round,
        findings: analyse(&played.history, played.begin_ns, played.end_ns, waiters as usize),
        commands: spent.commands,
        server: spent.cpu,
        ping,
        errors: played.errors,
        failed: played.failed,
    })
}
