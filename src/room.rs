//! The waiting room: how one client waits for one lock.
//!
//! A request is registered here before it is sent, since its grant can come before its reply. It leaves when it is
//! granted, when it fails, or when its caller stops waiting; whoever takes it out owns what follows. So a grant is
//! handed to exactly one, and a cancelled request that is still here was not granted to anybody.
//!
//! What comes in (replies, pushes) is handled without waiting; what must be sent unasked is left to the room's
//! attendant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::client::{Client, Trail, count, locked};
use crate::clock::Tick;
use crate::error::{Error, Result};
use crate::held::Held;
use crate::hold::Hold;
use crate::keeper::Keeper;
use crate::key::{Keys, Request};
use crate::lease::{Exchange, Fence, ServerTime, Terms, Ticket};
use crate::options::JITTER;
use crate::retry::jitter;
use crate::store::{Acquire, Acquired, Answer, Contended, Failure, Grant, Mode, Push};

/// How often a room asks, at most, until the server sees its subscription.
const CONFIRMATIONS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) keys: Arc<Keys>,
    pub(crate) channel: Arc<str>,
    client: Arc<Client>,
    keeper: Arc<Keeper>,
    state: Mutex<State>,
    /// Something for the attendant to do.
    pub(crate) call: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By number, which is the order of their first polls.
    waiters: BTreeMap<u64, Waiter>,
    /// Whether the room has an attendant.
    attended: bool,
    record: Option<Record>,
    /// Requests that must be sent anew.
    asks: Asks,
    /// Grants that came too late, to be given back before their requests ask again.
    give_backs: Vec<GiveBack>,
    question_due: Option<Tick>,
    /// Until when the attendant sleeps.
    asleep_until: Option<Tick>,
    confirmations: u32,
    empty_since: Option<Tick>,
}

impl State {
    /// Puts the next question at `due`, unless it is earlier.
    fn question_by(&mut self, due: Tick) {
        self.question_due = Some(self.question_due.map_or(due, |before| due.min(before)));
    }
}

#[derive(Debug, Default)]
struct Asks {
    all: bool,
    /// In the order of their numbers, however they came to be here.
    some: BTreeSet<u64>,
}

/// What is known of the client's record on the server.
#[derive(Clone, Copy, Debug)]
struct Record {
    until: Tick,
    /// [`Client::losses`] when it was opened.
    losses: u64,
}

#[derive(Debug)]
struct Waiter {
    request: Request,
    terms: Terms,
    ticket: Option<Ticket>,
    /// The newest grant that it has given back: older ones are of the past. Not by the fence alone: an owner that
    /// holds already is granted its next holds under the same one.
    given_back: Option<(Fence, ServerTime)>,
    trail: Arc<Trail>,
    verdict: oneshot::Sender<Result<Held>>,
    /// When the lock can next be free, as far as is known.
    free_at: Option<Tick>,
}

/// A call that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Asked {
    number: u64,
    call: Acquire,
    trail: Arc<Trail>,
    /// The record that it opens or prolongs, if it does.
    record: Option<Record>,
    /// The request has been queued before, as far as is known here.
    again: bool,
}

/// A grant that came too late.
#[derive(Debug)]
pub(crate) struct GiveBack {
    pub(crate) number: u64,
    pub(crate) request: Request,
    pub(crate) fence: Fence,
}

/// What the attendant has to do next.
#[derive(Debug)]
pub(crate) enum Todo {
    GiveBack(GiveBack),
    Ask(Vec<u64>),
    Question(u64),
    /// Nothing until then.
    Wait(Tick),
    Leave,
}

/// What a reply means for the one who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Its verdict has been given: it is not in the room any more.
    Settled,
    /// It is queued, or the attendant goes on with it.
    Queued,
    /// The call must be repeated.
    Again,
}

impl Room {
    pub(crate) fn new(keys: Arc<Keys>, channel: Arc<str>, client: Arc<Client>, keeper: Arc<Keeper>) -> Room {
        Room {
            keys,
            channel,
            client,
            keeper,
            state: Mutex::default(),
            call: Notify::new(),
        }
    }

