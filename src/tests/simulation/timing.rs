//! How fast a world gets over what happens in it: what its delays and the client's timers come to.

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
/// For how long those wait whose calls met a server that had forgotten the scripts, for others whose calls
/// did too.
const STRAGGLERS: Duration = Duration::from_millis(100);
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

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

    /// How long it takes to do whatever needs no timer: at worst to ask, to subscribe, to ask again, to be
    /// told that the record is gone, and to ask once more. That one need only arrive.
    pub(super) fn prompt(&self) -> Duration {
        7 * self.latency + JITTER + ROUNDING
    }

    /// How long it takes at worst until a waitlist has asked on its own account, and has acted on the answer.
    pub(super) fn poll(&self) -> Duration {
        self.interval + self.prompt()
    }

    /// For how long a fault may hold up whom it strikes, once it is over.
    pub(super) fn recovery(&self, fault: Fault) -> Duration {
        match fault {
            // The same once more, or a message that is no news; a process that is gone has nobody who waits.
            Fault::ExecutedTwice | Fault::DoublePush | Fault::Killed | Fault::Closed => Duration::ZERO,
            // The client is told of the new connection, and has everybody ask. What a slow task leaves, or
            // has missed, is found out as it goes on.
            Fault::MessagesCut | Fault::MessagesHalfOpen | Fault::SlowTask => self.prompt(),
            // Nobody tells: the next poll finds out.
            Fault::LostPush | Fault::SlowPush => self.poll(),
            // What was under way runs before its `not_after` or not at all, and is then withdrawn or
            // repeated. The client takes the server's time for later by as much as the call was slow that
            // told it.
            Fault::SlowCall
            | Fault::SlowReply
            | Fault::LostReply
            | Fault::CommandsCut
            | Fault::CommandsSilent
            | Fault::Refusing
            | Fault::Stalled => NOT_AFTER + LONGEST_DELAY + LONGEST_PAUSE + self.prompt(),
            // All wait until they are loaded, and a little for callers that stand still.
            Fault::ScriptsForgotten => STRAGGLERS + 2 * self.prompt(),
            // Both; a `not_after` is later by as much as the clock was set back.
            Fault::Stopped | Fault::ClockSetBack => NOT_AFTER + LONGEST_DELAY + LONGEST_PAUSE + self.poll(),
            // A waitlist that believes in its record opens it again, or asks whether it is there.
            Fault::Flushed | Fault::RecordsForgotten => self.heartbeat + self.poll(),
            // It shows to the first poll for a waiter, and nobody need wait for long.
            Fault::Deaf | Fault::AtReplica => FOR_EVER,
        }
    }
}
