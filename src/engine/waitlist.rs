//! The waitlist: how one client waits for one lock.
//!
//! A request enters the waitlist before it is sent, because its grant can come before its reply. It leaves
//! when it is granted, when it fails, or when its caller stops waiting. The code that removes it is
//! responsible for what follows. So each grant is handed to exactly one receiver, and a cancelled request
//! that is still in the waitlist has not been granted as far as this client knows.
//!
//! Replies and pushes are handled without waiting. Calls that no caller sends are put on the schedule of the
//! waitlist's driver.

pub(super) mod driver;
pub(crate) mod registry;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::engine::background::Background;
use crate::engine::client::Client;
use crate::engine::floor::Floor;
use crate::engine::heard::Heard;
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::metrics::Group;
use crate::engine::options::JITTER;
use crate::engine::pending_calls::{PendingCall, PendingCalls};
use crate::engine::waitlist::schedule::{Action, Schedule};
use crate::protocol::ids::RequestId;
use crate::protocol::keys::Keys;
use crate::protocol::{Acquire, Acquired, Answer, Contended, Failure, Grant, Mode, Push, ServerId};
use crate::sync::locked;
use crate::time::backoff::jitter;
use crate::time::clock::LocalTime;
use crate::time::clock_offset::Sample;
use crate::time::deadline::LeaseTerms;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::Ticket;
use crate::types::error::{Error, Result};

#[derive(Debug)]
pub(super) struct Waitlist {
    keys: Arc<Keys>,
    channel: Arc<str>,
    client: Arc<Client>,
    background: Arc<Background>,
    state: Mutex<State>,
    /// Wakes the driver when there is work for it.
    pub(super) call: Notify,
    /// For those that retain the lock.
    pub(super) heard: Arc<Heard>,
}

#[derive(Debug, Default)]
struct State {
    /// By request number, which is the order in which they joined.
    waiters: BTreeMap<u64, Box<Waiter>>,
    /// When the lock is expected to be free next.
    free_at: Option<LocalTime>,
    /// The last failure of a call and its time, if the server has not said anything about the lock since.
    failing: Option<(LocalTime, Failure)>,
    driven: bool,
    schedule: Schedule,
    /// How often a subscription was confirmed.
    subscriptions: u64,
    /// The latest place in the queue that is known here.
    last_ticket: Option<Ticket>,
    /// When the last waiter left. Has no meaning while the waitlist is not empty.
    empty_since: Option<LocalTime>,
}

impl State {
    /// Whether this reply shows that waiters have lost their places: its request was not in the queue
    /// although it had been. That also holds if the request has heard of its grant before this reply.
    fn lost_places(&self, context: &CallContext, contended: &Contended) -> bool {
        let waiter = self.waiters.get(&context.number);
        let others_lost_theirs = context.again && self.waiters.len() > usize::from(waiter.is_some());
        // A second call, sent without the ticket, has queued the request at a later place.
        let is_displaced =
            waiter.is_some_and(|waiter| waiter.was_queued && waiter.wait.ticket != contended.ticket);
        contended.enqueued && (others_lost_theirs || is_displaced)
    }

    /// Notes the place of a request, if it still waits.
    fn note_place(&mut self, number: u64, contended: &Contended) -> Progress {
        let Some(waiter) = self.waiters.get_mut(&number) else {
            return Progress::Settled;
        };
        // A call that was sent without a ticket may have queued the request again, at a later place.
        waiter.wait.ticket = [waiter.wait.ticket, contended.ticket].into_iter().flatten().min();
        if std::mem::replace(&mut waiter.was_queued, true) && contended.enqueued {
            waiter.wait.group.missed_turn();
        }
        Progress::Queued
    }
}

#[derive(Debug)]
struct Waiter {
    request: RequestId,
    terms: LeaseTerms,
    wait: WaitTerms,
    /// The request has been in the queue, or took the place of a request that had been.
    was_queued: bool,
    calls: Arc<PendingCalls>,
    outcome: oneshot::Sender<WaitOutcome>,
}

/// How the wait of a request ended.
#[derive(Debug)]
pub(super) enum WaitOutcome {
    Done(Result<OwnedHold>),
    /// The client heard of the grant too late to use it. The request is withdrawn for good. A release of the
    /// grant alone could come so late that it frees a newer one, because an owner that already holds the lock
    /// is granted further holds under the same fence. Another request may take its place in the queue.
    TooLate(Option<Ticket>),
}