    pub(crate) fn join(
        &self,
        request: &Request,
        terms: Terms,
        trail: &Arc<Trail>,
    ) -> oneshot::Receiver<Result<Held>> {
        let (verdict, receiver) = oneshot::channel();
        let waiter = Waiter {
            request: request.clone(),
            terms,
            ticket: None,
            given_back: None,
            trail: Arc::clone(trail),
            verdict,
            free_at: None,
        };
        let mut state = locked(&self.state);
        state.empty_since = None;
        state.waiters.insert(request.number(), waiter);
        receiver
    }

    /// Takes a request out. Returns when the lock can next be free, if the request was still here.
    pub(crate) fn quit(&self, number: u64) -> Option<Option<Tick>> {
        let mut state = locked(&self.state);
        let waiter = state.waiters.remove(&number)?;
        self.note_empty(&mut state);
        Some(waiter.free_at)
    }

    fn note_empty(&self, state: &mut State) {
        if state.waiters.is_empty() {
            state.empty_since = Some(self.client.now());
        }
    }

    /// Whether nothing would be lost with it.
    pub(crate) fn is_idle(&self) -> bool {
        let state = locked(&self.state);
        state.waiters.is_empty() && !state.attended
    }

    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.state).waiters.is_empty()
    }

    /// Whether the caller is to start an attendant.
    pub(crate) fn needs_attendant(&self) -> bool {
        let mut state = locked(&self.state);
        !std::mem::replace(&mut state.attended, true)
    }

    /// The call that asks for this request; `None` when it is not here any more.
    pub(crate) fn ask(&self, number: u64, question: bool) -> Option<Asked> {
        let losses = self.client.losses();
        let not_after = self.client.not_after();
        let now = self.client.now();
        let state = locked(&self.state);
        let opened = state
            .record
            .is_some_and(|record| record.losses == losses && now < record.until);
        let waiter = state.waiters.get(&number)?;
        let mode = match (opened, question) {
            (false, _) => Mode::Open,
            (true, true) => Mode::Question,
            (true, false) => Mode::Wait,
        };
        waiter.trail.sent(not_after);
        let call = Acquire {
            keys: Arc::clone(&self.keys),
            request: waiter.request.clone(),
            mode,
            lease: waiter.terms.lease(),
            not_after,
            ticket: waiter.ticket,
            heartbeat: self.client.options.heartbeat,
        };
        // Less a tenth, for clocks and the way there: opening once too often does no harm.
        let until = now.after(self.client.options.heartbeat * 9 / 10);
        let record = (mode != Mode::Wait).then_some(Record { until, losses });
        Some(Asked {
            number,
            call,
            trail: Arc::clone(&waiter.trail),
            record,
            again: question || waiter.ticket.is_some(),
        })
    }

    /// Sends a call, and takes in what is answered.
    pub(crate) async fn send(&self, asked: Asked) -> Result<(Heard, Option<bool>), Failure> {
        let Asked {
            number,
            call,
            trail,
            record,
            again,
        } = asked;
        let answer = self.client.acquire(call).await;
        trail.answered(&answer);
        match answer {
            Ok(Answer { at, reply }) => {
                let seen = match &reply {
                    Acquired::Contended(contended) => Some(contended.seen),
                    _ => None,
                };
                Ok((self.heard(number, again, record, &at, reply), seen))
            }
            Err(failure) => {
                self.forget_record();
                Err(failure)
            }
        }
    }

    /// The record may be gone, or may never have been opened.
    fn forget_record(&self) {
        locked(&self.state).record = None;
    }

    fn heard(
        &self,
        number: u64,
        again: bool,
        record: Option<Record>,
        at: &Exchange,
        reply: Acquired,
    ) -> Heard {
        match reply {
            Acquired::Granted(grant) => {
                let heard = self.tell(&grant, Some(at.local(grant.deadline)));
                if again && !grant.pushed {
                    // It found the lock free: it may have missed its turn, and the others theirs with it.
                    self.question_now();
                }
                heard
            }
            Acquired::Contended(contended) => self.contended(number, again, record, at, contended),
            Acquired::Gone => {
                self.return_all();
                Heard::Queued
            }
            Acquired::Late | Acquired::More => Heard::Again,
        }
    }

    fn contended(
        &self,
        number: u64,
        again: bool,
        record: Option<Record>,
        at: &Exchange,
        contended: Contended,
    ) -> Heard {
        let free_at = at.received.after(contended.ttl);
        let mut state = locked(&self.state);
        // Only a call that queued opened the record, or prolonged it.
        state.record = record.or(state.record);
        // It was not in the queue though it had been: then the others are not either. That counts also when it has
        // heard of its grant before this.
        let mine = usize::from(state.waiters.contains_key(&number));
        let was_lost = contended.enqueued && again && state.waiters.len() > mine;
        state.asks.all |= was_lost;
        let Some(waiter) = state.waiters.get_mut(&number) else {
            drop(state);
            if was_lost {
                self.call.notify_one();
            }
            return Heard::Settled;
        };
        waiter.ticket = contended.ticket;
        waiter.free_at = Some(free_at);
        // Only ever earlier: a busy lock would put its questions off for ever. 1 ms, since the server cuts its times.
        let due = free_at
            .after(Duration::from_millis(1))
            .min(at.received.after(self.client.options.question_interval()))
            .after(jitter(JITTER));
        state.question_by(due);
        let wakes = was_lost || state.asleep_until.is_some_and(|until| due < until);
        drop(state);
        if wakes {
            self.call.notify_one();
        }
        if let Some(grant) = contended.sibling {
            self.tell(&grant, Some(at.local(grant.deadline)));
        }
        Heard::Queued
    }

    /// A push has come.
    pub(crate) fn pushed(&self, message: &str) {
        match Push::parse(message) {
            // Without an anchor nobody can say here when it ends.
            Some(push) => drop(self.tell(&push.grant, self.client.local(push.grant.deadline))),
            None => self.ask_all(),
        }
    }

    /// Everybody asks again after this client could not be reached: whose turn came meanwhile has lost its place, and
    /// the client its record, without which nobody here could be reached at the next turn either.
    pub(crate) fn return_all(&self) {
        self.forget_record();
        self.ask_all();
    }

    /// Everybody asks again, with tickets.
    fn ask_all(&self) {
        locked(&self.state).asks.all = true;
        self.call.notify_one();
    }

    /// Tells a request of its grant, and takes it out of the room, if it can use it. `deadline` is local; `None`
    /// when nobody can say.
    fn tell(&self, grant: &Grant, deadline: Option<Tick>) -> Heard {
        let number = grant.request.number();
        let now = self.client.now();
        let mut state = locked(&self.state);
        let Some(waiter) = state
            .waiters
            .get_mut(&number)
            .filter(|waiter| waiter.request == grant.request)
        else {
            return Heard::Settled;
        };
        let order = (grant.fence, grant.deadline);
        if waiter.given_back.is_some_and(|newest| order <= newest) {
            return Heard::Again;
        }
        let Some(deadline) = deadline else {
            drop(state);
            self.ask_again(number);
            return Heard::Queued;
        };
        if deadline.since(now) < waiter.terms.grant() / 4 {
            waiter.given_back = Some(order);
            state.give_backs.push(GiveBack {
                number,
                request: grant.request.clone(),
                fence: grant.fence,
            });
            drop(state);
            // The server may have found this client asleep and taken its record away.
            self.client.note_loss();
            self.call.notify_one();
            return Heard::Queued;
        }
        let Some(waiter) = state.waiters.remove(&number) else {
            return Heard::Settled;
        };
        self.note_empty(&mut state);
        if !grant.request.is_owner() {
            // The lock is re-entrant for this owner's other requests, which need not wait for their turn.
            let same_owner = |(_, other): &(&u64, &Waiter)| other.request.owner() == grant.request.owner();
            let others: Vec<u64> = state
                .waiters
                .iter()
                .filter(same_owner)
                .map(|(number, _)| *number)
                .collect();
            if !others.is_empty() {
                state.asks.some.extend(others);
                self.call.notify_one();
            }
        }
        drop(state);
        count(&self.client.counters.acquired);
        if grant.pushed {
            count(&self.client.counters.handed_over);
        }
        let hold = Hold::new(
            Arc::clone(&self.keys),
            grant,
            waiter.terms,
            waiter.trail,
            self.client.clock,
            deadline,
        );
        // A receiver that is gone gives it back: the hold is released as it is dropped here.
        drop(waiter.verdict.send(Ok(Held::new(hold, &self.keeper))));
        Heard::Settled
    }

    /// Ends the wait of everybody.
    pub(crate) fn fail_all(&self, error: &Error) {
        // A closed client stays until all of them are told.
        let _stay = self.keeper.stay();
        let waiters = {
            let mut state = locked(&self.state);
            let waiters = std::mem::take(&mut state.waiters);
            self.note_empty(&mut state);
            waiters
        };
        for waiter in waiters.into_values() {
            self.keeper.out(
                &self.keys,
                &waiter.request,
                waiter.trail.was_sent(),
                &waiter.trail,
            );
            // A receiver that is gone has no need of it.
            let _ = waiter.verdict.send(Err(error.clone()));
        }
        self.call.notify_one();
    }

    /// Has the attendant ask for whoever is the first now.
    fn question_now(&self) {
        let mut state = locked(&self.state);
        if !state.waiters.is_empty() {
            state.question_due = Some(self.client.now());
            drop(state);
            self.call.notify_one();
        }
    }

    /// The subscription is confirmed: ask whether anything was missed, until the server sees it too.
    pub(crate) fn subscribed(&self) {
        let mut state = locked(&self.state);
        state.confirmations = CONFIRMATIONS;
        state.question_due = Some(self.client.now());
    }

    /// The room's question was answered. Its next one is due in time for the next thing that nobody tells.
    pub(crate) fn questioned(&self, seen: bool) {
        let mut state = locked(&self.state);
        if seen {
            state.confirmations = 0;
        } else if state.confirmations > 0 {
            state.confirmations -= 1;
            let patience = Duration::from_millis(10) * (1 << (2 * (CONFIRMATIONS - state.confirmations)));
            state.question_by(self.client.now().after(patience));
        }
    }

    /// What to do now. The room stays `kept` long when it is empty.
    pub(crate) fn todo(&self, kept: Duration) -> Todo {
        let now = self.client.now();
        let mut state = locked(&self.state);
        if let Some(give_back) = state.give_backs.pop() {
            return Todo::GiveBack(give_back);
        }
        if state.asks.all {
            state.asks = Asks::default();
            return Todo::Ask(state.waiters.keys().copied().collect());
        }
        if !state.asks.some.is_empty() {
            return Todo::Ask(std::mem::take(&mut state.asks.some).into_iter().collect());
        }
        let interval = self.client.options.question_interval();
        let next = match state.waiters.keys().next().copied() {
            None => {
                state.question_due = None;
                let leave_at = state.empty_since.unwrap_or(now).after(kept);
                if now >= leave_at {
                    return Todo::Leave;
                }
                leave_at
            }
            Some(first) => {
                let due = *state.question_due.get_or_insert(now.after(interval));
                if due <= now {
                    // In case nothing is heard; an answer puts it earlier.
                    state.question_due = Some(now.after(interval));
                    return Todo::Question(first);
                }
                due
            }
        };
        state.asleep_until = Some(next);
        Todo::Wait(next)
    }

    pub(crate) fn ask_again(&self, number: u64) {
        locked(&self.state).asks.some.insert(number);
        self.call.notify_one();
    }
}
