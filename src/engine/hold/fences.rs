//! The fence of a hold. In a quorum its server may raise it, so that all votes have one fence.

use super::Hold;
use crate::fence::Fence;
use crate::sync::locked;

impl Hold {
    pub(crate) fn fence(&self) -> Fence {
        locked(&self.state).fence
    }

    /// The least fence that a release of this hold grants to the next request. `None` for a lock on one
    /// server, which takes it from its clock.
    pub(in crate::engine) fn next_floor(&self) -> Option<Fence> {
        Some(
            self.calls
                .next_floor(|| self.clock.now())?
                .max(self.fence().next()),
        )
    }

    /// The server is asked to raise the fence to this one, if it is smaller.
    pub(in crate::engine) fn asks_for(&self, fence: Fence) {
        let mut state = locked(&self.state);
        state.asked = state.asked.max(fence);
    }

    /// The server knows no hold under this fence. Returns whether there is another one to try, since the
    /// server may have raised the fence.
    pub(in crate::engine) fn has_another_fence(&self, tried: Fence) -> bool {
        let mut state = locked(&self.state);
        if state.fence == tried {
            state.fence = state.asked;
        }
        state.fence != tried
    }

    /// The server has raised the fence.
    pub(in crate::engine) fn raised(&self, fence: Fence) {
        let mut state = locked(&self.state);
        state.fence = state.fence.max(fence);
    }
}
