//! What must be told to the server though nobody waits for it: releases of holds whose guards are gone, claims of
//! holds that are left to expire, withdrawals of requests that are given up.

use std::sync::Arc;

use super::withdrawals::{Batch, Withdrawal};
use super::{Background, Done};
use crate::engine::hold::Hold;
use crate::engine::pending_calls::PendingCalls;
use crate::error::{Error, LostReason};
use crate::store::ids::RequestId;
use crate::store::keys::Keys;
use crate::store::{Answer, Failure, Release, ReleaseOutcome, ReleaseWhat, Renewed};
use crate::sync::outstanding::Token;
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;

/// Something to tell the server until it answers.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Release a hold that nobody will release any more.
    Release(Arc<Hold>, Token),
    /// Claim a hold that nobody will renew any more.
    Claim(Arc<Hold>, Token),
    Withdraw(Arc<Keys>, Withdrawal),
}

impl Background {
    /// Lets a hold run out on the server, which is over here: after its whole lease, also if it was handed
    /// over and not renewed so far.
    pub(crate) fn let_run_out(&self, hold: &Arc<Hold>) {
        if !hold.is_claimed() {
            self.send(Outgoing::Claim(Arc::clone(hold), self.keep_running()));
        }
    }

    /// Releases a hold in the background. Never blocks; outside a runtime too.
    pub(crate) fn release_later(&self, hold: Arc<Hold>) {
        self.send(Outgoing::Release(hold, self.keep_running()));
    }

    /// Makes sure that nothing is left of a request that is never used again: at once, if it may have
    /// something on the server by an answered call, and once more when none of its unanswered calls can run
    /// any more.
    pub(crate) fn withdraw(
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
                _token: self.keep_running(),
            };
            self.send(Outgoing::Withdraw(Arc::clone(keys), withdrawal));
        }
    }

    /// Releases a hold that has left the schedule: until it is answered, or until `give_up`. Then its request
    /// is never used again.
    pub(crate) async fn release(&self, hold: &Hold, give_up: LocalTime) -> Result<(), Error> {
        // What waits to be sent must not run after the release. A poll that is under way may, and be
        // answered before that is: so it is looked for before.
        hold.calls.end();
        let is_asked_for = hold.calls.unanswered().is_some();
        let released = self.release_grant(hold, give_up).await;
        // So may one have that was under way as the hold ran out. Either may have queued the request anew, or
        // made it the holder again, under a fence that nobody knows of.
        let was_over = matches!(released, Err(Error::Lost(_)));
        self.withdraw(&hold.keys, &hold.request, is_asked_for || was_over, &hold.calls);
        released
    }

    fn send(&self, outgoing: Outgoing) {
        // Without a receiver the runtime is gone, and with it the connection: the leases are what is left.
        let _ = self.outbox.send(outgoing);
    }

    /// Releases a hold for nobody who waits for that.
    pub(super) async fn release_unheard(self: Arc<Self>, hold: Arc<Hold>, _token: Token) -> Done {
        // As long as the lease can last by a renewal that ran at its end.
        let give_up = hold.deadline().after(hold.terms.lease());
        match self.release(&hold, give_up).await {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => {
                tracing::warn!(lock.name = %hold.keys.name, lock.fence = hold.fence.get(), %error,
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
                what: ReleaseWhat::Grant(hold.fence),
            };
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
                    // Nothing is left though the lease is not over: an attempt did it whose reply was lost.
                    let done_before = unanswered && answer.at.received < hold.deadline();
                    released |= found || done_before;
                    if answer.reply.more {
                        continue;
                    }
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

    /// Renews a hold once, that is over here: until that is answered, or its time is over.
    pub(super) async fn claim(self: Arc<Self>, hold: Arc<Hold>, _token: Token) -> Done {
        let mut backoff = Backoff::new();
        while self.client.now() < hold.deadline() {
            match self.client.renew(hold.renewal()).await {
                Ok(Answer {
                    reply: Renewed::Until(_),
                    ..
                }) => return Done::Outgoing,
                Ok(_) | Err(Failure::Closed | Failure::Refused(_)) => break,
                Err(Failure::Unknown(_) | Failure::NotExecuted(_)) => backoff.pause().await,
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
        let answer = self.client.withdraw(batch.call()).await;
        Done::Withdrawn(batch, answer)
    }
}
