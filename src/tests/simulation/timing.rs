//! How fast a world recovers from a fault, by its delays and the client's timers.

use std::time::Duration;

use super::history::Fault;
use crate::options::{JITTER, ManagerOptions};
use crate::time::deadline::NOT_AFTER;

/// The longest pause between two attempts at a call.
const LONGEST_PAUSE: Duration = Duration::from_millis(1250);
/// For timers, which have whole milliseconds, deadlines, which are cut to them, and clocks that drift.
pub(super) const ROUNDING: Duration = Duration::from_millis(20);
/// The longest time that a call or a reply is slow by.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// The longest time that the thread of a task stands still.
pub(super) const LONGEST_MOMENT: Duration = Duration::from_millis(200);
/// How long a call that met a server without the scripts waits for other such calls.
const RELOAD_WAIT: Duration = Duration::from_millis(100);
const FOREVER: Duration = Duration::from_secs(1_000_000);

#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The longest time that a message takes when nothing is wrong.
    pub(super) latency: Duration,
    /// Between two polls of a waitlist.
    pub(super) interval: Duration,
    pub(super) heartbeat: Duration,
}

impl Timing {
    pub(super) fn of(options: &ManagerOptions, latency: Duration) -> Timing {
        Timing {
            latency,
            interval: options.poll_interval(),
            heartbeat: options.heartbeat,
        }
    }

    /// The longest time for what needs no timer: to ask, to subscribe, to ask again, to be told that the
    /// record is gone, and to ask once more. The last call need only arrive.
    pub(super) fn prompt(&self) -> Duration {
        7 * self.latency + JITTER + ROUNDING
    }

    /// How long it takes at worst until a waitlist has asked on its own account, and has acted on the answer.
    pub(super) fn poll(&self) -> Duration {
        self.interval + self.prompt()
    }

    /// For how long a fault may delay its client after the fault is over.
    pub(super) fn recovery(&self, fault: Fault) -> Duration {
        match fault {
            // A repeated call or message changes nothing, and in a dead process no caller waits.
            Fault::ExecutedTwice | Fault::DoublePush | Fault::Killed | Fault::Closed => Duration::ZERO,
            // The client is told of the new connection, and all its waiters ask. A slow task finds out what
            // it missed when it goes on.
            Fault::MessagesCut | Fault::MessagesHalfOpen | Fault::SlowTask => self.prompt(),
            // The client is not told: the next poll finds out.
            Fault::LostPush | Fault::SlowPush => self.poll(),
            // A call under way runs before its `not_after` or not at all, and is then withdrawn or repeated.
            // The client's estimate of the server's time is late by as much as its sample was slow.
            Fault::SlowCall
            | Fault::SlowReply
            | Fault::LostReply
            | Fault::CommandsCut
            | Fault::CommandsSilent
            | Fault::Refusing
            | Fault::Stalled => NOT_AFTER + LONGEST_DELAY + LONGEST_PAUSE + self.prompt(),
            // All calls wait until the scripts are loaded, and a little longer for callers that stand still.
            Fault::ScriptsForgotten => RELOAD_WAIT + 2 * self.prompt(),
            // Both of these; a `not_after` is later by as much as the clock was set back.
            Fault::Stopped | Fault::ClockSetBack => NOT_AFTER + LONGEST_DELAY + LONGEST_PAUSE + self.poll(),
            // A waitlist that believes in its record opens it again, or asks whether it is there.
            Fault::Flushed | Fault::RecordsForgotten => self.heartbeat + self.poll(),
            // The first poll for a waiter shows it, so no waiter has to wait for long.
            Fault::SubscriptionLost | Fault::AtReplica => FOREVER,
        }
    }
}
