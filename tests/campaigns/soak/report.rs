//! The table: a column for each setting, a row for each figure, and the faults by kind.

use std::fmt;

use super::faults::{Counts, Fault};
use super::round::{Outcome, Setting};

/// The sums of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Report {
    columns: [Column; Setting::ALL.len()],
}

#[derive(Debug, Default)]
struct Column {
    rounds: usize,
    /// The sums, in the order of [`FIGURES`].
    figures: [u64; FIGURES.len()],
    faults: Counts,
}

const FIGURES: [&str; 9] = [
    "hand-offs",
    "leases lost, or left to expire",
    "waits given up",
    "waits that ended as unavailable",
    "waits whose order was checked",
    "writes accepted",
    "stale writes refused",
    "two holders, within a lease after a loss of data",
    "violations",
];
const REFUSED: usize = 6;
const VIOLATIONS: usize = 8;

fn figures(outcome: &Outcome) -> [u64; FIGURES.len()] {
    [
        outcome.handoffs,
        outcome.lost,
        outcome.given_up,
        outcome.unavailable,
        outcome.verdict.ordered,
        outcome.writes.accepted,
        outcome.writes.refused,
        outcome.verdict.overlaps_allowed,
        outcome.verdict.violations.len() as u64,
    ]
}

impl Outcome {
    /// Returns the round in one line, followed by its violations.
    pub(crate) fn summary(&self) -> String {
        let faults: u64 = self.faults.values().sum();
        let mut text = format!(
            "server {}, {faults} faults, {} hand-offs, {} violations",
            self.setting.name(),
            self.handoffs,
            self.verdict.violations.len()
        );
        for violation in self.verdict.violations.iter().take(20) {
            text += &format!("\n  {violation}");
        }
        text
    }
}

impl Report {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        let place = Setting::ALL
            .iter()
            .position(|setting| *setting == outcome.setting);
        let column = &mut self.columns[place.expect("a known setting")];
        column.rounds += 1;
        for (sum, figure) in column.figures.iter_mut().zip(figures(outcome)) {
            *sum += figure;
        }
        for (fault, count) in &outcome.faults {
            *column.faults.entry(*fault).or_default() += count;
        }
    }

    pub(crate) fn rounds(&self) -> usize {
        self.columns.iter().map(|column| column.rounds).sum()
    }

    pub(crate) fn violations(&self) -> u64 {
        self.sum(VIOLATIONS)
    }

    pub(crate) fn stale_writes_refused(&self) -> u64 {
        self.sum(REFUSED)
    }

    fn sum(&self, figure: usize) -> u64 {
        self.columns.iter().map(|column| column.figures[figure]).sum()
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str, of: impl Fn(&Column) -> u64) -> fmt::Result {
        write!(f, "{name:<50}")?;
        for column in &self.columns {
            write!(f, " {:>10}", of(column))?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<50}", "the server")?;
        for setting in Setting::ALL {
            write!(f, " {:>10}", setting.name())?;
        }
        writeln!(f)?;
        self.row(f, "rounds", |column| column.rounds as u64)?;
        for fault in Fault::all() {
            self.row(f, &format!("  {}", fault.name()), |column| {
                column.faults.get(&fault).copied().unwrap_or(0)
            })?;
        }
        for (at, name) in FIGURES.iter().enumerate() {
            self.row(f, name, |column| column.figures[at])?;
        }
        Ok(())
    }
}
