//! What a soak did and found, as a table and as one line for each round.

use super::faults::Fault;
use super::round::{Outcome, Setting};
use crate::contention::table::Table;

pub(crate) const ROUNDS: &str = "rounds";
pub(crate) const REFUSED: &str = "stale writes refused";
pub(crate) const VIOLATIONS: &str = "violations";

pub(crate) fn new_table() -> Table {
    Table::new("the server", Setting::ALL.map(Setting::name))
}

impl Outcome {
    /// The figures, in the order of their rows.
    fn figures(&self) -> [(&'static str, u64); 9] {
        [
            ("hand-offs", self.handoffs),
            ("leases lost, or left to expire", self.lost),
            ("waits given up", self.given_up),
            ("waits that ended as unavailable", self.unavailable),
            ("waits whose order was checked", self.verdict.ordered),
            ("writes accepted", self.writes.accepted),
            (REFUSED, self.writes.refused),
            (
                "two holders, within a lease after a loss of data",
                self.verdict.overlaps_allowed,
            ),
            (VIOLATIONS, self.verdict.violations.len() as u64),
        ]
    }

    /// Adds the round to its column: the faults by kind, and the figures.
    pub(crate) fn add_to(&self, table: &mut Table) {
        let column = self.setting.name();
        table.add(column, ROUNDS, 1);
        for fault in Fault::all() {
            table.add(
                column,
                fault.name(),
                self.faults.get(&fault).copied().unwrap_or(0),
            );
        }
        for (name, figure) in self.figures() {
            table.add(column, name, figure);
        }
    }

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
