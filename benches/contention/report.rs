//! The table for people, and the CSV for everything else.

use std::fmt::Write;
use std::time::Duration;

use fairlock_benches::analysis::{Findings, quantile};

use crate::args::CompareArgs;
use crate::compare::Round;
use crate::condition::Condition;
use crate::strategy::Strategy;
use crate::topology::Topology;
use crate::workload::{Load, Side};

/// All rounds of one strategy under one load and one condition, as one side saw them.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) strategy: Strategy,
    pub(crate) condition: Condition,
    pub(crate) load: Load,
    pub(crate) side: Side,
    pub(crate) findings: Findings,
    pub(crate) commands: f64,
    pub(crate) server: Duration,
    /// The median of the rounds.
    pub(crate) ping: Duration,
}

/// Pools the rounds, in the order of the arguments.
pub(crate) fn pooled(args: &CompareArgs, rounds: &[Round]) -> Vec<Line> {
    let mut lines = Vec::new();
    for load in args.loads() {
        let kinds = args.kinds(load.waiters).into_iter();
        let sides = args.kind.sides();
        for ((strategy, condition), &side) in
            kinds.flat_map(|kind| sides.iter().map(move |side| (kind, side)))
        {
            let mut pings = Vec::new();
            let mut line = Line {
                strategy,
                condition,
                load,
                side,
                findings: Findings::default(),
                commands: 0.0,
                server: Duration::ZERO,
                ping: Duration::ZERO,
            };
            for round in rounds.iter().filter(|round| {
                (round.strategy, round.condition, round.load, round.side) == (strategy, condition, load, side)
            }) {
                line.findings.add(round.findings.clone());
                line.commands += round.commands;
                line.server += round.server;
                pings.push(round.ping);
            }
            pings.sort_unstable();
            line.ping = pings.get(pings.len() / 2).copied().unwrap_or_default();
            lines.push(line);
        }
    }
    lines
}

const HEAD: [&str; 16] = [
    "strategy",
    "condition",
    "waiters",
    "acq/s",
    "handoff/s",
    "cmds/acq",
    "gap p50",
    "p99 µs",
    "÷ PING",
    "wait p50",
    "p99",
    "max ms",
    "Jain",
    "starved",
    "CPU µs",
    "PING µs",
];

