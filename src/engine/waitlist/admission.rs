//! Admission: which of a client's waiters for one lock are in the server's queue, and which wait in the
//! client.
//!
//! All are in the server's queue, in the order in which they came, as long as most are served. One that gives up
//! there has cost the server a call to queue it and a share of one to withdraw it, and may have the lock handed
//! over for nothing. When most give up, the load is more than can be served. Then no more are admitted than keep
//! the lock busy, so that each of them is served soon; who gives up in the client costs nothing. A caller that
//! will give up before it can be served is passed over. When a waiter is granted the lock, the next one is
//! admitted, and its call is sent before the release.
//!
//! Three keep a lock busy, or fewer if its holds are long beside the patience of the callers. How many are served
//! in time is found as TCP finds how much a path carries: one more for as many grants as there are places, a
//! quarter less for each that gave up (additive increase, multiplicative decrease: Chiu and Jain, 1989).

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::time::clock::LocalTime;
use crate::time::deadline_queue::{AdmissionQueue, GivesUp};
use crate::time::estimate::Estimate;

/// The share of those who gave up, of the last so many, from which on more is asked than can be served; and
/// below which that is over.
const OVERLOADED: f64 = 0.5;
const SERVED: f64 = 0.25;
const LAST: f64 = 32.0;
/// So many of a client keep a lock busy: the one that is handed the lock, the next one, and another in case that
/// one gives up.
const ENOUGH: f64 = 3.0;
/// What is left of the places after one has given up.
const LEFT: f64 = 0.75;

#[derive(Debug)]
pub(crate) struct Admission<T> {
    arrivals: u64,
    queue: AdmissionQueue<T>,
    /// How long it takes from the admission to the grant.
    shared: Estimate,
    /// How long calls without a bound waited that were given up.
    patience: Estimate,
    /// How many of those whose wait ended lately have given up, of one.
    given_up: f64,
    is_overloaded: bool,
    /// How many are admitted then.
    places: f64,
    /// The latest time by which any caller was expected to give up. A later one is expected to give up no sooner.
    latest: LocalTime,
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
            arrivals: 0,
            queue: AdmissionQueue::default(),
            shared: Estimate::default(),
            patience: Estimate::default(),
            given_up: 0.0,
            is_overloaded: false,
            places: ENOUGH,
            latest: LocalTime::ZERO,
        }
    }
}

impl<T> Admission<T> {
    /// Whether a newcomer is admitted at once, beside so many waiters.
    pub(crate) fn is_open(&self, waiters: usize) -> bool {
        self.queue.is_empty() && self.has_place(waiters)
    }

    /// Has a newcomer wait.
    pub(crate) fn wait(&mut self, mut gives_up: GivesUp, item: T) -> Place {
        let number = self.arrivals;
        self.arrivals += 1;
        if let GivesUp::Between(_, latest) = &mut gives_up {
            self.latest = self.latest.max(*latest);
            *latest = self.latest;
        }
        self.queue.push(number, gives_up, item);
        Place { number, gives_up }
    }

    /// Takes one out that gives up; `None` if it was admitted.
    pub(crate) fn remove(&mut self, place: Place) -> Option<T> {
        let item = self.queue.remove(place.number, place.gives_up)?;
        self.ended(true);
        Some(item)
    }

    /// When a call gives up that came then. One without a bound is expected to as others did, if most do.
    pub(crate) fn gives_up(&self, arrived: LocalTime, until: Option<LocalTime>) -> GivesUp {
        match (until, self.patience.range()) {
            (Some(until), _) => GivesUp::At(until),
            (None, Some((least, most))) if self.is_overloaded => {
                // A caller that is about to give up, as others did, must not be taken for one that waits longer.
                let latest = arrived.after(most.max(least + least / 2));
                GivesUp::Between(arrived.after(least), latest)
            }
            (None, _) => GivesUp::Unknown,
        }
    }

    /// Admits the next one, if there is a place beside so many waiters.
    pub(crate) fn next(&mut self, now: LocalTime, waiters: usize) -> Option<T> {
        let shared = if self.is_overloaded {
            self.shared.at_most()
        } else {
            Duration::ZERO
        };
        self.has_place(waiters)
            .then(|| self.queue.next(now, shared))
            .flatten()
    }

    /// One of the waiters was granted the lock, so long after it was admitted.
    pub(crate) fn granted(&mut self, shared: Duration) {
        self.shared.record(shared);
        self.places = (self.places + 1.0 / self.places).min(ENOUGH);
        self.ended(false);
    }

    /// One of the waiters has given up, so long after it was admitted.
    pub(crate) fn gave_up(&mut self, waited: Duration) {
        self.places = (LEFT * self.places).max(1.0);
        // It would have taken longer still. From grants alone nothing is learnt when there are none.
        if waited > self.shared.at_most() {
            self.shared.record(waited);
        }
        self.ended(true);
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

    fn ended(&mut self, given_up: bool) {
        self.given_up += (f64::from(given_up) - self.given_up) / LAST;
        if self.given_up > OVERLOADED {
            self.is_overloaded = true;
        } else if self.given_up < SERVED {
            self.is_overloaded = false;
        }
    }

    fn has_place(&self, waiters: usize) -> bool {
        !self.is_overloaded || (waiters as f64) < self.places.floor()
    }
}
