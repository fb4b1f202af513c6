//! The calls that ask for a waiter: how each is sent, and what its reply means.

use std::sync::Arc;

use super::Waitlist;
use crate::engine::pending_calls::{PendingCall, PendingCalls};
use crate::engine::presence::Registration;
use crate::error::Error;
use crate::options::JITTER;
use crate::store::{Acquire, Acquired, Answer, Contended, Failure, Mode};
use crate::sync::locked;
use crate::time::backoff::jitter;
use crate::time::clock_offset::Sample;

/// A call that is ready to be sent.
#[derive(Debug)]
pub(crate) struct PreparedCall {
    pub(super) call: Acquire,
    calls: Arc<PendingCalls>,
    pub(super) pending: Arc<PendingCall>,
    pub(super) context: CallContext,
}

/// What must be known of a call to understand its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallContext {
    pub(super) number: u64,
    /// [`Registration::epoch`] of the record that it opens or prolongs, if it does.
    pub(super) record: Option<u64>,
    /// The request, or one whose place it took, has been queued before, as far as is known here.
    pub(super) again: bool,
    /// [`State::subscriptions`] when it was asked.
    pub(super) subscriptions: u64,
}

/// What a reply means for the one who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Its verdict has been given: it is not in the waitlist any more.
    Settled,
    /// It is queued, or the driver goes on with it.
    Queued,
    /// The call must be repeated.
    Again,
}

/// What became of a call; and whether the server sees the waitlist's subscription, where it tells.
pub(super) type Answered = std::result::Result<(Progress, Option<bool>), Failure>;

impl Waitlist {
    /// The call that asks for this request; `None` when it is not here any more.
    pub(crate) fn ask(&self, number: u64, poll: bool) -> Option<PreparedCall> {
        let presence = &self.client.presence;
        let epoch = presence.epoch();
        let now = self.client.now();
        let state = &mut *locked(&self.state);
        let waiter = state.waiters.get(&number)?;
        let mode = presence.mode(&self.keys, now, state.record, poll);
        if mode == Mode::Register && state.record.is_some() && state.waiters.len() > 1 {
            // If it was taken away, so were turns of others, who come before this one.
            state.schedule.poll_by(now);
            self.call.notify_one();
        }
        let pending = PendingCalls::begin(&waiter.calls, &self.client.clocks);
        let call = Acquire {
            keys: Arc::clone(&self.keys),
            request: waiter.request.clone(),
            mode,
            lease: waiter.terms.lease(),
            not_after: Arc::<PendingCall>::clone(&pending),
            ticket: waiter.standing.ticket,
            heartbeat: self.client.options.heartbeat,
        };
        Some(PreparedCall {
            call,
            calls: Arc::clone(&waiter.calls),
            pending,
            context: CallContext {
                number,
                record: (mode != Mode::Wait).then_some(epoch),
                again: poll || waiter.was_queued,
                subscriptions: state.subscriptions,
            },
        })
    }

    /// Sends a call, and takes in what is answered.
    pub(crate) async fn send(&self, asked: PreparedCall) -> Answered {
        let PreparedCall {
            call,
            calls,
            pending,
            context,
        } = asked;
        let is_poll = call.mode == Mode::Poll;
        let request = call.request.clone();
        let answer = self.client.acquire(call, &pending).await;
        if calls.was_withdrawn() {
            // It may have run after the withdrawal.
            self.background.withdraw(&self.keys, &request, true, &calls);
        }
        match answer {
            Ok(Answer { at, reply, .. }) => {
                let seen = match &reply {
                    Acquired::Contended(contended) if is_poll => Some(contended.seen),
                    Acquired::NotRegistered { seen } => Some(*seen),
                    _ => None,
                };
                Ok((self.heard(context, &at, reply), seen))
            }
            Err(failure) => {
                self.forget_registration();
                Err(failure)
            }
        }
    }

    /// The record may be gone, or may never have been opened.
    pub(super) fn forget_registration(&self) {
        locked(&self.state).record = None;
    }

    pub(super) fn heard(&self, context: CallContext, at: &Sample, reply: Acquired) -> Progress {
        match reply {
            Acquired::Granted(grant) => {
                let heard = self.tell(&grant, Some(at.local(grant.deadline)));
                // It found the lock free: it may have missed its turn, the others theirs with it, and the client its
                // record.
                let was_missed = context.again && !grant.pushed;
                if was_missed || context.record.is_some() {
                    // Who holds opens no record, and prolongs none.
                    self.forget_registration();
                    self.poll_now();
                }
                heard
            }
            Acquired::Contended(contended) => self.contended(context, at, contended),
            Acquired::NotRegistered { .. } => {
                // Answers to calls of before, which are read after this one, tell of the record that is gone.
                self.client.presence.lost();
                self.ask_all();
                Progress::Queued
            }
            Acquired::Full => {
                self.fail(context.number, Error::TooManyHolds);
                Progress::Settled
            }
            Acquired::ExpiredCall | Acquired::Incomplete => {
                if context.record.is_some() {
                    self.forget_registration();
                }
                Progress::Again
            }
        }
    }

    fn contended(&self, context: CallContext, at: &Sample, contended: Contended) -> Progress {
        let free_at = at.received.after(contended.ttl);
        let mut state = locked(&self.state);
        // Only a call that queued opened the record, or prolonged it.
        if let Some(epoch) = context.record {
            let since = at.sent;
            state.record = Some(Registration { since, epoch });
        }
        // It was not in the queue though it had been: then the others are not either. That counts also when it has
        // heard of its grant before this.
        let mine = usize::from(state.waiters.contains_key(&context.number));
        let was_lost = contended.enqueued && context.again && state.waiters.len() > mine;
        if was_lost {
            state.schedule.ask_all();
        }
        let Some(waiter) = state.waiters.get_mut(&context.number) else {
            drop(state);
            if was_lost {
                self.call.notify_one();
            }
            return Progress::Settled;
        };
        waiter.standing.ticket = contended.ticket;
        waiter.was_queued = true;
        state.free_at = Some(free_at);
        let due = if context.subscriptions == state.subscriptions {
            // An driver that sleeps in an empty waitlist is to wake for the interval.
            free_at
                .min(at.received.after(self.client.options.poll_interval()))
                .after(jitter(JITTER))
        } else {
            // Its turn may have come, and gone, before the subscription was there; and the poll whether one was missed
            // may have been for another, since nobody knew its ticket yet.
            at.received
        };
        let wakes = state.schedule.poll_by(due) || was_lost;
        drop(state);
        if wakes {
            self.call.notify_one();
        }
        if let Some(grant) = contended.own_grant {
            self.tell(&grant, Some(at.local(grant.deadline)));
        }
        Progress::Queued
    }
}
