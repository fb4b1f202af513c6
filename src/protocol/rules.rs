//! All that a server keeps of its locks. The rules of the operations work on it, with time as an argument.

pub(crate) mod lock;
pub(crate) mod permits;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use uuid::Uuid;

use crate::protocol::keys::Keys;
use crate::protocol::label::Label;
use crate::protocol::rules::lock::{Lock, Now};
use crate::protocol::rules::permits::{OpenPermits, Permits};
use crate::types::owner::Owner;

/// How many requests a call removes from the queue before it answers `more`, as in the scripts.
pub(crate) const BOUND: usize = 100;
/// Nothing is swept while there are fewer entries than this.
const SWEEP_FROM: usize = 1024;

#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) locks: HashMap<String, Lock>,
    /// The permits of semaphores and read/write locks, by `Keys::lock` too.
    pub(crate) permits: HashMap<String, Permits>,
    pub(crate) spins: HashMap<String, Spin>,
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
        self.sweep_at = (2 * self.entries()).max(SWEEP_FROM);
    }

    fn entries(&self) -> usize {
        self.locks.len() + self.permits.len() + self.spins.len()
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
        caller: Option<&'a str>,
    ) -> OpenPermits<'a> {
        let bound = self.bound;
        OpenPermits::new(self.permits(&keys.lock), keys, now, bound, caller)
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
