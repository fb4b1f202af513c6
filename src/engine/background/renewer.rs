//! The renewer: when the background task looks at each hold next, and what it does then.
//!
//! Each hold has a time of its own in the schedule, so a failure for one lock never delays the renewal of
//! another. A hold that has ended leaves the schedule at once, so nothing is renewed after its release.
//!
//! After the process was paused, all renewals can be due at the same time. They are sent in batches. No
//! acquire is then delayed by more than one batch, and the server does not receive all renewals at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument, Span};

use super::{Background, Job};
use crate::engine::client::Client;
use crate::engine::counters::GuardEnd;
use crate::engine::hold::Hold;
use crate::protocol::ids::RequestId;
use crate::protocol::{Answer, Failure, Look, Looked, Renew, Renewed};
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::time::clock_offset::Sample;
use crate::time::server_time::Ticket;
use crate::types::error::HoldEnd;
use crate::types::fence::Fence;

/// How many renewals begin at a time.
pub(super) const BATCH: usize = 128;
/// The next batch begins after this pause, even if some renewals of the previous one are unanswered. So a
/// server that does not answer, even one of several, delays no renewal for longer.
pub(super) const BATCH_PAUSE: Duration = Duration::from_millis(5);

/// All live holds, by the time at which the background task must look at each of them next.
#[derive(Debug, Default)]
pub(super) struct RenewalSchedule {
    pub(super) looks: BTreeMap<(LocalTime, RequestId), Arc<Hold>>,
    pub(super) places: HashMap<RequestId, LocalTime>,
    /// The time until which the background task sleeps.
    sleeping_until: Option<LocalTime>,
}

