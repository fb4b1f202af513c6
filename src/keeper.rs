//! The background part of a client: renewals, and what must be told to the server though nobody waits for it.
//!
//! Each hold is looked at by its own deadline, so one lock's error never delays another's renewal. A hold
//! that is over leaves the schedule at once: nothing is renewed after its release.
//!
//! Renewals that are due at one time, as all are after the process stood still, go out in batches: so they
//! hold up no acquire by more than a batch, and the server is not asked for all at once.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, mpsc};
use tracing::{Instrument, Span};

use crate::backoff::Backoff;
use crate::client::{Client, Counters, as_error, count, locked};
use crate::clock::Tick;
use crate::error::{Error, LostReason};
use crate::hold::Hold;
use crate::key::{Keys, Request};
use crate::lease::Exchange;
use crate::outstanding::{Outstanding, Token};
use crate::pending_calls::PendingCalls;
use crate::store::{Answer, Failure, Release, ReleaseOutcome, ReleaseWhat, Renewed, Withdrawn};
use crate::withdrawals::{Batch, Withdrawal, Withdrawals};

/// How many renewals begin at a time.
const BATCH: usize = 128;
/// After so long the next ones begin though not all of those before are answered: a server, or one of
/// several, that does not answer holds up none for longer.
const BATCH_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Keeper {
    client: Arc<Client>,
    schedule: Mutex<Schedule>,
    errands: mpsc::UnboundedSender<Errand>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Errand>>>,
    /// Errands given and not done, and those who [keep the client running](Keeper::keep_running).
    pending: Arc<Outstanding>,
    wake: Notify,
}

/// All holds that live, by the time at which each must be looked at next.
#[derive(Debug)]
struct Schedule {
    looks: BTreeMap<(Tick, Request), Arc<Hold>>,
    places: HashMap<Request, Tick>,
    /// Until when the keeper sleeps.
    sleeping_until: Option<Tick>,
}

/// Something to tell the server until it answers.
#[derive(Debug)]
enum Errand {
    /// Release a hold that nobody will release any more.
    Release(Arc<Hold>, Token),
    /// Claim a hold that nobody will renew any more.
    Claim(Arc<Hold>, Token),
    Withdraw(Arc<Keys>, Withdrawal),
}

type Job = Pin<Box<dyn Future<Output = Done> + Send>>;

enum Done {
    Look(Arc<Hold>),
    Withdrawn(Batch, Result<Answer<Withdrawn>, Failure>),
    Errand,
}

