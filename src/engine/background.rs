//! What a client does without a caller. The background task renews holds, and repeats withdrawals. Releases
//! of dropped guards have tasks of their own.
//!
//! What a drop leaves to do is written within the drop: the withdrawal of a request that is given up, and the
//! release of a guard. So the next call of the same task finds nothing of either.
//!
//! A release is repeated until it is answered. A caller's release gives up after the `server_timeout`. Then a
//! task goes on, as after a drop, and gives up one lease after the local deadline. Nothing is withdrawn
//! before that, since a withdrawal would free a lock that is to stay taken.

mod renewer;
#[cfg(test)]
mod tests;
mod withdrawals;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use self::renewer::{BATCH, BATCH_PAUSE, RenewalSchedule};
use self::withdrawals::{Batch, Withdrawal, Withdrawals};
use crate::engine::client::Client;
use crate::engine::counters::Counters;
use crate::engine::hold::Hold;
use crate::engine::metrics::Pending;
use crate::engine::pending_calls::PendingCalls;
use crate::protocol::ids::RequestId;
use crate::protocol::keys::Keys;
use crate::protocol::{Failure, Release, ReleaseOutcome};
use crate::sync::locked;
use crate::sync::outstanding::{Outstanding, Token};
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;
use crate::types::error::{Error, HoldEnd};

/// With more outgoing messages than this, a client forgets the withdrawals of old requests. A server that
/// takes calls and answers none, for hours, costs no more memory than that.
const MOST_PENDING: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Background {
    client: Arc<Client>,
    schedule: Mutex<RenewalSchedule>,
    /// `None` once the background task has ended.
    withdrawals: Mutex<Option<Withdrawals>>,
    /// Whether the list has any, for calls that mostly find none.
    has_withdrawals: AtomicBool,
    /// Counts outgoing messages that are not done yet, and tokens that [keep the client
    /// running](Background::keep_running).
    pending: Arc<Outstanding>,
    wake: Notify,
}

/// A look at a hold.
type Job = Pin<Box<dyn Future<Output = Arc<Hold>> + Send>>;

/// What the server has not confirmed yet. It keeps the client running.
#[derive(Debug)]
struct Unconfirmed {
    // Dropped first, so that nothing is pending any more when those who wait for this are told.
    _pending: Pending,
    _running: Token,
}

/// What follows a release that the server has not answered in time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IfUnanswered {
    Withdraw,
    ReleaseAgain,
}

impl Background {
    pub(super) fn new(client: Arc<Client>) -> Background {
        Background {
            schedule: Mutex::default(),
            withdrawals: Mutex::new(Some(Withdrawals::new(Arc::clone(&client)))),
            has_withdrawals: AtomicBool::new(false),
            client,
            pending: Arc::default(),
            wake: Notify::new(),
        }
    }