impl Background {
    /// Watches a hold until it is over. If the hold is already watched, plans the next look at it.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        let due = hold.next_look();
        let mut schedule = locked(&self.schedule);
        // Checked under the schedule's lock. A hold that ends meanwhile is either not inserted here, or
        // removed by `leave` afterwards.
        if hold.is_over() {
            return;
        }
        if let Some(place) = schedule.places.insert(hold.request.clone(), due) {
            schedule.looks.remove(&(place, hold.request.clone()));
        }
        schedule
            .looks
            .insert((due, hold.request.clone()), Arc::clone(hold));
        let must_wake = schedule.sleeping_until.is_none_or(|until| due < until);
        if must_wake {
            schedule.sleeping_until = Some(due);
            drop(schedule);
            self.wake.notify_one();
        }
    }

    /// Stops watching a hold that has ended.
    pub(in crate::engine) fn leave(&self, hold: &Hold) {
        let mut schedule = locked(&self.schedule);
        if let Some(place) = schedule.places.remove(&hold.request) {
            schedule.looks.remove(&(place, hold.request.clone()));
        }
        drop(schedule);
        self.wake_if_closing();
    }

    pub(super) fn sleep_until_next(&self) -> Option<LocalTime> {
        let mut schedule = locked(&self.schedule);
        let first = schedule.looks.keys().next().map(|(due, _)| *due);
        // The time of a hold that came and went is kept. One needless wake-up is cheaper than a notification
        // for every such hold.
        let before = schedule
            .sleeping_until
            .filter(|until| *until > self.client.now() && !self.client.is_closed());
        schedule.sleeping_until = [first, before].into_iter().flatten().min();
        schedule.sleeping_until
    }

    /// The holds that are due, up to one batch.
    pub(super) fn due(&self) -> Vec<Arc<Hold>> {
        let now = self.client.now();
        locked(&self.schedule)
            .looks
            .iter()
            .take(BATCH)
            .take_while(|((due, _), _)| *due <= now)
            .map(|(_, hold)| Arc::clone(hold))
            .collect()
    }

    /// Renews a hold, or ends it if its time has passed. While the renewal is under way, the next look is due
    /// at the deadline.
    pub(super) fn look(self: &Arc<Self>, hold: Arc<Hold>) -> Option<Job> {
        let deadline = hold.deadline();
        if self.client.now() >= deadline {
            self.lose(&hold, hold.reason_gone());
            if hold.may_be_prolonged() {
                // A renewal may run late and prolong the lease, although no guard is left.
                self.release_unheard(hold);
            }
            return None;
        }
        let mut schedule = locked(&self.schedule);
        // The hold has no place if it has just been released.
        let place = std::mem::replace(schedule.places.get_mut(&hold.request)?, deadline);
        schedule.looks.remove(&(place, hold.request.clone()));
        schedule
            .looks
            .insert((deadline, hold.request.clone()), Arc::clone(&hold));
        drop(schedule);
        let background = Arc::clone(self);
        let patience = hold.renewal_patience();
        Some(Box::pin(async move {
            match tokio::time::timeout(patience, background.renew(&hold, false)).await {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => {
                    tracing::debug!(lock.name = %hold.keys.name, ?failure, "renewal failed");
                }
                // If this renewal succeeds after all, the next one finds that out.
                Err(_) => hold.set_in_doubt(),
            }
            hold
        }))
    }

    /// Renews a hold once, perhaps because a caller asks for it. A failure leaves it in doubt.
    pub(crate) async fn renew(&self, hold: &Hold, on_demand: bool) -> Result<(), Failure> {
        let prolonged = self.prolong(hold, on_demand);
        match prolonged.instrument(renewal_span(&self.client, hold)).await {
            Ok((answer, lease)) => self.renewed(hold, &answer.at, lease, answer.reply),
            Err(failure) => {
                hold.set_in_doubt();
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Has the server prolong the lease, under the fence that the hold has there. Returns with which lease.
    async fn prolong(&self, hold: &Hold, on_demand: bool) -> Result<(Answer<Renewed>, Duration), Failure> {
        loop {
            let call = Renew {
                on_demand,
                ..hold.renewal()
            };
            let (fence, lease) = (call.fence, call.lease);
            let answer = self.client.call(call).await?;
            if answer.reply != Renewed::Taken || !hold.try_raised_fence(fence) {
                return Ok((answer, lease));
            }
        }
    }

    /// Renews a hold once, and returns how many servers have that renewal. It waits until the wanted number
    /// has it, but no longer than `within`.
    pub(in crate::engine) async fn confirm(&self, hold: &Hold, within: Duration) -> Result<u32, Failure> {
        let call = hold.renewal();
        let lease = call.lease;
        let answer = self.client.confirm(call, within);
        let Answer { at, reply, .. } = answer.instrument(renewal_span(&self.client, hold)).await?;
        self.renewed(hold, &at, lease, reply.renewed);
        Ok(reply.got)
    }

    /// Renews a hold of a quorum once, and raises its fence to `floor` if it is smaller. Returns whether an
    /// earlier request than the one with this ticket is queued at the server.
    pub(crate) async fn look_for_earlier(
        &self,
        hold: &Hold,
        floor: Fence,
        ticket: Ticket,
    ) -> Result<bool, Failure> {
        hold.ask_to_raise(floor);
        let renew = hold.renewal();
        let lease = renew.lease;
        let call = Look { renew, floor, ticket };
        let answer = self
            .client
            .call(call)
            .instrument(renewal_span(&self.client, hold))
            .await?;
        let Looked {
            renewed,
            fence,
            earlier,
        } = answer.reply;
        self.renewed(hold, &answer.at, lease, renewed);
        hold.raised(fence);
        Ok(earlier)
    }

    fn renewed(&self, hold: &Hold, at: &Sample, lease: Duration, renewed: Renewed) {
        match renewed {
            Renewed::Until(deadline) => {
                let margin = hold.margin(at);
                self.counters().renewed(hold.group(), margin);
                hold.renewed(lease, deadline, at.local(deadline));
            }
            Renewed::Expired => self.lose(hold, hold.reason_gone()),
            Renewed::Taken => self.lose(hold, HoldEnd::Taken),
        }
    }

    /// Ends a hold whose lease had ended before its release.
    pub(in crate::engine) fn lose(&self, hold: &Hold, reason: HoldEnd) {
        let (before, holding) = hold.end(reason);
        if before.is_none() {
            if let Some(holding) = holding {
                holding.ended(self.counters(), GuardEnd::Lost(reason));
            }
            let what = if hold.is_vote() { "vote lost" } else { "lease lost" };
            tracing::warn!(lock.name = %hold.keys.name, lock.fence = hold.fence().get(), ?reason, "{what}");
        }
        self.leave(hold);
    }
}

fn renewal_span(client: &Client, hold: &Hold) -> Span {
    tracing::debug_span!(
        "fairlock.renew",
        lock.name = %hold.keys.name,
        lock.fence = hold.fence().get(),
        server.address = client.store.address_of(&hold.keys)
    )
}
