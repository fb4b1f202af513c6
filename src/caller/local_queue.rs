//! The local queue: how the waiters of one process for one lock share its tenures.
//!
//! A *tenure* is one hold on the servers in which several *turns* follow one another, one guard after the
//! other. The first waiter in an empty queue has a tenure asked for. All others wait here, without a call.
//! When the tenure has the lock, the first waiter has its turn. While others wait, the next tenure is asked
//! for at once: it takes its place in the servers' queues behind those of other processes. The end of a turn
//! begins the next one, without a wait. The last turn releases the tenure, and the servers hand over.
//!
//! The code that takes a waiter out of the queue sends it a turn or an error. So a waiter that has left the
//! queue is told, and a turn that nobody reads passes on.
//!
//! With [`retain`](crate::Lock::retain), a tenure whose last turn ends while nobody waits stays here, idle,
//! and the next caller begins a turn of it without a call (`retention`).
//!
//! A waiter that gives up leaves without a call. The tenure that is asked for is given up once nobody waits
//! and nobody has a turn. The lease is the tenure's: if it is lost, the guard that has the turn is told, and
//! the others wait for the next tenure.

mod registry;
mod retention;
mod tenure;
#[cfg(test)]
mod tests;
pub(crate) mod turn;
mod turns;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

pub(crate) use self::registry::LocalQueues;
use self::tenure::Asked;
use self::turn::Turn;
use self::turns::Turns;
use crate::caller::place::Place;
use crate::caller::place::held::Held;
use crate::engine::acquire::{AcquireParams, Tried, timed_out};
use crate::engine::client::Client;
use crate::engine::counters::{GuardEnd, How};
use crate::engine::heard::Listening;
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::types::error::{Error, Result};
use crate::types::lease::{Lease, LeaseState};

/// For how long retained turns may follow one another before other tasks run.
const YIELD_EVERY: Duration = Duration::from_millis(1);

/// What a tenure asks for, and how many turns it may serve inside this process.
#[derive(Clone, Debug)]
pub(crate) struct TenureParams {
    pub(crate) hold: AcquireParams,
    pub(crate) turns: u16,
}

impl TenureParams {
    /// Whether its guards have turns of a tenure.
    pub(crate) fn has_turns(&self) -> bool {
        self.turns > 1 || self.hold.retain_ms.is_some()
    }
}

/// The local queue of one lock, for requests with one lease, one number of turns and one retention.
#[derive(Debug)]
pub(crate) struct LocalQueue {
    all: Arc<LocalQueues>,
    tenure: TenureParams,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By number, which is the order in which they came.
    waiters: BTreeMap<u64, oneshot::Sender<Result<Turn>>>,
    /// The tenure that is asked for. There is one whenever there are waiters.
    asked: Option<Asked>,
    /// The tenure whose turn somebody has, or that is idle.
    present: Option<Arc<Turns>>,
    /// The hold of the present tenure while nobody has a turn of it.
    idle: Option<Held>,
    /// When a caller with a retained turn let other tasks run last.
    yielded: LocalTime,
    next_number: u64,
}

impl State {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The lease of the tenure whose turn somebody has, unless it is lost.
    fn present_lease(&self) -> Option<Lease> {
        let lease = self.present.as_ref()?.hold().lease();
        (lease.state != LeaseState::Lost).then_some(lease)
    }

    /// Ends the retention of the present tenure, if it is retained. Returns the tenure if it is idle.
    fn end_retention(&mut self) -> Option<(Held, Arc<Turns>)> {
        let present = self.present.as_ref()?;
        present.end_retention();
        Some((self.idle.take()?, Arc::clone(present)))
    }

    /// Gives up the tenure that is asked for, unless somebody waits for it, or may do so soon.
    fn give_up_unless_wanted(&mut self) -> Option<Asked> {
        let is_wanted = !self.waiters.is_empty() || self.present.is_some();
        self.asked.take_if(|_| !is_wanted)
    }
}

impl LocalQueues {
    /// Waits in the local queue for a turn, until `until` if there is a bound. The call began at `began`.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        tenure: &TenureParams,
        began: LocalTime,
        until: Option<Instant>,
    ) -> Result<Turn> {
        if let Some(turn) = self.retained(tenure).await {
            return Ok(turn);
        }
        if tenure.turns == 1 {
            // Each caller has its own place in the servers' queues.
            let listening = self.place().listen(&tenure.hold);
            // On the heap, so that those that wait here do not carry it along.
            let held = Box::pin(self.gate().acquire(&tenure.hold, until)).await?;
            return Ok(self.first_turn(tenure, held, listening));
        }
        let mut waiting = self.enter(tenure);
        if until.is_none() {
            return waiting.told().await;
        }
        tokio::select! {
            biased;
            turn = waiting.told() => return turn,
            () = self.place().bound(&tenure.hold, began, until) => {}
        }
        let timed_out = waiting.queue.timed_out(began);
        if !waiting.queue.leave(waiting.number) {
            // The turn came at the same moment as the bound. The turn counts.
            return waiting.told().await;
        }
        Err(timed_out)
    }

    /// Takes the lock if it is free, and if nobody waits for it here or on the servers.
    pub(crate) async fn try_acquire(self: &Arc<Self>, tenure: TenureParams) -> Result<Tried<Turn>> {
        if let Some(turn) = self.retained(&tenure).await {
            return Ok(Tried::Held(turn));
        }
        if let Some(busy) = self.busy(&tenure) {
            return Ok(busy);
        }
        let listening = self.place().listen(&tenure.hold);
        let tried = self.place().try_acquire(tenure.hold.clone()).await?;
        Ok(tried.map(|held| self.first_turn(&tenure, held, listening)))
    }
}

