//! When CMD has to be stopped, because its lock is lost or soon will be.

use std::time::{Duration, Instant};

use fairlock::{HoldEnd, Lease, LeaseState, LockGuard};
use tokio::time::timeout;

use crate::taking::reason;

/// How often a lease is looked at that may be lost soon.
const CLOSE_LOOK: Duration = Duration::from_millis(50);
/// A process that is killed takes a moment to be dead.
const TO_DIE: Duration = Duration::from_millis(20);

/// Why CMD has to be stopped, and how long it has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// For machines.
    pub(crate) reason: &'static str,
    /// For people.
    pub(crate) why: String,
    /// The time from the first signal to SIGKILL.
    pub(crate) grace: Duration,
}

/// How long before the end of the lease CMD is told to stop.
#[derive(Clone, Copy)]
pub(crate) struct Margin {
    pub(crate) kill_after: Duration,
    /// When the hold ends, whatever is renewed.
    pub(crate) ends: Option<Instant>,
}

/// Waits until CMD has to be stopped.
///
/// If renewals fail, that is `kill_after` before the end of the lease, so that CMD is dead when another
/// holder may begin. A lock that is taken away gives no such notice: then CMD still has `kill_after` to clean
/// up.
pub(crate) async fn due(guard: &LockGuard, margin: Margin) -> Loss {
    loop {
        if let Err(lost) = guard.check() {
            let grace = match lost.reason {
                // This process was stopped, or the machine slept: another holder may be at work.
                HoldEnd::Expired | HoldEnd::MaxHold => Duration::ZERO,
                _ => margin.kill_after,
            };
            return Loss {
                reason: reason(lost.reason),
                why: lost.to_string(),
                grace,
            };
        }
        let lease = guard.lease();
        if let Some(loss) = foreseen(guard.name(), lease, margin) {
            return loss;
        }
        let until_near = lease.remaining.saturating_sub(margin.kill_after);
        let until_end = margin
            .ends
            .map(|ends| until(ends).saturating_sub(margin.kill_after));
        let next_look = until_near.min(until_end.unwrap_or(until_near)).max(CLOSE_LOOK);
        let _ = timeout(next_look, guard.lost()).await;
    }
}

/// The loss that is to come if the lease is not renewed, once it is so near that CMD has to be told.
fn foreseen(name: &str, lease: Lease, margin: Margin) -> Option<Loss> {
    if let Some(left) = margin.ends.map(until).filter(|left| *left <= margin.kill_after) {
        return Some(Loss {
            reason: "max_hold",
            why: format!("the maximum hold time of {name} is nearly over"),
            grace: left.min(lease.remaining).saturating_sub(TO_DIE),
        });
    }
    let is_near = lease.remaining <= margin.kill_after;
    (is_near && lease.state == LeaseState::InDoubt).then(|| Loss {
        reason: "in_doubt",
        why: format!("the lease on lock {name:?} could not be renewed, and will soon be over"),
        grace: lease.remaining.saturating_sub(TO_DIE),
    })
}

fn until(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}
