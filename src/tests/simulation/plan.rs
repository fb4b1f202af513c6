//! What one simulation is made of, all drawn from its seed.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use super::history::Fault;
use super::network::Weather;
use super::timing::Timing;
use crate::options::ManagerOptions;
use crate::store::pipeline::MAX_IN_FLIGHT;

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) clients: usize,
    /// Of each client.
    pub(super) tasks: usize,
    /// Of each task.
    pub(super) calls: usize,
    pub(super) locks: usize,
    pub(super) options: ManagerOptions,
    /// The longest time that a message takes when nothing is wrong.
    pub(super) latency: Duration,
    /// How many calls that can wait a client has in flight at most.
    pub(super) waitlist: u32,
    /// How often, of 256 times, a task that could run lets others run first.
    pub(super) sluggish: u8,
    /// Some calls are for an owner that makes other calls too.
    pub(super) owners: bool,
    /// Now and then a lock is taken from its holder by force.
    pub(super) force: bool,
    /// How much faster the server's clock is than those of the clients, in µs per second: no more than these
    /// allow for.
    pub(super) drift_ppm: u32,
    pub(super) weather: Weather,
    /// What happens now and then, until the calm. None: nothing goes wrong at all.
    pub(super) faults: Vec<Fault>,
    /// The longest time between two of them.
    pub(super) longest_peace: Duration,
    pub(super) calm_after: Duration,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Plan {
        let lease = Duration::from_millis(rng.u64(300..=4000));
        let longest_window = u64::try_from(lease.as_millis()).unwrap();
        let options = ManagerOptions {
            lease,
            claim_window: rng
                .bool()
                .then(|| Duration::from_millis(rng.u64(100.max(longest_window / 4)..=longest_window))),
            heartbeat: Duration::from_millis(rng.u64(1000..=6000)),
            server_timeout: Duration::from_millis(rng.u64(1000..=8000)),
            ..ManagerOptions::default()
        };
        // Each seed has some faults and not others: all at once would hide what two of them do together.
        let some = |of: &[Fault], rng: &mut Rng| {
            let share = rng.usize(1..=4);
            let mut some = of.to_vec();
            some.retain(|_| rng.usize(..8) < share);
            some
        };
        let (mut weather, mut faults) = (BTreeMap::new(), Vec::new());
        if rng.usize(..5) > 0 {
            for fault in some(&Fault::OF_MESSAGES, rng) {
                weather.insert(fault, rng.u16(5..=250));
            }
            faults = some(&Fault::OF_THE_WORLD, rng);
        }
        // With that one come others alone which have messages read late. A server that forgets has no fence
        // but its clock, and a call that is stuck runs for longer by as much.
        if faults.contains(&Fault::ClockSetBack) {
            let late = [Fault::SlowReply, Fault::SlowPush, Fault::DoublePush];
            weather.retain(|fault, _| late.contains(fault));
            let late = [Fault::ClockSetBack, Fault::Stopped, Fault::CommandsCut];
            faults.retain(|fault| late.contains(fault));
        }
        let mut longest_peace = Duration::from_millis(1500);
        let mut calls = rng.usize(1..=5);
        // Some seeds have one kind of fault alone. A fault that costs only time is noticed only while nothing
        // else causes delays.
        if rng.usize(..3) == 0 {
            weather.clear();
            faults = vec![Fault::OF_THE_WORLD[rng.usize(..Fault::OF_THE_WORLD.len())]];
            longest_peace = Duration::from_secs(8);
            calls = rng.usize(5..=40);
        }
        Plan {
            clients: rng.usize(1..=3),
            tasks: rng.usize(1..=3),
            calls,
            locks: rng.usize(1..=2),
            options,
            latency: Duration::from_micros(rng.u64(200..=8000)),
            waitlist: if rng.bool() { rng.u32(1..=8) } else { MAX_IN_FLIGHT },
            sluggish: if rng.bool() { rng.u8(1..=100) } else { 0 },
            owners: rng.usize(..4) == 0,
            force: rng.usize(..8) == 0,
            drift_ppm: if rng.bool() { rng.u32(0..=1000) } else { 0 },
            weather,
            faults,
            longest_peace,
            calm_after: Duration::from_millis(rng.u64(1000..=10_000)),
        }
    }

    /// The same with nothing that goes wrong at all.
    pub(super) fn without_faults(self) -> Plan {
        Plan {
            force: false,
            weather: Weather::new(),
            faults: Vec::new(),
            ..self
        }
    }

    pub(super) fn timing(&self) -> Timing {
        Timing::of(&self.options, self.latency)
    }

    /// Whether nothing goes wrong at all.
    pub(super) fn is_faultless(&self) -> bool {
        self.weather.is_empty() && self.faults.is_empty() && !self.force
    }
}
