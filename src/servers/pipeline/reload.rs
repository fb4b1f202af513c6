//! The reload: what the pipeline does when the server has forgotten the scripts. One reload serves all calls
//! that met a missing script. They are sent again in their order, before any newer call.

use std::sync::Arc;
use std::time::Duration;

use super::{Pipeline, Wire, Wiring};
use crate::protocol::interface::Failure;

/// How long and how often a reload waits for callers that have not read their reply. Many short waits are
/// better than one long wait: the runtime gets a round each time. So even a process that was paused has
/// polled all woken tasks.
const STRAGGLER_WAIT: Duration = Duration::from_millis(10);
const STRAGGLER_WAITS: usize = 10;

impl<W: Wire> Pipeline<W> {
    /// Starts a reload, unless there was one since the call was sent.
    pub(super) fn reload(self: &Arc<Self>, reloads_when_sent: u64) {
        let mut state = self.state();
        let Wiring::Open(wire) = &state.wiring else { return };
        if state.reloading || state.reloads != reloads_when_sent {
            return;
        }
        let reload = Reload {
            wire: wire.clone(),
            generation: state.generation,
            pipeline: Arc::clone(self),
            result: Err(Failure::Closed),
        };
        state.reloading = true;
        // `spawn` drops the task at once if the runtime is gone, and that drop takes the lock.
        drop(state);
        (self.spawn)(Box::pin(reload.run()));
    }

    fn reloaded(self: &Arc<Self>, generation: u64, result: Result<(), Failure>) {
        let mut state = self.state();
        state.reloading = false;
        state.reloads += 1;
        match result {
            Err(failure) if state.generation == generation => {
                std::mem::take(&mut state.backlog).fail(&failure);
            }
            // A failure on an earlier connection does not matter any more.
            _ => self.resume(state),
        }
    }
}

/// Loads the scripts, waits until all calls that met a missing script have taken their places, and opens the
/// pipeline. It opens the pipeline even when it is dropped half-way.
struct Reload<W: Wire> {
    pipeline: Arc<Pipeline<W>>,
    wire: W,
    generation: u64,
    result: Result<(), Failure>,
}

impl<W: Wire> Reload<W> {
    async fn run(mut self) {
        self.result = self.wire.load().await;
        // All calls that were sent before the reload are answered by now. A caller that does not poll its
        // call must not delay the others.
        for _ in 0..STRAGGLER_WAITS {
            let answered = tokio::time::timeout(STRAGGLER_WAIT, self.pipeline.in_flight.none());
            if answered.await.is_ok() {
                break;
            }
        }
    }
}

impl<W: Wire> Drop for Reload<W> {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(()));
        self.pipeline.reloaded(self.generation, result);
    }
}
