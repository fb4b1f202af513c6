//! Turns: a hold that is passed on inside its process, from one guard to the next. Each turn has a fence of
//! its own, and the server hears nothing of them until the release reports the last one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Hold;
use crate::error::{Lost, LostReason};
use crate::fence::Fence;
use crate::store::Grant;
use crate::sync::locked;
use crate::time::clock::LocalTime;

/// No turn begins later than this after the first one, so that other processes need not wait long.
pub(crate) const LONGEST_TENURE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Turns {
    /// The fence of the present turn, or of the last one.
    fence: AtomicU64,
    /// The last fence that the request reserved.
    reserved: u64,
    /// No turn begins later. Set when the first one begins.
    until: OnceLock<LocalTime>,
    /// Wakes those that watch a turn.
    ended: Notify,
}

impl Turns {
    /// `None` if the request reserved no more than one fence.
    pub(super) fn of(grant: &Grant) -> Option<Box<Turns>> {
        let turns = grant.request.turns();
        let first = grant.fence.get();
        (turns > 1).then(|| {
            Box::new(Turns {
                fence: AtomicU64::new(first),
                reserved: first + u64::from(turns - 1),
                until: OnceLock::new(),
                ended: Notify::new(),
            })
        })
    }

    fn until(&self, now: LocalTime) -> LocalTime {
        *self.until.get_or_init(|| now.after(LONGEST_TENURE))
    }

    fn fence(&self) -> u64 {
        self.fence.load(Ordering::Acquire)
    }
}

impl Hold {
    /// The fence of the present turn, or of the last one.
    pub(crate) fn last_fence(&self) -> Fence {
        self.later_turn().unwrap_or_else(|| self.fence())
    }

    /// The same, unless that is the first turn.
    pub(in crate::engine) fn later_turn(&self) -> Option<Fence> {
        let last = Fence::new(self.turns.as_ref()?.fence())?;
        Some(last).filter(|last| *last != self.fence())
    }

    /// The first turn begins. The replicas and disks that must have the grant have it by now.
    pub(in crate::engine) fn begin_turns(&self) {
        if let Some(turns) = &self.turns {
            turns.until(self.clock.now());
        }
    }

    /// Ends the present turn and begins another one now. Returns the fence of the new turn, or `None` if the
    /// present turn is the last one: the hold must be released then.
    ///
    /// Only the code that has the present turn calls this.
    pub(crate) fn next_turn(&self, now: LocalTime) -> Option<Fence> {
        let turns = self.turns.as_ref()?;
        let next = turns.fence() + 1;
        if next > turns.reserved || now >= turns.until(now) {
            return None;
        }
        let state = locked(&self.state);
        let left = state.deadline.since(now);
        if state.over.is_some() || state.in_doubt || left < self.terms.grant() / 4 {
            return None;
        }
        drop(state);
        turns.fence.store(next, Ordering::Release);
        turns.ended.notify_waiters();
        Fence::new(next)
    }

    /// Waits until the turn with this fence is over, because it was passed on, or because the hold is over.
    pub(crate) async fn turn_over(&self, fence: Fence) -> Lost {
        loop {
            let ended = self.turns.as_ref().map(|turns| turns.ended.notified());
            if self.last_fence() != fence {
                return self.lost_by(LostReason::Released);
            }
            let Some(ended) = ended else {
                return self.lost().await;
            };
            tokio::select! {
                biased;
                () = ended => {}
                lost = self.lost() => return lost,
            }
        }
    }
}
