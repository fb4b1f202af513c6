//! The gate: which callers of this client may ask for a lock now, and which wait here.
//!
//! As long as most callers of a lock are served, all of them ask, in the order of their arrival. A caller
//! that gives up while it is queued has cost the server a call to queue it and a share of a call to withdraw
//! it. The server may also have handed the lock to it for nothing. When most callers give up, those that
//! leave before their turn is expected do not ask. They wait here, and giving up here costs the server
//! nothing. One caller of this client always asks.
//!
//! The turn of a caller is expected after those that ask already, at the pace of the last grants to this
//! client. Turns vary: their standard deviation is taken to be as long as their mean, so `n` of them are
//! expected to last for `n + √n` mean turns. A turn that has lasted for longer than the mean is expected to
//! last as long again. Whenever a caller that asked has left, the first of those that wait here and can be
//! served in time has its place. So the queue at the server is as long as the callers are patient.
//!
//! A caller leaves at its bound. Nobody knows of one without a bound whether its future will be dropped. Once
//! some have been, it is expected to be dropped as they were. If it is still there after that time, it is
//! patient, and asks.
//!
//! A caller that waited here brings a ticket by its arrival, so it keeps its place among all clients. In a
//! quorum, the gate is before the ballot. A caller that was queued at one server, and waited here for
//! another, would block both.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::caller::place::Place;
use crate::caller::place::held::Held;
use crate::engine::acquire::{AcquireParams, Arrival};
use crate::engine::options::{IDLE_LIMIT, MAX_IDLE_WAITLISTS};
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::types::error::{Error, Result};

/// A lock becomes overloaded when more than this share of the last waits ended by giving up. It stays
/// overloaded until the share is below `SERVED`.
const OVERLOADED: f64 = 0.5;
const SERVED: f64 = 0.25;
/// A mean is that of so many of the last waits, grants or dropped callers.
const LAST: f64 = 32.0;
/// A caller without a bound is patient once it has waited for so many times as long as others did.
const PATIENT: f64 = 1.25;

#[derive(Debug)]
pub(crate) struct Gate {
    place: Place,
    /// The locks on which a caller has given up lately, by channel.
    locks: DashMap<Arc<str>, Arc<Callers>>,
    /// How many locks there may be before idle ones are forgotten. 0 if there was none yet, so that clients
    /// without any do not look.
    most: AtomicUsize,
}

/// The callers of one lock.
#[derive(Debug)]
struct Callers(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The callers that ask and have a bound, by that. Those that asked before a first one gave up are not
    /// here.
    asking: BTreeSet<Key>,
    /// How many callers without a bound ask.
    unbounded: usize,
    /// Those that wait here, by the time at which they are expected to leave.
    waiting: BTreeMap<Key, Waiting>,
    arrivals: u64,
    /// The share of recent waits that ended by giving up, from 0 to 1.
    given_up: f64,
    is_overloaded: bool,
    /// The mean time between two grants while somebody asked, in seconds. 0 before the first grant.
    turn: f64,
    /// The mean time after which callers were dropped, in seconds, if any were.
    dropped_after: Option<f64>,
    /// Since when the callers wait for the next grant.
    since: Instant,
    /// When the last caller left. Has no meaning while there are callers.
    idle_since: Instant,
}

/// A time, and the number of a caller, which is the order of their arrival.
type Key = (Instant, u64);

#[derive(Debug)]
struct Waiting {
    until: Option<Instant>,
    admit: oneshot::Sender<Result<Admission>>,
}

