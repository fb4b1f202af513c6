//! One acquire call, from the first poll of its future to a hold.
//!
//! A future that is dropped at any point leaves no holder and no queue entry. Its [`Entry`] takes the request
//! out of the waitlist and withdraws it. If a grant was already on its way, the granted hold releases itself
//! instead.

use std::borrow::Borrow;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::Instant;

use crate::engine::client::Client;
use crate::engine::floor::Floor;
use crate::engine::hold::Hold;
use crate::engine::hold::durability::confirmed;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::metrics::Group;
use crate::engine::pending_calls::{PendingCall, PendingCalls};
use crate::engine::retry::{RetryBudget, answered_within};
use crate::engine::waitlist::driver::drive;
use crate::engine::waitlist::registry::Waitlists;
use crate::engine::waitlist::{Joined, Progress, WaitOutcome, WaitTerms, Waitlist};
use crate::protocol::ids::RequestId;
use crate::protocol::keys::Keys;
use crate::protocol::{Acquire, Acquired, Answer, Contended, Failure, Mode};
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::Ticket;
use crate::types::error::{Error, Result};
use crate::types::owner::Owner;
use crate::types::permits::Permits;

/// The lock to acquire, and the terms of its lease.
#[derive(Clone, Debug)]
pub(crate) struct AcquireParams {
    pub(crate) keys: Arc<Keys>,
    pub(crate) channel: Arc<str>,
    pub(crate) terms: LeaseTerms,
    pub(crate) owner: Option<Owner>,
    /// For how many ms after its grant the lock may stay with this client without being used.
    pub(crate) retain_ms: Option<NonZeroU32>,
    /// What the hold takes, unless it is a plain lock.
    pub(crate) permits: Option<Permits>,
    /// The group that the metrics count these holds and their requests in.
    pub(crate) group: Group,
    /// Equal for all servers of a quorum, and `None` for a lock on one server. Boxed to keep the parameters
    /// small there.
    pub(crate) vote: Option<Box<VoteParams>>,
}

/// When a caller began to wait, and the place of its request in the queue, if it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: LocalTime,
    pub(crate) ticket: Option<Ticket>,
}

/// What a vote of a quorum needs besides.
#[derive(Clone, Debug)]
pub(crate) struct VoteParams {
    pub(crate) floor: Floor,
    /// Numbers the requests, in place of the client. So all requests for one hold have numbers of one range.
    pub(crate) numbers: Arc<AtomicU64>,
}

impl AcquireParams {
    fn next_request(&self, client: &Client) -> RequestId {
        let number = match &self.vote {
            None => client.next_number(),
            Some(vote) => vote.numbers.fetch_add(1, Ordering::Relaxed),
        };
        let (id, window) = (&client.id, self.terms.claim_window());
        match self.permits {
            None if self.retain_ms.is_some() => RequestId::retaining(id, window, number),
            None => RequestId::new(id, window, number, self.owner.as_ref()),
            Some(Permits { weight, capacity }) => {
                RequestId::with_permits(id, window, number, weight, capacity)
            }
        }
    }

    fn floor(&self) -> Option<Floor> {
        self.vote.as_ref().map(|vote| vote.floor.clone())
    }
}

/// Waits in queue order for the lock, until `until` if there is a bound.
pub(crate) async fn acquire(
    waitlists: &Arc<Waitlists>,
    params: &AcquireParams,
    arrival: Arrival,
    until: Option<Instant>,
) -> Result<OwnedHold> {
    let mut attempt = Attempt::new(waitlists, params, arrival, until)?;
    attempt.granted().await
}

/// The same as two waits: for a place in the queue, and for the grant.
#[derive(Debug)]
pub(crate) struct Attempt<P> {
    params: P,
    began: LocalTime,
    until: Option<Instant>,
    wait: WaitTerms,
    entry: Entry,
}