impl LocalQueue {
    fn new(all: &Arc<LocalQueues>, tenure: &TenureParams) -> LocalQueue {
        LocalQueue {
            all: Arc::clone(all),
            tenure: tenure.clone(),
            state: Mutex::default(),
        }
    }

    fn place(&self) -> &Place {
        self.all.place()
    }

    fn client(&self) -> &Arc<Client> {
        self.place().client()
    }

    /// Adds a waiter. If no tenure is asked for, the caller must ask for the one that is returned.
    fn join(self: &Arc<Self>) -> (Waiting, Option<tenure::TenureTask>) {
        let (sender, turn) = oneshot::channel();
        let mut state = locked(&self.state);
        let number = state.number();
        state.waiters.insert(number, sender);
        // A tenure that somebody waits for is retained no longer.
        let idle = state.end_retention();
        let ask = state.asked.is_none().then(|| {
            let (asked, ask) = tenure::of(state.number(), self);
            state.asked = Some(asked);
            ask
        });
        drop(state);
        self.give_back(idle);
        let queue = Arc::clone(self);
        let waiting = Waiting {
            queue,
            number,
            turn,
            is_told: false,
        };
        (waiting, ask)
    }

    /// Takes a waiter out of the queue. Returns `false` if it had left before: then it is told of a turn or
    /// of an error.
    fn leave(&self, number: u64) -> bool {
        let mut state = locked(&self.state);
        let is_left = state.waiters.remove(&number).is_some();
        let given_up = state.give_up_unless_wanted();
        drop(state);
        drop(given_up);
        is_left
    }

    /// The turns of a tenure that begins now. The replicas that must have its grant have it by now.
    fn turns_of(self: &Arc<Self>, held: &Held, listening: Option<Listening>) -> Arc<Turns> {
        let turns = Turns::begin(held, self.tenure.turns, self.client().now());
        match listening.zip(self.tenure.hold.retain_ms) {
            Some((listening, retain_ms)) if held.is_alone() => {
                retention::begin(self, turns, listening, retain_ms)
            }
            _ => Arc::new(turns),
        }
    }

    /// The first turn of a tenure, and the tenure before, if that was ended on the server while it was idle.
    fn first_turn(
        self: &Arc<Self>,
        state: &mut State,
        held: Held,
        turns: &Arc<Turns>,
    ) -> (Turn, Option<(Held, Arc<Turns>)>) {
        let ended = state.end_retention();
        state.present = Some(Arc::clone(turns));
        let (fence, how) = (held.fence(), held.how());
        let turn = Turn::new(held, Arc::clone(turns), fence, how, Arc::clone(self));
        (turn, ended)
    }

    /// Gives a new tenure to the first waiter. If there is none, the tenure is released.
    fn begin(self: &Arc<Self>, mut held: Held, listening: Option<Listening>) {
        let turns = self.turns_of(&held, listening);
        loop {
            let mut state = locked(&self.state);
            let Some((_, waiter)) = state.waiters.pop_first() else {
                drop(state);
                return self.end(&turns);
            };
            let (turn, ended) = self.first_turn(&mut state, held, &turns);
            drop(state);
            self.give_back(ended);
            match waiter.send(Ok(turn)) {
                Ok(()) => return,
                Err(unread) => match unread.ok().and_then(Turn::into_held) {
                    Some(unread) => held = unread,
                    None => return,
                },
            }
        }
    }

    /// Gives the next turn of a tenure to the first waiter, and ends the present one in this way. Returns the
    /// tenure if it must be released.
    fn pass_on(self: &Arc<Self>, mut held: Held, turns: &Arc<Turns>, end: GuardEnd) -> Option<Held> {
        let now = self.client().now();
        loop {
            let mut state = locked(&self.state);
            // If the next tenure has begun, this one was ended on the server.
            let present = state.present.as_ref();
            let is_present = present.is_some_and(|present| Arc::ptr_eq(present, turns));
            let goes_on = is_present && !self.client().is_closed();
            let is_wanted = !state.waiters.is_empty() || state.asked.is_some();
            if goes_on && !is_wanted && turns.rest(now) {
                self.end_guard(&held, now, end);
                state.idle = Some(held);
                return None;
            }
            let next = state.waiters.first_entry().filter(|_| goes_on);
            let next = next.and_then(|first| Some((turns.next(now)?, first.remove())));
            drop(state);
            let Some((fence, waiter)) = next else {
                self.end(turns);
                return Some(held);
            };
            // The guard of the next turn may be made as soon as that is sent.
            self.end_guard(&held, now, end);
            let how = How::LocalHandoff;
            let turn = Turn::new(held, Arc::clone(turns), fence, how, Arc::clone(self));
            match waiter.send(Ok(turn)) {
                Ok(()) => return None,
                Err(unread) => held = unread.ok().and_then(Turn::into_held)?,
            }
        }
    }