impl Waiter {
    /// Whether the bound of the caller is over, so that no call is written for it any more. The caller itself
    /// leaves only when its future is polled.
    fn has_given_up(&self, now: LocalTime) -> bool {
        self.wait.until.is_some_and(|until| until <= now)
    }
}

/// How long the caller of a request waits, its place in the queue, and the group of its lock.
#[derive(Clone, Debug)]
pub(super) struct WaitTerms {
    /// When its caller gives up. `None` if that is unknown.
    pub(super) until: Option<LocalTime>,
    /// The place of the request in the queue, if it is known. It is the place of an earlier request, which
    /// this one takes over, follows from the time of arrival, or is the same on all servers of a quorum.
    pub(super) ticket: Option<Ticket>,
    /// The request takes the place of one that was queued.
    pub(super) was_queued: bool,
    /// In a quorum.
    pub(super) floor: Option<Floor>,
    /// The metrics group of its hold.
    pub(super) group: Group,
}

/// The caller's side of a waiter.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) request: RequestId,
    calls: Arc<PendingCalls>,
    pub(super) outcome: oneshot::Receiver<WaitOutcome>,
}

/// A call that is ready to be sent.
#[derive(Debug)]
pub(super) struct PreparedCall {
    pub(super) call: Acquire,
    calls: Arc<PendingCalls>,
    pub(super) pending: Arc<PendingCall>,
    pub(super) context: CallContext,
}

/// The facts about a call that are needed to interpret its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallContext {
    pub(super) number: u64,
    /// The request, or one whose place it took, is known to have been queued before.
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

/// The result of a call.
pub(super) type Answered = std::result::Result<Progress, Failure>;

impl Waitlist {
    fn new(
        keys: Arc<Keys>,
        channel: Arc<str>,
        client: Arc<Client>,
        background: Arc<Background>,
    ) -> Arc<Waitlist> {
        Arc::new(Waitlist {
            keys,
            channel,
            client,
            background,
            state: Mutex::default(),
            call: Notify::new(),
            heard: Arc::default(),
        })
    }

    /// Lasts from now on as if the last waiter had just left. Returns whether the caller must start a driver,
    /// which subscribes.
    fn stay(&self) -> bool {
        let mut state = locked(&self.state);
        state.empty_since = Some(self.client.now());
        !std::mem::replace(&mut state.driven, true)
    }

    /// Whether the waitlist can be removed without losing anything.
    fn is_idle(&self) -> bool {
        let state = locked(&self.state);
        state.waiters.is_empty() && !state.driven
    }

    fn is_empty(&self) -> bool {
        locked(&self.state).waiters.is_empty()
    }

    /// Adds a waiter. Fails if the client is closed.
    pub(super) fn join(
        &self,
        terms: LeaseTerms,
        wait: WaitTerms,
        next_request: impl FnOnce() -> RequestId,
    ) -> Result<Joined> {
        let mut state = locked(&self.state);
        self.client.check_open()?;
        let request = next_request();
        let gives_up = wait.until.map_or(GivesUp::Unknown, GivesUp::At);
        let calls = PendingCalls::new(terms.lease(), gives_up, wait.floor.clone());
        let (outcome, receiver) = oneshot::channel();
        let waiter = Box::new(Waiter {
            request: request.clone(),
            terms,
            was_queued: wait.was_queued,
            wait,
            calls: Arc::clone(&calls),
            outcome,
        });
        state.waiters.insert(request.number(), waiter);
        Ok(Joined {
            request,
            calls,
            outcome: receiver,
        })
    }

    /// A place in the queue behind all that are known here. `None` while no server has reported its time.
    fn next_ticket(&self) -> Option<Ticket> {
        let server = self.client.store.server_of(&self.keys);
        let now = Ticket(1000 * self.client.clocks.server_time(server)?.ms());
        let mut state = locked(&self.state);
        let next = state.last_ticket.map_or(now, |last| now.max(Ticket(last.0 + 1)));
        state.last_ticket = Some(next);
        Some(next)
    }

