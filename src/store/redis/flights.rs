//! How many calls are in flight, and whether there is room for more.
//!
//! A server answers the calls of a connection in their order. So an answer says that all calls before it are answered
//! too, also those whose callers have not read that, or are gone.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many calls that give way may be in flight before the next one waits: what a server does in some 50 ms, so that one on
/// the other side of the world has always enough to do, and whoever does not give way comes soon.
pub(super) const ROOM: u32 = 1024;
/// When so few of them are left, those who wait go next.
const FEW: u32 = ROOM / 2;

#[derive(Debug, Default)]
pub(super) struct Flights {
    /// Calls whose callers wait for the answer.
    open: AtomicUsize,
    landed: Notify,
    /// How many of those that give way were sent so far.
    sent: AtomicU64,
    /// The first so many of them are answered, or will never be.
    answered: AtomicU64,
}

impl Flights {
    /// A call is sent. Returns how many that give way have been sent with it.
    pub(super) fn begin(&self, gives_way: bool) -> u64 {
        self.open.fetch_add(1, Ordering::AcqRel);
        let more = u64::from(gives_way);
        self.sent.fetch_add(more, Ordering::SeqCst) + more
    }

    /// The caller has the answer, or is gone.
    pub(super) fn end(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.landed.notify_waiters();
        }
    }

    /// So many are answered. Returns whether it is time to send more.
    pub(super) fn answered(&self, count: u64) -> bool {
        let before = self.answered.fetch_max(count, Ordering::SeqCst);
        let sent = self.sent.load(Ordering::SeqCst);
        sent.saturating_sub(before) > FEW.into() && sent.saturating_sub(count) <= FEW.into()
    }

    /// The connection is another one, on which none is in flight.
    pub(super) fn begin_anew(&self) {
        self.answered
            .store(self.sent.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    pub(super) fn has_room(&self) -> bool {
        self.sent.load(Ordering::SeqCst) - self.answered.load(Ordering::SeqCst) < ROOM.into()
    }

    /// Waits until no caller waits for an answer.
    pub(super) async fn none(&self) {
        loop {
            let landed = self.landed.notified();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            landed.await;
        }
    }
}
