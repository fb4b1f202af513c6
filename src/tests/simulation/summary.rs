//! The totals of many simulations, in one table.

use std::collections::BTreeMap;
use std::fmt;

use super::history::{Effect, Event, Fault};
use super::run::Outcome;
use crate::Error;
use crate::protocol::Acquired;
use crate::types::permits::Gives;

#[derive(Default)]
pub(super) struct Summary {
    counts: BTreeMap<&'static str, u64>,
    faults: BTreeMap<Fault, u64>,
    /// The seeds that broke a promise.
    pub(super) broken: Vec<u64>,
}

impl Summary {
    pub(super) fn add(&mut self, outcome: &Outcome) {
        self.count("seeds", 1);
        if !outcome.violations.is_empty() {
            self.broken.push(outcome.seed);
        }
        self.count("grants received by push", outcome.handed_over);
        self.count("turns of retained locks", outcome.retained);
        self.count("leases lost", outcome.lost);
        for (_, event) in &outcome.events {
            match event {
                Event::Called { .. } => self.count("calls of tasks", 1),
                Event::Acquired(belief) => {
                    self.count("grants", 1);
                    if outcome.plan.gives[belief.lock] != Gives::Itself {
                        self.count("grants of permits", 1);
                    }
                }
                Event::Downgraded { .. } => self.count("downgrades", 1),
                Event::Cancelled { .. } => self.count("cancelled calls", 1),
                Event::Failed { error, .. } => match error {
                    Error::Timeout { .. } => self.count("calls that timed out", 1),
                    Error::Unavailable(_) => self.count("calls that reached no server", 1),
                    _ => self.count("calls of a closed client", 1),
                },
                Event::Forced { .. } => self.count("forced releases", 1),
                Event::Executed { effect, .. } => {
                    self.count("calls executed by the server", 1);
                    match effect {
                        Effect::Acquire(call, Acquired::Contended(contended))
                            if contended.enqueued && call.ticket.is_some() =>
                        {
                            self.count("… of which queued a request again", 1)
                        }
                        Effect::Acquire(_, Acquired::ExpiredCall) => {
                            self.count("… of which answered expired call", 1)
                        }
                        _ => {}
                    }
                }
                Event::Fault { fault, .. } => *self.faults.entry(*fault).or_default() += 1,
                _ => {}
            }
        }
    }

    fn count(&mut self, what: &'static str, by: u64) {
        *self.counts.entry(what).or_default() += by;
    }

    pub(super) fn merge(&mut self, other: Summary) {
        for (what, count) in other.counts {
            self.count(what, count);
        }
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.broken.extend(other.broken);
    }

    /// Returns how often this kind of fault happened.
    pub(super) fn faults(&self, fault: Fault) -> u64 {
        self.faults.get(&fault).copied().unwrap_or_default()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ROWS: [&str; 16] = [
            "seeds",
            "calls of tasks",
            "grants",
            "grants of permits",
            "downgrades",
            "grants received by push",
            "turns of retained locks",
            "leases lost",
            "cancelled calls",
            "calls that timed out",
            "calls that reached no server",
            "calls of a closed client",
            "forced releases",
            "calls executed by the server",
            "… of which queued a request again",
            "… of which answered expired call",
        ];
        for what in ROWS {
            let count = self.counts.get(what).copied().unwrap_or_default();
            writeln!(f, "{what:<34}{count:>12}")?;
        }
        for (fault, count) in &self.faults {
            writeln!(f, "{:<34}{count:>12}", format!("fault: {fault:?}"))?;
        }
        write!(f, "{:<34}{:>12}", "seeds that broke a promise", self.broken.len())
    }
}
