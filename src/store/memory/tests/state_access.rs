//! Lets tests read the state of a store, and change it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fence::Fence;
use crate::store::RESERVED;
use crate::store::ids::RequestId;
use crate::store::memory::MemoryStore;
use crate::store::memory::lock::{Holder, Lock};
use crate::store::memory::rules::{BOUND, Rules};
use crate::time::server_time::millis;

/// A held lock, identified by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveHold {
    pub(crate) key: String,
    pub(crate) fence: Fence,
    /// The last fence that its turns can have.
    pub(crate) last: Fence,
}

impl MemoryStore {
    /// Creates a store whose clock shows this time now.
    pub(crate) fn at_time(time: Duration) -> MemoryStore {
        let store = MemoryStore::new();
        store.0.state().origin = time;
        store
    }

    /// Creates an empty store whose calls remove at most `bound` requests from a queue before they must be
    /// repeated.
    pub(crate) fn with_bound(bound: usize) -> MemoryStore {
        let store = MemoryStore::new();
        store.0.state().rules = Rules::new(bound);
        store
    }

    /// Sets the store's clock back.
    pub(crate) fn set_back(&self, span: Duration) {
        let mut state = self.0.state();
        state.origin -= span;
        state.last_us = 0;
    }

    /// Sets the store's clock forward.
    pub(crate) fn set_forward(&self, span: Duration) {
        self.0.state().origin += span;
    }

    /// Forgets all locks, as FLUSHALL does. Subscriptions stay.
    pub(crate) fn flush(&self) {
        self.0.state().rules = Rules::new(BOUND);
    }

    /// The lock with this key was held once. So the next hold of it may have several turns.
    pub(crate) fn knows(&self, key: &str) {
        let holder = Holder {
            fence: 1,
            ..Holder::default()
        };
        let lock = Lock {
            written: Some(holder),
            kept_until: u64::MAX,
            ..Lock::default()
        };
        self.0.state().rules.locks.entry(key.to_owned()).or_insert(lock);
    }

    /// Forgets only the clients' presence records.
    pub(crate) fn forget_records(&self) {
        for lock in self.0.state().rules.locks.values_mut() {
            lock.clients.clear();
        }
    }

    /// The locks that are held now, in the order of their keys.
    pub(crate) fn held(&self) -> Vec<LiveHold> {
        let now = self.now_ms();
        let state = self.0.state();
        let mut held: Vec<LiveHold> = state
            .rules
            .locks
            .iter()
            .filter_map(|(key, lock)| {
                let holder = lock.written.as_ref()?;
                let lives = holder.holds.values().any(|hold| hold.deadline > now);
                Fence::new(holder.fence).filter(|_| lives).map(|fence| LiveHold {
                    key: key.clone(),
                    fence,
                    last: fence.plus(RESERVED),
                })
            })
            .collect();
        held.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        held
    }

    /// The holds of each lock as last written, with their deadlines in the store's time.
    pub(crate) fn holds(&self) -> BTreeMap<String, BTreeMap<RequestId, u64>> {
        let state = self.0.state();
        let holds_of = |lock: &Lock| {
            let holds = lock.written.iter().flat_map(|holder| &holder.holds);
            holds
                .map(|(request, hold)| (request.clone(), hold.deadline))
                .collect()
        };
        let locks = state.rules.locks.iter();
        locks.map(|(key, lock)| (key.clone(), holds_of(lock))).collect()
    }

    /// The number of queued requests of all locks.
    pub(crate) fn queued(&self) -> usize {
        self.0
            .state()
            .rules
            .locks
            .values()
            .map(|lock| lock.queue.len())
            .sum()
    }

    /// The number of channels with a subscriber.
    pub(crate) fn subscribed(&self) -> usize {
        self.0.state().subscribers.len()
    }

    /// The current time of the store's clock.
    pub(crate) fn now_ms(&self) -> u64 {
        millis(self.0.state().at(self.0.clock.now()))
    }
}
