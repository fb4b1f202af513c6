//! Renewals: when each hold is looked at next, and what comes of that.
//!
//! Each hold is looked at by its own deadline, so one lock's error never delays another's renewal. A hold that is
//! over leaves the schedule at once: nothing is renewed after its release.
//!
//! Renewals that are due at one time, as all are after the process stood still, go out in batches: so they hold up
//! no acquire by more than a batch, and the server is not asked for all at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument, Span};

use super::{Background, Done, Job};
use crate::engine::counters::count;
use crate::engine::hold::Hold;
use crate::error::LostReason;
use crate::store::ids::RequestId;
use crate::store::{Answer, Failure, Renewed};
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::time::clock_offset::Sample;

/// How many renewals begin at a time.
pub(super) const BATCH: usize = 128;
/// After so long the next ones begin though not all of those before are answered: a server, or one of
/// several, that does not answer holds up none for longer.
pub(super) const BATCH_PAUSE: Duration = Duration::from_millis(5);

/// All holds that live, by the time at which each must be looked at next.
#[derive(Debug, Default)]
pub(super) struct RenewalSchedule {
    pub(super) looks: BTreeMap<(LocalTime, RequestId), Arc<Hold>>,
    pub(super) places: HashMap<RequestId, LocalTime>,
    /// Until when the background task sleeps.
    sleeping_until: Option<LocalTime>,
}

impl Background {
    /// Takes charge of a hold until it is over; of one that it has, when to look next.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        let due = hold.next_look();
        let mut schedule = locked(&self.schedule);
        // Under the schedule's lock, so that a hold which ends meanwhile is either not placed or taken out
        // after.
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

    /// Leaves a hold that is over.
    pub(crate) fn leave(&self, hold: &Hold) {
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
        // A hold that came and went leaves its time: waking once for nothing is cheaper than being woken by
        // every one.
        let before = schedule
            .sleeping_until
            .filter(|until| *until > self.client.now() && !self.client.is_closed());
        schedule.sleeping_until = [first, before].into_iter().flatten().min();
        schedule.sleeping_until
    }

    /// The first of those that are due.
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

    /// Ends a hold whose time is over, or renews it; meanwhile its place in the schedule is its end.
    pub(super) fn look(self: &Arc<Self>, hold: Arc<Hold>) -> Option<Job> {
        let deadline = hold.deadline();
        if self.client.now() >= deadline {
            self.lose(&hold, hold.reason_gone());
            if hold.may_be_prolonged() {
                // A renewal may run late, and keep the lock for nobody.
                self.release_later(hold);
            }
            return None;
        }
        let mut schedule = locked(&self.schedule);
        // Unless it has just been released.
        let place = std::mem::replace(schedule.places.get_mut(&hold.request)?, deadline);
        schedule.looks.remove(&(place, hold.request.clone()));
        schedule
            .looks
            .insert((deadline, hold.request.clone()), Arc::clone(&hold));
        drop(schedule);
        let background = Arc::clone(self);
        let patience = hold.renewal_patience();
        Some(Box::pin(async move {
            match tokio::time::timeout(patience, background.renew(&hold)).await {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => {
                    tracing::debug!(lock.name = %hold.keys.name, ?failure, "renewal failed");
                }
                // Should it succeed all the same, the next one will find that out.
                Err(_) => hold.set_in_doubt(),
            }
            Done::Look(hold)
        }))
    }

    /// Renews a hold once. A failure leaves it in doubt.
    pub(crate) async fn renew(&self, hold: &Hold) -> Result<(), Failure> {
        let answer = self.client.renew(hold.renewal());
        match answer.instrument(renewal_span(hold)).await {
            Ok(Answer { at, reply, .. }) => self.renewed(hold, &at, reply),
            Err(failure) => {
                hold.set_in_doubt();
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Renews a hold once, and returns how many servers have that: as many as are wanted, or those that do
    /// `within` this time.
    pub(crate) async fn confirm(&self, hold: &Hold, within: Duration) -> Result<u32, Failure> {
        let answer = self.client.store.confirm(hold.renewal(), within);
        let Answer { at, reply, .. } = answer.instrument(renewal_span(hold)).await?;
        self.renewed(hold, &at, reply.renewed);
        Ok(reply.got)
    }

    fn renewed(&self, hold: &Hold, at: &Sample, renewed: Renewed) {
        match renewed {
            Renewed::Until(deadline) => hold.renewed(deadline, at.local(deadline)),
            Renewed::Expired => self.lose(hold, hold.reason_gone()),
            Renewed::Taken => self.lose(hold, LostReason::Taken),
        }
    }

    /// A lease is over before its release.
    pub(crate) fn lose(&self, hold: &Hold, reason: LostReason) {
        if hold.end(reason).is_none() {
            self.note_lapse(hold);
            count(&self.client.counters.lost);
            tracing::warn!(lock.name = %hold.keys.name, lock.fence = hold.fence.get(), ?reason, "lease lost");
        }
        self.leave(hold);
    }

    /// A hold that is over here runs out on the server. If that has never heard of this client's having heard
    /// of its grant, it takes the client for dead.
    fn note_lapse(&self, hold: &Hold) {
        if !hold.is_claimed() {
            let lease = hold.terms.lease();
            self.client
                .presence
                .lease_expires(&hold.keys, self.client.now(), hold.deadline(), lease);
        }
    }
}

fn renewal_span(hold: &Hold) -> Span {
    tracing::debug_span!("fairlock.renew", lock.name = %hold.keys.name, lock.fence = hold.fence.get())
}
