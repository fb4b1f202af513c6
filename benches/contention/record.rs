//! The record: a page with the most important figures, the servers, the libraries and the machine. Beside it,
//! a file of text has everything that was printed.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use fairlock_benches::Outcome;
use fairlock_benches::analysis::quantile;
use fairlock_benches::machine::machine;

use crate::args::CompareArgs;
use crate::bars;
use crate::permits;
use crate::place::Place;
use crate::report::{Line, grouped, readable};
use crate::strategy::Strategy;

/// The servers and versions of one run.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) places: Vec<Place>,
    /// The name and version of each strategy, in the order of the arguments.
    versions: Vec<(Strategy, String)>,
    /// The strategies that were left out, with the reasons.
    left_out: Vec<String>,
}

impl Field {
    /// Starts the servers. A peer that this machine cannot run is removed from the arguments; a strategy of
    /// this program must not be missing.
    pub(crate) async fn prepare(args: &mut CompareArgs) -> Outcome<Field> {
        let mut field = Field {
            places: Vec::new(),
            versions: Vec::new(),
            left_out: Vec::new(),
        };
        for strategy in std::mem::take(&mut args.strategies) {
            match (field.add(args, strategy).await, strategy) {
                (Ok(()), _) => args.strategies.push(strategy),
                (Err(e), Strategy::Peer(peer)) => field.left_out.push(format!("{}: {e}", peer.name)),
                (Err(e), _) => return Err(e),
            }
        }
        Ok(field)
    }

    async fn add(&mut self, args: &CompareArgs, strategy: Strategy) -> Outcome<()> {
        let version = match strategy {
            Strategy::Peer(peer) => peer.version(&args.programs)?,
            _ => concat!("fairlock ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let kind = strategy.kind();
        for &condition in &args.conditions {
            let found = (self.places.iter()).any(|place| place.kind == kind && place.condition == condition);
            if !found && strategy.runs_under(condition) {
                self.places.push(Place::of(kind, condition, args).await?);
            }
        }
        self.versions.push((strategy, version));
        Ok(())
    }

    /// Machine, servers, libraries and settings.
    pub(crate) fn describe(&self) -> String {
        let mut out = format!("machine: {}\n\n", machine());
        let rows: Vec<[&str; 4]> = self
            .versions
            .iter()
            .map(|(strategy, version)| self.row(*strategy, version))
            .collect();
        let width = |column: usize| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let (a, b, c) = (width(0), width(1), width(2));
        for [name, version, server, settings] in rows {
            let _ = writeln!(out, "{name:<a$}  {version:<b$}  {server:<c$}  {settings}");
        }
        for reason in &self.left_out {
            let _ = writeln!(out, "left out: {reason}");
        }
        out
    }

    fn row<'a>(&'a self, strategy: Strategy, version: &'a str) -> [&'a str; 4] {
        let place = self.places.iter().find(|place| place.kind == strategy.kind());
        let settings = match strategy {
            Strategy::Fairlock => "defaults",
            Strategy::Local => "local hand-off, otherwise defaults",
            Strategy::OwnThread => "a thread of the manager's own, otherwise defaults",
            Strategy::Publish => "benches/contention/publish.rs",
            Strategy::Spin => "1, 2, 4 … 128 ms",
            Strategy::Peer(peer) => peer.settings,
        };
        let server = place.map_or("", |place| place.version.as_str());
        [strategy.name(), version, server, settings]
    }
}

/// Where everything that was printed goes.
pub(crate) fn text_beside(page: &Path) -> PathBuf {
    page.with_extension("txt")
}

/// The page of one lock.
pub(crate) fn page(args: &CompareArgs, path: &Path, lines: &[Line], bars: &str, field: &Field) -> String {
    let name = |path: &Path| {
        path.file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into())
    };
    let text = name(&text_beside(path));
    let mut out = format!(
        "# One contended lock\n\nBy `{}`. [All figures]({text})",
        command_line()
    );
    if let Some(csv) = &args.csv {
        let _ = write!(out, ", [every round]({})", name(csv));
    }
    let summary = summary(args, lines);
    let _ = write!(out, ".\n\n{summary}");
    out.push_str(&by_condition(args, lines));
    if !bars.is_empty() {
        let _ = write!(out, "\n```text\n{}\n```\n", bars.trim());
    }
    let _ = write!(out, "\n```text\n{}\n```\n", field.describe().trim());
    out
}

