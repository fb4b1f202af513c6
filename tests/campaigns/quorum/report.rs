//! What the campaign did and found, as a table and as one line for each part of a round.

use super::faults::Fault;
use super::round::Outcome;
use crate::contention::table::Table;

pub(crate) const VIOLATIONS: &str = "violations";

pub(crate) fn new_table() -> Table {
    let columns = ["3 minority", "5 minority", "3 majority", "5 majority"];
    Table::new("the servers, and how many fail at once", columns)
}

impl Outcome {
    fn column(&self) -> &'static str {
        match (self.servers, self.majority_failed) {
            (3, false) => "3 minority",
            (_, false) => "5 minority",
            (3, true) => "3 majority",
            (_, true) => "5 majority",
        }
    }

    /// The figures, in the order of their rows.
    fn figures(&self) -> [(&'static str, u64); 13] {
        [
            ("holds", self.holds),
            ("votes raised", self.rare.raised),
            ("votes yielded", self.rare.yielded),
            ("votes repaired", self.rare.repaired),
            ("leases lost, or left to expire", self.lost),
            ("waits given up", self.given_up),
            ("waits that ended as NoQuorum", self.no_quorum),
            ("waits whose order was checked", self.verdict.ordered),
            ("writes accepted", self.writes.accepted),
            ("stale writes refused", self.writes.refused),
            (
                "two holders, within a lease after a loss of data",
                self.verdict.overlaps_allowed,
            ),
            ("outages of a majority", self.outages),
            (VIOLATIONS, self.verdict.violations.len() as u64),
        ]
    }

    /// Adds this part to its column: the faults by kind, and the figures.
    pub(crate) fn add_to(&self, table: &mut Table) {
        let column = self.column();
        table.add(column, "rounds", 1);
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
        for (name, time) in [
            (
                "longest time that a lock was free for a waiter, ms",
                self.longest.idle,
            ),
            ("longest time until NoQuorum, ms", self.longest.told),
            ("longest time from an outage to a hold, ms", self.longest.served),
        ] {
            table.at_least(column, name, u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        }
    }

    /// Returns the part in one line, followed by its violations.
    pub(crate) fn summary(&self) -> String {
        let faults: u64 = self.faults.values().sum();
        let mut text = format!(
            "{}, {faults} faults, {} holds, {} violations",
            self.column(),
            self.holds,
            self.verdict.violations.len()
        );
        for violation in self.verdict.violations.iter().take(20) {
            text += &format!("\n  {violation}");
        }
        text
    }
}