    /// Does the work in a task of its own on the client's runtime, and polls it once right here. So the call
    /// with which it begins is written before this returns. Never blocks, and also works outside a runtime.
    pub(crate) fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work = Box::pin(work);
        let mut context = Context::from_waker(Waker::noop());
        if self.client.runtime.poll(work.as_mut(), &mut context).is_pending() {
            self.client.spawn(work);
        }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.client.counters
    }

    pub(super) fn now(&self) -> LocalTime {
        self.client.now()
    }

    /// The time until which a caller waits for a server that does not answer.
    pub(super) fn give_up_at(&self) -> LocalTime {
        self.client.now().after(self.client.options.server_timeout)
    }

    /// The holds, without those that are retained and that no guard has.
    pub(crate) fn held(&self) -> Vec<Arc<Hold>> {
        let schedule = locked(&self.schedule);
        let held = schedule.looks.values().filter(|hold| !hold.is_idle());
        held.cloned().collect()
    }

    /// How many these are.
    pub(crate) fn held_count(&self) -> usize {
        let schedule = locked(&self.schedule);
        schedule.looks.values().filter(|hold| !hold.is_idle()).count()
    }

    /// Keeps a closed client running until the token is dropped, for work that the background task does not
    /// know of yet.
    pub(super) fn keep_running(&self) -> Token {
        Outstanding::begin(&self.pending)
    }

    fn unconfirmed(&self) -> Unconfirmed {
        Unconfirmed {
            _pending: self.counters().metrics.pending(),
            _running: self.keep_running(),
        }
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.count()
    }

    /// Waits until no outgoing message and no token is left.
    pub(crate) async fn drained(&self) {
        self.pending.none().await;
    }

    /// Makes sure that the server keeps nothing of a request that is never used again. The request is
    /// withdrawn immediately if an answered call may have left something on the server (`at_once`). It is
    /// withdrawn again when none of its unanswered calls can run any more. Never blocks, and also works
    /// outside a runtime.
    pub(super) fn withdraw(
        self: &Arc<Self>,
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
            // If the list is gone, so are the runtime and the connection. The leases then expire by
            // themselves.
            let forgets = self.forgets_withdrawals();
            // In one step, or the background task could take it and write it after the caller's next call.
            let (batch, is_another_due) = self.change_withdrawals(|withdrawals| {
                withdrawals.add(keys, withdrawal);
                (
                    withdrawals.due_of(&keys.id(), forgets),
                    withdrawals.due().is_some(),
                )
            });
            if let Some(batch) = batch {
                self.write_withdrawals(batch);
            }
            if is_another_due {
                self.wake.notify_one();
            }
        }
    }

    /// Writes the withdrawals of a lock that wait for the answer to another call, so that the next call of
    /// this task finds nothing of them.
    pub(super) fn write_withdrawals_of(self: &Arc<Self>, keys: &Keys) {
        // Those of this task are seen, whatever the ordering.
        if !self.has_withdrawals.load(Ordering::Relaxed) {
            return;
        }
        if let Some(batch) = self.change_withdrawals(|withdrawals| withdrawals.next_of(keys)) {
            self.write_withdrawals(batch);
        }
    }

    /// Writes the withdrawals that are due. Returns when the next ones are.
    fn write_due_withdrawals(self: &Arc<Self>) -> Option<LocalTime> {
        let forgets = self.forgets_withdrawals();
        while let Some(batch) = self.change_withdrawals(|withdrawals| withdrawals.next(forgets)) {
            self.write_withdrawals(batch);
        }
        self.change_withdrawals(|withdrawals| withdrawals.due())
    }

    fn forgets_withdrawals(&self) -> bool {
        self.client.is_closed() || self.pending() > MOST_PENDING
    }

    fn write_withdrawals(self: &Arc<Self>, batch: Batch) {
        let this = Arc::clone(self);
        self.begin(async move {
            let answer = this.client.call(batch.call(this.client.now())).await;
            this.change_withdrawals(|withdrawals| withdrawals.answered(batch, &answer));
            // The background task goes on with those that waited for this answer.
            this.wake.notify_one();
        });
    }

    /// Changes the list of withdrawals. Those that are done are dropped after that, since this may wake
    /// others.
    fn change_withdrawals<T: Default>(&self, change: impl FnOnce(&mut Withdrawals) -> T) -> T {
        let mut withdrawals = locked(&self.withdrawals);
        let changed = withdrawals.as_mut().map(|withdrawals| {
            let changed = change(withdrawals);
            self.has_withdrawals
                .store(!withdrawals.is_empty(), Ordering::Relaxed);
            (changed, withdrawals.take_done())
        });
        drop(withdrawals);
        changed.map(|(changed, _done)| changed).unwrap_or_default()
    }

    /// Forgets what is left to withdraw, since the background task has ended.
    pub(super) fn end(&self) {
        let withdrawals = locked(&self.withdrawals).take();
        drop(withdrawals);
    }

    /// If the client is closed, has the background task check whether it can end.
    pub(crate) fn wake_if_closing(&self) {
        if self.client.is_closed() {
            self.wake.notify_one();
        }
    }

    /// Runs the background task until the client is closed, no hold is alive and no outgoing message is left.
    pub(super) async fn run(self: Arc<Self>) {
        let mut looks: FuturesUnordered<Job> = FuturesUnordered::new();
        let mut batch_over = LocalTime::ZERO;
        loop {
            let next_withdrawal = self.write_due_withdrawals();
            let mut next_look = self.sleep_until_next();
            if looks.len() >= BATCH {
                next_look = next_look.map(|next| next.max(batch_over));
            }
            let next = [next_look, next_withdrawal].into_iter().flatten().min();
            let is_closed = self.client.is_closed();
            if next.is_none() && is_closed && self.pending() == 0 {
                return;
            }
            // The timer comes first, so that nothing delays a renewal. Each branch makes only a limited
            // amount of work for the branches after it, so none starves.
            tokio::select! {
                biased;
                () = self.client.clock.sleep_until(next.unwrap_or(LocalTime::ZERO)), if next.is_some() => {
                    let now = self.client.now();
                    if next_look.is_some_and(|at| at <= now) {
                        batch_over = now.after(BATCH_PAUSE);
                        for hold in self.due() {
                            looks.extend(self.look(hold));
                        }
                    }
                }
                Some(hold) = looks.next(), if !looks.is_empty() => self.watch(&hold),
                () = self.wake.notified() => {}
                () = self.drained(), if is_closed && self.pending() > 0 => {}
            }
        }
    }

    /// Releases a hold that no guard will release. The call is written at once, so that a later call of the
    /// same task finds the lock free. Never blocks, and also works outside a runtime.
    pub(super) fn release_unheard(self: &Arc<Self>, hold: Arc<Hold>) {
        let (this, unconfirmed) = (Arc::clone(self), self.unconfirmed());
        self.begin(async move {
            let _unconfirmed = unconfirmed;
            // A renewal that ran just before the deadline prolongs the lease by its whole length.
            let give_up = hold.deadline().after(hold.lease_length());
            match this.release(&hold, give_up, IfUnanswered::Withdraw).await {
                Ok(()) | Err(Error::Lost(_)) => {}
                Err(error) => {
                    tracing::warn!(lock.name = %hold.keys.name, lock.fence = hold.fence().get(), %error,
                        "release not confirmed; the lease ends by itself");
                }
            }
        });
    }

    /// Releases a hold that has left the schedule. Repeats the call until it is answered, or until `give_up`.
    /// After that the request is never used again.
    pub(super) async fn release(
        self: &Arc<Self>,
        hold: &Hold,
        give_up: LocalTime,
        if_unanswered: IfUnanswered,
    ) -> Result<(), Error> {
        // Or the server would hand the lock to a request that has been given up.
        self.write_withdrawals_of(&hold.keys);
        // Unsent calls must not run after the release. A poll that is already under way may run after it, and
        // may be answered before the release is. So the check for unanswered calls comes before the release.
        hold.calls.end();
        let is_asked_for = hold.calls.unanswered().is_some();
        let released = self.release_grant(hold, give_up).await;
        // A poll that was under way when the lease expired may also have run late. Either poll may have
        // queued the request again, or made it the holder again under a fence that this client does not know.
        let was_over = matches!(released, Err(Error::Lost(_)));
        // A withdrawal would overtake the next release, and keeps nothing taken.
        let is_unanswered = matches!(released, Err(Error::Unavailable(_)));
        if !(is_unanswered && if_unanswered == IfUnanswered::ReleaseAgain) {
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
                what: hold.release_kind(),
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
                    if answer.reply.more || is_taken && !released && hold.try_raised_fence(fence) {
                        continue;
                    }
                    released |= done_before;
                    return match answer.reply.outcome {
                        _ if released => Ok(()),
                        ReleaseOutcome::Taken => Err(hold.lost_by(HoldEnd::Taken).into()),
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
