//! What the scripts do, in Rust. In-memory locks use these rules, and the scripts are tested against them: a
//! rule must be changed here and in `lua/` together.
//!
//! The rules of each kind are one file. Time is an argument.

pub(crate) mod lock;
pub(crate) mod permits;
pub(crate) mod rate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use uuid::Uuid;

use self::lock::Lock;
use self::permits::{OpenPermits, Permits};
use self::rate::RateTurns;
use super::ids::RequestId;
use super::keys::Keys;
use super::label::Label;
use super::operations::Operation;
use super::operations::release::Released;
use super::operations::{
    Acquire, Acquired, GetLabel, Inspect, Inspected, Look, Looked, Release, Renew, Renewed, SetLabel, Shrink,
    SpinAcquire, SpinAcquired, SpinRelease, SpinReleased, Withdraw, Withdrawn,
};
use crate::time::server_time::{ServerTime, millis};
use crate::types::fence::Fence;
use crate::types::owner::Owner;
use crate::types::status::Kind;

/// How many requests a call removes from the queue before it answers `more`, as in the scripts.
pub(crate) const BOUND: usize = 100;
/// Nothing is swept while there are fewer entries than this.
const SWEEP_FROM: usize = 1024;
/// How long a lock and its fence are kept after its deadline.
pub(crate) const RETENTION_MS: u64 = 60_000;
/// How many clients are noted absent at most. A note that is forgotten costs one claim window.
const MOST_ABSENT: usize = 100;
/// How far a floor may be ahead of the server's clock.
const MAX_AHEAD_US: u64 = 86_400_000_000;

/// An operation that needs no server.
pub(crate) trait ByRules: Operation {
    /// What the script does.
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Self::Reply;
}

/// All that a server keeps of its locks.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) locks: HashMap<String, Lock>,
    /// The permits of semaphores and read/write locks, by `Keys::lock` too.
    pub(crate) permits: HashMap<String, Permits>,
    pub(crate) spins: HashMap<String, Spin>,
    /// The rate limits, by `RateKeys::rate`.
    pub(crate) rates: HashMap<String, RateTurns>,
    /// The labels of the clients that run, by their keys.
    pub(crate) labels: HashMap<String, Label>,
    pub(crate) bound: usize,
    sweep_at: usize,
}

impl Rules {
    /// Each call removes at most `bound` requests from the queue before it answers `more`.
    pub(crate) fn new(bound: usize) -> Rules {
        Rules {
            locks: HashMap::new(),
            permits: HashMap::new(),
            spins: HashMap::new(),
            rates: HashMap::new(),
            labels: HashMap::new(),
            bound,
            sweep_at: SWEEP_FROM,
        }
    }

    /// Drops expired entries. This costs each call little, because it visits all entries only when their
    /// number has doubled since the last time.
    pub(crate) fn sweep(&mut self, now: Now) {
        if self.entries() < self.sweep_at {
            return;
        }
        self.locks.retain(|_, lock| lock.kept_until > now.ms);
        self.spins.retain(|_, spin| spin.until > now.ms);
        self.permits.retain(|_, permits| permits.kept_until > now.ms);
        self.rates.retain(|_, turns| turns.kept_until > now.ms);
        self.sweep_at = (2 * self.entries()).max(SWEEP_FROM);
    }

    fn entries(&self) -> usize {
        self.locks.len() + self.permits.len() + self.spins.len() + self.rates.len()
    }

    pub(crate) fn lock(&mut self, key: &str) -> &mut Lock {
        self.locks.entry(key.to_owned()).or_default()
    }

    pub(crate) fn permits(&mut self, key: &str) -> &mut Permits {
        self.permits.entry(key.to_owned()).or_default()
    }

    /// Opens the permits for a call of this client.
    pub(crate) fn open_permits<'a>(
        &'a mut self,
        keys: &'a Keys,
        now: Now,
        caller: &'a RequestId,
    ) -> OpenPermits<'a> {
        let bound = self.bound;
        OpenPermits::new(self.permits(&keys.lock), keys, now, bound, caller.client())
    }
}

/// A spin lock.
#[derive(Debug)]
pub(crate) struct Spin {
    pub(crate) owner: Owner,
    pub(crate) count: u64,
    /// The request that took the last hold.
    pub(crate) request: Uuid,
    pub(crate) until: u64,
}

/// The time of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// For tickets and fences.
    pub(crate) us: u64,
    /// For deadlines.
    pub(crate) ms: u64,
}

impl Now {
    /// The least fence that a call grants by its floor, or without one by the time.
    pub(crate) fn or_floor(self, floor: Option<Fence>) -> u64 {
        floor.map_or(self.us, Fence::get)
    }

    /// Whether a call with this floor must do nothing.
    pub(crate) fn is_behind(self, floor: Option<Fence>) -> bool {
        self.or_floor(floor) > self.us + MAX_AHEAD_US
    }
}

/// What a call finds when it runs.
pub(crate) struct Run<'a> {
    pub(crate) now: Now,
    /// The time that the call's stamp returned.
    pub(crate) not_after: ServerTime,
    pub(crate) channels: &'a mut dyn Channels,
}

/// The channels and their subscribers.
pub(crate) trait Channels {
    /// The number of subscribers that the server counts. Other subscribers, at a replica, may hear messages
    /// too.
    fn subscribers(&self, channel: &str) -> usize;

