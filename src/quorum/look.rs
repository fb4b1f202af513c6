//! Looks at votes: renewals, which a vote needs anyway, whose replies say whether an earlier request is
//! queued at that server. A look can also raise the fence of its vote.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;

use super::ballot::{Ballot, Event};
use crate::engine::counters::count;
use crate::engine::hold::Hold;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::Failure;
use crate::time::backoff::Backoff;

/// The longest pause between two looks. A client that is cut off again and again may reach its servers for
/// some 100 ms at a time, and needs the votes of others then.
const MAX_PAUSE: Duration = Duration::from_millis(160);

impl Ballot {
    /// Looks at all votes, since there are too few.
    pub(super) fn look_at_all(&mut self) {
        self.look_after = (2 * self.look_after)
            .min(MAX_PAUSE)
            .min(self.params.terms.grant() / 3);
        self.look_at = None;
        for (server, hold) in self.votes().holds() {
            let fence = hold.fence();
            self.look(server, hold, fence);
        }
    }

    /// Raises the votes with a smaller fence.
    pub(super) fn raise_to(&mut self, fence: Fence) {
        for (server, hold) in self.votes().holds() {
            if hold.fence() < fence {
                self.look(server, hold, fence);
            }
        }
    }

    /// Renews a vote, raises its fence, and hears whether an earlier request is queued. This is repeated
    /// until it is answered or refused, until the vote is lost, or until the caller gives up.
    fn look(&mut self, server: usize, hold: Arc<Hold>, floor: Fence) {
        if std::mem::replace(&mut self.seats[server].is_looking, true) {
            return;
        }
        if hold.fence() < floor {
            count(&self.quorum.counters.raised);
        }
        let background = Arc::clone(self.quorum.servers[server].background());
        let (until, arrived) = (self.until, self.arrived);
        let ticket = self.ticket;
        let quorum = Arc::clone(&self.quorum);
        let (keys, channel) = (Arc::clone(&self.params.keys), Arc::clone(&self.params.channel));
        self.pending.push(Box::pin(async move {
            let looked = async {
                let mut backoff = Backoff::new();
                while hold.check().is_ok() {
                    match background.look_for_earlier(&hold, floor, ticket).await {
                        Ok(answer) => return Ok(answer),
                        Err(refused @ Failure::Refused(_)) => return Err(refused.into()),
                        Err(_) => backoff.pause().await,
                    }
                }
                Ok(false)
            };
            let earlier = match until {
                None => looked.await,
                // The votes may be a majority, so that no attempt is left that would end in time.
                Some(until) => match timeout_at(until, looked).await {
                    Ok(looked) => looked,
                    Err(_) => Err(quorum.bound_over(&keys, &channel, arrived).await),
                },
            };
            (server, Event::Looked { hold, earlier })
        }));
    }

    /// Handles the answer to a look. Fails if the whole call does.
    pub(super) fn looked(&mut self, server: usize, hold: &Arc<Hold>, earlier: Result<bool>) -> Result<()> {
        if !self.votes().counts(server, hold) {
            return Ok(());
        }
        self.seats[server].is_looking = false;
        match earlier {
            Ok(true) if self.votes().are_too_few() => {
                count(&self.quorum.counters.yielded);
                self.begin_again(server);
                Ok(())
            }
            Ok(_) => Ok(()),
            // Nobody knows whether this vote keeps an earlier request waiting.
            Err(refused @ Error::Refused(_)) if !self.is_hold() => {
                drop(self.votes().take(server));
                self.failed(server, refused)
            }
            Err(error) => Err(error),
        }
    }
}
