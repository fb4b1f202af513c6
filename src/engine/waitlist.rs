//! The waiting waitlist: how one client waits for one lock.
//!
//! A request is registered here before it is sent, since its grant can come before its reply. It leaves when it is
//! granted, when it fails, or when its caller stops waiting; whoever takes it out owns what follows. So a grant is
//! handed to exactly one, and a cancelled request that is still here was not granted to anybody.
//!
//! What comes in (replies, pushes) is handled without waiting; what must be sent unasked goes on the schedule of the
//! waitlist's driver.

pub(crate) mod admission;
mod applicants;
mod calls;
pub(crate) mod driver;
pub(crate) mod registry;
pub(crate) mod schedule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

pub(crate) use self::applicants::{Admitted, Entered, Standing};
use self::applicants::{Applicant, refuse};
use self::calls::Answered;
pub(crate) use self::calls::Progress;
use crate::engine::background::Background;
use crate::engine::client::Client;
use crate::engine::counters::count;
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::pending_calls::PendingCalls;
use crate::engine::presence::Registration;
use crate::engine::waitlist::admission::Admission;
use crate::engine::waitlist::schedule::{Action, Schedule, Sight};
use crate::error::{Error, Result};
use crate::store::ids::RequestId;
use crate::store::keys::Keys;
use crate::store::{Grant, Push, ServerId};
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;
use crate::time::server_time::Ticket;

#[derive(Debug)]
pub(crate) struct Waitlist {
    pub(crate) keys: Arc<Keys>,
    pub(crate) channel: Arc<str>,
    this: Weak<Waitlist>,
    client: Arc<Client>,
    background: Arc<Background>,
    state: Mutex<State>,
    /// Something for the driver to do.
    pub(crate) call: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By number, which is the order in which they joined.
    waiters: BTreeMap<u64, Box<Waiter>>,
    /// Those that wait to be among them; `None` until one has given up.
    admission: Option<Box<Admission<Applicant>>>,
    /// When the lock can next be free, as far as is known.
    free_at: Option<LocalTime>,
    /// Whether the waitlist has an driver.
    driven: bool,
    schedule: Schedule,
    /// What is known of the client's record on the server; `None` when there may be none.
    record: Option<Registration>,
    /// How often a subscription was confirmed.
    subscriptions: u64,
    /// When the last one left; of no meaning while somebody waits.
    empty_since: Option<LocalTime>,
}

#[derive(Debug)]
struct Waiter {
    request: RequestId,
    terms: LeaseTerms,
    standing: Standing,
    /// When it became one of the waiters.
    joined: LocalTime,
    /// It has been in the queue, or took the place of one that had.
    was_queued: bool,
    calls: Arc<PendingCalls>,
    outcome: oneshot::Sender<WaitOutcome>,
}

/// How the wait of a request ended.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    Done(Result<OwnedHold>),
    /// Its grant was heard of too late to be used. The request is being withdrawn, for good: a release of the grant
    /// alone could come so late that it frees a newer one, since an owner that holds already is granted its next holds
    /// under the same fence. Another request may take its place in the queue.
    TooLate(Option<Ticket>),
}

impl State {
    fn is_empty(&self) -> bool {
        let nobody_waits = self
            .admission
            .as_ref()
            .is_none_or(|admission| admission.is_empty());
        self.waiters.is_empty() && nobody_waits
    }
}

impl Waitlist {
    pub(crate) fn new(
        keys: Arc<Keys>,
        channel: Arc<str>,
        client: Arc<Client>,
        background: Arc<Background>,
    ) -> Arc<Waitlist> {
        Arc::new_cyclic(|this| Waitlist {
            keys,
            channel,
            this: Weak::clone(this),
            client,
            background,
            state: Mutex::default(),
            call: Notify::new(),
        })
    }

