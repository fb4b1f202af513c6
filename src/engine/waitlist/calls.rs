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
pub(in crate::engine) struct PreparedCall {
    pub(super) call: Acquire,
    calls: Arc<PendingCalls>,
    pub(super) pending: Arc<PendingCall>,
    pub(super) context: CallContext,
}

/// The facts about a call that are needed to interpret its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallContext {
    pub(super) number: u64,
    /// The [`Registration::epoch`] of the presence record that the call writes or prolongs, if it does
    /// either.
    pub(super) epoch: Option<u64>,
    /// The request, or one whose place it took, has been queued before, as far as is known here.
    pub(super) again: bool,
    /// `State::subscriptions` when the call was prepared.
    pub(super) subscriptions: u64,
}

/// What a reply means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The outcome has been sent. The request has left the waitlist.
    Settled,
    /// The request is queued, or the driver sends its next call.
    Queued,
    /// The call must be repeated.
    Again,
}

/// The result of a call, and whether the server sees the waitlist's subscription, if the reply says so.
pub(in crate::engine) type Answered = std::result::Result<(Progress, Option<bool>), Failure>;

impl Waitlist {
    /// Prepares the call that asks for this request. `None` when the request has left the waitlist, or the
    /// bound of its caller is over.
    pub(in crate::engine) fn prepare(&self, number: u64, poll: bool) -> Option<PreparedCall> {
        let presence = &self.client.presence;
        let epoch = presence.epoch();
        let now = self.client.now();
        let state = &mut *locked(&self.state);
        let waiter = state.waiters.get(&number)?;
        if waiter.has_given_up(now) {
            // The call would fail unwritten, again and again, as if the server did not answer.
            return None;
        }
        let mode = presence.mode(&self.keys, now, state.registration, poll);
        if mode == Mode::Register && state.registration.is_some() && state.waiters.len() > 1 {
            // If the presence record was deleted, other waiters may have missed their turns, and they come
            // before this request.
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
            ticket: waiter.wait.ticket,
            heartbeat: self.client.options.heartbeat,
            floor: waiter.calls.floor(|| now),
        };
        Some(PreparedCall {
            call,
            calls: Arc::clone(&waiter.calls),
            pending,
            context: CallContext {
                number,
                epoch: (mode != Mode::Wait).then_some(epoch),
                again: poll || waiter.was_queued,
                subscriptions: state.subscriptions,
            },
        })
    }

    /// Sends a call, and handles its reply.
    pub(in crate::engine) async fn send(&self, prepared: PreparedCall) -> Answered {
        let PreparedCall {
            call,
            calls,
            pending,
            context,
        } = prepared;
        let is_poll = call.mode == Mode::Poll;
        let request = call.request.clone();
        let answer = self.client.acquire(call, &pending).await;
        if calls.was_withdrawn() {
            // The call may have run after the withdrawal.
            self.background.withdraw(&self.keys, &request, true, &calls);
        }
        match answer {
            Ok(Answer { at, reply, .. }) => {
                let seen = match &reply {
                    Acquired::Contended(contended) if is_poll => Some(contended.seen),
                    Acquired::NotRegistered { seen } => Some(*seen),
                    _ => None,
                };
                Ok((self.on_reply(context, &at, reply), seen))
            }
            Err(failure) => {
                // A call that was given up did nothing.
                if !matches!(failure, Failure::GivenUp) {
                    let mut state = locked(&self.state);
                    state.registration = None;
                    state.failing = Some((self.client.now(), failure.clone()));
                }
                Err(failure)
            }
        }
    }

    /// The presence record may be gone, or may never have been written.
    pub(super) fn forget_registration(&self) {
        locked(&self.state).registration = None;
    }

    pub(super) fn on_reply(&self, context: CallContext, at: &Sample, reply: Acquired) -> Progress {
        match reply {
            Acquired::Granted { grant, was_queued } => {
                let progress = self.deliver(&grant, Some(at.local(grant.deadline)));
                // The request was not in the queue although it had been: it has missed its turn. The other
                // waiters are not in it either, and those that come now would overtake them.
                let lost_its_place = context.again && !grant.pushed && !was_queued;
                // A request that is granted the lock neither writes nor prolongs a presence record.
                if lost_its_place || context.epoch.is_some() {
                    self.forget_registration();
                }
                if lost_its_place {
                    self.ask_all();
                } else if context.epoch.is_some() {
                    self.poll_now();
                }
                progress
            }
            Acquired::Contended(contended) => self.contended(context, at, contended),
            Acquired::NotRegistered { .. } => {
                // Replies to earlier calls may be read after this one. They refer to the presence record that
                // is gone.
                self.client.presence.lost();
                self.ask_all();
                Progress::Queued
            }
            Acquired::Full => {
                self.fail(context.number, Error::TooManyHolds);
                Progress::Settled
            }
            Acquired::ExpiredCall | Acquired::Incomplete => {
                // An incomplete call may have removed requests of this client too, with its presence record.
                self.forget_registration();
                Progress::Again
            }
        }
    }

    fn contended(&self, context: CallContext, at: &Sample, contended: Contended) -> Progress {
        let free_at = at.received.after(contended.ttl);
        let mut state = locked(&self.state);
        // Only a call that queued its request wrote or prolonged the presence record.
        if let Some(epoch) = context.epoch {
            let since = at.sent;
            state.registration = Some(Registration { since, epoch });
        }
        // The request was not in the queue although it had been. So the other waiters are not in it either.
        // This also holds if the request has heard of its grant before this reply.
        let mine = usize::from(state.waiters.contains_key(&context.number));
        let was_lost = contended.enqueued && context.again && state.waiters.len() > mine;
        if was_lost {
            state.schedule.ask_all();
        }
        let mut progress = Progress::Settled;
        if let Some(waiter) = state.waiters.get_mut(&context.number) {
            progress = Progress::Queued;
            waiter.wait.ticket = contended.ticket;
            if std::mem::replace(&mut waiter.was_queued, true) && contended.enqueued {
                self.client.counters.missed_turn(&waiter.wait.group);
            }
        }
        // Even if the request has left: the call may have been the poll of all waiters.
        state.free_at = Some(free_at);
        state.last_ticket = state.last_ticket.max(contended.ticket);
        state.failing = None;
        let due = if context.subscriptions == state.subscriptions {
            // A driver that sleeps because its waitlist was empty must wake within one polling interval.
            free_at
                .min(at.received.after(self.client.options.poll_interval()))
                .after(jitter(JITTER))
        } else {
            // The turn of the request may have come and gone before the subscription was confirmed. The poll
            // after the confirmation may have asked for another waiter, since the ticket of this one was not
            // known yet.
            at.received
        };
        let wakes = state.schedule.poll_by(due) || was_lost;
        drop(state);
        if wakes {
            self.call.notify_one();
        }
        if let Some(grant) = contended.own_grant {
            self.deliver(&grant, Some(at.local(grant.deadline)));
        }
        progress
    }
}
