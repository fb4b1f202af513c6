//! Calls that wait in the pipeline: for a connection, for the scripts, or for room among those in flight.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use tokio::sync::oneshot;

use super::in_flight::InFlight;
use super::{Gate, Pipeline, Priority, Sent, State, Wire, not_executed};
use crate::store::Failure;
use crate::time::clock::LocalTime;
use crate::time::deadline_queue::{AdmissionQueue, GivesUp};

/// A call's place among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) priority: Priority,
    pub(super) entered: u64,
    pub(super) gives_up: GivesUp,
}

/// All that wait.
pub(super) struct Backlog<W: Wire> {
    /// Those that keep a hold, or end one.
    urgent: BTreeMap<(Priority, u64), Waiting<W>>,
    /// Those that ask for a lock.
    asks: AdmissionQueue<Waiting<W>>,
}

impl<W: Wire> Default for Backlog<W> {
    fn default() -> Backlog<W> {
        Backlog {
            urgent: BTreeMap::new(),
            asks: AdmissionQueue::default(),
        }
    }
}

impl<W: Wire> Backlog<W> {
    fn insert(&mut self, place: Place, waiting: Waiting<W>) {
        match place.priority {
            Priority::Ask => self.asks.push(place.entered, place.gives_up, waiting),
            urgent => drop(self.urgent.insert((urgent, place.entered), waiting)),
        }
    }

    fn remove(&mut self, place: Place) -> Option<Waiting<W>> {
        match place.priority {
            Priority::Ask => self.asks.remove(place.entered, place.gives_up),
            urgent => self.urgent.remove(&(urgent, place.entered)),
        }
    }

    /// Takes out the next one that can be sent.
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
        self.urgent.is_empty() && self.asks.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.asks.len()
    }

    pub(super) fn into_waiting(self) -> impl Iterator<Item = Waiting<W>> {
        self.urgent.into_values().chain(self.asks.into_items())
    }
}

/// A call that waits, and how its caller is told that it was sent.
pub(super) struct Waiting<W: Wire> {
    pub(super) command: W::Command,
    pub(super) resume: oneshot::Sender<Result<Sent<W>, Failure>>,
}

/// The caller's side of a call that waits. When it is dropped, the call leaves the backlog: nothing is kept
/// of callers that are gone.
pub(super) struct Resumed<W: Wire> {
    pipeline: Arc<Pipeline<W>>,
    place: Place,
    result: oneshot::Receiver<Result<Sent<W>, Failure>>,
}

impl<W: Wire> Resumed<W> {
    /// Has a call wait at this place.
    pub(super) fn wait(
        pipeline: &Arc<Pipeline<W>>,
        mut state: MutexGuard<'_, State<W>>,
        place: Place,
        command: W::Command,
    ) -> Resumed<W> {
        let (resume, result) = oneshot::channel();
        state.backlog.insert(place, Waiting { command, resume });
        pipeline.mark(state);
        Resumed {
            pipeline: Arc::clone(pipeline),
            place,
            result,
        }
    }

    /// Waits until the call is sent, for as long as there is hope.
    pub(super) async fn sent(mut self) -> Result<Sent<W>, Failure> {
        let pipeline = Arc::clone(&self.pipeline);
        loop {
            let since = pipeline.clock.now();
            let result = tokio::time::timeout(pipeline.attempt_timeout, &mut self.result);
            if let Ok(result) = result.await {
                return result.unwrap_or(Err(Failure::Closed));
            }
            if let Some(failure) = pipeline.why_waiting(since) {
                // It may have been sent just now.
                return self.result.try_recv().unwrap_or(Err(failure));
            }
        }
    }
}

impl<W: Wire> Drop for Resumed<W> {
    fn drop(&mut self) {
        let left = self.pipeline.state().backlog.remove(self.place);
        // Not under the lock, which what it drops may take.
        drop(left);
    }
}

impl<W: Wire> Pipeline<W> {
    /// What a call has failed by that waits since then; `None` as long as those before it are being answered.
    fn why_waiting(&self, since: LocalTime) -> Option<Failure> {
        let state = self.state();
        match &state.gate {
            Gate::Open(_) if state.reloading => Some(not_executed("the scripts were not loaded in time")),
            Gate::Open(_) if self.has_heard_since(since) => None,
            Gate::Open(_) => Some(not_executed("the server does not answer")),
            Gate::Down(failure) => Some(failure.clone()),
            Gate::Closed => Some(Failure::Closed),
        }
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn resume(self: &Arc<Self>, mut state: MutexGuard<'_, State<W>>) {
        let Gate::Open(wire) = &state.gate else { return };
        if state.reloading {
            return;
        }
        let wire = wire.clone();
        self.in_flight.resume();
        while let Some(next) = state.backlog.next(self.clock.now(), &self.in_flight) {
            let Waiting { command, resume } = next;
            // A caller that leaves in this moment leaves a call in flight, like any other that leaves.
            drop(resume.send(self.send(&state, &wire, command)));
        }
        while let Some(expired) = state.backlog.asks.expired(self.clock.now()) {
            // Others may wait for the outcome still.
            drop(
                expired
                    .resume
                    .send(Err(not_executed("given up before it was sent"))),
            );
        }
        self.mark(state);
    }

    /// Has a PING tell that calls are answered, if that is what others wait for: their callers may not read
    /// it.
    pub(super) fn mark(self: &Arc<Self>, mut state: MutexGuard<'_, State<W>>) {
        if state.backlog.is_empty()
            || state.reloading
            || state.marking
            || !matches!(state.gate, Gate::Open(_))
        {
            return;
        }
        state.marking = true;
        let number = state.entered;
        let pipeline = Arc::clone(self);
        // A runtime that is gone drops the task at once.
        drop(state);
        (self.spawn)(Box::pin(async move {
            Arc::clone(&pipeline).ping(number).await;
            let mut state = pipeline.state();
            state.marking = false;
            pipeline.resume(state);
        }));
    }
}
