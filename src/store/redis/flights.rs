//! How many calls are in flight, and whether there is room for more.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many calls may be in flight before one that gives way waits: what a server does in some 50 ms, so that
/// one on the other side of the world has always enough to do, and whoever does not give way comes soon.
pub(super) const ROOM: usize = 1024;
/// When so few are left, those who wait go next.
const FEW: usize = ROOM / 2;

#[derive(Debug, Default)]
pub(super) struct Flights {
    count: AtomicUsize,
    landed: Notify,
}

impl Flights {
    pub(super) fn begin(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether there are few now, and were more before.
    pub(super) fn end(&self) -> bool {
        let left = self.count.fetch_sub(1, Ordering::AcqRel) - 1;
        if left == 0 {
            self.landed.notify_waiters();
        }
        left == FEW
    }

    pub(super) fn has_room(&self) -> bool {
        self.count.load(Ordering::Acquire) < ROOM
    }

    /// Waits until there are none.
    pub(super) async fn none(&self) {
        loop {
            let landed = self.landed.notified();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            landed.await;
        }
    }
}
