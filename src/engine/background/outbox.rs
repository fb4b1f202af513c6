//! The outbox: outgoing messages for which no caller waits. These are claims of holds that are left to
//! expire, and withdrawals of requests that were given up. Releases of holds whose guards are gone are
//! written at once.

use std::sync::Arc;

use super::withdrawals::{Batch, Withdrawal};
use super::{Background, Done, Unconfirmed};
use crate::engine::hold::Hold;
use crate::engine::pending_calls::PendingCalls;
use crate::store::ids::RequestId;
use crate::store::keys::Keys;
use crate::store::{Answer, Failure, Renewed};
use crate::time::backoff::Backoff;

/// A message that is sent until the server answers it.
#[derive(Debug)]
pub(super) enum Outgoing {
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

    fn send(&self, outgoing: Outgoing) {
        // If the receiver is gone, so are the runtime and the connection. The leases then expire by
        // themselves.
        let _ = self.outbox.send(outgoing);
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
