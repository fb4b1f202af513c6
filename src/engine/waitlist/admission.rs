//! Admission: which of a client's callers are in the server's queue for a lock, and which wait in the client.
//!
//! As long as most callers are served, all of them are in the server's queue, in the order of their arrival.
//! A request that gives up there has cost the server a call to queue it and a share of a call to withdraw it.
//! The server may also have handed the lock to it for nothing. When most requests give up, the load is more
//! than can be served. Then only as many are admitted as keep the lock busy, so that each of them is served
//! soon. A caller that gives up in the client costs the server nothing. A caller that will give up before it
//! can be served is skipped. When a waiter is granted the lock, the next applicant is admitted, and its call
//! is sent before the release.
//!
//! Three requests keep a lock busy, or fewer if its holds are long compared with the patience of the callers.
//! The number that can be served in time is found as TCP finds the capacity of a path. Of n places, each
//! grant adds 1/n, and each request that gives up takes a quarter (additive increase, multiplicative
//! decrease: Chiu and Jain, 1989).

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::time::clock::LocalTime;
use crate::time::deadline_queue::{DeadlineQueue, GivesUp};
use crate::time::estimate::Estimate;

/// A lock becomes overloaded when more than this share of the last `LAST` waits ended by giving up. It stays
/// overloaded until the share is below `SERVED`.
const OVERLOADED: f64 = 0.5;
const SERVED: f64 = 0.25;
const LAST: f64 = 32.0;
/// This many requests of one client keep a lock busy: the one that is handed the lock, the next one, and
/// another in case that one gives up.
const ENOUGH: f64 = 3.0;
/// The share of the places that is left after a request has given up.
const LEFT: f64 = 0.75;

#[derive(Debug)]
pub(crate) struct Admission<T> {
    arrivals: u64,
    queue: DeadlineQueue<T>,
    /// How long a request takes from its admission to its grant.
    time_to_grant: Estimate,
    /// How long callers without a bound waited before they gave up.
    patience: Estimate,
    /// The share of recent waits that ended by giving up, from 0 to 1.
    given_up: f64,
    is_overloaded: bool,
    /// How many requests are admitted while the lock is overloaded.
    places: f64,
    /// The latest time by which any caller was expected to give up. A later caller is not expected to give up
    /// earlier.
    latest: LocalTime,
}

/// Identifies an applicant in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    number: u64,
    gives_up: GivesUp,
}

impl<T> Default for Admission<T> {
    fn default() -> Admission<T> {
        Admission {
            arrivals: 0,
            queue: DeadlineQueue::default(),
            time_to_grant: Estimate::default(),
            patience: Estimate::default(),
            given_up: 0.0,
            is_overloaded: false,
            places: ENOUGH,
            latest: LocalTime::ZERO,
        }
    }
}

impl<T> Admission<T> {
    /// Whether a newcomer is admitted at once, when there are already `waiters`. While there is a place,
    /// [`next`](Self::next) has left only applicants whose bounds are over. They may stay for long, because
    /// an applicant leaves only when its future is polled.
    pub(crate) fn is_open(&self, waiters: usize) -> bool {
        self.queue.were_all_passed_over() && self.has_place(waiters)
    }

    /// Makes a newcomer an applicant.
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

    /// Takes out an applicant that gives up. `None` if it has been admitted.
    pub(crate) fn remove(&mut self, place: Place) -> Option<T> {
        let item = self.queue.remove(place.number, place.gives_up)?;
        self.ended(true);
        Some(item)
    }

    /// When a caller gives up that arrived at `arrived`. While the lock is overloaded, a caller without a
    /// bound is expected to give up as the others did.
    pub(crate) fn gives_up(&self, arrived: LocalTime, until: Option<LocalTime>) -> GivesUp {
        match (until, self.patience.range()) {
            (Some(until), _) => GivesUp::At(until),
            (None, Some((least, most))) if self.is_overloaded => {
                // A caller that is about to give up, as the others did, must not be taken for one that waits
                // longer.
                let latest = arrived.after(most.max(least + least / 2));
                GivesUp::Between(arrived.after(least), latest)
            }
            (None, _) => GivesUp::Unknown,
        }
    }

    /// Admits the next applicant, if there is a place for it beside `waiters`.
    pub(crate) fn next(&mut self, now: LocalTime, waiters: usize) -> Option<T> {
        let time_to_grant = if self.is_overloaded {
            self.time_to_grant.at_most()
        } else {
            Duration::ZERO
        };
        self.has_place(waiters)
            .then(|| self.queue.next(now, time_to_grant))
            .flatten()
    }

    /// A waiter was granted the lock, `time_to_grant` after its admission.
    pub(crate) fn granted(&mut self, time_to_grant: Duration) {
        self.time_to_grant.record(time_to_grant);
        self.places = (self.places + 1.0 / self.places).min(ENOUGH);
        self.ended(false);
    }

    /// A waiter gave up, `waited` after its admission.
    pub(crate) fn gave_up(&mut self, waited: Duration) {
        self.places = (LEFT * self.places).max(1.0);
        // The grant would have taken even longer. Grants alone teach nothing while there are none.
        if waited > self.time_to_grant.at_most() {
            self.time_to_grant.record(waited);
        }
        self.ended(true);
    }

    /// A caller without a bound gave up after `waited`.
    pub(crate) fn lost_patience(&mut self, waited: Duration) {
        self.patience.record(waited);
    }

    /// Takes out all applicants.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.queue).into_items()
    }

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