/// A part of the page about semaphores and read/write locks.
pub(crate) fn section(args: &CompareArgs, lines: &[Line], field: &Field) -> String {
    let title = args.kind.title(args.capacity);
    let title = title[..1].to_uppercase() + &title[1..];
    let (command, summary) = (command_line(), permits::summary(args, lines));
    let rest = field.describe();
    let rest = rest.trim_end();
    format!("## {title}\n\nBy `{command}`:\n\n{summary}\n```text\n{rest}\n```\n")
}

/// The arguments of this run, without files and folders, which are those of this machine.
fn command_line() -> String {
    const PLACES: [&str; 5] = ["--record", "--csv", "--svg", "--rows", "--programs"];
    let mut line = "cargo bench --package fairlock-benches --bench contention --".to_owned();
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        if PLACES.contains(&argument.as_str()) {
            arguments.next();
        } else {
            line = line + " " + &argument;
        }
    }
    line
}

/// Hand-offs and longest waits over the number of waiters, with the best first; and the rate of a single
/// waiter.
fn summary(args: &CompareArgs, lines: &[Line]) -> String {
    let mut waiters = args.waiters.clone();
    waiters.sort_unstable();
    let most = waiters.last().copied().unwrap_or_default();
    let contended: Vec<u32> = waiters.into_iter().filter(|count| *count > 1).collect();

    let find = |strategy, waiters| {
        let mut all = lines.iter();
        all.find(|line| line.strategy == strategy && line.load.waiters == waiters)
    };
    let mut head = vec![String::new()];
    head.extend(args.waiters.contains(&1).then(|| "alone: times/s".to_owned()));
    head.extend(
        contended
            .iter()
            .map(|count| format!("hand-offs/s, {count} waiters")),
    );
    head.extend(contended.iter().map(|count| format!("longest wait, {count}")));
    head.push(format!("Jain, {most}"));
    let mut out = format!(
        "| {} |\n|---{}|\n",
        head.join(" | "),
        "|---:".repeat(head.len() - 1)
    );
    for strategy in best_first(args, lines, most) {
        let mut cells = vec![strategy.name().to_owned()];
        let mut cell = |waiters, value: fn(&Line) -> Option<String>| {
            cells.push(find(strategy, waiters).and_then(value).unwrap_or("-".to_owned()));
        };
        if args.waiters.contains(&1) {
            cell(1, |line| Some(grouped(line.findings.acquisitions_per_s())));
        }
        for &count in &contended {
            cell(count, |line| Some(grouped(line.findings.handoffs_per_s())));
        }
        for &count in &contended {
            cell(count, |line| {
                quantile(&line.findings.waits_ns, 1000).map(readable)
            });
        }
        cell(most, |line| Some(format!("{:.3}", line.findings.jain_mean())));
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out
}

/// The strategies in the order of their hand-offs with this many waiters, under the first condition.
fn best_first(args: &CompareArgs, lines: &[Line], waiters: u32) -> Vec<Strategy> {
    let rate = |strategy| {
        let found = (lines.iter()).find(|line| line.strategy == strategy && line.load.waiters == waiters);
        found.map_or(0.0, |line| line.findings.handoffs_per_s())
    };
    let mut strategies = args.strategies.clone();
    strategies.sort_by(|a, b| rate(*b).total_cmp(&rate(*a)));
    strategies
}

/// Hand-offs under each condition of a quorum, with the number of waiters at which the bars compare rates.
fn by_condition(args: &CompareArgs, lines: &[Line]) -> String {
    if args.conditions.len() < 2 || !args.waiters.contains(&bars::WAITERS) {
        return String::new();
    }
    let names: Vec<&str> = args.conditions.iter().map(|condition| condition.name()).collect();
    let mut out = format!(
        "\n| hand-offs/s, {} waiters | {} |\n|---{}|\n",
        bars::WAITERS,
        names.join(" | "),
        "|---:".repeat(names.len())
    );
    for strategy in best_first(args, lines, bars::WAITERS) {
        let rate = |condition| {
            let found = lines.iter().find(|line| {
                (line.strategy, line.condition, line.load.waiters) == (strategy, condition, bars::WAITERS)
            });
            found.map_or("-".to_owned(), |line| grouped(line.findings.handoffs_per_s()))
        };
        let rates: Vec<String> = args.conditions.iter().map(|condition| rate(*condition)).collect();
        let _ = writeln!(out, "| {} | {} |", strategy.name(), rates.join(" | "));
    }
    out
}
