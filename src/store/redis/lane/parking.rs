//! Calls that wait in the lane: for a connection, for the scripts, or for room among those in flight.

use std::sync::{Arc, MutexGuard};

use tokio::sync::oneshot;

use super::super::commands::Command;
use super::{Gate, Lane, Sent, State, not_executed};
use crate::clock::Tick;
use crate::store::Failure;

/// A call's place among those that wait. Those that give way come after the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) gives_way: bool,
    pub(super) entered: u64,
}

/// A call that waits, and how its caller is told that it was sent.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) command: Command,
    pub(super) resume: oneshot::Sender<Result<Sent, Failure>>,
}

impl Lane {
    /// Waits until a parked call is sent, for as long as there is hope.
    pub(super) async fn resumed(
        &self,
        mut resumed: oneshot::Receiver<Result<Sent, Failure>>,
    ) -> Result<Sent, Failure> {
        loop {
            let since = self.clock.now();
            if let Ok(result) = tokio::time::timeout(self.attempt_timeout, &mut resumed).await {
                return result.unwrap_or(Err(Failure::Closed));
            }
            if let Some(failure) = self.why_parked(since) {
                // It may have been sent just now.
                return resumed.try_recv().unwrap_or(Err(failure));
            }
        }
    }

    /// What a call has failed by that is parked since then; `None` as long as those before it are being answered.
    fn why_parked(&self, since: Tick) -> Option<Failure> {
        let state = self.state();
        match &state.gate {
            Gate::Open(_) if state.healing => Some(not_executed("the scripts were not loaded in time")),
            Gate::Open(_) if self.has_heard_since(since) => None,
            Gate::Open(_) => Some(not_executed("the server does not answer")),
            Gate::Down(failure) => Some(failure.clone()),
            Gate::Closed => Some(Failure::Closed),
        }
    }

    /// Sends what is parked, as far as there is room.
    pub(super) fn resume(self: &Arc<Lane>, mut state: MutexGuard<'_, State>) {
        let Gate::Open(client) = &state.gate else { return };
        if state.healing {
            return;
        }
        let client = client.clone();
        while let Some(next) = state.parked.first_entry() {
            if next.key().gives_way && !self.flights.has_room() {
                break;
            }
            let Parked { command, resume } = next.remove();
            if !resume.is_closed() {
                // A caller that leaves in this moment leaves a call in flight, like any other that leaves.
                drop(resume.send(Ok(self.send(&state, &client, command))));
            }
        }
        self.mark(state);
    }

    /// Has a PING tell that calls are answered, if that is what others wait for: their callers may not read it.
    pub(super) fn mark(self: &Arc<Lane>, mut state: MutexGuard<'_, State>) {
        if state.parked.is_empty() || state.healing || state.marking || !matches!(state.gate, Gate::Open(_)) {
            return;
        }
        state.marking = true;
        let number = state.entered;
        let lane = Arc::clone(self);
        // A runtime that is gone drops the task at once.
        drop(state);
        self.runtime.spawn(async move {
            Arc::clone(&lane).ping(number).await;
            let mut state = lane.state();
            state.marking = false;
            lane.resume(state);
        });
    }
}
