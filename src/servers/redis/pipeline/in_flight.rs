//! Counts the calls in flight, and compares them with the window.

use std::time::Duration;

use super::window::Window;
use crate::time::clock::LocalTime;

/// The maximum size of the window. A server needs some 50 ms for this many calls. That keeps a server on the
/// other side of the world busy, and lets calls that do not wait for the window reach the server soon.
pub(crate) const MAX_IN_FLIGHT: u32 = 1024;

#[derive(Debug)]
pub(super) struct InFlight {
    window: Window,
    /// A call waits for the window.
    is_waited_for: bool,
    /// How many calls that count for the window were sent so far.
    sent: u64,
    /// How many of them, counted from the first one, are answered or will never be.
    answered: u64,
    /// When the last reply was read.
    heard: LocalTime,
    /// When the first call was sent since then.
    asked: Option<LocalTime>,
}

impl InFlight {
    pub(super) fn new(max_in_flight: u32) -> InFlight {
        InFlight {
            window: Window::new(max_in_flight.into()),
            is_waited_for: false,
            sent: 0,
            answered: 0,
            heard: LocalTime::ZERO,
            asked: None,
        }
    }

    /// Counts a call that is sent now. Returns how many calls that count for the window have been sent,
    /// including this one.
    pub(super) fn begin(&mut self, can_wait: bool, at: LocalTime) -> u64 {
        self.asked.get_or_insert(at);
        self.sent += u64::from(can_wait);
        self.sent
    }

    /// The first `count` calls are answered; the last of them took `latency`. Returns whether it is time to
    /// send more.
    pub(super) fn answered(&mut self, count: u64, now: LocalTime, latency: Duration) -> bool {
        (self.heard, self.asked) = (now, None);
        self.answered = count;
        self.window.answered(count, self.sent, now, latency);
        // Sending has a fixed cost, so more calls are sent only when half of the window is free.
        self.is_waited_for && self.sent - count <= self.window.size() / 2
    }

    /// Waiting calls are about to be sent, so none waits for the window.
    pub(super) fn resume(&mut self) {
        self.is_waited_for = false;
    }

    /// Starts a new connection, on which no call is in flight.
    pub(super) fn start_over(&mut self) {
        (self.answered, self.asked) = (self.sent, None);
    }

    /// Whether the server has answered any call since this time.
    pub(super) fn has_heard_since(&self, since: LocalTime) -> bool {
        self.heard > since
    }

    /// Whether the server has been silent for most of the time since then, and for much longer than calls
    /// have taken lately. A server that was not asked is not silent.
    pub(super) fn is_silent_since(&self, since: LocalTime, now: LocalTime) -> bool {
        let Some(asked) = self.asked.filter(|_| !self.has_heard_since(since)) else {
            return false;
        };
        now.since(asked) >= (now.since(since) / 2).max(2 * self.window.smoothed())
    }

    /// Whether another call can be sent. If not, the caller waits for the window.
    pub(super) fn has_capacity(&mut self) -> bool {
        let has_capacity = self.sent - self.answered < self.window.size();
        if !has_capacity {
            self.window.is_full();
            self.is_waited_for = true;
        }
        has_capacity
    }

    /// Most calls take no longer than this.
    pub(super) fn latency(&self) -> Duration {
        self.window.latency()
    }
}