impl Keeper {
    pub(crate) fn new(client: Arc<Client>) -> Keeper {
        let (errands, inbox) = mpsc::unbounded_channel();
        Keeper {
            client,
            schedule: Mutex::new(Schedule {
                looks: BTreeMap::new(),
                places: HashMap::new(),
                sleeping_until: None,
            }),
            errands,
            inbox: Mutex::new(Some(inbox)),
            pending: Arc::default(),
            wake: Notify::new(),
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

    /// A hold that is over here runs out on the server. If that has never heard of this client's having heard
    /// of its grant, it takes the client for dead.
    fn note_lapse(&self, hold: &Hold) {
        if !hold.is_claimed() {
            let lease = hold.terms.lease();
            self.client.note_lapse(&hold.keys, hold.deadline(), lease);
        }
    }

    /// Lets a hold run out on the server, which is over here: after its whole lease, also if it was handed
    /// over and not renewed so far.
    pub(crate) fn let_run_out(&self, hold: &Arc<Hold>) {
        if !hold.is_claimed() {
            self.send(Errand::Claim(Arc::clone(hold), self.keep_running()));
        }
    }

    /// Releases a hold in the background. Never blocks; outside a runtime too.
    pub(crate) fn release_later(&self, hold: Arc<Hold>) {
        self.send(Errand::Release(hold, self.keep_running()));
    }

    /// Makes sure that nothing is left of a request that is never used again: at once, if it may have
    /// something on the server by an answered call, and once more when none of its unanswered calls can run
    /// any more.
    pub(crate) fn withdraw(
        &self,
        keys: &Arc<Keys>,
        request: &Request,
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
            self.send(Errand::Withdraw(Arc::clone(keys), withdrawal));
        }
    }

    fn send(&self, errand: Errand) {
        // Without a receiver the runtime is gone, and with it the connection: the leases are what is left.
        let _ = self.errands.send(errand);
    }

    /// Keeps a closed client running until this is dropped, for something that the keeper does not know yet.
    pub(crate) fn keep_running(&self) -> Token {
        Outstanding::begin(&self.pending)
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.client.counters
    }

    /// Until when a caller is kept waiting for a server that does not answer.
    pub(crate) fn patience_until(&self) -> Tick {
        self.client.now().after(self.client.options.server_timeout)
    }

    pub(crate) fn held(&self) -> Vec<Arc<Hold>> {
        locked(&self.schedule).looks.values().cloned().collect()
    }

    pub(crate) fn held_count(&self) -> usize {
        locked(&self.schedule).looks.len()
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.count()
    }

    /// Waits until every errand is done.
    pub(crate) async fn drained(&self) {
        self.pending.none().await;
    }

    /// Looks whether all is done, once the client is closed.
    pub(crate) fn wake_if_closing(&self) {
        if self.client.is_closed() {
            self.wake.notify_one();
        }
    }

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

    /// The keeper's task: until the client is closed, no hold lives and no errand is left.
    pub(crate) async fn run(self: Arc<Self>) {
        let Some(mut inbox) = locked(&self.inbox).take() else {
            return;
        };
        let mut jobs: FuturesUnordered<Job> = FuturesUnordered::new();
        let mut withdrawals = Withdrawals::new(Arc::clone(&self.client));
        let (mut looks, mut batch_over) = (0, Tick::ZERO);
        loop {
            while let Some(batch) = withdrawals.next() {
                jobs.push(Box::pin(Arc::clone(&self).withdraw_batch(batch)));
            }
            let mut next_look = self.sleep_until_next();
            if looks >= BATCH {
                next_look = next_look.map(|next| next.max(batch_over));
            }
            let next = [next_look, withdrawals.due()].into_iter().flatten().min();
            let is_closed = self.client.is_closed();
            if next.is_none() && is_closed && self.pending() == 0 {
                return;
            }
            // What is due by the clock first: no flow of errands holds up a renewal. Each branch brings the
            // next ones only so much work, so none starves.
            tokio::select! {
                biased;
                () = self.client.clock.sleep_until(next.unwrap_or(Tick::ZERO)), if next.is_some() => {
                    let now = self.client.now();
                    if next_look.is_some_and(|at| at <= now) {
                        batch_over = now.after(BATCH_PAUSE);
                        for hold in self.due() {
                            if let Some(job) = self.look(hold) {
                                looks += 1;
                                jobs.push(job);
                            }
                        }
                    }
                }
                Some(done) = jobs.next(), if !jobs.is_empty() => match done {
                    Done::Look(hold) => {
                        looks -= 1;
                        self.watch(&hold);
                    }
                    Done::Withdrawn(batch, answer) => withdrawals.answered(batch, &answer),
                    Done::Errand => {}
                },
                Some(errand) = inbox.recv() => match errand {
                    Errand::Withdraw(keys, withdrawal) => withdrawals.add(&keys, withdrawal),
                    Errand::Release(hold, token) => jobs.push(Box::pin(Arc::clone(&self).release_unheard(hold, token))),
                    Errand::Claim(hold, token) => jobs.push(Box::pin(Arc::clone(&self).claim(hold, token))),
                },
                () = self.wake.notified() => {}
                () = self.drained(), if is_closed && self.pending() > 0 => {}
            }
        }
    }

    fn sleep_until_next(&self) -> Option<Tick> {
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
    fn due(&self) -> Vec<Arc<Hold>> {
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
    fn look(self: &Arc<Self>, hold: Arc<Hold>) -> Option<Job> {
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
        let keeper = Arc::clone(self);
        let patience = hold.renewal_patience();
        Some(Box::pin(async move {
            match tokio::time::timeout(patience, keeper.renew(&hold)).await {
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

    fn renewed(&self, hold: &Hold, at: &Exchange, renewed: Renewed) {
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

    /// Releases a hold for nobody who waits for that.
    async fn release_unheard(self: Arc<Self>, hold: Arc<Hold>, _token: Token) -> Done {
        // As long as the lease can last by a renewal that ran at its end.
        let give_up = hold.deadline().after(hold.terms.lease());
        match self.release(&hold, give_up).await {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => {
                tracing::warn!(lock.name = %hold.keys.name, lock.fence = hold.fence.get(), %error,
                    "release not confirmed; the lease ends by itself");
            }
        }
        Done::Errand
    }

    async fn withdraw_batch(self: Arc<Self>, batch: Batch) -> Done {
        let answer = self.client.withdraw(batch.call()).await;
        Done::Withdrawn(batch, answer)
    }

    /// Renews a hold once, that is over here: until that is answered, or its time is over.
    async fn claim(self: Arc<Self>, hold: Arc<Hold>, _token: Token) -> Done {
        let mut backoff = Backoff::new();
        while self.client.now() < hold.deadline() {
            match self.client.renew(hold.renewal()).await {
                Ok(Answer {
                    reply: Renewed::Until(_),
                    ..
                }) => return Done::Errand,
                Ok(_) | Err(Failure::Closed | Failure::Refused(_)) => break,
                Err(Failure::Unknown(_) | Failure::NotExecuted(_)) => backoff.pause().await,
            }
        }
        self.client
            .note_lapse(&hold.keys, hold.deadline(), hold.terms.lease());
        Done::Errand
    }

    /// Releases a hold that has left the schedule: until it is answered, or until `give_up`. Then its request
    /// is never used again.
    pub(crate) async fn release(&self, hold: &Hold, give_up: Tick) -> Result<(), Error> {
        // What waits to be sent must not run after the release. A question that is under way may, and be
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

    async fn release_grant(&self, hold: &Hold, give_up: Tick) -> Result<(), Error> {
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
                return Err(as_error(failure));
            }
            backoff.pause().await;
        }
    }
}

fn renewal_span(hold: &Hold) -> Span {
    tracing::debug_span!("fairlock.renew", lock.name = %hold.keys.name, lock.fence = hold.fence.get())
}
