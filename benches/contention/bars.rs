//! The bars of a quorum: what fairlock must reach there, relative to other figures of the same run.

use std::fmt::Write;

use fairlock_benches::analysis::quantile;
use fairlock_benches::quantile::quantile as quantile_of;

use crate::compare::Round;
use crate::condition::Condition;
use crate::strategy::Strategy;

/// The number of waiters at which the rates are compared.
pub(crate) const WAITERS: u32 = 64;

/// The bars that this run can show: by the median over its rounds, each compared within itself.
pub(crate) fn of_quorum(rounds: &[Round]) -> String {
    let last = rounds.iter().map(|round| round.round).max().unwrap_or_default();
    let mut out = String::from("bars of fairlock in a quorum, by the medians over the rounds\n");
    let mut line = |what: &str, value: Option<f64>, bar: f64, at_least: bool| {
        let Some(value) = value else { return };
        let is_met = if at_least { value >= bar } else { value <= bar };
        let (sign, met) = (
            if at_least { '≥' } else { '≤' },
            if is_met { "met" } else { "NOT met" },
        );
        let _ = writeln!(out, "{what:<62} {value:>8.3}  {sign} {bar:<4} {met}");
    };
    for (strategy, what) in [
        (
            Strategy::Fairlock,
            "hand-offs/s with 64 waiters ÷ the best Redlock's",
        ),
        (Strategy::Local, "… with local hand-off"),
    ] {
        let best = (0..=last).filter_map(|round| {
            let ours = rate(find(rounds, round, strategy, Condition::Near)?);
            let peers = (rounds.iter()).filter(|other| is_redlock(other) && other.round == round);
            Some(ours / peers.map(rate).reduce(f64::max)?)
        });
        line(what, median(best), 10.0, true);
    }
    for (condition, what) in [
        (
            Condition::Network,
            "gap over a network ÷ PING of the second server",
        ),
        (Condition::Far, "… with one server far away"),
    ] {
        for waiters in all_waiters(rounds) {
            let gaps = of(rounds, Strategy::Fairlock, condition, waiters).filter_map(|round| {
                let gap = quantile(&round.findings.gaps_ns, 500)?;
                Some(gap as f64 / round.ping.as_nanos() as f64)
            });
            line(&format!("{what}, {waiters} waiters"), median(gaps), 1.2, false);
        }
    }
    for (condition, what) in [(Condition::Down, "down"), (Condition::Hung, "hung")] {
        let ratios = (0..=last).filter_map(|round| {
            let ours = |condition| find(rounds, round, Strategy::Fairlock, condition);
            Some(rate(ours(condition)?) / rate(ours(Condition::Near)?))
        });
        let what = format!("hand-offs/s with one server {what} ÷ without");
        line(&what, median(ratios), 0.8, true);
    }
    let fairness = rounds.iter().filter(|round| round.strategy == Strategy::Fairlock);
    let least = fairness.map(|round| round.findings.jain_mean()).reduce(f64::min);
    line("Jain's index, the least of all rounds", least, 0.99, true);
    for waiters in all_waiters(rounds) {
        let commands = of(rounds, Strategy::Fairlock, Condition::Near, waiters)
            .map(|round| round.commands / round.findings.acquisitions as f64);
        let what = format!("commands per acquisition, {waiters} waiters");
        line(&what, median(commands), 6.2, false);
    }
    out
}

fn of(
    rounds: &[Round],
    strategy: Strategy,
    condition: Condition,
    waiters: u32,
) -> impl Iterator<Item = &Round> {
    let wanted = (strategy, condition, waiters);
    (rounds.iter()).filter(move |round| (round.strategy, round.condition, round.load.waiters) == wanted)
}

fn is_redlock(round: &Round) -> bool {
    let is_peer = matches!(round.strategy, Strategy::Peer(peer) if peer.in_quorum);
    is_peer && (round.condition, round.load.waiters) == (Condition::Near, WAITERS)
}

fn rate(round: &Round) -> f64 {
    round.findings.handoffs_per_s()
}

fn find(rounds: &[Round], round: u32, strategy: Strategy, condition: Condition) -> Option<&Round> {
    of(rounds, strategy, condition, WAITERS).find(|other| other.round == round)
}

fn all_waiters(rounds: &[Round]) -> Vec<u32> {
    let mut all: Vec<u32> = rounds.iter().map(|round| round.load.waiters).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| quantile_of(&mut values, 0.5))
}
