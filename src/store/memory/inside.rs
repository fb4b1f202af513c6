//! What only a test can see of a store, or do to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::lock::Lock;
use super::rules::Rules;
use super::{Connection, MemoryStore, Shared, millis};
use crate::error::ServerError;
use crate::fence::Fence;
use crate::store::Failure;
use crate::store::ids::RequestId;
use crate::time::clock::LocalTime;

/// A held lock, identified by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tenure {
    pub(crate) key: String,
    pub(crate) fence: Fence,
}

/// The errors of a store's clock.
#[derive(Default)]
pub(super) struct Skew {
    drift_ppm: u32,
    set_back: Mutex<Duration>,
}

impl Skew {
    pub(super) fn applied(&self, time: Duration, local: LocalTime) -> Duration {
        let set_back = *self.set_back.lock().unwrap_or_else(PoisonError::into_inner);
        time + local.since(LocalTime::ZERO) * self.drift_ppm / 1_000_000 - set_back
    }
}

/// How many of the next calls and subscriptions are lost. Their outcome is unknown to the client.
#[derive(Default)]
pub(super) struct Line {
    calls: AtomicU32,
    subscriptions: AtomicU32,
}

impl Line {
    pub(super) fn call(&self) -> Result<(), Failure> {
        Self::pass(&self.calls)
    }

    pub(super) fn subscription(&self) -> Result<(), Failure> {
        Self::pass(&self.subscriptions)
    }

    fn pass(losing: &AtomicU32) -> Result<(), Failure> {
        let lost = losing.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        match lost {
            Ok(_) => Err(Failure::Unknown(ServerError::new("lost"))),
            Err(_) => Ok(()),
        }
    }
}

impl Connection {
    /// Moves the client's subscriptions to a replica of the store: it hears messages, but is not counted.
    pub(crate) fn move_to_replica(&self) {
        self.0.at_replica.store(true, Ordering::Relaxed);
    }
}

impl MemoryStore {
    /// Creates a store whose clock shows `origin_us` now. The clock gains `drift_ppm` µs per second on
    /// others.
    pub(crate) fn at_time(origin_us: u64, drift_ppm: u32) -> MemoryStore {
        MemoryStore(Arc::new(Shared {
            origin_us,
            skew: Skew {
                drift_ppm,
                ..Skew::default()
            },
            ..Shared::default()
        }))
    }

    /// Creates an empty store whose calls remove at most `bound` requests from a queue before they must be
    /// repeated.
    pub(crate) fn with_bound(bound: usize) -> MemoryStore {
        let store = MemoryStore::new();
        store.0.state().rules = Rules::with_bound(bound);
        store
    }

    /// Sets the store's clock back.
    pub(crate) fn set_back(&self, span: Duration) {
        let mut state = self.0.state();
        *self
            .0
            .skew
            .set_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner) += span;
        state.last_us = 0;
    }

    /// Loses the next `calls` calls.
    pub(crate) fn lose_calls(&self, calls: u32) {
        self.0.line.calls.store(calls, Ordering::Release);
    }

    /// Loses the next `subscriptions` subscriptions.
    pub(crate) fn lose_subscriptions(&self, subscriptions: u32) {
        self.0.line.subscriptions.store(subscriptions, Ordering::Release);
    }

    /// Forgets all locks, as FLUSHALL does. Subscriptions stay.
    pub(crate) fn flush(&self) {
        self.0.state().rules = Rules::new();
    }

    /// Forgets only the clients' presence records.
    pub(crate) fn forget_records(&self) {
        for lock in self.0.state().rules.locks.values_mut() {
            lock.clients.clear();
        }
    }

    /// The locks that are held now, in the order of their keys.
    pub(crate) fn held(&self) -> Vec<Tenure> {
        let now = self.now_ms();
        let state = self.0.state();
        let mut held: Vec<Tenure> = state
            .rules
            .locks
            .iter()
            .filter_map(|(key, lock)| {
                let holder = lock.written.as_ref()?;
                let lives = holder.holds.values().any(|hold| hold.deadline > now);
                Fence::new(holder.fence).filter(|_| lives).map(|fence| Tenure {
                    key: key.clone(),
                    fence,
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
        millis(self.0.at(self.0.clock.now()))
    }
}