    /// Takes out a request that gives up, and withdraws it. Returns when the lock can next be free, if the
    /// request was still in the waitlist.
    pub(super) fn quit(&self, waiter: &Joined) -> Option<Option<LocalTime>> {
        // A closed client keeps running until the background task knows of the withdrawal.
        let _running = self.background.keep_running();
        let mut state = locked(&self.state);
        state.waiters.remove(&waiter.request.number())?;
        let free_at = state.free_at;
        self.left(state);
        self.background
            .withdraw(&self.keys, &waiter.request, true, &waiter.calls);
        Some(free_at)
    }

    /// Called after waiters have left.
    fn left(&self, mut state: MutexGuard<'_, State>) {
        if state.waiters.is_empty() {
            state.empty_since = Some(self.client.now());
        }
    }

    /// The time until the lock is expected to be free next.
    fn free_in(&self) -> Duration {
        let free_at = locked(&self.state).free_at;
        free_at.map_or(Duration::ZERO, |at| at.since(self.client.now()))
    }

    /// Whether the last call failed.
    fn is_failing(&self) -> bool {
        locked(&self.state).failing.is_some()
    }

    /// Why the server has said nothing about the lock since this time, or `None` if it has. A waiter knows
    /// what its own calls were answered. A caller without calls knows what the others were.
    pub(super) fn why_unheard(&self, waiter: Option<u64>, since: LocalTime) -> Option<Failure> {
        let state = locked(&self.state);
        let was_queued = match waiter {
            Some(number) => state.waiters.get(&number).is_some_and(|waiter| waiter.was_queued),
            None => state.waiters.values().any(|waiter| waiter.was_queued),
        };
        if was_queued {
            return None;
        }
        let failing = state.failing.as_ref().filter(|(at, _)| *at >= since);
        let failure = failing.map(|(_, failure)| failure.clone());
        drop(state);
        failure.or_else(|| self.client.store.why_unheard(&self.keys.lock, since))
    }

    /// Whether the caller must start a driver. An empty waitlist needs none, since it may have been removed.
    pub(super) fn needs_driver(&self) -> bool {
        let mut state = locked(&self.state);
        !state.waiters.is_empty() && !std::mem::replace(&mut state.driven, true)
    }

    pub(crate) fn pushed(&self, from: ServerId, message: &str) {
        match Push::parse(message) {
            Some(Push::Granted(grants)) => {
                for grant in &grants {
                    let span = grant.request.claim_window();
                    // Without a clock offset, the local end of the grant is unknown.
                    let deadline = self.client.clocks.local(from, grant.deadline, span);
                    // No script grants for longer than that. But every user with rights to the channel can
                    // publish.
                    let latest = self.client.now().after(span);
                    self.deliver(grant, deadline.filter(|deadline| *deadline <= latest));
                }
            }
            Some(Push::Kept) => self.poll_now(),
            Some(Push::Wanted(fence)) => self.heard.wanted(fence),
            None => self.ask_all(),
        }
    }

    /// Has every waiter ask again, with its ticket. A waiter whose turn came while this client was
    /// unreachable has lost its place. This happens when a connection was replaced or messages may have been
    /// lost, when a reply shows that a request had lost its place, and when a push has a form that this
    /// version does not know.
    fn ask_all(&self) {
        locked(&self.state).schedule.ask_all();
        self.call.notify_one();
    }

