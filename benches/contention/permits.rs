//! The table and the CSV of semaphores and read/write locks.

use std::fmt::Write;

use fairlock_benches::analysis::quantile;

use crate::args::CompareArgs;
use crate::compare::Round;
use crate::report::{Line, grouped, readable};
use crate::workload::{Load, Workload};

const HEAD: [&str; 16] = [
    "",
    "side",
    "tasks",
    "processes",
    "held ms",
    "grants/s",
    "wait p50 ms",
    "p99",
    "max",
    "longest hold ms",
    "Jain",
    "starved",
    "inside",
    "cmds/grant",
    "CPU µs",
    "PING µs",
];

/// The meaning of the columns.
pub(crate) const LEGEND: &str = "\
grants/s      permits, reads or writes granted per second
wait          from the call of an acquire until the grant; waits open at the end count with the time till then
longest hold  from a grant until the call of its release: a writer must wait until the longest read ends
Jain          fairness over the tasks of the side: 1 if all had the same number of turns
starved       tasks that had no turn in a round (the worst round)
inside        the most that were inside at a time, by the log of all waits
cmds/grant    commands that clients sent, without what scripts run inside the server; of both sides together
CPU µs        of the server process, per grant; of both sides together
";

/// The setting of the run, and the table in Markdown.
pub(crate) fn table(args: &CompareArgs, lines: &[Line]) -> String {
    let mut out = format!(
        "{}; {}, {} × {} s after {} s of warm-up",
        args.kind.title(args.capacity),
        args.topology.name(),
        args.rounds,
        args.seconds,
        args.warmup,
    );
    if args.kind == Workload::Rw {
        let (writers, pause_ms) = (args.writers, args.pause_us as f64 / 1e3);
        let _ = write!(
            out,
            "; writers: {writers}, each asks again {pause_ms} ms after its release"
        );
    }
    if args.delay_us > 0 {
        let _ = write!(out, "; network {} µs longer each way", args.delay_us);
    }
    let rows: Vec<[String; 16]> = std::iter::once(HEAD.map(str::to_owned))
        .chain(lines.iter().map(cells))
        .collect();
    let widths: [usize; 16] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    out.push_str("\n\n");
    for (index, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let _ = match column {
                0 | 1 => write!(out, "| {cell:<width$} "),
                _ => write!(out, "| {cell:>width$} "),
            };
        }
        out.push_str("|\n");
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let end = if column < 2 { '-' } else { ':' };
                let _ = write!(out, "|{}{end}", "-".repeat(width + 1));
            }
            out.push_str("|\n");
        }
    }
    out
}

/// The most important figures in Markdown: a row for each side of a strategy.
pub(crate) fn summary(args: &CompareArgs, lines: &[Line]) -> String {
    let loads = args.loads();
    // What differs between the loads names their columns.
    let label = |load: &Load| {
        let mut label = String::new();
        if args.waiters.len() > 1 {
            let _ = write!(label, ", {} tasks", load.waiters);
        }
        if args.hold_us.len() > 1 {
            let _ = write!(label, ", held {} ms", load.hold_us as f64 / 1e3);
        }
        if args.processes.len() > 1 {
            let _ = write!(label, ", processes: {}", load.processes);
        }
        label
    };
    let mut head = vec![String::new(), "side".to_owned()];
    head.extend(loads.iter().map(|load| format!("grants/s{}", label(load))));
    head.extend(loads.iter().map(|load| format!("longest wait{}", label(load))));
    let last = loads.last().map(label).unwrap_or_default();
    head.push(format!("Jain{last}"));
    head.push(format!("cmds/grant{last}"));
    let numbers = head.len() - 2;
    let mut out = format!("| {} |\n|---|---{}|\n", head.join(" | "), "|---:".repeat(numbers));
    for &strategy in &args.strategies {
        for &side in args.kind.sides() {
            let of_side = lines
                .iter()
                .filter(|line| (line.strategy, line.side) == (strategy, side));
            let of_side: Vec<&Line> = of_side.collect();
            let Some(last) = of_side.last() else { continue };
            let mut row = vec![strategy.name().to_owned(), side.name().to_owned()];
            row.extend(
                of_side
                    .iter()
                    .map(|line| grouped(line.findings.acquisitions_per_s())),
            );
            row.extend(
                of_side
                    .iter()
                    .map(|line| quantile(&line.findings.waits_ns, 1000).map_or("-".to_owned(), readable)),
            );
            // Jain's index, and the commands.
            let [.., jain, _, _, commands, _, _] = cells(last);
            row.extend([jain, commands]);
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
    }
    out
}

fn cells(line: &Line) -> [String; 16] {
    let found = &line.findings;
    let wait_ms = |per_mille| {
        let ns = quantile(&found.waits_ns, per_mille);
        ns.map_or("-".to_owned(), |ns| format!("{:.2}", ns as f64 / 1e6))
    };
    // Zero means that the value is unknown.
    let known = |value: f64, digits: usize| match value > 0.0 && value.is_finite() {
        true => format!("{value:.digits$}"),
        false => "-".to_owned(),
    };
    let grants = found.acquisitions as f64;
    [
        line.strategy.name().to_owned(),
        line.side.name().to_owned(),
        line.side.waiters(line.load).to_string(),
        line.side.processes(line.load).to_string(),
        format!("{}", line.load.hold_us as f64 / 1e3),
        format!("{:.0}", found.acquisitions_per_s()),
        wait_ms(500),
        wait_ms(990),
        wait_ms(1000),
        format!("{:.1}", found.longest_hold_ns as f64 / 1e6),
        format!("{:.3}", found.jain_mean()),
        found.starved.to_string(),
        found.most_inside.to_string(),
        known(line.commands / grants, 2),
        known(line.server.as_secs_f64() * 1e6 / grants, 0),
        known(line.ping.as_secs_f64() * 1e6, 0),
    ]
}

/// One line for each side of a round.
pub(crate) fn csv(args: &CompareArgs, rounds: &[Round]) -> String {
    let mut out = String::from(
        "strategy,side,tasks,processes,round,capacity,hold_us,pause_us,delay_us,seconds,grants,\
         wait_p50_ns,wait_p99_ns,wait_max_ns,longest_hold_ns,jain,starved,most_inside,overlaps,commands,\
         server_cpu_ns,ping_ns,errors,topology\n",
    );
    for round in rounds {
        let found = &round.findings;
        let wait =
            |per_mille| quantile(&found.waits_ns, per_mille).map_or(String::new(), |ns| ns.to_string());
        let cells = [
            round.strategy.name().to_owned(),
            round.side.name().to_owned(),
            round.side.waiters(round.load).to_string(),
            round.side.processes(round.load).to_string(),
            round.round.to_string(),
            args.capacity.to_string(),
            round.load.hold_us.to_string(),
            args.pause_us.to_string(),
            args.delay_us.to_string(),
            args.seconds.to_string(),
            found.acquisitions.to_string(),
            wait(500),
            wait(990),
            wait(1000),
            found.longest_hold_ns.to_string(),
            format!("{:.6}", found.jain_mean()),
            found.starved.to_string(),
            found.most_inside.to_string(),
            found.overlaps.to_string(),
            format!("{:.0}", round.commands),
            round.server.as_nanos().to_string(),
            round.ping.as_nanos().to_string(),
            round.errors.len().to_string(),
            args.topology.name().to_owned(),
        ];
        let _ = writeln!(out, "{}", cells.join(","));
    }
    out
}