    /// Publishes a message if the caller has the right to. Returns whether it did.
    fn publish(&mut self, channel: &str, message: &str) -> bool;
}

/// The clients that are noted absent, the last one last: each let a pushed grant run out unclaimed, and has
/// not called since. Their requests are passed over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Absent(Vec<String>);

impl Absent {
    pub(crate) fn note(&mut self, client: &str) {
        if self.has(client) {
            return;
        }
        if self.0.len() == MOST_ABSENT {
            self.0.remove(0);
        }
        self.0.push(client.to_owned());
    }

    pub(crate) fn has(&self, client: &str) -> bool {
        self.0.iter().any(|absent| absent == client)
    }

    /// This client calls. Returns whether it was noted absent.
    pub(crate) fn remove(&mut self, client: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|absent| absent != client);
        self.0.len() < before
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As the field of the server names them.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().rev().map(String::as_str)
    }
}

/// The queue in the order of a sorted set: by ticket, then by request.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) order: BTreeSet<(u64, RequestId)>,
    tickets: HashMap<RequestId, u64>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn ticket(&self, request: &RequestId) -> Option<u64> {
        self.tickets.get(request).copied()
    }

    /// Adds a request, unless it has this place or an earlier one. Returns whether it was added.
    pub(crate) fn add(&mut self, ticket: u64, request: &RequestId) -> bool {
        if self.ticket(request).is_some_and(|place| place <= ticket) {
            return false;
        }
        self.remove(request);
        self.tickets.insert(request.clone(), ticket);
        self.order.insert((ticket, request.clone()))
    }

    pub(crate) fn remove(&mut self, request: &RequestId) {
        if let Some(ticket) = self.tickets.remove(request) {
            self.order.remove(&(ticket, request.clone()));
        }
    }

    fn pop(&mut self) -> Option<RequestId> {
        let (_, request) = self.order.pop_first()?;
        self.tickets.remove(&request);
        Some(request)
    }
}

impl ByRules for Acquire {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Acquired {
        match self.keys.kind {
            Kind::Lock => lock::acquire(self, rules, run),
            Kind::Semaphore | Kind::ReadWrite => permits::acquire(self, rules, run),
        }
    }
}

impl ByRules for Release {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Released {
        match self.keys.kind {
            Kind::Lock => lock::release(self, rules, run),
            Kind::Semaphore | Kind::ReadWrite => permits::release(self, rules, run),
        }
    }
}

impl ByRules for Withdraw {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Withdrawn {
        match self.keys.kind {
            Kind::Lock => lock::withdraw(self, rules, run),
            Kind::Semaphore | Kind::ReadWrite => permits::withdraw(self, rules, run),
        }
    }
}

impl ByRules for Renew {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Renewed {
        match self.keys.kind {
            Kind::Lock => lock::renew(self, rules, run.now),
            Kind::Semaphore | Kind::ReadWrite => permits::renew(self, rules, run.now),
        }
    }
}

impl ByRules for Inspect {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Inspected {
        match self.keys.kind {
            Kind::Lock => lock::inspect(self, rules, run.now),
            Kind::Semaphore | Kind::ReadWrite => permits::inspect(self, rules, run.now),
        }
    }
}

/// Only a lock has votes.
impl ByRules for Look {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Looked {
        lock::look(self, rules, run.now)
    }
}

/// Only permits can be given back in part.
impl ByRules for Shrink {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Released {
        permits::shrink(self, rules, run)
    }
}

impl ByRules for SpinAcquire {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> SpinAcquired {
        let now = run.now;
        let until = now.ms + millis(self.lease);
        let held = rules
            .spins
            .get_mut(&self.keys.spin)
            .filter(|spin| spin.until > now.ms);
        match held {
            Some(spin) if spin.owner == self.owner => {
                if spin.request != self.request {
                    spin.request = self.request;
                    spin.count += 1;
                }
                spin.until = spin.until.max(until);
                SpinAcquired::Held(spin.count)
            }
            Some(_) => SpinAcquired::Busy,
            None => {
                let spin = Spin {
                    owner: self.owner.clone(),
                    count: 1,
                    request: self.request,
                    until,
                };
                rules.spins.insert(self.keys.spin.clone(), spin);
                SpinAcquired::Held(1)
            }
        }
    }
}

impl ByRules for SpinRelease {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> SpinReleased {
        let now = run.now;
        let held = rules
            .spins
            .get_mut(&self.keys.spin)
            .filter(|spin| spin.until > now.ms);
        let Some(spin) = held.filter(|spin| spin.owner == self.owner) else {
            return SpinReleased::NotHeld;
        };
        spin.count -= 1;
        let left = spin.count;
        if left == 0 {
            rules.spins.remove(&self.keys.spin);
        }
        SpinReleased::Left(left)
    }
}

impl ByRules for SetLabel {
    fn by_rules(&self, rules: &mut Rules, _: Run<'_>) {
        rules.labels.insert(self.key.clone(), self.label.clone());
    }
}

impl ByRules for GetLabel {
    fn by_rules(&self, rules: &mut Rules, _: Run<'_>) -> Option<Label> {
        rules.labels.get(&self.key).cloned()
    }
}
