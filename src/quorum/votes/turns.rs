//! The turns of a hold of a majority. All votes reserve their fences.

use std::sync::Arc;

use super::Votes;
use crate::engine::counters::{Holding, How};
use crate::engine::hold::turns::{HasTurns, Turns};
use crate::error::{Lost, LostReason};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::sync::locked;
use crate::time::clock::LocalTime;

impl HasTurns for Votes {
    fn turns(&self) -> Option<&Turns> {
        self.turns.get()
    }

    fn begin_turn(&self, turns: &Turns, next: Fence, now: LocalTime) -> bool {
        let state = locked(&self.state);
        let left = self.deadline(&state).since(now);
        let lasts = state.over.is_none() && self.is_sure(&state) && left >= self.terms.grant() / 4;
        turns.begin_if(lasts, next)
    }

    fn lease(&self) -> Lease {
        self.lease()
    }

    fn how(&self) -> How {
        self.how()
    }

    fn end_turn(&self) -> Option<Holding> {
        locked(&self.state).holding.take()
    }

    fn lost_by(&self, reason: LostReason) -> Lost {
        Lost::new(Arc::clone(&self.name), reason)
    }

    async fn lost(&self) -> Lost {
        self.lost().await
    }
}
