//! Releases of holds: those that a caller waits for, and those of dropped guards.

use std::sync::Arc;

use super::Background;
use crate::engine::hold::Hold;
use crate::error::{Error, LostReason};
use crate::store::{Failure, Release, ReleaseOutcome};
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;

impl Background {
    /// Releases a hold that no guard will release. The call is written at once, so that a later call of the
    /// same task finds the lock free. Never blocks, and also works outside a runtime.
    pub(in crate::engine) fn release_unheard(self: &Arc<Self>, hold: Arc<Hold>) {
        let (this, unconfirmed) = (Arc::clone(self), self.unconfirmed());
        self.begin(async move {
            let _unconfirmed = unconfirmed;
            // A renewal that ran just before the deadline prolongs the lease by its whole length.
            let give_up = hold.deadline().after(hold.lease_length());
            match this.release(&hold, give_up, true).await {
                Ok(()) | Err(Error::Lost(_)) => {}
                Err(error) => {
                    tracing::warn!(lock.name = %hold.keys.name, lock.fence = hold.fence().get(), %error,
                        "release not confirmed; the lease ends by itself");
                }
            }
        });
    }

    /// Releases a hold that has left the schedule. Repeats the call until it is answered, or until `give_up`.
    /// After that the request is never used again. If the server did not answer, a release that `is_last`
    /// withdraws the request. Another one must be followed by a release.
    pub(in crate::engine) async fn release(
        &self,
        hold: &Hold,
        give_up: LocalTime,
        is_last: bool,
    ) -> Result<(), Error> {
        // Unsent calls must not run after the release. A poll that is already under way may run after it, and
        // may be answered before the release is. So the check for unanswered calls comes before the release.
        hold.calls.end();
        let is_asked_for = hold.calls.unanswered().is_some();
        let released = self.release_grant(hold, give_up).await;
        // A poll that was under way when the lease expired may also have run late. Either poll may have
        // queued the request again, or made it the holder again under a fence that this client does not know.
        let was_over = matches!(released, Err(Error::Lost(_)));
        // A withdrawal would overtake the next release, and keeps nothing taken.
        if is_last || !matches!(released, Err(Error::Unavailable(_))) {
            self.withdraw(&hold.keys, &hold.request, is_asked_for || was_over, &hold.calls);
        }
        released
    }

    async fn release_grant(&self, hold: &Hold, give_up: LocalTime) -> Result<(), Error> {
        let mut backoff = Backoff::new();
        let mut released = false;
        let mut unanswered = false;
        loop {
            let call = Release {
                keys: Arc::clone(&hold.keys),
                request: hold.request.clone(),
                what: hold.ending(),
                floor: hold.next_floor(),
            };
            let fence = hold.fence();
            let failure = match self.client.call(call).await {
                Ok(answer) => {
                    if answer.reply.denied {
                        tracing::warn!(lock.name = %hold.keys.name,
                            "the server's ACL refuses to publish on the unlock channels: waiters live by their timers");
                    }
                    let found = matches!(
                        answer.reply.outcome,
                        ReleaseOutcome::Released | ReleaseOutcome::OneFewer
                    );
                    // The hold is gone although its lease is not over: an earlier attempt released it, and
                    // its reply was lost.
                    let done_before = unanswered && answer.at.received < hold.deadline();
                    released |= found;
                    let is_taken = answer.reply.outcome == ReleaseOutcome::Taken;
                    if answer.reply.more || is_taken && !released && hold.has_another_fence(fence) {
                        continue;
                    }
                    released |= done_before;
                    return match answer.reply.outcome {
                        _ if released => Ok(()),
                        ReleaseOutcome::Taken => Err(hold.lost_by(LostReason::Taken).into()),
                        _ => Err(hold.lost_by(hold.reason_gone()).into()),
                    };
                }
                Err(failure) => failure,
            };
            unanswered |= matches!(failure, Failure::Unknown(_));
            if matches!(failure, Failure::Refused(_) | Failure::Closed) || self.client.now() >= give_up {
                return Err(failure.into());
            }
            backoff.pause().await;
        }
    }
}
