//! The local queues of all locks.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;

use super::source::Source;
use super::turn::Turn;
use super::{LocalQueue, Place};
use crate::engine::acquire::{AcquireParams, Tried};
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

/// The local queues of one source of tenures.
#[derive(Debug)]
pub(crate) struct LocalQueues<S: Source>(pub(super) DashMap<Key, Arc<LocalQueue<S>>>);

impl<S: Source> Default for LocalQueues<S> {
    fn default() -> LocalQueues<S> {
        LocalQueues(DashMap::new())
    }
}

impl<S: Source> LocalQueues<S> {
    /// Why a try need not ask the servers.
    pub(super) fn busy<T>(&self, params: &AcquireParams) -> Option<Tried<T>> {
        self.0.get(&key(params))?.busy()
    }

    /// Removes a queue in which nothing is left.
    pub(super) fn discard(&self, queue: &LocalQueue<S>) {
        if queue.is_idle() {
            self.0.remove_if(&key(&queue.params), |_, queue| queue.is_idle());
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Enters the local queue of a lock, and creates it if needed.
pub(super) fn enter<S: Source>(source: &Arc<S>, params: &AcquireParams) -> Place<S> {
    let (place, ask) = with(source, params, LocalQueue::join);
    if let Some(ask) = ask {
        source.client().spawn(ask.run());
    }
    place
}

/// The first turn of a tenure that did not come through the queue.
pub(super) fn first_turn<S: Source>(source: &Arc<S>, params: &AcquireParams, held: S::Tenure) -> Turn<S> {
    with(source, params, |queue| {
        queue.first_turn(&mut locked(&queue.state), held)
    })
}

/// Runs `work` before the queue can be discarded.
pub(super) fn with<S: Source, T>(
    source: &Arc<S>,
    params: &AcquireParams,
    work: impl FnOnce(&Arc<LocalQueue<S>>) -> T,
) -> T {
    let make = || Arc::new(LocalQueue::new(Arc::clone(source), params.clone()));
    work(&source.local_queues().0.entry(key(params)).or_insert_with(make))
}

fn key(params: &AcquireParams) -> Key {
    Key {
        name: Arc::clone(&params.keys.name),
        lease: params.terms.lease(),
        turns: params.turns,
    }
}