    /// Whether nothing would be lost with it.
    pub(crate) fn is_idle(&self) -> bool {
        let state = locked(&self.state);
        state.is_empty() && !state.driven
    }

    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.state).is_empty()
    }

    /// Whether the caller is to start an driver. An empty waitlist needs none: it may have been removed.
    pub(crate) fn needs_driver(&self) -> bool {
        let mut state = locked(&self.state);
        !state.waiters.is_empty() && !std::mem::replace(&mut state.driven, true)
    }

    /// A push has come.
    pub(crate) fn pushed(&self, from: ServerId, message: &str) {
        match Push::parse(message) {
            Some(push) => {
                let span = push.grant.request.grant();
                // Without an anchor nobody can say here when it ends.
                let deadline = self.client.clocks.local(from, push.grant.deadline, span);
                // No script grants for longer than that. But anybody with rights to the channel can publish.
                let latest = self.client.now().after(span);
                self.tell(&push.grant, deadline.filter(|deadline| *deadline <= latest));
            }
            None => self.ask_all(),
        }
    }

    /// Everybody asks again, with tickets: whose turn came while this client could not be reached has lost its place.
    pub(crate) fn ask_all(&self) {
        locked(&self.state).schedule.ask_all();
        self.call.notify_one();
    }

    /// The channel is subscribed to by another connection.
    pub(crate) fn reconnected(&self) {
        let mut state = locked(&self.state);
        state.schedule.ask_all();
        state.schedule.reconnected(self.client.now());
        drop(state);
        self.call.notify_one();
    }

    /// Tells a request of its grant, and takes it out of the waitlist. `deadline` is local; `None` when nobody can say.
    fn tell(&self, grant: &Grant, deadline: Option<LocalTime>) -> Progress {
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
        if deadline.since(now) < waiter.terms.grant() / 4 {
            // Another of its caller's takes its place.
            self.left(state);
            if grant.pushed {
                // It may run out, unclaimed, before it is withdrawn.
                let lease = waiter.terms.grant();
                self.client
                    .presence
                    .lease_expires(&self.keys, now, deadline, lease);
            }
            self.background
                .withdraw(&self.keys, &grant.request, true, &waiter.calls);
            // A receiver that is gone has left its place too.
            let _ = waiter.outcome.send(WaitOutcome::TooLate(waiter.standing.ticket));
            return Progress::Settled;
        }
        let mut others = Vec::new();
        if !grant.request.is_owner() {
            // The lock is re-entrant for this owner's other requests, which need not wait for their turn.
            let owner = grant.request.owner();
            let same_owner = state
                .waiters
                .iter()
                .filter(|(_, other)| other.request.owner() == owner);
            others.extend(same_owner.map(|(number, _)| *number));
        }
        let wakes = !others.is_empty();
        state.schedule.ask(others);
        if let Some(admission) = &mut state.admission {
            admission.granted(now.since(waiter.joined));
        }
        // Before the grant is told: their calls are sent before its release.
        self.left(state);
        if wakes {
            self.call.notify_one();
        }
        count(&self.client.counters.acquired);
        if grant.pushed {
            count(&self.client.counters.handed_over);
        }
        let hold = Hold::new(
            Arc::clone(&self.keys),
            grant,
            waiter.terms,
            waiter.calls,
            self.client.clock,
            deadline,
        );
        // A receiver that is gone gives it back: the hold is released as it is dropped here.
        drop(
            waiter
                .outcome
                .send(WaitOutcome::Done(Ok(OwnedHold::new(hold, &self.background)))),
        );
        Progress::Settled
    }

    /// Ends the wait of a request.
    fn fail(&self, number: u64, error: Error) {
        // A closed client keeps running until it is told.
        let _running = self.background.keep_running();
        let mut state = locked(&self.state);
        let Some(waiter) = state.waiters.remove(&number) else {
            return;
        };
        self.left(state);
        self.refuse(*waiter, error);
    }

    /// Tells a waiter that left the waitlist that it waited in vain, and takes it out of the queue.
    fn refuse(&self, waiter: Waiter, error: Error) {
        self.background
            .withdraw(&self.keys, &waiter.request, true, &waiter.calls);
        // A receiver that is gone has no need of it.
        let _ = waiter.outcome.send(WaitOutcome::Done(Err(error)));
    }

    /// Ends the wait of everybody.
    pub(crate) fn fail_all(&self, error: &Error) {
        // A closed client keeps running until all of them are told.
        let _running = self.background.keep_running();
        let mut state = locked(&self.state);
        let waiters = std::mem::take(&mut state.waiters);
        let applicants = state.applicants();
        self.left(state);
        refuse(applicants, error);
        for waiter in waiters.into_values() {
            self.refuse(*waiter, error.clone());
        }
        self.call.notify_one();
    }

    /// Has the driver ask for whoever is the first now.
    fn poll_now(&self) {
        let mut state = locked(&self.state);
        if !state.waiters.is_empty() {
            state.schedule.poll_by(self.client.now());
            drop(state);
            self.call.notify_one();
        }
    }

    /// The subscription is confirmed.
    pub(crate) fn subscribed(&self) {
        let mut state = locked(&self.state);
        state.subscriptions += 1;
        state.schedule.subscribed(self.client.now());
        if state.waiters.is_empty() {
            // A turn that came before may have taken it away, and nobody is here to ask.
            state.record = None;
        }
    }

    /// The waitlist's poll was answered.
    pub(crate) fn polled(&self, seen: bool) -> Sight {
        locked(&self.state).schedule.polled(self.client.now(), seen)
    }

    /// What to do now. The waitlist stays `kept` long when it is empty.
    pub(crate) fn todo(&self, kept: Duration) -> Action {
        let now = self.client.now();
        let mut state = locked(&self.state);
        let is_empty = state.is_empty();
        let leave_at = is_empty.then(|| state.empty_since.unwrap_or(now).after(kept));
        state
            .schedule
            .next(now, self.client.options.poll_interval(), leave_at)
    }

    /// The numbers of all who wait.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        locked(&self.state).waiters.keys().copied().collect()
    }

    /// For whom the waitlist asks its poll: of those who wait, the one whose turn comes first. As long as that one
    /// has not lost its place, none has.
    pub(crate) fn first(&self) -> Option<u64> {
        let state = locked(&self.state);
        let turn = |number: u64, ticket: Option<Ticket>| (ticket.is_none(), ticket, number);
        let first =
            (state.waiters.iter()).min_by_key(|(number, waiter)| turn(**number, waiter.standing.ticket));
        first.map(|(number, _)| *number)
    }

    pub(crate) fn ask_again(&self, number: u64) {
        locked(&self.state).schedule.ask([number]);
        self.call.notify_one();
    }
}