impl<P: Borrow<AcquireParams>> Attempt<P> {
    pub(crate) fn new(
        waitlists: &Arc<Waitlists>,
        params: P,
        Arrival { at: began, ticket }: Arrival,
        until: Option<Instant>,
    ) -> Result<Attempt<P>> {
        let client = waitlists.client();
        let local = |until: Instant| {
            client
                .now()
                .after(until.saturating_duration_since(Instant::now()))
        };
        let wait = WaitTerms {
            until: until.map(local),
            ticket,
            was_queued: false,
            floor: params.borrow().floor(),
            group: params.borrow().group.clone(),
        };
        Ok(Attempt {
            entry: Entry::new(waitlists, params.borrow(), wait.clone())?,
            params,
            began,
            until,
            wait,
        })
    }

    /// Waits until the request is in the queue. Returns the hold if it is granted without that.
    pub(crate) async fn queued(&mut self) -> Result<Option<OwnedHold>> {
        self.until(Stage::Queued).await
    }

    /// Waits until the lock is granted.
    pub(crate) async fn granted(&mut self) -> Result<OwnedHold> {
        self.until(Stage::Granted).await?.ok_or(Error::Closed)
    }

    async fn until(&mut self, stage: Stage) -> Result<Option<OwnedHold>> {
        let Attempt {
            params,
            began,
            until,
            wait,
            entry,
        } = self;
        let (params, waitlists) = ((*params).borrow(), Arc::clone(&entry.waitlists));
        let client = waitlists.client();
        let is_unheard = || client.store.why_unheard(&params.keys.lock, *began).is_some();
        let mut bound = pin!(bound(*until, is_unheard));
        loop {
            let outcome = tokio::select! {
                biased;
                outcome = entry.wait(stage) => match outcome {
                    Some(outcome) => outcome,
                    None => return Ok(None),
                },
                () = &mut bound => {
                    let unheard = entry.why_unheard(*began);
                    let free_at = match entry.quit() {
                        Ok(free_at) => unheard.map_or(Ok(free_at), Err)?,
                        Err(outcome) => match settle(outcome.await) {
                            // The grant came at the same moment as the bound. The grant counts.
                            WaitOutcome::Done(done) => return confirmed(client, done?).await.map(Some),
                            WaitOutcome::TooLate(_) => None,
                        },
                    };
                    let free_in = free_at.map_or(Duration::ZERO, |at| at.since(client.now()));
                    return Err(timed_out(client, *began, free_in));
                }
            };
            match outcome {
                WaitOutcome::Done(done) => return confirmed(client, done?).await.map(Some),
                WaitOutcome::TooLate(ticket) => {
                    (wait.ticket, wait.was_queued) = (ticket, ticket.is_some());
                    *entry = Entry::new(&waitlists, params, wait.clone())?;
                }
            }
        }
    }
}

/// How far a wait goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Granted,
}

/// Waits until the bound of a wait and [for unread replies](replies_read), for ever if there is no bound.
pub(crate) async fn bound(until: Option<Instant>, is_outage: impl Fn() -> bool) {
    let Some(until) = until else {
        return std::future::pending().await;
    };
    // On the heap: most waits have no bound, and would carry the timers along.
    let over = async {
        tokio::time::sleep_until(until).await;
        replies_read(is_outage).await;
    };
    Box::pin(over).await;
}

/// How often, and for how long each time, an outage is doubted.
const DOUBTS: u32 = 4;
const DOUBT: Duration = Duration::from_millis(5);

/// Waits for as long as a wait whose bound has passed looks like an outage, but no longer than it takes to
/// read what has come. A thread that was blocked finds its timers over before it reads the replies that came
/// meanwhile.
pub(crate) async fn replies_read(is_outage: impl Fn() -> bool) {
    for _ in 0..DOUBTS {
        if !is_outage() {
            return;
        }
        tokio::time::sleep(DOUBT).await;
    }
}

