//! The calls that wait in the client: for a connection, for the scripts, or for the window.

use std::collections::BTreeMap;

use super::Priority;
use super::in_flight::InFlight;
use crate::time::clock::LocalTime;
use crate::time::deadline_queue::{DeadlineQueue, GivesUp};

/// A call's place in the backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct BacklogKey {
    pub(super) priority: Priority,
    pub(super) entered: u64,
    pub(super) gives_up: GivesUp,
}

pub(super) struct Backlog<C> {
    /// Calls that keep or end a hold, or ask for a place that was lost.
    urgent: BTreeMap<(Priority, u64), C>,
    /// Calls that ask for a lock.
    asks: DeadlineQueue<C>,
}

impl<C> Default for Backlog<C> {
    fn default() -> Backlog<C> {
        Backlog {
            urgent: BTreeMap::new(),
            asks: DeadlineQueue::default(),
        }
    }
}

impl<C> Backlog<C> {
    pub(super) fn insert(&mut self, key: BacklogKey, call: C) {
        match key.priority {
            Priority::Ask => self.asks.push(key.entered, key.gives_up, call),
            urgent => drop(self.urgent.insert((urgent, key.entered), call)),
        }
    }

    pub(super) fn remove(&mut self, key: BacklogKey) -> Option<C> {
        match key.priority {
            Priority::Ask => self.asks.remove(key.entered, key.gives_up),
            urgent => self.urgent.remove(&(urgent, key.entered)),
        }
    }

    /// Removes and returns the next call that can be sent.
    pub(super) fn next(&mut self, now: LocalTime, in_flight: &mut InFlight) -> Option<C> {
        if let Some(first) = self.urgent.first_entry() {
            let can_go = first.key().0 == Priority::Keep || in_flight.has_capacity();
            return can_go.then(|| first.remove());
        }
        if self.asks.is_empty() || !in_flight.has_capacity() {
            return None;
        }
        self.asks.next(now, in_flight.latency())
    }

    /// Removes and returns a call whose caller's bound has passed.
    pub(super) fn expired(&mut self, now: LocalTime) -> Option<C> {
        self.asks.expired(now)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.asks.len()
    }

    pub(super) fn into_calls(self) -> impl Iterator<Item = C> {
        self.urgent.into_values().chain(self.asks.into_items())
    }
}
