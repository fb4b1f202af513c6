//! The parameters of one simulation, all drawn from its seed.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use super::history::Fault;
use super::network::MessageFaults;
use super::timing::Timing;
use crate::engine::options::ManagerOptions;
use crate::servers::redis::pipeline::MAX_IN_FLIGHT;
use crate::types::permits::{Gives, Permits};

/// The most locks of a world.
const LOCKS: usize = 2;
/// The most tasks of a client that is not saturated.
const USUAL_TASKS: usize = 3;
/// The largest number of turns in one tenure.
pub(super) const MAX_TURNS: u32 = 8;

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) clients: usize,
    /// For each client.
    pub(super) tasks: usize,
    /// For each task.
    pub(super) calls: usize,
    pub(super) locks: usize,
    /// What each of them is.
    pub(super) gives: Vec<Gives>,
    /// Each caller of a semaphore has a capacity of its own.
    pub(super) capacities: bool,
    pub(super) options: ManagerOptions,
    /// How often an idle connection is tested.
    pub(super) ping_every: Duration,
    /// Every other client has local hand-off off.
    pub(super) mixed: bool,
    /// The longest time that a message takes without a fault.
    pub(super) latency: Duration,
    /// How many calls that may be delayed a client has in flight at most.
    pub(super) max_in_flight: u32,
    /// How often, of 256 times, a task that could run lets others run first.
    pub(super) yield_rate: u8,
    /// Whether some calls are made for an owner that makes other calls too.
    pub(super) owners: bool,
    /// Whether a lock is sometimes released by force.
    pub(super) force: bool,
    /// How much faster the server's clock runs than those of the clients, in µs per second. The clients allow
    /// for the largest value.
    pub(super) drift_ppm: u32,
    pub(super) message_faults: MessageFaults,
    /// The faults that happen until the calm. If there are none, the world has no faults.
    pub(super) faults: Vec<Fault>,
    /// The longest time between two faults.
    pub(super) longest_gap: Duration,
    pub(super) calm_after: Duration,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Plan {
        let lease = Duration::from_millis(rng.u64(300..=4000));
        let longest_window = u64::try_from(lease.as_millis()).unwrap();
        let ping_every = Duration::from_millis(rng.u64(300..=2000));
        let options = ManagerOptions {
            lease,
            claim_window: rng
                .bool()
                .then(|| Duration::from_millis(rng.u64(100.max(longest_window / 4)..=longest_window))),
            server_timeout: Duration::from_millis(rng.u64(1000..=8000)),
            local_handoffs: if rng.bool() { rng.u32(2..=MAX_TURNS) } else { 1 },
            ..ManagerOptions::default()
        };
        // A seed with all faults at once would hide what two of them do together, so each seed has only some.
        let some = |of: &[Fault], rng: &mut Rng| {
            let share = rng.usize(1..=4);
            let mut some = of.to_vec();
            some.retain(|_| rng.usize(..8) < share);
            some
        };
        let (mut message_faults, mut faults) = (BTreeMap::new(), Vec::new());
        if rng.usize(..5) > 0 {
            for fault in some(&Fault::OF_MESSAGES, rng) {
                message_faults.insert(fault, rng.u16(5..=250));
            }
            faults = some(&Fault::OF_THE_WORLD, rng);
        }
        // With this fault, a world has only faults that make messages arrive late. A server that loses data
        // has only its clock to make fences increase, and a delayed call can run late by the length of the
        // step.
        if faults.contains(&Fault::ClockSetBack) {
            let late = [Fault::SlowReply, Fault::SlowPush, Fault::DoublePush];
            message_faults.retain(|fault, _| late.contains(fault));
            let late = [Fault::ClockSetBack, Fault::Stopped, Fault::CommandsCut];
            faults.retain(|fault| late.contains(fault));
        }
        let mut longest_gap = Duration::from_millis(1500);
        let mut calls = rng.usize(1..=5);
        // Some seeds have a single kind of fault. A fault that only costs time goes unnoticed while others
        // cause delays.
        if rng.usize(..3) == 0 {
            message_faults.clear();
            faults = vec![Fault::OF_THE_WORLD[rng.usize(..Fault::OF_THE_WORLD.len())]];
            longest_gap = Duration::from_secs(8);
            calls = rng.usize(5..=40);
        }
        // What the locks are changes none of the other draws.
        let mut kinds = Rng::with_seed(!rng.clone().u64(..));
        let gives = std::iter::repeat_with(|| match kinds.u8(..4) {
            0..=1 => Gives::Itself,
            2 => Gives::Permits(Permits {
                weight: 1,
                capacity: kinds.u32(1..=3),
            }),
            _ => Gives::Shared(Permits::READER),
        });
        let gives = gives.take(LOCKS).collect();
        // Some clients have far more callers than calls in flight.
        let is_saturated = rng.usize(..16) == 0;
        let tasks = if is_saturated {
            rng.usize(8..=20)
        } else {
            rng.usize(1..=USUAL_TASKS)
        };
        let capacities = kinds.usize(..3) == 0;
        let options = ManagerOptions {
            retain: kinds
                .bool()
                .then(|| Duration::from_millis(kinds.u64(5..=longest_window / 3))),
            ..options
        };
        Plan {
            clients: rng.usize(1..=3),
            tasks,
            calls,
            locks: rng.usize(1..=LOCKS),
            gives,
            capacities,
            options,
            ping_every,
            mixed: rng.bool(),
            latency: Duration::from_micros(rng.u64(200..=8000)),
            max_in_flight: match rng.bool() || is_saturated {
                true => rng.u32(1..=8),
                false => MAX_IN_FLIGHT,
            },
            yield_rate: if rng.bool() { rng.u8(1..=100) } else { 0 },
            owners: rng.usize(..4) == 0,
            force: rng.usize(..8) == 0,
            drift_ppm: if rng.bool() { rng.u32(0..=1000) } else { 0 },
            message_faults,
            faults,
            longest_gap,
            calm_after: Duration::from_millis(rng.u64(1000..=10_000)),
        }
    }

    /// Returns the same plan without any faults.
    pub(super) fn without_faults(self) -> Plan {
        Plan {
            force: false,
            message_faults: MessageFaults::new(),
            faults: Vec::new(),
            ..self
        }
    }

    pub(super) fn timing(&self) -> Timing {
        // In a saturated client, a call may wait for those of all other tasks.
        let calls = if self.tasks > USUAL_TASKS {
            2 * self.tasks
        } else {
            1
        };
        let window = usize::try_from(self.max_in_flight).unwrap_or(usize::MAX);
        let rounds = u32::try_from(calls.div_ceil(window)).unwrap_or(u32::MAX);
        Timing::of(&self.options, self.latency * rounds)
    }

    /// Whether the plan has no faults at all.
    pub(super) fn is_faultless(&self) -> bool {
        self.message_faults.is_empty() && self.faults.is_empty() && !self.force
    }
}
