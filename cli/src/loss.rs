//! When CMD has to be stopped, because a lock of it is lost or soon will be.

use std::time::{Duration, Instant};

use fairlock::{Error, HoldEnd, HoldToken, Lease, LeaseState};
use tokio::time::timeout;

use crate::taking::{Grant, reason};

/// How often a lease is looked at that may be lost soon.
const CLOSE_LOOK: Duration = Duration::from_millis(50);
/// A process that is killed takes a moment to be dead.
const TO_DIE: Duration = Duration::from_millis(20);

/// Why CMD has to be stopped, and how long it has.
#[derive(Debug)]
pub(crate) struct Loss {
    /// The lock that is lost.
    pub(crate) token: HoldToken,
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
    /// How long a hold lasts, whatever is renewed.
    pub(crate) max_hold: Option<Duration>,
}

/// Waits until CMD has to be stopped because of this lock.
///
/// If renewals fail, that is `kill_after` before the end of the lease, so that CMD is dead when another
/// holder may begin. A lock that is taken away gives no such notice: then CMD still has `kill_after` to clean
/// up.
pub(crate) async fn due(grant: &Grant, margin: Margin) -> Loss {
    let guard = &grant.guard;
    let ends = margin
        .max_hold
        .and_then(|max_hold| grant.since.checked_add(max_hold));
    loop {
        if let Err(Error::Lost(lost)) = guard.check() {
            let grace = match lost.reason {
                // This process was stopped, or the machine slept: another holder may be at work.
                HoldEnd::Expired | HoldEnd::MaxHold => Duration::ZERO,
                _ => margin.kill_after,
            };
            return Loss {
                token: guard.token(),
                reason: reason(lost.reason),
                why: lost.to_string(),
                grace,
            };
        }
        let lease = guard.lease();
        if let Some(loss) = foreseen(guard.token(), lease, ends, margin.kill_after) {
            return loss;
        }
        let until_near = lease.remaining.saturating_sub(margin.kill_after);
        let until_end = ends.map(|ends| until(ends).saturating_sub(margin.kill_after));
        let next_look = until_near.min(until_end.unwrap_or(until_near)).max(CLOSE_LOOK);
        let _ = timeout(next_look, guard.lost()).await;
    }
}

/// The loss that is to come if the lease is not renewed, once it is so near that CMD has to be told.
fn foreseen(token: HoldToken, lease: Lease, ends: Option<Instant>, kill_after: Duration) -> Option<Loss> {
    if let Some(left) = ends.map(until).filter(|left| *left <= kill_after) {
        return Some(Loss {
            reason: "max_hold",
            why: format!("the maximum hold time of {} is nearly over", token.name()),
            token,
            grace: left.min(lease.remaining).saturating_sub(TO_DIE),
        });
    }
    let is_near = lease.remaining <= kill_after;
    (is_near && lease.state == LeaseState::InDoubt).then(|| Loss {
        reason: "in_doubt",
        why: format!(
            "the lease on lock {:?} could not be renewed, and will soon be over",
            token.name()
        ),
        token,
        grace: lease.remaining.saturating_sub(TO_DIE),
    })
}

fn until(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}
