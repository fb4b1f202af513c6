//! The gate: which callers of this client may ask for a lock now, and which wait here.
//!
//! As long as most callers of a lock are served, all of them ask, in the order of their arrival. A caller
//! that gives up while it asks has cost the server a call to queue it and a share of a call to withdraw it.
//! The server may also have handed the lock to it for nothing. When most callers give up, more is asked for
//! than can be served. Then at most [`PLACES`] callers ask at a time, so that each of them is served soon. A
//! caller that gives up here costs the server nothing. Of a semaphore, each place is for its whole capacity:
//! as many callers ask as take that many permits together.
//!
//! Nobody knows how long a caller goes on waiting. First come, first served would serve those who are about
//! to leave, and last come, first served would never serve the others. So each fourth place goes to the
//! caller that has waited longest, and the other three to the newest one. A caller whose bound is over gets
//! none. (Maurer, "Fail at Scale", 2015, reverses the queue for the same reason.)
//!
//! A caller that waited here brings a ticket by its arrival, so it keeps its place among all clients. In a
//! quorum, the gate is before the ballot. A caller that was queued at one server, and waited here for
//! another, would block both.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dashmap::DashMap;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::engine::acquire::{AcquireParams, Arrival};
use crate::error::{Error, Result};
use crate::options::{MAX_WAITLISTS_KEPT, WAITLIST_KEPT};
use crate::permits::Permits;
use crate::place::Place;
use crate::place::held::Held;
use crate::sync::locked;

/// A lock becomes overloaded when more than this share of the last `LAST` waits ended by giving up. It stays
/// overloaded until the share is below `SERVED`.
const OVERLOADED: f64 = 0.5;
const SERVED: f64 = 0.25;
const LAST: f64 = 32.0;
/// This many callers of one client keep a lock busy: the one that is handed the lock, the next one, and
/// another in case that one gives up.
const PLACES: u8 = 3;
/// The share of the places that is left after a caller that asked has given up.
const LEFT: f64 = 0.75;
/// One of four places goes to the caller that has waited longest.
const OLDEST: u64 = 4;

#[derive(Debug)]
pub(crate) struct Gate {
    place: Place,
    /// The locks on which a caller has given up lately, by channel.
    locks: DashMap<Arc<str>, Arc<Callers>>,
    /// Whether there ever was one, so that clients without any do not look.
    is_used: AtomicBool,
}

/// The callers of one lock.
#[derive(Debug)]
struct Callers(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When the callers that ask give up, as far as it is known, and how many permits they take, by number.
    /// Those that asked before a first one gave up are not here.
    asking: BTreeMap<u64, (Option<Instant>, u32)>,
    /// Those that wait here, by number, which is the order of their arrival.
    waiting: BTreeMap<u64, Waiting>,
    arrivals: u64,
    /// How many permits there are for the caller that came last. 1 for a lock.
    capacity: u32,
    /// How many of those that waited here had a place since.
    admissions: u64,
    /// The share of recent waits that ended by giving up, from 0 to 1.
    given_up: f64,
    is_overloaded: bool,
    /// How many may ask while the lock is overloaded. Where a turn takes long, compared with the patience of
    /// the callers, fewer than [`PLACES`] are served in time. Their number is found as TCP finds the
    /// capacity of a path: of n places each grant adds 1/n, and each caller that gives up while it asks takes
    /// a quarter (Chiu and Jain, 1989).
    places: f64,
    /// When the last caller left. Has no meaning while there are callers.
    idle_since: Instant,
}

#[derive(Debug)]
struct Waiting {
    until: Option<Instant>,
    weight: u32,
    /// Dropped without a message once the bound of the caller is over.
    admit: oneshot::Sender<Result<Slot>>,
}

