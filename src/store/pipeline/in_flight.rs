//! How many calls are in flight, and whether there is room for more.
//!
//! A server answers the calls of a connection in their order. So an answer says that all calls before it are
//! answered too, also those whose callers have not read that, or are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::outstanding::{Outstanding, Token};

/// How many calls that can wait may be in flight before the next one waits: what a server does in some 50 ms,
/// so that one on the other side of the world has always enough to do, and what does not wait comes soon.
pub(crate) const ROOM: u32 = 1024;

#[derive(Debug)]
pub(super) struct InFlight {
    room: u64,
    /// Calls whose callers wait for the answer.
    awaited: Arc<Outstanding>,
    /// How many of those that can wait were sent so far.
    sent: AtomicU64,
    /// The first so many of them are answered, or will never be.
    answered: AtomicU64,
}

impl InFlight {
    pub(super) fn new(room: u32) -> InFlight {
        InFlight {
            room: room.into(),
            awaited: Arc::default(),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// A call is sent. Returns how many that can wait have been sent with it, and what lives until its caller
    /// has the answer, or is gone.
    pub(super) fn begin(&self, can_wait: bool) -> (u64, Token) {
        let more = u64::from(can_wait);
        let number = self.sent.fetch_add(more, Ordering::SeqCst) + more;
        (number, Outstanding::begin(&self.awaited))
    }

    /// So many are answered. Returns whether it is time to send more.
    pub(super) fn answered(&self, count: u64) -> bool {
        let before = self.answered.fetch_max(count, Ordering::SeqCst);
        let sent = self.sent.load(Ordering::SeqCst);
        // Half of them at a time: each time costs something.
        let few = self.room / 2;
        sent.saturating_sub(before) > few && sent.saturating_sub(count) <= few
    }

    /// The connection is another one, on which none is in flight.
    pub(super) fn begin_anew(&self) {
        self.answered
            .store(self.sent.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    pub(super) fn has_room(&self) -> bool {
        self.sent.load(Ordering::SeqCst) - self.answered.load(Ordering::SeqCst) < self.room
    }

    /// Waits until no caller waits for an answer.
    pub(super) async fn none(&self) {
        self.awaited.none().await;
    }
}
