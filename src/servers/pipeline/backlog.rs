//! The calls that wait in the client: for a connection, for a reload, or for the window.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use tokio::sync::oneshot;

use super::in_flight::InFlight;
use super::{Pipeline, Priority, Sent, State, Wire, Wiring, not_executed};
use crate::protocol::interface::Failure;
use crate::time::clock::LocalTime;
use crate::time::deadline_queue::{DeadlineQueue, GivesUp};

/// A call's place in the backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct BacklogKey {
    pub(super) priority: Priority,
    pub(super) entered: u64,
    pub(super) gives_up: GivesUp,
}

pub(super) struct Backlog<W: Wire> {
    /// Calls that keep or end a hold, or ask for a place that was lost.
    urgent: BTreeMap<(Priority, u64), Waiting<W>>,
    /// Calls that ask for a lock.
    asks: DeadlineQueue<Waiting<W>>,
}

impl<W: Wire> Default for Backlog<W> {
    fn default() -> Backlog<W> {
        Backlog {
            urgent: BTreeMap::new(),
            asks: DeadlineQueue::default(),
        }
    }
}

impl<W: Wire> Backlog<W> {
    fn insert(&mut self, key: BacklogKey, waiting: Waiting<W>) {
        match key.priority {
            Priority::Ask => self.asks.push(key.entered, key.gives_up, waiting),
            urgent => drop(self.urgent.insert((urgent, key.entered), waiting)),
        }
    }

    fn remove(&mut self, key: BacklogKey) -> Option<Waiting<W>> {
        match key.priority {
            Priority::Ask => self.asks.remove(key.entered, key.gives_up),
            urgent => self.urgent.remove(&(urgent, key.entered)),
        }
    }

    /// Removes and returns the next call that can be sent.
    fn next(&mut self, now: LocalTime, in_flight: &InFlight) -> Option<Waiting<W>> {
        if let Some(first) = self.urgent.first_entry() {
            let can_go = first.key().0 == Priority::Keep || in_flight.has_capacity();
            return can_go.then(|| first.remove());
        }
        if self.asks.is_empty() || !in_flight.has_capacity() {
            return None;
        }
        self.asks.next(now, in_flight.latency())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.asks.len()
    }

    pub(super) fn fail(self, failure: &Failure) {
        for waiting in self.urgent.into_values().chain(self.asks.into_items()) {
            // The caller may be gone.
            let _ = waiting.resume.send(Err(failure.clone()));
        }
    }
}

/// A waiting call, and the channel that tells its caller that it was sent.
pub(super) struct Waiting<W: Wire> {
    pub(super) command: W::Command,
    pub(super) resume: oneshot::Sender<Result<Sent<W>, Failure>>,
}

/// The caller's side of a waiting call. Dropping it removes the call from the backlog, so nothing is kept for
/// callers that are gone.
pub(super) struct Resumed<W: Wire> {
    pipeline: Arc<Pipeline<W>>,
    key: BacklogKey,
    result: oneshot::Receiver<Result<Sent<W>, Failure>>,
}

impl<W: Wire> Resumed<W> {
    /// Puts a call into the backlog under this key.
    pub(super) fn wait(
        pipeline: &Arc<Pipeline<W>>,
        mut state: MutexGuard<'_, State<W>>,
        key: BacklogKey,
        command: W::Command,
    ) -> Resumed<W> {
        let (resume, result) = oneshot::channel();
        state.backlog.insert(key, Waiting { command, resume });
        pipeline.mark(state);
        Resumed {
            pipeline: Arc::clone(pipeline),
            key,
            result,
        }
    }

    /// Waits until the call is sent, as long as that can be expected.
    pub(super) async fn sent(mut self) -> Result<Sent<W>, Failure> {
        let pipeline = Arc::clone(&self.pipeline);
        loop {
            let since = pipeline.clock.now();
            let result = tokio::time::timeout(pipeline.attempt_timeout, &mut self.result);
            if let Ok(result) = result.await {
                return result.unwrap_or(Err(Failure::Closed));
            }
            if let Some(failure) = pipeline.why_waiting(since) {
                let left = pipeline.state().backlog.remove(self.key);
                if left.is_some() {
                    return Err(failure);
                }
                // It was sent in the meantime.
                return (&mut self.result).await.unwrap_or(Err(Failure::Closed));
            }
        }
    }
}

impl<W: Wire> Drop for Resumed<W> {
    fn drop(&mut self) {
        let left = self.pipeline.state().backlog.remove(self.key);
        // `left` is dropped after the lock is released, because the drop of its content may take the lock.
        drop(left);
    }
}

impl<W: Wire> Pipeline<W> {
    /// The failure of a call that has waited since this time, or `None` while earlier calls are still being
    /// answered.
    fn why_waiting(&self, since: LocalTime) -> Option<Failure> {
        let state = self.state();
        match &state.wiring {
            Wiring::Open(_) if state.reloading => Some(not_executed("the scripts were not loaded in time")),
            Wiring::Open(_) if self.in_flight.has_heard_since(since) => None,
            Wiring::Open(_) => Some(not_executed("the server does not answer")),
            Wiring::Down(failure) => Some(failure.clone()),
            Wiring::Closed => Some(Failure::Closed),
        }
    }

    /// Why the server has answered no call since this time. `None` if it has answered one, or if it was not
    /// asked for most of the time: those who wait for a place in this process make no calls.
    pub(crate) fn why_unheard(&self, since: LocalTime) -> Option<Failure> {
        let is_open = matches!(self.state().wiring, Wiring::Open(_));
        let is_answering = match is_open {
            true => !self.in_flight.is_silent_since(since, self.clock.now()),
            false => self.in_flight.has_heard_since(since),
        };
        if is_answering {
            return None;
        }
        self.why_waiting(since)
    }

    /// Sends the waiting calls, as far as the window allows.
    pub(super) fn resume(self: &Arc<Self>, mut state: MutexGuard<'_, State<W>>) {
        let Wiring::Open(wire) = &state.wiring else { return };
        if state.reloading {
            return;
        }
        let wire = wire.clone();
        let _runtime = wire.enter();
        self.in_flight.resume();
        while let Some(next) = state.backlog.next(self.clock.now(), &self.in_flight) {
            let Waiting { command, resume } = next;
            // If the caller leaves at this moment, the call stays in flight, like any call whose caller
            // leaves.
            drop(resume.send(self.send(&state, &wire, command)));
        }
        while let Some(expired) = state.backlog.asks.expired(self.clock.now()) {
            // Other callers may still wait for the outcome.
            drop(expired.resume.send(Err(Failure::GivenUp)));
        }
        self.mark(state);
    }

    /// Sends a PING if the calls in the backlog wait for earlier replies. The PING shows that earlier calls
    /// are answered, even if their callers do not read the replies.
    pub(super) fn mark(self: &Arc<Self>, mut state: MutexGuard<'_, State<W>>) {
        if state.backlog.is_empty()
            || state.reloading
            || state.marking
            || !matches!(state.wiring, Wiring::Open(_))
        {
            return;
        }
        state.marking = true;
        let number = state.entered;
        let pipeline = Arc::clone(self);
        // `spawn` drops the task at once if the runtime is gone. The drop must not happen under the lock.
        drop(state);
        (self.spawn)(Box::pin(async move {
            Arc::clone(&pipeline).ping(number).await;
            let mut state = pipeline.state();
            state.marking = false;
            pipeline.resume(state);
        }));
    }
}