impl Gate {
    pub(crate) fn new(place: Place) -> Gate {
        Gate {
            place,
            locks: DashMap::new(),
            is_used: AtomicBool::new(false),
        }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Waits for the lock, until `until` if there is a bound: here, if it is overloaded, and then in the
    /// queues of the servers.
    pub(crate) async fn acquire(&self, params: &AcquireParams, until: Option<Instant>) -> Result<Held> {
        let mut arrival = self.place.arrival();
        if params.owner.is_some() {
            // The owner may already hold the lock. Its request must not wait then.
            return self.place.acquire(params, arrival, until).await;
        }
        let permits = params.permits.unwrap_or(Permits::OF_A_LOCK);
        let slot = match self.enter(&params.channel, permits, until) {
            Entered::Open(slot) => slot,
            Entered::Closed(application) => {
                // The order of arrival counts, also for those that ask later.
                arrival = self.place.keep_order(params, arrival);
                // On the heap, so that those that do not wait here do not carry it along.
                Some(Box::pin(self.admitted(application, params, arrival, until)).await?)
            }
        };
        let mut asking = Asking {
            gate: self,
            channel: &params.channel,
            slot,
            share: permits.share(),
            end: End::GivenUp,
        };
        let acquired = self.place.acquire(params, arrival, until).await;
        match &acquired {
            Ok(_) => asking.end = End::Granted,
            Err(Error::Timeout { .. }) => {}
            Err(error) => {
                asking.end = End::Failed;
                asking.refuse_others(error);
            }
        }
        acquired
    }

    /// Waits for a place among those that ask.
    async fn admitted(
        &self,
        mut application: Application,
        params: &AcquireParams,
        arrival: Arrival,
        until: Option<Instant>,
    ) -> Result<Slot> {
        let admitted = tokio::select! {
            biased;
            admitted = &mut application.admitted => admitted.ok(),
            () = self.place.bound(params, arrival.at, until) => None,
        };
        admitted.unwrap_or_else(|| Err(self.place.timed_out(params, arrival.at)))
    }

    fn enter(&self, channel: &Arc<str>, permits: Permits, until: Option<Instant>) -> Entered {
        let Some(callers) = self.callers(channel) else {
            return Entered::Open(None);
        };
        let mut state = locked(&callers.0);
        state.forget_if_outdated();
        let number = state.arrivals;
        state.arrivals += 1;
        state.capacity = permits.capacity;
        let weight = permits.weight;
        if state.waiting.is_empty() && state.has_place(Instant::now()) {
            state.asking.insert(number, (until, weight));
            drop(state);
            return Entered::Open(Some(Slot { callers, number }));
        }
        let (admit, admitted) = oneshot::channel();
        state.waiting.insert(number, Waiting { until, weight, admit });
        drop(state);
        Entered::Closed(Application {
            callers,
            number,
            admitted,
        })
    }

    /// The callers of a lock on which one has given up.
    fn callers(&self, channel: &Arc<str>) -> Option<Arc<Callers>> {
        if !self.is_used.load(Ordering::Relaxed) {
            return None;
        }
        self.locks.get(channel).map(|callers| Arc::clone(&callers))
    }

    /// The same, once another one has given up.
    fn callers_with(&self, channel: &Arc<str>) -> Arc<Callers> {
        self.is_used.store(true, Ordering::Relaxed);
        if self.locks.len() > MAX_WAITLISTS_KEPT {
            self.locks.retain(|_, callers| !locked(&callers.0).is_idle());
        }
        let make = || Arc::new(Callers(Mutex::new(State::new())));
        Arc::clone(&self.locks.entry(Arc::clone(channel)).or_insert_with(make))
    }

    /// Sends an error to all that wait here.
    pub(crate) fn refuse_all(&self, error: &Error) {
        let all: Vec<_> = self.locks.iter().map(|callers| Arc::clone(&callers)).collect();
        for callers in all {
            callers.refuse(error);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.locks.iter().all(|callers| locked(&callers.0).is_idle())
    }
}

impl Callers {
    /// Changes the state, and admits those that have a place then.
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut State)) {
        let mut state = locked(&self.0);
        change(&mut state);
        let (now, mut next) = (Instant::now(), Vec::new());
        state.idle_since = now;
        while let Some(one) = state.next(now) {
            next.push(one);
        }
        drop(state);
        for (number, waiting, is_in_time) in next {
            if is_in_time {
                let callers = Arc::clone(self);
                // If the receiver is gone, the place comes back, and is dropped.
                drop(waiting.admit.send(Ok(Slot { callers, number })));
            }
        }
    }

    /// Sends an error to all that wait here.
    fn refuse(&self, error: &Error) {
        let waiting = std::mem::take(&mut locked(&self.0).waiting);
        for waiting in waiting.into_values() {
            // A receiver that is gone does not need the error.
            let _ = waiting.admit.send(Err(error.clone()));
        }
    }
}

impl State {
    fn new() -> State {
        State {
            asking: BTreeMap::new(),
            waiting: BTreeMap::new(),
            arrivals: 0,
            capacity: 1,
            admissions: 0,
            given_up: 0.0,
            is_overloaded: false,
            places: f64::from(PLACES),
            idle_since: Instant::now(),
        }
    }

