//! Counts the calls in flight, and compares them with the window.
//!
//! A server answers the calls of a connection in order. So a reply shows that all earlier calls are answered
//! too, even if their callers have not read the replies, or are gone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::window::Window;
use crate::sync::locked;
use crate::sync::outstanding::{Outstanding, Token};
use crate::time::clock::LocalTime;

/// The maximum size of the window. A server needs some 50 ms for this many calls. That keeps a server on the
/// other side of the world busy, and lets calls that do not wait for the window reach the server soon.
pub(crate) const MAX_IN_FLIGHT: u32 = 1024;

#[derive(Debug)]
pub(super) struct InFlight {
    window: Mutex<Window>,
    /// A call waits for the window.
    is_waited_for: AtomicBool,
    /// Calls whose callers wait for the reply.
    awaited: Arc<Outstanding>,
    /// How many calls that count for the window were sent so far.
    sent: AtomicU64,
    /// How many of them, counted from the first one, are answered or will never be.
    answered: AtomicU64,
    /// When the last reply arrived, in ns of the clock.
    heard: AtomicU64,
    /// When the first call was sent since then, in ns of the clock, or 0 if there was none.
    asked: AtomicU64,
}

impl InFlight {
    pub(super) fn new(max_in_flight: u32) -> InFlight {
        InFlight {
            window: Mutex::new(Window::new(max_in_flight.into())),
            is_waited_for: AtomicBool::new(false),
            awaited: Arc::default(),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// Counts a call that is sent now. Returns how many calls that count for the window have been sent,
    /// including this one, and a token. The token lives until the caller has the reply or is gone.
    pub(super) fn begin(&self, can_wait: bool, at: LocalTime) -> (u64, Token) {
        if self.asked.load(Ordering::Relaxed) == 0 {
            self.asked.store(at.as_nanos().max(1), Ordering::Relaxed);
        }
        let more = u64::from(can_wait);
        let number = self.sent.fetch_add(more, Ordering::SeqCst) + more;
        (number, Outstanding::begin(&self.awaited))
    }

    /// The first `count` calls are answered; the last of them took `latency`. Returns whether it is time to
    /// send more.
    pub(super) fn answered(&self, count: u64, now: LocalTime, latency: Duration) -> bool {
        // The caller of an earlier call may be the later one to look.
        self.heard.fetch_max(now.as_nanos(), Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.answered.fetch_max(count, Ordering::SeqCst);
        let sent = self.sent.load(Ordering::SeqCst);
        let size = {
            let mut window = self.window();
            window.answered(count, sent, now, latency);
            window.size()
        };
        // Sending has a fixed cost, so more calls are sent only when half of the window is free.
        self.is_waited_for.load(Ordering::SeqCst) && sent.saturating_sub(count) <= size / 2
    }

    /// Waiting calls are about to be sent, so none waits for the window.
    pub(super) fn resume(&self) {
        self.is_waited_for.store(false, Ordering::SeqCst);
    }

    /// Starts a new connection, on which no call is in flight.
    pub(super) fn start_over(&self) {
        self.answered
            .store(self.sent.load(Ordering::SeqCst), Ordering::SeqCst);
        self.asked.store(0, Ordering::Relaxed);
    }

    /// Whether the server has answered any call since this time.
    pub(super) fn has_heard_since(&self, since: LocalTime) -> bool {
        self.heard.load(Ordering::Relaxed) > since.as_nanos()
    }

    /// Whether the server has been silent for most of the time since then, and for much longer than calls
    /// have taken lately. A server that was not asked is not silent.
    pub(super) fn is_silent_since(&self, since: LocalTime, now: LocalTime) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked == 0 || self.has_heard_since(since) {
            return false;
        }
        let silent = Duration::from_nanos(now.as_nanos().saturating_sub(asked));
        silent >= (now.since(since) / 2).max(2 * self.window().smoothed())
    }

    /// Whether another call can be sent. If not, the caller waits for the window.
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

    /// Most calls take no longer than this.
    pub(super) fn latency(&self) -> Duration {
        self.window().latency()
    }

    /// Waits until no caller waits for a reply.
    pub(super) async fn none(&self) {
        self.awaited.none().await;
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        locked(&self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Race: Two callers run long after their replies came, and the one of the earlier call runs last.
    #[test]
    fn a_server_was_heard_when_its_last_reply_was_read() {
        let at = |ms| LocalTime::ZERO.after(Duration::from_millis(ms));
        let in_flight = InFlight::new(MAX_IN_FLIGHT);
        let (first, _first) = in_flight.begin(true, at(0));
        let (second, _second) = in_flight.begin(true, at(0));
        in_flight.answered(second, at(20), Duration::from_millis(20));
        in_flight.answered(first, at(10), Duration::from_millis(10));
        assert!(in_flight.has_heard_since(at(15)));
    }
}
