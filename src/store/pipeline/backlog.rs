//! Calls that wait in the pipeline: for a connection, for the scripts, or for room among those in flight.

use std::sync::{Arc, MutexGuard};

use tokio::sync::oneshot;

use super::{Gate, Pipeline, Priority, Sent, State, Wire, not_executed};
use crate::clock::Tick;
use crate::store::Failure;

/// A call's place among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) priority: Priority,
    pub(super) entered: u64,
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
        let left = self.pipeline.state().backlog.remove(&self.place);
        // Not under the lock, which what it drops may take.
        drop(left);
    }
}

impl<W: Wire> Pipeline<W> {
    /// What a call has failed by that waits since then; `None` as long as those before it are being answered.
    fn why_waiting(&self, since: Tick) -> Option<Failure> {
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
        while let Some(next) = state.backlog.first_entry() {
            if next.key().priority != Priority::Keep && !self.in_flight.has_room() {
                break;
            }
            let Waiting { command, resume } = next.remove();
            // A caller that leaves in this moment leaves a call in flight, like any other that leaves.
            drop(resume.send(self.send(&state, &wire, command)));
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