    /// Tells a request of its grant, and takes it out of the waitlist. `deadline` is local, and `None` when
    /// it is unknown.
    fn deliver(&self, grant: &Grant, deadline: Option<LocalTime>) -> Progress {
        // A closed client keeps running until the background task knows of the hold, or of the withdrawal.
        let _running = self.background.keep_running();
        let number = grant.request.number();
        let now = self.client.now();
        let mut state = locked(&self.state);
        let waiter = state.waiters.get(&number);
        if waiter.is_none_or(|waiter| waiter.request != grant.request) {
            return Progress::Settled;
        }
        let Some(deadline) = deadline else {
            drop(state);
            self.ask_again(number);
            return Progress::Queued;
        };
        let Some(waiter) = state.waiters.remove(&number) else {
            return Progress::Settled;
        };
        state.failing = None;
        if waiter.terms.is_late(deadline.since(now)) {
            // Another request of the same caller takes its place.
            self.left(state);
            self.background
                .withdraw(&self.keys, &grant.request, true, &waiter.calls);
            // A receiver that is gone has given up its place too.
            let _ = waiter.outcome.send(WaitOutcome::TooLate(waiter.wait.ticket));
            return Progress::Settled;
        }
        let mut others = Vec::new();
        if !grant.request.is_owner() {
            // The lock is re-entrant for this owner. Its other requests need not wait for their turn.
            let owner = grant.request.owner();
            let same_owner = state
                .waiters
                .iter()
                .filter(|(_, other)| other.request.owner() == owner);
            others.extend(same_owner.map(|(number, _)| *number));
        }
        let wakes = !others.is_empty();
        state.schedule.ask(others);
        self.left(state);
        if wakes {
            self.call.notify_one();
        }
        let mut hold = Hold::new(
            Arc::clone(&self.keys),
            grant,
            waiter.terms,
            waiter.calls,
            self.client.clock,
            deadline,
        );
        hold.count_in(waiter.wait.group, waiter.was_queued);
        // A request with an earlier place may have others behind it.
        hold.is_alone &= waiter.wait.ticket.is_none() && !waiter.was_queued;
        // If the receiver is gone, the hold is dropped here, and releases itself.
        let held = OwnedHold::new(hold, &self.background);
        drop(waiter.outcome.send(WaitOutcome::Done(Ok(held))));
        Progress::Settled
    }

    /// Ends the wait of a request with an error.
    fn fail(&self, number: u64, error: Error) {
        // A closed client keeps running until the waiter is told.
        let _running = self.background.keep_running();
        let mut state = locked(&self.state);
        let Some(waiter) = state.waiters.remove(&number) else {
            return;
        };
        self.left(state);
        self.refuse(*waiter, error);
    }

    /// Sends an error to a waiter that was taken out of the waitlist, and withdraws its request.
    fn refuse(&self, waiter: Waiter, error: Error) {
        self.background
            .withdraw(&self.keys, &waiter.request, true, &waiter.calls);
        // A receiver that is gone does not need the error.
        let _ = waiter.outcome.send(WaitOutcome::Done(Err(error)));
    }

    /// Ends the wait of all waiters.
    fn fail_all(&self, error: &Error) {
        self.fail_those(error, |_| true);
    }

    /// Ends the wait of all waiters that are queued. The others may get the lock by their first calls.
    fn fail_queued(&self, error: &Error) {
        self.fail_those(error, |waiter| waiter.was_queued);
    }

    fn fail_those(&self, error: &Error, ends: impl Fn(&Waiter) -> bool) {
        // A closed client keeps running until all of them are told.
        let _running = self.background.keep_running();
        let mut state = locked(&self.state);
        let waiters = std::mem::take(&mut state.waiters).into_iter();
        let (ended, left): (BTreeMap<_, _>, _) = waiters.partition(|(_, waiter)| ends(waiter));
        state.waiters = left;
        self.left(state);
        for waiter in ended.into_values() {
            self.refuse(*waiter, error.clone());
        }
        self.call.notify_one();
    }

    /// Has the driver poll now, with the request that is then the first.
    fn poll_now(&self) {
        let mut state = locked(&self.state);
        if !state.waiters.is_empty() {
            state.schedule.poll_by(self.client.now());
            drop(state);
            self.call.notify_one();
        }
    }

    /// The subscription is confirmed.
    fn subscribed(&self) {
        let mut state = locked(&self.state);
        state.subscriptions += 1;
        self.heard.subscribed();
        // A turn may have come and gone before.
        state.schedule.poll_by(self.client.now());
    }

    /// What the driver must do now. An empty waitlist lasts for `idle_limit`.
    fn todo(&self, idle_limit: Duration) -> Action {
        let now = self.client.now();
        let mut state = locked(&self.state);
        let is_empty = state.waiters.is_empty();
        let leave_at = is_empty.then(|| state.empty_since.unwrap_or(now).after(idle_limit));
        state
            .schedule
            .next(now, self.client.options.poll_interval(), leave_at)
    }

    /// The numbers of all waiters.
    fn numbers(&self) -> Vec<u64> {
        locked(&self.state).waiters.keys().copied().collect()
    }

