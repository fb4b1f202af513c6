//! The local queue: how the waiters of one process for one lock share its tenures.
//!
//! A *tenure* is one hold on the server in which several *turns* follow one another, one guard after the
//! other. The first waiter in an empty queue has a tenure asked for. All others wait here, without a call.
//! When the tenure has the lock, the first waiter has its turn. While others wait, the next tenure is asked
//! for at once: it takes its place in the server's queue behind those of other processes. The end of a turn
//! begins the next one, without a wait. The last turn releases the tenure, and the server hands over.
//!
//! The code that takes a waiter out of the queue sends it a turn or an error. So a waiter that has left the
//! queue is told, and a turn that nobody reads passes on.

pub(crate) mod registry;
mod tenure;
#[cfg(test)]
mod tests;
pub(crate) mod turn;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use self::registry::LocalQueues;
use self::tenure::Asked;
use self::turn::Turn;
use crate::engine::acquire;
use crate::engine::acquire::{AcquireParams, Attempt, bound, timed_out};
use crate::engine::client::Client;
use crate::engine::counters::End;
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::error::{Error, Result};
use crate::sync::locked;
use crate::time::clock::LocalTime;

/// The local queue of one lock, for requests with one lease and one number of turns.
#[derive(Debug)]
pub(crate) struct LocalQueue {
    queues: Arc<LocalQueues>,
    /// What each tenure asks for.
    params: AcquireParams,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By number, which is the order in which they came.
    waiters: BTreeMap<u64, oneshot::Sender<Result<Turn>>>,
    /// The tenure that is asked for. There is one whenever there are waiters.
    asked: Option<Asked>,
    /// The tenure whose turn somebody has.
    present: Option<Arc<Hold>>,
    next_number: u64,
}

impl State {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Gives up the tenure that is asked for, unless somebody waits for it, or may do so soon.
    fn give_up_unless_wanted(&mut self) -> Option<Asked> {
        let is_wanted = !self.waiters.is_empty() || self.present.is_some();
        self.asked.take_if(|_| !is_wanted)
    }
}

/// Waits in the local queue for a turn, until `until` if there is a bound. The call began at `began`.
pub(crate) async fn acquire(
    queues: &Arc<LocalQueues>,
    params: &AcquireParams,
    began: LocalTime,
    until: Option<Instant>,
) -> Result<Turn> {
    let _permit = queues.waitlists().admit()?;
    let mut bound = pin!(bound(until));
    let mut place = queues.enter(params);
    tokio::select! {
        biased;
        turn = place.told() => return turn,
        () = &mut bound => {}
    }
    let free_in = place.queue.free_in();
    if !place.queue.leave(place.number) {
        // The turn came at the same moment as the bound. The turn counts.
        return place.told().await;
    }
    Err(timed_out(queues.client(), began, free_in))
}

/// Takes the lock if it is free, and if nobody waits for it here or on the server.
pub(crate) async fn try_acquire(queues: Arc<LocalQueues>, params: AcquireParams) -> Result<Tried> {
    if let Some(busy) = queues.busy(&params) {
        return Ok(busy);
    }
    let waitlists = Arc::clone(queues.waitlists());
    Ok(match acquire::try_acquire(waitlists, params.clone()).await? {
        Attempt::Held(held) => Tried::Held(queues.first_turn(&params, held)),
        Attempt::Busy(contended) => Tried::Busy {
            ttl: contended.ttl,
            ahead: contended.ahead,
        },
    })
}

/// How a try ended.
#[derive(Debug)]
pub(crate) enum Tried {
    Held(Turn),
    Busy { ttl: Duration, ahead: u64 },
}

impl LocalQueue {
    fn new(queues: Arc<LocalQueues>, params: AcquireParams) -> LocalQueue {
        LocalQueue {
            queues,
            params,
            state: Mutex::default(),
        }
    }

    fn client(&self) -> &Arc<Client> {
        self.queues.client()
    }