/// The table, and the meaning of its columns.
pub(crate) fn table(args: &CompareArgs, lines: &[Line]) -> String {
    let is_quorum = args.topology == Topology::Quorum;
    let servers = match is_quorum {
        true => format!(" of {}", args.servers),
        false => String::new(),
    };
    let mut out = format!(
        "\none lock, {}{servers}, {} client processes, held {} µs, {} × {} s after {} s of warm-up{}\n\n",
        args.topology.name(),
        listed(&args.processes),
        listed(&args.hold_us),
        args.rounds,
        args.seconds,
        args.warmup,
        match args.delay_us {
            0 => String::new(),
            us => format!(", network {us} µs longer each way"),
        }
    );
    let width = lines
        .iter()
        .map(|line| line.strategy.name().len())
        .fold(9, usize::max);
    let mut row = |cells: [String; 16]| {
        let mut line = format!("{:<width$}", cells[0]);
        // One server has one condition.
        for cell in &cells[if is_quorum { 1 } else { 2 }..] {
            let _ = write!(line, " {cell:>9}");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    };
    row(HEAD.map(str::to_owned));
    let mut waiters = None;
    for line in lines {
        if waiters
            .replace(line.load.waiters)
            .is_some_and(|before| before != line.load.waiters)
        {
            row(Default::default());
        }
        row(line.cells());
    }
    out.push_str(
        "
handoff/s  acquisitions by a waiter other than the last one; few if the lock goes back to the same waiter
cmds/acq   commands that clients sent (EVALSHA, SET, SUBSCRIBE, …), without what scripts run inside the server
gap        from the call of a release until the next waiter has the lock; ÷ PING: its median over that of PING
wait       from the call of an acquire until the grant; waits open at the end count with the time until then
Jain       fairness over the waiters: 1 if all had the same number of turns, 1/waiters if one had all of them
starved    waiters that had no turn in a round (the worst round)
CPU µs     of the server process, per acquisition; with replicas, of all servers without the sentinels
",
    );
    if is_quorum {
        let _ = write!(
            out,
            "condition  near: all well, on the loopback; down, hung: so is one server from the warm-up's end on;
           network: all {} µs further each way; far: one of them {} µs
PING       of the last server of the nearest majority: the second of three
cmds/acq   and CPU µs: the sum over the servers, without the one that is down or hung
",
            args.delay_us, args.delay_one_us
        );
    }
    out
}

impl Line {
    fn cells(&self) -> [String; 16] {
        let found = &self.findings;
        let count = found.acquisitions as f64;
        // Zero means that the value is unknown.
        let per_acquisition = |total: f64, digits: usize| match total > 0.0 && count > 0.0 {
            true => format!("{:.digits$}", total / count),
            false => "-".to_owned(),
        };
        let value = |ns: Option<f64>, unit_ns: f64, digits: usize| match ns {
            Some(ns) => format!("{:.digits$}", ns / unit_ns),
            None => "-".to_owned(),
        };
        let quantile = |values: &[i64], per_mille| quantile(values, per_mille).map(|ns| ns as f64);
        let ping = self.ping.as_nanos() as f64;
        let gap = quantile(&found.gaps_ns, 500);
        [
            self.strategy.name().to_owned(),
            self.condition.name().to_owned(),
            self.load.waiters.to_string(),
            format!("{:.0}", found.acquisitions_per_s()),
            format!("{:.0}", found.handoffs_per_s()),
            per_acquisition(self.commands, 2),
            value(gap, 1e3, 0),
            value(quantile(&found.gaps_ns, 990), 1e3, 0),
            value(gap.filter(|_| ping > 0.0), ping, 2),
            value(quantile(&found.waits_ns, 500), 1e6, 2),
            value(quantile(&found.waits_ns, 990), 1e6, 2),
            value(quantile(&found.waits_ns, 1000), 1e6, 1),
            format!("{:.3}", found.jain_mean()),
            found.starved.to_string(),
            per_acquisition(self.server.as_secs_f64() * 1e6, 0),
            value(Some(ping).filter(|ping| *ping > 0.0), 1e3, 0),
        ]
    }
}

/// Values with commas between them.
fn listed<T: ToString>(values: &[T]) -> String {
    let all: Vec<String> = values.iter().map(T::to_string).collect();
    all.join(", ")
}

/// One line per round.
pub(crate) fn csv(args: &CompareArgs, rounds: &[Round]) -> String {
    let mut out = String::from(
        "strategy,waiters,round,processes,hold_us,delay_us,seconds,acquisitions,handoffs,overlaps,commands,\
         gap_p50_ns,gap_p99_ns,wait_p50_ns,wait_p99_ns,wait_max_ns,jain,starved,server_cpu_ns,ping_ns,errors,topology,condition\n",
    );
    for round in rounds {
        let found = &round.findings;
        let at = |values: &[i64], per_mille| {
            quantile(values, per_mille)
                .map(|ns| ns.to_string())
                .unwrap_or_default()
        };
        let cells = [
            round.strategy.name().to_owned(),
            round.load.waiters.to_string(),
            round.round.to_string(),
            round.side.processes(round.load).to_string(),
            round.load.hold_us.to_string(),
            args.delay_us.to_string(),
            args.seconds.to_string(),
            found.acquisitions.to_string(),
            found.handoffs.to_string(),
            found.overlaps.to_string(),
            round.commands.to_string(),
            at(&found.gaps_ns, 500),
            at(&found.gaps_ns, 990),
            at(&found.waits_ns, 500),
            at(&found.waits_ns, 990),
            at(&found.waits_ns, 1000),
            format!("{:.6}", found.jain_mean()),
            found.starved.to_string(),
            round.server.as_nanos().to_string(),
            round.ping.as_nanos().to_string(),
            round.errors.len().to_string(),
            args.topology.name().to_owned(),
            round.condition.name().to_owned(),
        ];
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}

/// The complaints of client processes: the number of each, and its first text.
pub(crate) fn complaints(rounds: &[Round]) -> String {
    let mut out = String::new();
    for round in rounds {
        if let Some(first) = round.errors.first() {
            let (name, condition) = (round.strategy.name(), round.condition.name());
            let (waiters, count) = (round.load.waiters, round.errors.len());
            let _ = writeln!(
                out,
                "{name}, {condition}, with {waiters} waiters: {count} complaints, the first: {first}"
            );
        }
    }
    out
}

/// What makes the run a failure: two waiters had the lock at the same time, or more than the capacity were
/// inside, a fence was not above those
/// before it, or processes failed, so that figures are missing.
pub(crate) fn failure(rounds: &[Round]) -> Option<String> {
    let overlaps = counted(rounds, |round| round.findings.overlaps)
        .map(|rounds| format!("a grant came before there was room for it ({rounds})"));
    let stale = counted(rounds, |round| round.findings.stale_fences)
        .map(|rounds| format!("a fence was not above those of earlier grants ({rounds})"));
    let failed =
        counted(rounds, |round| round.failed).map(|rounds| format!("client processes failed ({rounds})"));
    let all: Vec<String> = [overlaps, stale, failed].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(", and "))
}

/// The rounds with a number of something other than 0.
fn counted(rounds: &[Round], number: impl Fn(&Round) -> usize) -> Option<String> {
    let found: Vec<String> = rounds
        .iter()
        .filter(|round| number(round) > 0)
        .map(|round| {
            let (name, waiters, number) = (round.strategy.name(), round.load.waiters, number(round));
            format!("{name} with {waiters} waiters: {number}")
        })
        .collect();
    (!found.is_empty()).then(|| found.join("; "))
}

/// A whole number with commas between its thousands.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time in the unit in which it is short.
pub(crate) fn readable(ns: i64) -> String {
    let time = Duration::from_nanos(u64::try_from(ns).unwrap_or(0));
    match time.as_millis() {
        0..10 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        10..1_000 => format!("{} ms", time.as_millis()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}
