//! How many calls are in flight, and whether there is room for more.
//!
//! A server answers the calls of a connection in their order. So an answer says that all calls before it are
//! answered too, also those whose callers have not read that, or are gone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::window::Window;
use crate::sync::locked;
use crate::sync::outstanding::{Outstanding, Token};
use crate::time::clock::LocalTime;

/// How many calls that can wait may be in flight before the next one waits, at most: what a server does in some 50 ms,
/// so that one on the other side of the world has always enough to do, and what does not wait comes soon.
pub(crate) const MAX_IN_FLIGHT: u32 = 1024;

#[derive(Debug)]
pub(super) struct InFlight {
    window: Mutex<Window>,
    /// A call waits for room.
    is_waited_for: AtomicBool,
    /// Calls whose callers wait for the answer.
    awaited: Arc<Outstanding>,
    /// How many of those that can wait were sent so far.
    sent: AtomicU64,
    /// The first so many of them are answered, or will never be.
    answered: AtomicU64,
}

impl InFlight {
    pub(super) fn new(max_in_flight: u32) -> InFlight {
        InFlight {
            window: Mutex::new(Window::new(max_in_flight.into())),
            is_waited_for: AtomicBool::new(false),
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

    /// So many are answered, the last of them after that time. Returns whether it is time to send more.
    pub(super) fn answered(&self, count: u64, now: LocalTime, latency: Duration) -> bool {
        self.answered.fetch_max(count, Ordering::SeqCst);
        let sent = self.sent.load(Ordering::SeqCst);
        let size = {
            let mut window = self.window();
            window.answered(count, sent, now, latency);
            window.size()
        };
        // Half of them at a time: each time costs something.
        self.is_waited_for.load(Ordering::SeqCst) && sent.saturating_sub(count) <= size / 2
    }

    /// Those that wait for room have it now, as far as there is some.
    pub(super) fn resume(&self) {
        self.is_waited_for.store(false, Ordering::SeqCst);
    }

    /// The connection is another one, on which none is in flight.
    pub(super) fn begin_anew(&self) {
        self.answered
            .store(self.sent.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Whether another call can be sent. If not, one waits for that.
    pub(super) fn has_capacity(&self) -> bool {
        let mut window = self.window();
        let has_capacity =
            self.sent.load(Ordering::SeqCst) - self.answered.load(Ordering::SeqCst) < window.size();
        if !has_capacity {
            window.is_full();
            self.is_waited_for.store(true, Ordering::SeqCst);
        }
        has_capacity
    }

    /// Most calls are answered after no more than that.
    pub(super) fn latency(&self) -> Duration {
        self.window().latency()
    }

    /// Waits until no caller waits for an answer.
    pub(super) async fn none(&self) {
        self.awaited.none().await;
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        locked(&self.window)
    }
}