    /// The guard of the present turn ended in this way.
    fn end_guard(&self, held: &Held, now: LocalTime, end: GuardEnd) {
        if let Some(holding) = held.hold().end_guard() {
            holding.over(self.place().counters(), now).end = end;
        }
    }

    /// A turn of the tenure that is idle here.
    async fn retained(self: &Arc<Self>) -> Option<Turn> {
        let mut now = self.client().now();
        if self.must_yield(now) {
            tokio::task::yield_now().await;
            now = self.client().now();
        }
        let mut state = locked(&self.state);
        let held = state.idle.take()?;
        let turns = state.present.clone()?;
        let Some(fence) = turns.next_retained(now) else {
            drop(state);
            self.give_back(Some((held, turns)));
            return None;
        };
        Some(Turn::new(held, turns, fence, How::Retained, Arc::clone(self)))
    }

    /// Whether retained turns have followed one another for long enough without a call. Such turns never
    /// wait, so other tasks of the thread, and the message that the lock is wanted, would wait for their end.
    fn must_yield(&self, now: LocalTime) -> bool {
        let mut state = locked(&self.state);
        let must = now.since(state.yielded) >= YIELD_EVERY;
        if must {
            state.yielded = now;
        }
        must
    }

    /// Ends the retention of a tenure, and releases the tenure if it is idle.
    fn end_retention(&self, turns: &Arc<Turns>) {
        let mut state = locked(&self.state);
        let present = state.present.as_ref();
        if present.is_some_and(|present| Arc::ptr_eq(present, turns)) {
            let idle = state.end_retention();
            drop(state);
            self.give_back(idle);
        }
    }

    /// Releases a tenure that was idle.
    fn give_back(&self, idle: Option<(Held, Arc<Turns>)>) {
        if let Some((held, turns)) = idle {
            self.end(&turns);
            // It is released in the background.
            drop(held);
        }
    }

    /// A tenure has no further turn.
    fn end(&self, turns: &Arc<Turns>) {
        let mut state = locked(&self.state);
        state.present.take_if(|present| Arc::ptr_eq(present, turns));
        let given_up = state.give_up_unless_wanted();
        drop(state);
        drop(given_up);
        self.all.discard(self);
    }

    /// Tells waiters of an error with which a tenure ended before it began.
    fn fail(&self, error: &Error) {
        let mut state = locked(&self.state);
        let told = match error {
            // That grant was for the first waiter. The next one may fare better.
            Error::NotReplicated { .. } => state.waiters.pop_first().into_iter().collect(),
            _ => std::mem::take(&mut state.waiters),
        };
        drop(state);
        for waiter in told.into_values() {
            // A receiver that is gone does not need the error.
            let _ = waiter.send(Err(error.clone()));
        }
    }

    /// The error of a wait that began then, and whose bound has passed.
    fn timed_out(&self, began: LocalTime) -> Error {
        let present = locked(&self.state).present_lease();
        match present {
            Some(lease) => timed_out(self.client(), began, lease.remaining),
            None => self.place().timed_out(&self.tenure.hold, began),
        }
    }

    /// Why a try need not ask the servers: somebody here has the lock, or waits for it.
    fn busy<T>(&self) -> Option<Tried<T>> {
        let state = locked(&self.state);
        let present = state.present_lease();
        let ahead = state.waiters.len() as u64;
        if ahead == 0 && present.is_none() {
            return None;
        }
        drop(state);
        let ttl = present.map(|lease| lease.remaining);
        Some(Tried::Busy {
            ttl: ttl.unwrap_or_else(|| self.place().free_in(&self.tenure.hold.channel)),
            ahead,
        })
    }

    fn is_idle(&self) -> bool {
        let state = locked(&self.state);
        state.waiters.is_empty() && state.asked.is_none() && state.present.is_none()
    }
}

/// A waiter in the queue. Dropping it leaves the queue; a turn that was sent to it passes on.
#[derive(Debug)]
struct Waiting {
    queue: Arc<LocalQueue>,
    number: u64,
    turn: oneshot::Receiver<Result<Turn>>,
    is_told: bool,
}

impl Waiting {
    /// Waits until the waiter is told of a turn or of an error.
    async fn told(&mut self) -> Result<Turn> {
        let turn = (&mut self.turn).await;
        self.is_told = true;
        turn.unwrap_or(Err(Error::Closed))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_told {
            self.queue.leave(self.number);
            self.queue.all.discard(&self.queue);
        }
    }
}
