//! The turns of a tenure: which guard has it now, and under which fence. No server hears of them until the
//! release reports the last one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::retention::Retention;
use crate::caller::place::held::Held;
use crate::engine::any_hold::AnyHold;
use crate::time::clock::LocalTime;
use crate::types::error::{HoldEnd, Lost};
use crate::types::fence::Fence;

/// No turn begins later than this after the first one, so that other processes need not wait long.
const LONGEST_TENURE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Turns {
    hold: Arc<dyn AnyHold>,
    first: Fence,
    /// The fence of the present turn, or of the last one.
    fence: AtomicU64,
    /// The fence of the last turn that nobody came after at once. That turn has ended.
    rested: AtomicU64,
    /// The fence of the last turn that there may be.
    last: Fence,
    /// No turn begins later.
    until: LocalTime,
    /// The last fence that the hold has reserved.
    last_reserved: Fence,
    /// `None` if the tenure must not stay here without a turn.
    retention: Option<Retention>,
    /// Wakes those that watch a turn.
    ended: Notify,
}

impl Turns {
    /// The first of at most `turns` turns begins now.
    pub(super) fn begin(held: &Held, turns: u16, now: LocalTime) -> Turns {
        let (hold, first) = (held.share(), held.fence());
        let last = first.plus(u64::from(turns.saturating_sub(1)));
        let last_reserved = held.last_reserved();
        Turns {
            last: last.min(last_reserved),
            last_reserved,
            retention: None,
            hold,
            first,
            fence: AtomicU64::new(first.get()),
            rested: AtomicU64::new(0),
            until: now.after(LONGEST_TENURE),
            ended: Notify::new(),
        }
    }

    pub(super) fn hold(&self) -> &dyn AnyHold {
        &*self.hold
    }

    /// The fence of the first turn.
    pub(super) fn first(&self) -> Fence {
        self.first
    }

    pub(super) fn retain(&mut self, retention: Retention) {
        self.retention = Some(retention);
    }

    /// Ends the present turn, if the tenure may stay here without one. Returns whether it may.
    pub(super) fn rest(&self, now: LocalTime) -> bool {
        let rests = self.is_retained(now) && self.hold().rest(now);
        if rests {
            self.rested
                .store(self.fence.load(Ordering::Acquire), Ordering::Release);
            self.ended.notify_waiters();
        }
        rests
    }

    /// Whether the tenure may stay here without a turn.
    fn is_retained(&self, now: LocalTime) -> bool {
        let has_turns = self.fence.load(Ordering::Acquire) < self.last_reserved.get();
        has_turns
            && self
                .retention
                .as_ref()
                .is_some_and(|retention| retention.goes_on(self.first, now))
    }

    /// From now on the tenure does not stay here without a turn.
    pub(super) fn end_retention(&self) {
        if let Some(retention) = &self.retention {
            retention.end();
        }
    }

    /// Ends the present turn and begins another one now. Returns the fence of the new turn, or `None` if the
    /// present turn is the last one: the hold must be released then. The hold cannot end meanwhile: its
    /// release tells the last fence.
    ///
    /// Only the code that has the present turn calls this.
    pub(super) fn next(&self, now: LocalTime) -> Option<Fence> {
        let is_last = self.fence.load(Ordering::Acquire) >= self.last.get();
        if is_last || now >= self.until {
            return None;
        }
        self.begin_next(now)
    }

    /// The same for a tenure that is idle.
    pub(super) fn next_retained(&self, now: LocalTime) -> Option<Fence> {
        if !self.is_retained(now) {
            return None;
        }
        self.begin_next(now)
    }

    #[inline]
    fn begin_next(&self, now: LocalTime) -> Option<Fence> {
        let next = Fence::new(self.fence.load(Ordering::Acquire) + 1)?;
        if !self.hold().begin_turn(next, now) {
            return None;
        }
        self.fence.store(next.get(), Ordering::Release);
        self.ended.notify_waiters();
        Some(next)
    }

    /// Fails if the turn with this fence has ended: it was passed on, or the hold has ended.
    pub(super) fn check(&self, fence: Fence) -> Result<(), Lost> {
        let is_present = self.fence.load(Ordering::Acquire) == fence.get();
        if !is_present || self.rested.load(Ordering::Acquire) == fence.get() {
            return Err(Lost::new(Arc::clone(self.hold().name()), HoldEnd::Released));
        }
        self.hold().check()
    }

    /// Waits until the turn with this fence has ended.
    pub(super) async fn over(&self, fence: Fence) -> Lost {
        loop {
            let ended = self.ended.notified();
            if let Err(lost) = self.check(fence) {
                return lost;
            }
            tokio::select! {
                biased;
                () = ended => {}
                lost = self.hold().lost() => return lost,
            }
        }
    }
}
