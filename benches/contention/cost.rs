//! The commands and the CPU time that a server has spent.

use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::info::{commands_sent, cpu_seconds};
use fairlock_benches::wire::Wire;

/// The cost on a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Commands that clients sent.
    pub(crate) commands: u64,
    pub(crate) cpu: Duration,
}

impl Cost {
    /// The cost on a Redis server so far.
    pub(crate) fn of(url: &str) -> Outcome<Cost> {
        let mut wire = Wire::connect(url)?;
        let commands = commands_sent(&wire.command(&["INFO", "commandstats"])?);
        let cpu_s = cpu_seconds(&wire.command(&["INFO", "cpu"])?).ok_or("INFO cpu has no used_cpu_user")?;
        Ok(Cost {
            commands,
            cpu: Duration::from_secs_f64(cpu_s),
        })
    }

    pub(crate) fn since(&self, before: &Cost) -> Cost {
        Cost {
            commands: self.commands.saturating_sub(before.commands),
            cpu: self.cpu.saturating_sub(before.cpu),
        }
    }

    /// The sum of all costs.
    pub(crate) fn sum(costs: &[Cost]) -> Cost {
        Cost {
            commands: costs.iter().map(|cost| cost.commands).sum(),
            cpu: costs.iter().map(|cost| cost.cpu).sum(),
        }
    }
}
