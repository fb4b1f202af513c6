//! Turns: a hold that is passed on inside its process, from one guard to the next. Each turn has a fence of
//! its own, and no server hears of them until the release reports the last one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::fence::Fence;
use crate::store::TURNS_AHEAD_US;
use crate::time::clock::LocalTime;
use crate::time::server_time::ServerTime;

/// No turn begins later than this after the first one, so that other processes need not wait long.
pub(crate) const LONGEST_TENURE: Duration = Duration::from_millis(10);

/// The turns of one hold.
#[derive(Debug)]
pub(crate) struct Turns {
    first: Fence,
    /// The fence of the present turn, or of the last one.
    fence: AtomicU64,
    /// The fence of the last turn that there may be.
    last: u64,
    /// No turn begins later. Set when the first one begins.
    until: OnceLock<LocalTime>,
    /// Wakes those that watch a turn.
    ended: Notify,
}

impl Turns {
    /// The turns of a hold with this fence, whose request reserved so many.
    pub(crate) fn new(first: Fence, turns: u16) -> Turns {
        Turns {
            first,
            fence: AtomicU64::new(first.get()),
            last: first.get() + u64::from(turns.saturating_sub(1)),
            until: OnceLock::new(),
            ended: Notify::new(),
        }
    }

    /// The turns of a hold of one server, which granted it at this time.
    ///
    /// A server that loses a lock grants it next under a fence that is ahead of its time. No turn has that
    /// fence or a larger one. So the first hold of a lock has one turn, since its own fence is ahead of the
    /// time. A fence that is farther ahead shows that the clock was set back. Then the fence after a loss is
    /// smaller in any case.
    pub(super) fn of_one_server(first: Fence, turns: u16, granted_at: ServerTime) -> Turns {
        let after_a_loss = 1000 * granted_at.ms() + TURNS_AHEAD_US;
        let mut turns = Turns::new(first, turns);
        // The time was cut to ms.
        if first.get() < after_a_loss + 1000 {
            turns.last = turns.last.min(after_a_loss - 1);
        }
        turns
    }

    /// The first turn begins, if it has not begun before. Returns when the last one may begin.
    pub(crate) fn begin(&self, now: LocalTime) -> LocalTime {
        *self.until.get_or_init(|| now.after(LONGEST_TENURE))
    }

    /// Waits until the present turn ends.
    pub(crate) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// The fence of the present turn, or of the last one.
    pub(crate) fn fence(&self) -> Fence {
        Fence::new(self.fence.load(Ordering::Acquire)).unwrap_or(self.first)
    }

    /// The same, unless that is the first turn.
    pub(super) fn later(&self) -> Option<Fence> {
        Some(self.fence()).filter(|fence| self.is_later(*fence))
    }

    /// Whether another turn came before the one with this fence.
    pub(crate) fn is_later(&self, fence: Fence) -> bool {
        fence != self.first
    }

    /// The fence of the next turn, unless the present one is the last.
    pub(crate) fn next(&self, now: LocalTime) -> Option<Fence> {
        let next = self.fence.load(Ordering::Acquire) + 1;
        if next > self.last || now >= self.begin(now) {
            return None;
        }
        Fence::new(next)
    }

    /// Ends the present turn, and begins the one with this fence, if the hold lasts. Returns whether it does.
    pub(crate) fn begin_if(&self, lasts: bool, next: Fence) -> bool {
        if lasts {
            self.fence.store(next.get(), Ordering::Release);
            self.ended.notify_waiters();
        }
        lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fence_that_follows_a_loss_of_the_lock_takes_turns_away() {
        const TIME_MS: u64 = 1_000_000;
        let more = |ahead_us: u64| {
            let first = Fence::new(1000 * TIME_MS + ahead_us).unwrap();
            let turns = Turns::of_one_server(first, 3, ServerTime::from_ms(TIME_MS));
            std::iter::from_fn(|| {
                turns
                    .next(LocalTime::ZERO)
                    .filter(|next| turns.begin_if(true, *next))
            })
            .count()
        };
        // The time was cut to ms, so the fence may be ahead by another one.
        assert_eq!([0, 1_997, 1_998].map(more), [2, 2, 1]);
        assert_eq!([2_000, 2_999].map(more), [0, 0]);
        // The server's clock was set back.
        assert_eq!([3_000, 3_600_000_000].map(more), [2, 2]);
    }
}
