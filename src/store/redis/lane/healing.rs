//! What the lane does when the server has forgotten the scripts: one load for all calls that met their absence, which
//! are sent again in their order before any newcomer.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;

use super::{Gate, Lane};
use crate::store::Failure;

/// How long, and how often, it is waited for callers that have not read that their call was answered. Often rather than
/// long: each time the runtime has come round, so that a process which stood still has polled who was woken.
const STRAGGLER_WAIT: Duration = Duration::from_millis(10);
const STRAGGLER_WAITS: usize = 10;

impl Lane {
    /// Has the scripts loaded again, unless that was done since the call was sent.
    pub(super) fn heal(self: &Arc<Lane>, heals_when_sent: u64) {
        let mut state = self.state();
        let Gate::Open(client) = &state.gate else { return };
        if state.healing || state.heals != heals_when_sent {
            return;
        }
        let healer = Healer {
            client: client.clone(),
            generation: state.generation,
            lane: Arc::clone(self),
            result: Err(Failure::Closed),
        };
        state.healing = true;
        // A runtime that is gone drops the healer at once, and that takes the lock.
        drop(state);
        self.runtime.spawn(healer.run());
    }

    fn healed(self: &Arc<Self>, generation: u64, result: Result<(), Failure>) {
        let mut state = self.state();
        state.healing = false;
        state.heals += 1;
        match result {
            Err(failure) if state.generation == generation => {
                for parked in std::mem::take(&mut state.parked).into_values() {
                    let _ = parked.resume.send(Err(failure.clone()));
                }
            }
            // A failure of the connection before this one does not matter any more.
            _ => self.resume(state),
        }
    }
}

/// Loads the scripts, lets all those who met their absence take their places, and opens the lane; also when it is
/// dropped half-way.
struct Healer {
    lane: Arc<Lane>,
    client: Client,
    generation: u64,
    result: Result<(), Failure>,
}

impl Healer {
    async fn run(mut self) {
        self.result = self.lane.scripts.load(&self.client).await;
        // Everything sent before the scripts has been answered by now. A caller who does not poll its call must
        // not hold up the others.
        for _ in 0..STRAGGLER_WAITS {
            let answered = tokio::time::timeout(STRAGGLER_WAIT, self.lane.flights.none());
            if answered.await.is_ok() {
                break;
            }
        }
    }
}

impl Drop for Healer {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(()));
        self.lane.healed(self.generation, result);
    }
}