    /// Adds a waiter. If no tenure is asked for, the caller must ask for the one that is returned.
    fn join(self: &Arc<Self>) -> (Place, Option<tenure::Ask>) {
        let (sender, turn) = oneshot::channel();
        let mut state = locked(&self.state);
        let number = state.number();
        state.waiters.insert(number, sender);
        let ask = state.asked.is_none().then(|| {
            let (asked, ask) = tenure::of(state.number(), self);
            state.asked = Some(asked);
            ask
        });
        drop(state);
        let queue = Arc::clone(self);
        let place = Place {
            queue,
            number,
            turn,
            is_told: false,
        };
        (place, ask)
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

    /// The first turn of a tenure.
    fn first_turn(self: &Arc<Self>, state: &mut State, held: OwnedHold) -> Turn {
        held.hold().begin_turns();
        state.present = Some(Arc::clone(held.hold()));
        let fence = held.hold().fence();
        Turn::new(held, fence, Arc::clone(self))
    }

    /// Gives a new tenure to the first waiter. If there is none, the tenure is released.
    fn begin(self: &Arc<Self>, mut held: OwnedHold) {
        loop {
            let mut state = locked(&self.state);
            let Some((_, waiter)) = state.waiters.pop_first() else {
                drop(state);
                return self.end(&held);
            };
            let turn = self.first_turn(&mut state, held);
            drop(state);
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
    fn pass_on(self: &Arc<Self>, mut held: OwnedHold, end: End) -> Option<OwnedHold> {
        let now = self.client().now();
        loop {
            let mut state = locked(&self.state);
            // If the next tenure has begun, this one was ended on the server.
            let is_present =
                (state.present.as_ref()).is_some_and(|present| Arc::ptr_eq(present, held.hold()));
            let goes_on = is_present && !self.client().is_closed();
            let next = state.waiters.first_entry().filter(|_| goes_on);
            let next = next.and_then(|first| Some((held.hold().next_turn(now)?, first.remove())));
            drop(state);
            let Some((fence, waiter)) = next else {
                self.end(&held);
                return Some(held);
            };
            // The guard of the next turn may be made as soon as that is sent.
            if let Some(holding) = held.hold().end_turn() {
                holding.over(&self.client().counters, now).end = end;
            }
            let turn = Turn::new(held, fence, Arc::clone(self));
            match waiter.send(Ok(turn)) {
                Ok(()) => return None,
                Err(unread) => held = unread.ok().and_then(Turn::into_held)?,
            }
        }
    }

    /// A tenure has no further turn.
    fn end(&self, held: &OwnedHold) {
        let mut state = locked(&self.state);
        state.present.take_if(|present| Arc::ptr_eq(present, held.hold()));
        let given_up = state.give_up_unless_wanted();
        drop(state);
        drop(given_up);
        self.queues.discard(self);
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

    /// Until when the lock can be held without a renewal, as far as is known.
    fn free_in(&self) -> Duration {
        let present = locked(&self.state).present.clone();
        match present {
            Some(present) => present.lease().remaining(),
            None => self.queues.waitlists().free_in(&self.params.channel),
        }
    }

    /// Why a try need not ask the server: somebody here has the lock, or waits for it.
    fn busy(&self) -> Option<Tried> {
        let state = locked(&self.state);
        let present = state.present.as_ref().filter(|present| present.check().is_ok());
        let ahead = state.waiters.len() as u64;
        if ahead == 0 && present.is_none() {
            return None;
        }
        let ttl = present.map(|present| present.lease().remaining());
        drop(state);
        Some(Tried::Busy {
            ttl: ttl.unwrap_or_else(|| self.free_in()),
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
struct Place {
    queue: Arc<LocalQueue>,
    number: u64,
    turn: oneshot::Receiver<Result<Turn>>,
    is_told: bool,
}

impl Place {
    /// Waits until the waiter is told of a turn or of an error.
    async fn told(&mut self) -> Result<Turn> {
        let turn = (&mut self.turn).await;
        self.is_told = true;
        turn.unwrap_or(Err(Error::Closed))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_told {
            self.queue.leave(self.number);
            self.queue.queues.discard(&self.queue);
        }
    }
}