/// The error of a wait whose bound has passed, while the lock can be held for another `free_in`.
pub(crate) fn timed_out(client: &Client, began: LocalTime, free_in: Duration) -> Error {
    Error::Timeout {
        name: Arc::default(),
        waited: client.now().since(began),
        ttl: free_in,
    }
}

/// Takes the lock if it is free and no reachable request is queued for it.
pub(crate) async fn try_acquire(
    waitlists: Arc<Waitlists>,
    params: AcquireParams,
) -> Result<Tried<OwnedHold>> {
    let client = Arc::clone(waitlists.client());
    let background = waitlists.background();
    // Keeps a client that is closed meanwhile running until the outcome of this try is known. Declared before
    // `cancelled`, so that it is dropped after `cancelled` has sent its withdrawal to the background task.
    let _running = background.keep_running();
    client.check_open()?;
    let calls = PendingCalls::new(params.terms.lease(), GivesUp::Unknown, params.floor());
    let request = params.next_request(&client);
    background.write_withdrawals_of(&params.keys);
    let mut cancelled = Cancelled {
        waitlists: &waitlists,
        params: &params,
        request: &request,
        calls: &calls,
        done: false,
    };
    let ask = || {
        let pending = PendingCalls::begin(&calls, &client.clocks);
        let call = Acquire {
            keys: Arc::clone(&params.keys),
            request: request.clone(),
            mode: Mode::Try,
            lease: params.terms.lease(),
            not_after: Arc::<PendingCall>::clone(&pending),
            ticket: None,
            floor: calls.floor(|| client.now()),
        };
        let client = &client;
        async move { client.acquire(call, &pending).await }
    };
    loop {
        let limit = client.options.attempt_timeout();
        let (Answer { at, reply, .. }, _) = answered_within(limit, &client, ask).await?;
        match reply {
            Acquired::Granted { grant, .. } => {
                let deadline = at.local(grant.deadline);
                cancelled.done = true;
                let calls = Arc::clone(&calls);
                let keys = Arc::clone(&params.keys);
                let mut hold = Hold::new(keys, &grant, params.terms, calls, client.clock, deadline);
                hold.count_in(params.group.clone(), false);
                let held = confirmed(&client, OwnedHold::new(hold, background)).await?;
                return Ok(Tried::Held(held));
            }
            Acquired::Contended(Contended { ttl, ahead, .. }) => {
                cancelled.done = true;
                background.withdraw(&params.keys, &request, false, &calls);
                return Ok(Tried::Busy { ttl, ahead });
            }
            // An earlier attempt, whose reply never came, may have been granted the lock. So `cancelled`
            // stays armed.
            Acquired::Full => return Err(Error::too_many_holds()),
            Acquired::ExpiredCall | Acquired::Incomplete => {}
        }
    }
}

/// How a try ended.
#[derive(Debug)]
pub(crate) enum Tried<T> {
    Held(T),
    /// The lock is held for this long, if nobody renews or releases it, and `ahead` requests wait for it.
    Busy {
        ttl: Duration,
        ahead: u64,
    },
}

impl<T> Tried<T> {
    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> Tried<U> {
        match self {
            Tried::Held(held) => Tried::Held(f(held)),
            Tried::Busy { ttl, ahead } => Tried::Busy { ttl, ahead },
        }
    }
}

/// Withdraws the request of a try that is dropped before it is answered. The request may hold the lock
/// already.
struct Cancelled<'a> {
    waitlists: &'a Waitlists,
    params: &'a AcquireParams,
    request: &'a RequestId,
    calls: &'a Arc<PendingCalls>,
    done: bool,
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.waitlists
                .background()
                .withdraw(&self.params.keys, self.request, true, self.calls);
        }
    }
}

/// A caller in a waitlist.
#[derive(Debug)]
struct Entry {
    waitlists: Arc<Waitlists>,
    waitlist: Arc<Waitlist>,
    /// `None` once the wait has ended.
    waiter: Option<Joined>,
    /// The request has been asked for. The driver does what is left.
    has_asked: bool,
}

