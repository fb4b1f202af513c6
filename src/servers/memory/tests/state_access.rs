//! Lets tests read the state of a store, and change it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::RESERVED;
use crate::protocol::ids::RequestId;
use crate::protocol::rules::Queue;
use crate::protocol::rules::lock::{Hold, Holder, Lock};
use crate::protocol::rules::permits::PermitsHold;
use crate::protocol::rules::{BOUND, Rules};
use crate::servers::memory::MemoryStore;
use crate::time::server_time::millis;
use crate::types::fence::Fence;

/// A held lock, or a hold of permits, identified by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveHold {
    pub(crate) key: String,
    pub(crate) fence: Fence,
    /// The last fence that its turns can have.
    pub(crate) last: Fence,
    pub(crate) weight: u32,
}

/// What is written of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// A hold of a lock is written here as one of permits.
    pub(crate) holds: BTreeMap<RequestId, PermitsHold>,
    /// The first request in the queue.
    pub(crate) head: Option<RequestId>,
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

    /// Notes each client that has a request in a queue absent.
    pub(crate) fn note_absent(&self) {
        let rules = &mut self.0.state().rules;
        let of_permits = rules.permits.values_mut();
        let of_permits = of_permits.map(|permits| (&permits.queue, &mut permits.absent));
        let of_locks = rules.locks.values_mut();
        let of_locks = of_locks.filter_map(|lock| Some((&lock.queue, &mut lock.written.as_mut()?.absent)));
        for (queue, absent) in of_locks.chain(of_permits) {
            for (_, request) in &queue.order {
                absent.note(request.client());
            }
        }
    }

    /// Whether a client listens to this channel.
    pub(crate) fn listens(&self, channel: &str) -> bool {
        let state = self.0.state();
        let mut clients = state.subscribers.get(channel).into_iter().flatten();
        clients.any(|client| client.listener.strong_count() > 0)
    }

    /// The locks that are held now, and the holds of permits, in the order of their keys.
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
                    weight: 1,
                })
            })
            .collect();
        for (key, permits) in &state.rules.permits {
            let live = permits.holds.values().filter(|hold| hold.deadline > now);
            held.extend(live.filter_map(|hold| {
                let fence = Fence::new(hold.fence)?;
                let (key, weight) = (key.clone(), hold.weight);
                Some(LiveHold {
                    key,
                    fence,
                    last: fence,
                    weight,
                })
            }));
        }
        held.sort_unstable_by(|a, b| (&a.key, a.fence).cmp(&(&b.key, b.fence)));
        held
    }

    /// The holds of each lock as last written, and the first request that waits for it.
    pub(crate) fn written(&self) -> BTreeMap<String, Written> {
        let rules = &self.0.state().rules;
        let head = |queue: &Queue| queue.order.first().map(|(_, request)| request.clone());
        let locks = rules.locks.iter().map(|(key, lock)| {
            let mut holds = BTreeMap::new();
            if let Some(holder) = &lock.written {
                for (request, &Hold { deadline, lease }) in &holder.holds {
                    let hold = PermitsHold {
                        deadline,
                        lease,
                        pushed: false,
                        fence: holder.fence,
                        weight: 1,
                        slot: None,
                    };
                    holds.insert(request.clone(), hold);
                }
            }
            (key, holds, &lock.queue)
        });
        let permits = rules.permits.iter();
        let permits = permits.map(|(key, permits)| (key, permits.holds.clone(), &permits.queue));
        let written = |(key, holds, queue): (&String, _, _)| {
            let head = head(queue);
            (key.clone(), Written { holds, head })
        };
        locks.chain(permits).map(written).collect()
    }

    /// The number of queued requests of all locks.
    pub(crate) fn queued(&self) -> usize {
        let rules = &self.0.state().rules;
        let of_permits = rules.permits.values().map(|permits| permits.queue.len());
        let of_locks = rules.locks.values().map(|lock| lock.queue.len());
        of_locks.chain(of_permits).sum()
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