    /// The requests that the waitlist polls with: of each capacity, the waiter whose turn comes first, of
    /// those whose callers still wait. As long as that waiter has its place, all others of its capacity have
    /// theirs. A lock has no capacity, and of a semaphore there is nearly always one.
    fn firsts(&self) -> Vec<u64> {
        let now = self.client.now();
        let state = locked(&self.state);
        let mut firsts = BTreeMap::new();
        for (&number, waiter) in state
            .waiters
            .iter()
            .filter(|(_, waiter)| !waiter.has_given_up(now))
        {
            let ticket = waiter.wait.ticket;
            let turn = (ticket.is_none(), ticket, number);
            let first = firsts.entry(waiter.request.capacity()).or_insert(turn);
            *first = turn.min(*first);
        }
        firsts.into_values().map(|(_, _, number)| number).collect()
    }

    fn ask_again(&self, number: u64) {
        locked(&self.state).schedule.ask([number]);
        self.call.notify_one();
    }

    // The calls that ask for a waiter: how each is sent, and what its reply means.

    /// Prepares the call that asks for this request. `None` when the request has left the waitlist, or the
    /// bound of its caller is over.
    pub(super) fn prepare(&self, number: u64, poll: bool) -> Option<PreparedCall> {
        let now = self.client.now();
        let state = locked(&self.state);
        let waiter = state.waiters.get(&number)?;
        if waiter.has_given_up(now) {
            // The call would fail unwritten, again and again, as if the server did not answer.
            return None;
        }
        let pending = PendingCalls::begin(&waiter.calls, &self.client.clocks);
        let call = Acquire {
            keys: Arc::clone(&self.keys),
            request: waiter.request.clone(),
            mode: if poll { Mode::Poll } else { Mode::Ask },
            lease: waiter.terms.lease(),
            not_after: Arc::<PendingCall>::clone(&pending),
            ticket: waiter.wait.ticket,
            floor: waiter.calls.floor(|| now),
        };
        Some(PreparedCall {
            call,
            calls: Arc::clone(&waiter.calls),
            pending,
            context: CallContext {
                number,
                again: poll || waiter.was_queued,
                subscriptions: state.subscriptions,
            },
        })
    }

    /// Sends a call, and handles its reply.
    pub(super) async fn send(&self, prepared: PreparedCall) -> Answered {
        let PreparedCall {
            call,
            calls,
            pending,
            context,
        } = prepared;
        let request = call.request.clone();
        let answer = self.client.acquire(call, &pending).await;
        if calls.was_withdrawn() {
            // The call may have run after the withdrawal.
            self.background.withdraw(&self.keys, &request, true, &calls);
        }
        match answer {
            Ok(Answer { at, reply, .. }) => Ok(self.on_reply(context, &at, reply)),
            Err(failure) => {
                // A call that was given up did nothing.
                if !matches!(failure, Failure::GivenUp) {
                    locked(&self.state).failing = Some((self.client.now(), failure.clone()));
                }
                Err(failure)
            }
        }
    }

    pub(super) fn on_reply(&self, context: CallContext, at: &Sample, reply: Acquired) -> Progress {
        match reply {
            Acquired::Granted { grant, was_queued } => {
                let progress = self.deliver(&grant, Some(at.local(grant.deadline)));
                // The request was not in the queue although it had been: it has missed its turn. The other
                // waiters are not in it either, and those that come now would overtake them.
                if context.again && !grant.pushed && !was_queued {
                    self.ask_all();
                }
                progress
            }
            Acquired::Contended(contended) => self.contended(context, at, contended),
            Acquired::Full => {
                self.fail(context.number, Error::too_many_holds());
                Progress::Settled
            }
            Acquired::ExpiredCall | Acquired::Incomplete => Progress::Again,
        }
    }

    fn contended(&self, context: CallContext, at: &Sample, contended: Contended) -> Progress {
        let free_at = at.received.after(contended.ttl);
        let mut state = locked(&self.state);
        let all_ask = state.lost_places(&context, &contended);
        if all_ask {
            state.schedule.ask_all();
        }
        let progress = state.note_place(context.number, &contended);
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
        let wakes = state.schedule.poll_by(due) || all_ask;
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