impl Entry {
    /// Joins the waitlist before anything is sent, because the grant may come before the reply.
    fn new(waitlists: &Arc<Waitlists>, params: &AcquireParams, wait: WaitTerms) -> Result<Entry> {
        let request = || params.next_request(waitlists.client());
        let join = |waitlist: &Waitlist| waitlist.join(params.terms, wait, request);
        let (waitlist, joined) = waitlists.enter(&params.keys, &params.channel, join);
        let waiter = joined.inspect_err(|_| waitlists.discard(&waitlist))?;
        Ok(Entry {
            waitlists: Arc::clone(waitlists),
            waitlist,
            waiter: Some(waiter),
            has_asked: false,
        })
    }

    /// Waits for the outcome. `None` if the request is in the queue, and the wait goes no farther.
    async fn wait(&mut self, stage: Stage) -> Option<WaitOutcome> {
        let Some(waiter) = &mut self.waiter else {
            return Some(WaitOutcome::Done(Err(Error::Closed)));
        };
        let client = self.waitlists.client();
        let mut budget = RetryBudget::new(client);
        // The outcome is not polled meanwhile. Each grant would wake this task once more, although the reply
        // wakes it anyway.
        while !self.has_asked {
            let Some(prepared) = self.waitlist.prepare(waiter.request.number(), false) else {
                break;
            };
            match Box::pin(self.waitlist.send(prepared)).await {
                Ok(Progress::Again) => budget.reset(),
                Ok(Progress::Settled) => break,
                Ok(Progress::Queued) => {
                    self.has_asked = true;
                    if self.waitlist.needs_driver() {
                        client.spawn(drive(Arc::clone(&self.waitlists), Arc::clone(&self.waitlist)));
                    }
                    if stage == Stage::Queued {
                        return None;
                    }
                }
                Err(failure) => {
                    let next = budget.next_delay(failure);
                    // The grant may have come another way meanwhile. So may the end of the client.
                    let pause = *next.as_ref().unwrap_or(&Duration::ZERO);
                    let outcome = tokio::time::timeout(pause, &mut waiter.outcome);
                    if let Ok(outcome) = Box::pin(outcome).await {
                        self.waiter = None;
                        return Some(settle(outcome));
                    }
                    if let Err(error) = next {
                        return Some(WaitOutcome::Done(Err(error)));
                    }
                }
            }
        }
        let outcome = settle((&mut waiter.outcome).await);
        self.waiter = None;
        Some(outcome)
    }

    /// Why the server has said nothing about the lock since the wait began, or `None` if it has.
    fn why_unheard(&self, began: LocalTime) -> Option<Failure> {
        let waiter = self.waiter.as_ref().map(|waiter| waiter.request.number());
        self.waitlist.why_unheard(waiter, began)
    }

    /// Gives up. Returns when the lock is expected to be free next. If the request has already left the
    /// waitlist, returns the receiver of its outcome.
    fn quit(&mut self) -> std::result::Result<Option<LocalTime>, oneshot::Receiver<WaitOutcome>> {
        match self.waiter.take() {
            None => Ok(None),
            Some(waiter) => self.waitlist.quit(&waiter).ok_or(waiter.outcome),
        }
    }
}

/// The waitlist drops no waiter without sending its outcome.
fn settle(outcome: std::result::Result<WaitOutcome, RecvError>) -> WaitOutcome {
    outcome.unwrap_or(WaitOutcome::Done(Err(Error::Closed)))
}

impl Drop for Entry {
    fn drop(&mut self) {
        // If the request has already left the waitlist, the code that removed it does the rest. A granted
        // hold that nobody receives releases itself.
        drop(self.quit());
        self.waitlists.discard(&self.waitlist);
    }
}
