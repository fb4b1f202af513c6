//! All local queues of a client.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;

use super::turn::Turn;
use super::{LocalQueue, Place, Tried};
use crate::engine::acquire::AcquireParams;
use crate::engine::client::Client;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::waitlist::registry::Waitlists;
use crate::sync::locked;

/// Locks that differ in one of these share no tenure, and go side by side.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    name: Arc<str>,
    lease: Duration,
    turns: u16,
}

impl Hash for Key {
    /// A lock hardly ever has several leases or numbers of turns, and every turn hashes its key.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

#[derive(Debug)]
pub(crate) struct LocalQueues {
    waitlists: Arc<Waitlists>,
    pub(super) queues: DashMap<Key, Arc<LocalQueue>>,
}

impl LocalQueues {
    pub(in crate::engine) fn new(waitlists: Arc<Waitlists>) -> LocalQueues {
        LocalQueues {
            waitlists,
            queues: DashMap::new(),
        }
    }

    pub(super) fn waitlists(&self) -> &Arc<Waitlists> {
        &self.waitlists
    }

    pub(super) fn client(&self) -> &Arc<Client> {
        self.waitlists.client()
    }

    /// Enters the local queue of a lock, and creates it if needed.
    pub(super) fn enter(self: &Arc<Self>, params: &AcquireParams) -> Place {
        let (place, ask) = self.with(params, LocalQueue::join);
        if let Some(ask) = ask {
            self.client().spawn(ask.run());
        }
        place
    }

    /// Why a try need not ask the server.
    pub(super) fn busy(&self, params: &AcquireParams) -> Option<Tried> {
        self.queues.get(&key(params))?.busy()
    }

    /// The first turn of a tenure that did not come through the queue.
    pub(super) fn first_turn(self: &Arc<Self>, params: &AcquireParams, held: OwnedHold) -> Turn {
        self.with(params, |queue| queue.first_turn(&mut locked(&queue.state), held))
    }

    /// Runs `work` before the queue can be discarded.
    pub(super) fn with<T>(
        self: &Arc<Self>,
        params: &AcquireParams,
        work: impl FnOnce(&Arc<LocalQueue>) -> T,
    ) -> T {
        let make = || Arc::new(LocalQueue::new(Arc::clone(self), params.clone()));
        work(&self.queues.entry(key(params)).or_insert_with(make))
    }

    /// Removes a queue in which nothing is left.
    pub(super) fn discard(&self, queue: &LocalQueue) {
        if queue.is_idle() {
            self.queues
                .remove_if(&key(&queue.params), |_, queue| queue.is_idle());
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }
}

fn key(params: &AcquireParams) -> Key {
    Key {
        name: Arc::clone(&params.keys.name),
        lease: params.terms.lease(),
        turns: params.turns,
    }
}
