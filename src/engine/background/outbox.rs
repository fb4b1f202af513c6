//! The outbox: outgoing messages for which no caller waits. These are releases of holds whose guards are
//! gone, claims of holds that are left to expire, and withdrawals of requests that were given up.

use std::sync::Arc;

use super::withdrawals::{Batch, Withdrawal};
use super::{Background, Done, Unconfirmed};
use crate::engine::hold::Hold;
use crate::engine::pending_calls::PendingCalls;
use crate::error::{Error, LostReason};
use crate::store::ids::RequestId;
use crate::store::keys::Keys;
use crate::store::{Answer, Failure, Release, ReleaseOutcome, Renewed};
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;

/// A message that is sent until the server answers it.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Releases a hold that no guard will release.
    Release(Arc<Hold>, Unconfirmed),
    /// Claims a hold that nothing will renew.
    Claim(Arc<Hold>, Unconfirmed),
    Withdraw(Arc<Keys>, Withdrawal),
}

impl Background {
    /// Lets a hold that has ended locally expire on the server after its whole lease. If the server does not
    /// know of the whole lease yet, the hold is renewed once for that.
    pub(in crate::engine) fn let_run_out(&self, hold: &Arc<Hold>) {
        if !hold.has_its_lease() {
            self.send(Outgoing::Claim(Arc::clone(hold), self.unconfirmed()));
        }
    }

    /// Releases a hold in the background. Never blocks, and also works outside a runtime.
    pub(in crate::engine) fn release_later(&self, hold: Arc<Hold>) {
        self.send(Outgoing::Release(hold, self.unconfirmed()));
    }

    /// Makes sure that the server keeps nothing of a request that is never used again. The request is
    /// withdrawn immediately if an answered call may have left something on the server (`at_once`). It is
    /// withdrawn again when none of its unanswered calls can run any more.
    pub(in crate::engine) fn withdraw(
        &self,
        keys: &Arc<Keys>,
        request: &RequestId,
        at_once: bool,
        calls: &Arc<PendingCalls>,
    ) {
        if calls.withdraw(at_once) {
            let withdrawal = Withdrawal {
                request: request.clone(),
                calls: Arc::clone(calls),
                at_once,
                _unconfirmed: self.unconfirmed(),
            };
            self.send(Outgoing::Withdraw(Arc::clone(keys), withdrawal));
        }
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

    fn send(&self, outgoing: Outgoing) {
        // If the receiver is gone, so are the runtime and the connection. The leases then expire by
        // themselves.
        let _ = self.outbox.send(outgoing);
    }

    /// Releases a hold when no caller waits for the result.
    pub(super) async fn release_unheard(self: Arc<Self>, hold: Arc<Hold>, _unconfirmed: Unconfirmed) -> Done {
        // A renewal that ran just before the deadline prolongs the lease by its whole length.
        let give_up = hold.deadline().after(hold.lease_length());
        match self.release(&hold, give_up, true).await {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => {
                tracing::warn!(lock.name = %hold.keys.name, lock.fence = hold.fence().get(), %error,
                    "release not confirmed; the lease ends by itself");
            }
        }
        Done::Outgoing
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
            let failure = match self.client.release(call).await {
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

    /// Renews a hold that has ended locally, once. Repeats the call until it is answered, or until the lease
    /// is over.
    pub(super) async fn claim(self: Arc<Self>, hold: Arc<Hold>, _unconfirmed: Unconfirmed) -> Done {
        let mut backoff = Backoff::new();
        while self.client.now() < hold.deadline() {
            match self.prolong(&hold, false).await {
                Ok((
                    Answer {
                        reply: Renewed::Until(_),
                        ..
                    },
                    _,
                )) => {
                    self.counters().renewed(hold.group(), None);
                    return Done::Outgoing;
                }
                Ok(_) | Err(Failure::Closed | Failure::Refused(_)) => break,
                Err(_) => backoff.pause().await,
            }
        }
        self.client.presence.lease_expires(
            &hold.keys,
            self.client.now(),
            hold.deadline(),
            hold.terms.lease(),
        );
        Done::Outgoing
    }

    pub(super) async fn withdraw_batch(self: Arc<Self>, batch: Batch) -> Done {
        let answer = self.client.withdraw(batch.call(self.client.now())).await;
        Done::Withdrawn(batch, answer)
    }
}
