//! How many calls are in flight, and whether there is room for more.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many calls that give way may be in flight before the next one waits: what a server does in some 50 ms, so that one on
/// the other side of the world has always enough to do, and whoever does not give way comes soon.
pub(super) const ROOM: usize = 1024;
/// When so few of them are left, those who wait go next.
const FEW: usize = ROOM / 2;

#[derive(Debug, Default)]
pub(super) struct Flights {
    all: AtomicUsize,
    giving_way: AtomicUsize,
    landed: Notify,
}

impl Flights {
    pub(super) fn begin(&self, gives_way: bool) {
        self.all.fetch_add(1, Ordering::AcqRel);
        if gives_way {
            self.giving_way.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns whether it is time to send more of those that give way.
    pub(super) fn end(&self, gives_way: bool) -> bool {
        if self.all.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.landed.notify_waiters();
        }
        gives_way && self.giving_way.fetch_sub(1, Ordering::AcqRel) == FEW + 1
    }

    pub(super) fn has_room(&self) -> bool {
        self.giving_way.load(Ordering::Acquire) < ROOM
    }

    /// Waits until there are none.
    pub(super) async fn none(&self) {
        loop {
            let landed = self.landed.notified();
            if self.all.load(Ordering::Acquire) == 0 {
                return;
            }
            landed.await;
        }
    }
}