impl Gate {
    pub(crate) fn new(place: Place) -> Gate {
        Gate {
            place,
            locks: DashMap::new(),
            most: AtomicUsize::new(0),
        }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Waits for the lock, until `until` if there is a bound: here, if the caller is expected to leave before
    /// its turn, and then in the queues of the servers.
    pub(crate) async fn acquire(&self, params: &AcquireParams, until: Option<Instant>) -> Result<Held> {
        let mut arrival = self.place.arrival();
        if params.owner.is_some() {
            // The owner may already hold the lock. Its request must not wait then.
            return self.place.acquire(params, arrival, until).await;
        }
        let callers = self.callers(&params.channel);
        let admission = match callers.map(|callers| callers.enter(until)) {
            None => None,
            Some(Ok(admission)) => Some(admission),
            Some(Err(application)) => {
                // The order of arrival counts, also for those that ask later.
                arrival = self.place.keep_order(params, arrival);
                // On the heap, so that those that do not wait here do not carry it along.
                Some(Box::pin(self.admitted(application, params, arrival, until)).await?)
            }
        };
        let mut asking = Asking {
            gate: self,
            channel: &params.channel,
            began: arrival.at,
            until,
            admission,
            end: WaitEnd::GivenUp,
        };
        let acquired = self.place.acquire(params, arrival, until).await;
        asking.end = match &acquired {
            Ok(_) => WaitEnd::Granted,
            Err(Error::Timeout { .. }) => WaitEnd::GivenUp,
            Err(_) => WaitEnd::Failed,
        };
        acquired
    }

    /// Waits for a place among those that ask.
    async fn admitted(
        &self,
        mut application: Application,
        params: &AcquireParams,
        arrival: Arrival,
        until: Option<Instant>,
    ) -> Result<Admission> {
        let admitted = tokio::select! {
            biased;
            admitted = application.admitted() => admitted,
            () = self.place.bound(params, arrival.at, until) => None,
        };
        admitted.unwrap_or_else(|| Err(self.place.timed_out(params, arrival.at)))
    }

    /// The callers of a lock on which one has given up.
    fn callers(&self, channel: &Arc<str>) -> Option<Arc<Callers>> {
        if self.most.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.locks.get(channel).map(|callers| Arc::clone(&callers))
    }

    /// The same, once another one has given up that had waited for so long.
    fn callers_with(&self, channel: &Arc<str>, waited: Duration) -> Arc<Callers> {
        let most = self.most.fetch_max(MAX_IDLE_WAITLISTS, Ordering::Relaxed);
        if self.locks.len() >= most.max(MAX_IDLE_WAITLISTS) {
            self.locks.retain(|_, callers| !locked(&callers.0).is_idle());
            // As many locks as are left now fit before the next scan.
            let most = MAX_IDLE_WAITLISTS.max(2 * self.locks.len());
            self.most.store(most, Ordering::Relaxed);
        }
        let make = || Arc::new(Callers(Mutex::new(State::new(waited))));
        Arc::clone(&self.locks.entry(Arc::clone(channel)).or_insert_with(make))
    }

    /// Sends an error to all that wait here.
    pub(crate) fn refuse_all(&self, error: &Error) {
        let all: Vec<_> = self.locks.iter().map(|callers| Arc::clone(&callers)).collect();
        for callers in all {
            let waiting = std::mem::take(&mut locked(&callers.0).waiting);
            for waiting in waiting.into_values() {
                // A receiver that is gone does not need the error.
                let _ = waiting.admit.send(Err(error.clone()));
            }
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
    /// A caller comes. It may ask, or waits here.
    fn enter(self: &Arc<Self>, until: Option<Instant>) -> std::result::Result<Admission, Application> {
        let entered = self.change(|state, now| state.enter(until, now));
        let callers = Arc::clone(self);
        match entered {
            Ok(asks) => Ok(Admission { callers, asks }),
            Err((key, admitted)) => Err(Application {
                callers,
                key,
                until,
                began: Instant::now(),
                admitted,
            }),
        }
    }

    /// Changes the state, and admits those that have a place then.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = locked(&self.0);
        let (now, mut next) = (Instant::now(), Vec::new());
        let changed = change(&mut state, now);
        state.idle_since = now;
        while let Some(one) = state.next(now) {
            next.push(one);
        }
        drop(state);
        for (asks, admit) in next {
            let callers = Arc::clone(self);
            // If the receiver is gone, the place comes back, and is dropped.
            drop(admit.send(Ok(Admission { callers, asks })));
        }
        changed
    }
}

impl State {
    /// Nobody has been granted the lock for so long, although a caller waited.
    fn new(waited: Duration) -> State {
        let now = Instant::now();
        State {
            asking: BTreeSet::new(),
            unbounded: 0,
            waiting: BTreeMap::new(),
            arrivals: 0,
            given_up: 0.0,
            is_overloaded: false,
            turn: 0.0,
            dropped_after: None,
            since: now.checked_sub(waited).unwrap_or(now),
            idle_since: now,
        }
    }

    fn is_idle(&self) -> bool {
        self.asking.is_empty() && self.unbounded == 0 && self.waiting.is_empty()
    }

    /// A caller comes, and asks or waits here.
    fn enter(
        &mut self,
        until: Option<Instant>,
        now: Instant,
    ) -> std::result::Result<Option<Key>, (Key, oneshot::Receiver<Result<Admission>>)> {
        if self.is_idle() {
            let idle = now.saturating_duration_since(self.idle_since);
            if idle > IDLE_LIMIT {
                // The earlier callers say nothing of those that come.
                (self.given_up, self.is_overloaded) = (0.0, false);
                (self.turn, self.dropped_after, self.since) = (0.0, None, now);
            } else {
                self.since += idle;
            }
        }
        self.drop_late(now);
        self.arrivals += 1;
        let number = self.arrivals;
        let dropped = self
            .dropped_after
            .map(|after| now + Duration::from_secs_f64(PATIENT * after));
        match dropped.into_iter().chain(until).min() {
            Some(leaves) if leaves < self.next_turn(now) && self.ahead() > 0 => {
                let (admit, admitted) = oneshot::channel();
                self.waiting.insert((leaves, number), Waiting { until, admit });
                Err(((leaves, number), admitted))
            }
            _ => Ok(self.ask(until, number)),
        }
    }

    /// This caller asks from now on.
    fn ask(&mut self, until: Option<Instant>, number: u64) -> Option<Key> {
        let key = until.map(|until| (until, number));
        match key {
            Some(key) => drop(self.asking.insert(key)),
            None => self.unbounded += 1,
        }
        key
    }

    /// A caller whose bound has passed takes no place, though it stays until its future is polled.
    fn drop_late(&mut self, now: Instant) {
        while self.asking.first().is_some_and(|(until, _)| *until <= now) {
            self.asking.pop_first();
        }
    }

    /// How many callers ask.
    fn ahead(&self) -> usize {
        self.asking.len() + self.unbounded
    }

    /// By when the next caller that asks is expected to have its turn. Anybody may ask for it at once while
    /// most are served.
    fn next_turn(&self, now: Instant) -> Instant {
        if !self.is_overloaded {
            return now;
        }
        let turn = Duration::from_secs_f64(self.turn);
        let late = now.saturating_duration_since(self.since).saturating_sub(turn);
        // Those ahead, and the one that has its turn.
        let turns = (self.ahead() + 1) as f64;
        now + late + turn.mul_f64(turns + turns.sqrt())
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

    /// One of those that asked has the lock.
    fn granted(&mut self, now: Instant) {
        self.ended(false);
        let took = now.saturating_duration_since(self.since).as_secs_f64();
        self.turn += (took - self.turn) / LAST;
        self.since = now;
    }

    /// A caller has given up that had waited for so long, at its bound or earlier.
    fn left(&mut self, until: Option<Instant>, after: Duration, now: Instant) {
        self.ended(true);
        if until.is_some_and(|until| until <= now) {
            return;
        }
        let after = after.as_secs_f64();
        let mean = self.dropped_after.get_or_insert(after);
        *mean += (after - *mean) / LAST;
    }

    /// Takes out the next one that waits and has a place now.
    fn next(&mut self, now: Instant) -> Option<(Option<Key>, oneshot::Sender<Result<Admission>>)> {
        self.drop_late(now);
        let in_time = self.waiting.range((self.next_turn(now), 0)..).next();
        let key = match in_time {
            Some((key, _)) => *key,
            // Nobody is expected to be served in time, but one asks. The last one has the best chance.
            None if self.ahead() == 0 => *self.waiting.range((now, u64::MAX)..).next_back()?.0,
            None => return None,
        };
        let Waiting { until, admit } = self.waiting.remove(&key)?;
        Some((self.ask(until, key.1), admit))
    }
}

/// A place among those that ask. Dropping it gives it to the next one.
#[derive(Debug)]
struct Admission {
    callers: Arc<Callers>,
    asks: Option<Key>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.callers.change(|state, _| match &self.asks {
            Some(key) => drop(state.asking.remove(key)),
            None => state.unbounded -= 1,
        });
    }
}

/// A caller that waits here. If it is dropped, it has given up, and leaves. If it is admitted meanwhile, the
/// message is dropped too, and with it the admission.
struct Application {
    callers: Arc<Callers>,
    key: Key,
    until: Option<Instant>,
    began: Instant,
    admitted: oneshot::Receiver<Result<Admission>>,
}

impl Application {
    /// Waits until this caller has a place, or asks since it has waited for longer than those that leave.
    async fn admitted(&mut self) -> Option<Result<Admission>> {
        let leaves = self.key.0;
        if self.until.is_none_or(|until| leaves < until) {
            tokio::select! {
                biased;
                admitted = &mut self.admitted => return admitted.ok(),
                () = sleep_until(leaves) => {}
            }
            let asks = self.callers.change(|state, _| {
                let waiting = state.waiting.remove(&self.key)?;
                Some(state.ask(waiting.until, self.key.1))
            });
            if let Some(asks) = asks {
                let callers = Arc::clone(&self.callers);
                return Some(Ok(Admission { callers, asks }));
            }
        }
        (&mut self.admitted).await.ok()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.callers.change(|state, now| {
            if state.waiting.remove(&self.key).is_some() {
                state.left(self.until, now - self.began, now);
            }
        });
    }
}

/// A caller that asks.
struct Asking<'a> {
    gate: &'a Gate,
    channel: &'a Arc<str>,
    began: LocalTime,
    until: Option<Instant>,
    admission: Option<Admission>,
    end: WaitEnd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitEnd {
    Granted,
    GivenUp,
    /// For a reason that says nothing of the load.
    Failed,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let waited = || self.gate.place.client().now().since(self.began);
        let callers = match (&self.admission, self.end) {
            (_, WaitEnd::Failed) => return,
            (Some(admission), _) => Some(Arc::clone(&admission.callers)),
            (None, WaitEnd::GivenUp) => Some(self.gate.callers_with(self.channel, waited())),
            (None, WaitEnd::Granted) => self.gate.callers(self.channel),
        };
        let Some(callers) = callers else { return };
        // Its place is given back after that.
        let (mut state, now) = (locked(&callers.0), Instant::now());
        match self.end {
            WaitEnd::Granted => state.granted(now),
            _ => state.left(self.until, waited(), now),
        }
    }
}
