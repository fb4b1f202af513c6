//! How long a world takes to recover from a fault, given its delays and the client's timers.

use std::time::Duration;

use super::history::Fault;
use crate::engine::options::{JITTER, ManagerOptions};
use crate::time::deadline::NOT_AFTER;

/// The longest pause between two attempts at a call.
const LONGEST_PAUSE: Duration = Duration::from_millis(1250);
/// Allowance for timers that have whole milliseconds, deadlines that are rounded down to them, and clock
/// drift.
pub(super) const ROUNDING: Duration = Duration::from_millis(20);
/// The longest extra delay of a slow call or reply.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// The longest time for which the thread of a task stalls.
pub(super) const LONGEST_MOMENT: Duration = Duration::from_millis(200);
/// How long a call that found the scripts missing waits for other such calls.
const RELOAD_WAIT: Duration = Duration::from_millis(100);
const FOREVER: Duration = Duration::from_secs(1_000_000);

#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The longest time that a message takes without a fault.
    pub(super) latency: Duration,
    /// The time between two polls of a waitlist.
    pub(super) interval: Duration,
    /// How long after its grant a lock may be held unused.
    pub(super) retain: Duration,
}

impl Timing {
    pub(super) fn of(options: &ManagerOptions, latency: Duration) -> Timing {
        Timing {
            latency,
            interval: options.poll_interval(),
            retain: options.retain.unwrap_or_default(),
        }
    }

    /// The longest time for what needs no timer: an acquire, a subscription, a poll, the reply that its
    /// request had lost its place, and one more acquire. That last call need only arrive.
    pub(super) fn prompt(&self) -> Duration {
        7 * self.latency + JITTER + ROUNDING
    }

    /// The longest time until a waitlist has polled by its timer and has acted on the answer.
    pub(super) fn poll(&self) -> Duration {
        self.interval + self.prompt()
    }

    /// How long a fault can delay its client after the fault is over.
    pub(super) fn recovery(&self, fault: Fault) -> Duration {
        match fault {
            // A repeated call or message changes nothing, and in a dead process no caller waits.
            Fault::ExecutedTwice | Fault::DoublePush | Fault::Killed | Fault::Closed => Duration::ZERO,
            // The client hears of the new connection, and all its waiters ask. A slow task finds out what it
            // missed when it resumes.
            Fault::MessagesCut | Fault::MessagesHalfOpen | Fault::SlowTask => self.prompt(),
            // The client hears nothing, so only the next poll finds out.
            Fault::LostPush | Fault::SlowPush => self.poll(),
            // A call in flight runs before its `not_after` or not at all, and is then withdrawn or repeated.
            // A slow sample makes the client's estimate of the server's time late by as much.
            Fault::SlowCall
            | Fault::SlowReply
            | Fault::LostReply
            | Fault::CommandsCut
            | Fault::CommandsSilent
            | Fault::Refusing
            | Fault::Stalled => NOT_AFTER + LONGEST_DELAY + LONGEST_PAUSE + self.prompt(),
            // All calls wait until the scripts are loaded, and a little longer for tasks that stall.
            Fault::ScriptsForgotten => RELOAD_WAIT + 2 * self.prompt(),
            // Both reasons add up.
            Fault::Stopped => NOT_AFTER + LONGEST_DELAY + LONGEST_PAUSE + self.poll(),
            // The next poll finds the place of its request lost, or removes the note.
            Fault::Flushed | Fault::NotedAbsent => self.poll(),
            // Only a poll for a waiter finds this fault, and it is unknown when the next one comes. So the
            // client counts as delayed for good.
            Fault::SubscriptionLost | Fault::AtReplica => FOREVER,
            // Newcomers have earlier tickets then. If a waiter lost its place before, its waitlist polls for
            // it only after them.
            Fault::ClockSetBack => FOREVER,
        }
    }
}
