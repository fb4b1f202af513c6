//! The local queues of all locks.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;

use super::turn::Turn;
use super::{LocalQueue, TenureParams, Waiting};
use crate::caller::gate::Gate;
use crate::caller::place::Place;
use crate::caller::place::held::Held;
use crate::engine::acquire::Tried;
use crate::engine::heard::Listening;
use crate::sync::locked;

/// Locks that differ in one of these share no tenure, and go side by side.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    name: Arc<str>,
    lease: Duration,
    turns: u16,
    retain_ms: Option<NonZeroU32>,
}

impl Key {
    fn of(tenure: &TenureParams) -> Key {
        Key {
            name: Arc::clone(&tenure.hold.keys.name),
            lease: tenure.hold.terms.lease(),
            turns: tenure.turns,
            retain_ms: tenure.hold.retain_ms,
        }
    }
}

impl Hash for Key {
    /// A lock hardly ever has several leases or numbers of turns, and every turn hashes its key.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// The local queues of one client.
#[derive(Debug)]
pub(crate) struct LocalQueues {
    gate: Gate,
    pub(super) queues: DashMap<Key, Arc<LocalQueue>>,
}

impl LocalQueues {
    pub(crate) fn new(gate: Gate) -> LocalQueues {
        LocalQueues {
            gate,
            queues: DashMap::new(),
        }
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn place(&self) -> &Place {
        self.gate.place()
    }

    /// Enters the local queue of a lock, and creates it if needed.
    pub(super) fn enter(self: &Arc<Self>, tenure: &TenureParams) -> Waiting {
        let (waiting, ask) = self.with(tenure, LocalQueue::join);
        if let Some(ask) = ask {
            self.place().client().spawn(ask.run());
        }
        waiting
    }

    /// The first turn of a tenure that did not come through the queue.
    pub(super) fn first_turn(
        self: &Arc<Self>,
        tenure: &TenureParams,
        held: Held,
        listening: Option<Listening>,
    ) -> Turn {
        let (turn, ended, queue) = self.with(tenure, |queue| {
            let turns = queue.turns_of(&held, listening);
            let (turn, ended) = queue.first_turn(&mut locked(&queue.state), held, &turns);
            (turn, ended, Arc::clone(queue))
        });
        queue.give_back(ended);
        turn
    }

    /// Runs `work` before the queue can be discarded.
    pub(super) fn with<T>(
        self: &Arc<Self>,
        tenure: &TenureParams,
        work: impl FnOnce(&Arc<LocalQueue>) -> T,
    ) -> T {
        let make = || Arc::new(LocalQueue::new(self, tenure));
        work(&self.queues.entry(Key::of(tenure)).or_insert_with(make))
    }

    /// A turn of the lock, if it is retained here.
    pub(super) async fn retained(self: &Arc<Self>, tenure: &TenureParams) -> Option<Turn> {
        tenure.hold.retain_ms?;
        let queue = Arc::clone(&*self.queues.get(&Key::of(tenure))?);
        queue.retained().await
    }

    /// Gives back all locks that are retained here.
    pub(crate) fn give_back(&self) {
        let queues: Vec<_> = self.queues.iter().map(|queue| Arc::clone(&queue)).collect();
        for queue in queues {
            let idle = locked(&queue.state).end_retention();
            queue.give_back(idle);
        }
    }

    /// Why a try need not ask the servers.
    pub(super) fn busy<T>(&self, tenure: &TenureParams) -> Option<Tried<T>> {
        self.queues.get(&Key::of(tenure))?.busy()
    }

    /// Removes a queue in which nothing is left.
    pub(super) fn discard(&self, queue: &LocalQueue) {
        if queue.is_idle() {
            self.queues
                .remove_if(&Key::of(&queue.tenure), |_, queue| queue.is_idle());
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }
}
