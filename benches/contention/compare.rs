//! The comparison: rounds of one contended lock, semaphore or read/write lock. All strategies run once before
//! any of them runs again.

use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::analysis::{Findings, analyse, granted};

use crate::args::CompareArgs;
use crate::condition::Condition;
use crate::cost::Cost;
use crate::place::Place;
use crate::round::{Stage, Task};
use crate::strategy::Strategy;
use crate::workload::{Load, Side};

/// PINGs before each round. Their median is the network's round trip.
const PINGS: usize = 200;

/// One round of one strategy, as one of its sides saw it.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) strategy: Strategy,
    pub(crate) condition: Condition,
    pub(crate) load: Load,
    pub(crate) side: Side,
    pub(crate) round: u32,
    pub(crate) findings: Findings,
    /// Commands that clients sent within the window. Two sides have theirs in proportion to their grants.
    pub(crate) commands: f64,
    /// CPU time of the servers within the window, likewise.
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
    let loads = args.loads();
    let all = loads.iter().flat_map(|load| {
        let all = args.kinds(load.waiters).into_iter();
        let all = all.map(|(strategy, _)| (strategy, load.waiters));
        all.flat_map(|kind| std::iter::repeat_n(kind, args.rounds as usize))
    });
    let stage = Stage::new(args, all)?;
    let mut rounds = Vec::new();
    for &load in &loads {
        let kinds = args.kinds(load.waiters);
        for round in 0..args.rounds {
            // Every round begins with another strategy. So a drift of the machine, or the leftovers of one
            // strategy, affect all strategies equally.
            let first = round as usize % kinds.len().max(1);
            for &(strategy, condition) in kinds[first..].iter().chain(&kinds[..first]) {
                stage.announce(format!(
                    "{} with {} waiters, {}",
                    strategy.name(),
                    load.waiters,
                    condition.name()
                ));
                let place = (places.iter())
                    .find(|place| place.kind == strategy.kind() && place.condition == condition);
                let place = place.ok_or("a strategy has no server")?;
                rounds.extend(play(args, &stage, place, strategy, load, round).await?);
            }
        }
    }
    Ok(rounds)
}

async fn play(
    args: &CompareArgs,
    stage: &Stage<'_>,
    place: &Place,
    strategy: Strategy,
    load: Load,
    round: u32,
) -> Outcome<Vec<Round>> {
    let ping = place.ping(PINGS)?;
    let task = Task {
        place,
        strategy,
        load,
        apart: false,
        label: format!(
            "{}-{}-{}-{}-{}-{round}",
            strategy.name(),
            place.condition.name(),
            load.waiters,
            load.processes,
            load.hold_us
        ),
    };
    let mut played = stage.play(&task).await?;
    let spent = Cost::sum(&played.spent);
    let all = granted(&played.history, played.begin_ns, played.end_ns);
    let mut rounds = Vec::new();
    for &side in args.kind.sides() {
        let party = side.party(load, args.capacity);
        let findings = analyse(&played.history, played.begin_ns, played.end_ns, party);
        let part = match all {
            0 => 1.0,
            _ => findings.acquisitions as f64 / all as f64,
        };
        rounds.push(Round {
            strategy,
            condition: place.condition,
            load,
            side,
            round,
            commands: spent.commands as f64 * part,
            server: spent.cpu.mul_f64(part),
            findings,
            ping,
            // They are those of the round, so they are reported once.
            errors: std::mem::take(&mut played.errors),
            failed: std::mem::take(&mut played.failed),
        });
    }
    Ok(rounds)
}