    fn is_idle(&self) -> bool {
        self.asking.is_empty() && self.waiting.is_empty()
    }

    /// Once nobody has waited for long, the earlier callers say nothing of those that come.
    fn forget_if_outdated(&mut self) {
        if self.is_idle() && self.idle_since.elapsed() > WAITLIST_KEPT {
            // The numbers go on: an earlier caller that was told may not have left yet.
            (self.given_up, self.is_overloaded) = (0.0, false);
        }
    }

    /// A caller whose bound is over takes no place, though it stays until its future is polled.
    fn has_place(&self, now: Instant) -> bool {
        if !self.is_overloaded {
            return true;
        }
        let most = self.places.floor() * f64::from(self.capacity);
        let mut asked = 0.0;
        let in_time = |(until, _): &&(Option<Instant>, u32)| until.is_none_or(|until| now < until);
        // Once they are too many, the rest need not be looked at.
        !self.asking.values().filter(in_time).any(|(_, weight)| {
            asked += f64::from(*weight);
            asked >= most
        })
    }

    /// A wait has ended.
    fn ended(&mut self, given_up: bool) {
        self.given_up += (f64::from(given_up) - self.given_up) / LAST;
        if self.given_up > OVERLOADED {
            self.is_overloaded = true;
        } else if self.given_up < SERVED {
            self.is_overloaded = false;
        }
    }

    /// The wait of a caller that asked for this share of the lock has ended.
    fn asked(&mut self, share: f64, given_up: bool) {
        self.places = match given_up {
            true => (LEFT.powf(share) * self.places).max(1.0),
            false => (self.places + share / self.places).min(f64::from(PLACES)),
        };
        self.ended(given_up);
    }

    /// Takes out the next one that waits, and says whether it has a place, or comes too late.
    fn next(&mut self, now: Instant) -> Option<(u64, Waiting, bool)> {
        if !self.has_place(now) {
            return None;
        }
        let is_oldest = !self.is_overloaded || self.admissions % OLDEST == OLDEST - 1;
        let (number, waiting) = match is_oldest {
            true => self.waiting.pop_first()?,
            false => self.waiting.pop_last()?,
        };
        let is_in_time = waiting.until.is_none_or(|until| now < until);
        if is_in_time {
            self.admissions += 1;
            self.asking.insert(number, (waiting.until, waiting.weight));
        } else {
            self.ended(true);
        }
        Some((number, waiting, is_in_time))
    }
}

/// What a caller finds at its arrival.
enum Entered {
    /// It may ask. It has no slot if nobody has given up before.
    Open(Option<Slot>),
    Closed(Application),
}

/// A place among those that ask. Dropping it gives it to the next one.
#[derive(Debug)]
struct Slot {
    callers: Arc<Callers>,
    number: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.callers.change(|state| {
            state.asking.remove(&self.number);
        });
    }
}

/// A caller that waits here. If it is dropped, it has given up, and leaves. If it is admitted meanwhile, the
/// message is dropped too, and with it the slot.
struct Application {
    callers: Arc<Callers>,
    number: u64,
    admitted: oneshot::Receiver<Result<Slot>>,
}

impl Drop for Application {
    fn drop(&mut self) {
        self.callers.change(|state| {
            if state.waiting.remove(&self.number).is_some() {
                state.ended(true);
            }
        });
    }
}

/// A caller that asks.
struct Asking<'a> {
    gate: &'a Gate,
    channel: &'a Arc<str>,
    slot: Option<Slot>,
    share: f64,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Granted,
    GivenUp,
    /// For a reason that says nothing of the load.
    Failed,
}

impl Asking<'_> {
    /// Those that wait would fail in the same way.
    fn refuse_others(&self, error: &Error) {
        let of_this_grant = matches!(error, Error::NotReplicated { .. });
        if let Some(Slot { callers, .. }) = self.slot.as_ref().filter(|_| !of_this_grant) {
            callers.refuse(error);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let callers = match (&self.slot, self.end) {
            (_, End::Failed) => return,
            (Some(slot), _) => Some(Arc::clone(&slot.callers)),
            (None, End::GivenUp) => Some(self.gate.callers_with(self.channel)),
            (None, End::Granted) => self.gate.callers(self.channel),
        };
        let Some(callers) = callers else { return };
        // Its place is given back after that, so that it counts for who has it next.
        locked(&callers.0).asked(self.share, self.end == End::GivenUp);
    }
}
