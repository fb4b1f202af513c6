//! Admission: which of a client's waiters for one lock are in the server's queue, and which wait in the
//! client.
//!
//! All are in the server's queue, until one gives up there. That has cost the server a call to queue it and a
//! share of one to withdraw it, and may have the lock handed over for nothing. From then on no more are
//! admitted than are granted the lock before they give up; who gives up in the client costs nothing. How many
//! that is, is found as TCP finds how much a path carries: one more for as many grants as there are places, a
//! quarter less for each that gave up (additive increase, multiplicative decrease: Chiu and Jain, 1989). One
//! is enough to keep a lock busy: as it is granted the lock, the next one is admitted, whose call is sent
//! before the release.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::admission_queue::{AdmissionQueue, GivesUp};
use crate::clock::Tick;
use crate::estimate::Estimate;

/// What is left of the places after one has given up.
const LEFT: f64 = 0.75;

#[derive(Debug)]
pub(crate) struct Admission<T> {
    places: f64,
    arrivals: u64,
    queue: AdmissionQueue<T>,
    /// How long it takes from the admission to the grant.
    service: Estimate,
    /// How long calls without a bound waited that were given up.
    patience: Estimate,
}

/// By which one is found that waits to be admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    number: u64,
    gives_up: GivesUp,
}

impl<T> Default for Admission<T> {
    fn default() -> Admission<T> {
        Admission {
            places: f64::INFINITY,
            arrivals: 0,
            queue: AdmissionQueue::default(),
            service: Estimate::default(),
            patience: Estimate::default(),
        }
    }
}

impl<T> Admission<T> {
    /// Whether a newcomer is admitted at once, beside so many waiters.
    pub(crate) fn is_open(&self, waiters: usize) -> bool {
        self.queue.is_empty() && self.has_place(waiters)
    }

    /// Has a newcomer wait.
    pub(crate) fn wait(&mut self, gives_up: GivesUp, item: T) -> Place {
        let number = self.arrivals;
        self.arrivals += 1;
        self.queue.push(number, gives_up, item);
        Place { number, gives_up }
    }

    /// Takes one out that gives up; `None` if it was admitted.
    pub(crate) fn remove(&mut self, place: Place) -> Option<T> {
        self.queue.remove(place.number, place.gives_up)
    }

    /// When a call gives up that came then, if it set no bound: as others did.
    pub(crate) fn gives_up(&self, arrived: Tick, until: Option<Tick>) -> GivesUp {
        match (until, self.patience.range()) {
            (Some(until), _) => GivesUp::At(until),
            (None, Some((least, most))) => {
                // Whoever is just about to give up, as others did, is not taken for one that waits on.
                let latest = arrived.after(most.max(least + least / 2));
                GivesUp::Between(arrived.after(least), latest)
            }
            (None, None) => GivesUp::Unknown,
        }
    }

    /// Admits the next one, if there is a place beside so many waiters.
    pub(crate) fn next(&mut self, now: Tick, waiters: usize) -> Option<T> {
        self.has_place(waiters)
            .then(|| self.queue.next(now, self.service.at_most()))
            .flatten()
    }

    /// One of the waiters was granted the lock, so long after it was admitted.
    pub(crate) fn granted(&mut self, service: Duration) {
        self.service.record(service);
        self.places += 1.0 / self.places;
    }

    /// One of the waiters has given up; how many they were with it.
    pub(crate) fn gave_up(&mut self, waiters: usize) {
        self.places = (LEFT * self.places.min(waiters as f64)).max(1.0);
    }

    /// A call without a bound was given up after so long.
    pub(crate) fn lost_patience(&mut self, waited: Duration) {
        self.patience.record(waited);
    }

    /// Takes out all that wait.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.queue).into_items()
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn has_place(&self, waiters: usize) -> bool {
        (waiters as f64) < self.places.floor()
    }
}
