//! One acquire call, from its first poll to a hold.
//!
//! Dropped at any point it leaves no holder and no queue entry: an [`Entry`] takes its request out of the room, and
//! withdraws it unless a grant was on its way, which then releases itself.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::Instant;

use crate::engine::counters::count;
use crate::engine::hold::Hold;
use crate::engine::hold::durability::confirmed;
use crate::engine::hold::owned::Held;
use crate::engine::pending_calls::{PendingCall, PendingCalls};
use crate::engine::retry::{Patience, until_answered};
use crate::engine::waitlist::driver::attend;
use crate::engine::waitlist::registry::Rooms;
use crate::engine::waitlist::{Admitted, Entered, Heard, Room, Standing, Verdict};
use crate::error::{Error, Result};
use crate::owner::Owner;
use crate::store::ids::Request;
use crate::store::keys::Keys;
use crate::store::{Acquire, Acquired, Answer, Contended, Mode};
use crate::time::clock::Tick;
use crate::time::deadline::Terms;
use crate::time::deadline_queue::GivesUp;

/// What is to be acquired, and how.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) keys: Arc<Keys>,
    pub(crate) channel: Arc<str>,
    pub(crate) terms: Terms,
    pub(crate) owner: Option<Owner>,
}

/// Waits for the lock, in the order of the queue, until `until` if there is a bound.
pub(crate) async fn acquire(rooms: &Arc<Rooms>, wanted: &Wanted, until: Option<Instant>) -> Result<Held> {
    let client = rooms.client();
    let began = client.now();
    let _permit = rooms.admit()?;
    let mut bound = pin!(async {
        match until {
            // On the heap, since most waits have no bound and would carry the timer along.
            Some(until) => Box::pin(tokio::time::sleep_until(until)).await,
            None => std::future::pending().await,
        }
    });
    let mut standing = Standing {
        arrived: began,
        until: until.map(|until| began.after(until.saturating_duration_since(Instant::now()))),
        ticket: None,
        // The owner may hold the lock already, and then it must not wait.
        is_admitted: wanted.owner.is_some(),
    };
    loop {
        let mut entry = Entry::new(rooms, wanted, standing)?;
        let free_at = tokio::select! {
            biased;
            verdict = entry.wait() => match verdict {
                Verdict::Done(done) => return confirmed(client, done?).await,
                Verdict::TooLate(ticket) => {
                    standing = Standing {
                        ticket,
                        is_admitted: true,
                        ..standing
                    };
                    continue;
                }
            },
            () = &mut bound => match entry.quit() {
                Ok(free_at) => free_at,
                Err(verdict) => match settle(verdict.await) {
                    // The grant came together with the bound: it counts.
                    Verdict::Done(done) => return confirmed(client, done?).await,
                    Verdict::TooLate(_) => None,
                },
            },
        };
        count(&client.counters.timed_out);
        let now = client.now();
        let left = free_at.map_or(Duration::ZERO, |at| at.since(now));
        return Err(Error::Timeout {
            waited: now.since(began),
            retry_after: left.max(Duration::from_millis(1)),
        });
    }
}

/// Takes the lock if it is free and nobody who can be reached waits for it.
pub(crate) async fn try_acquire(rooms: Arc<Rooms>, wanted: Wanted) -> Result<Attempt> {
    let client = Arc::clone(rooms.client());
    let keeper = rooms.keeper();
    // A client that is closed meanwhile keeps running until it is known what became of this. Declared before
    // what is left to the keeper when this is dropped midway.
    let _running = keeper.keep_running();
    client.check_open()?;
    let calls = PendingCalls::new(wanted.terms.lease(), GivesUp::Unknown);
    let request = client.next_request(&wanted.terms, wanted.owner.as_ref());
    let mut cancelled = Cancelled {
        rooms: &rooms,
        wanted: &wanted,
        request: &request,
        calls: &calls,
        done: false,
    };
    let ask = || {
        let pending = PendingCalls::begin(&calls, &client.clocks);
        let call = Acquire {
            keys: Arc::clone(&wanted.keys),
            request: request.clone(),
            mode: Mode::Try,
            lease: wanted.terms.lease(),
            not_after: Arc::<PendingCall>::clone(&pending),
            ticket: None,
            heartbeat: client.options.heartbeat,
        };
        let client = &client;
        async move { client.acquire(call, &pending).await }
    };
    loop {
        let (Answer { at, reply, .. }, _) = until_answered(&client, ask).await?;
        match reply {
            Acquired::Granted(grant) => {
                let deadline = at.local(grant.deadline);
                cancelled.done = true;
                count(&client.counters.acquired);
                let calls = Arc::clone(&calls);
                let keys = Arc::clone(&wanted.keys);
                let hold = Hold::new(keys, &grant, wanted.terms, calls, client.clock, deadline);
                let held = confirmed(&client, Held::new(hold, keeper)).await?;
                return Ok(Attempt::Held(held));
            }
            Acquired::Contended(contended) => {
                cancelled.done = true;
                keeper.withdraw(&wanted.keys, &request, false, &calls);
                return Ok(Attempt::Busy(contended));
            }
            // Of an earlier attempt, whose reply never came, there may be a hold by now.
            Acquired::Full => return Err(Error::TooManyHolds),
            Acquired::Late | Acquired::Gone { .. } | Acquired::More => {}
        }
    }
}

/// How a try ended.
#[derive(Debug)]
pub(crate) enum Attempt {
    Held(Held),
    Busy(Contended),
}

/// A try that is dropped before its answer came may hold all the same.
struct Cancelled<'a> {
    rooms: &'a Rooms,
    wanted: &'a Wanted,
    request: &'a Request,
    calls: &'a Arc<PendingCalls>,
    done: bool,
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.rooms
                .keeper()
                .withdraw(&self.wanted.keys, self.request, true, self.calls);
        }
    }
}

/// A caller in a waiting room.
struct Entry<'a> {
    rooms: &'a Arc<Rooms>,
    room: Arc<Room>,
    /// `None` once its wait is over.
    entered: Option<Entered>,
}

impl Entry<'_> {
    /// Registers a request before anything is sent: its grant may come before its reply.
    fn new<'a>(rooms: &'a Arc<Rooms>, wanted: &Wanted, standing: Standing) -> Result<Entry<'a>> {
        let enter = |room: &Room| room.enter(wanted.terms, wanted.owner.as_ref(), standing);
        let (room, entered) = rooms.enter(&wanted.keys, &wanted.channel, enter);
        let entered = entered.inspect_err(|_| rooms.discard(&room))?;
        Ok(Entry {
            rooms,
            room,
            entered: Some(entered),
        })
    }

    async fn wait(&mut self) -> Verdict {
        let mut started = None;
        if let Some(Entered::Applicant(application)) = &mut self.entered {
            // Without a word, it was refused.
            let admitted = (&mut application.admitted).await.unwrap_or(Err(Error::Closed));
            match admitted {
                Ok(Admitted { waiter, call }) => {
                    self.entered = Some(Entered::Waiter(waiter));
                    started = call;
                }
                Err(error) => return Verdict::Done(Err(error)),
            }
        }
        let Some(Entered::Waiter(waiter)) = &mut self.entered else {
            return Verdict::Done(Err(Error::Closed));
        };
        let client = self.rooms.client();
        let mut patience = Patience::new(client);
        loop {
            let call = started.take().or_else(|| self.room.call(waiter.request.number()));
            let Some(call) = call else { break };
            // The verdict is not polled meanwhile: it would wake this task, which runs anyway, once more for each
            // grant.
            match call.answered().await {
                Ok((Heard::Again, _)) => patience.restore(),
                Ok((Heard::Settled, _)) => break,
                Ok((Heard::Queued, _)) => {
                    if self.room.needs_attendant() {
                        client.spawn(attend(Arc::clone(self.rooms), Arc::clone(&self.room)));
                    }
                    break;
                }
                // Its grant may have come by another way meanwhile.
                Err(failure) => {
                    let pause = match patience.endure(failure) {
                        Ok(pause) => pause,
                        Err(error) => {
                            // They would ask the same in vain.
                            self.room.refuse_applicants(&error);
                            return Verdict::Done(Err(error));
                        }
                    };
                    let verdict = tokio::time::timeout(pause, &mut waiter.verdict);
                    if let Ok(verdict) = Box::pin(verdict).await {
                        self.entered = None;
                        return settle(verdict);
                    }
                }
            }
        }
        let verdict = settle((&mut waiter.verdict).await);
        self.entered = None;
        verdict
    }

    /// Gives up. Returns when the lock can next be free, as far as is known; or what has become of the request
    /// before.
    fn quit(&mut self) -> std::result::Result<Option<Tick>, oneshot::Receiver<Verdict>> {
        match self.entered.take() {
            None => Ok(None),
            Some(Entered::Applicant(application)) => Ok(self.room.cancel(*application)),
            Some(Entered::Waiter(waiter)) => self.room.quit(&waiter).ok_or(waiter.verdict),
        }
    }
}

/// The room drops no waiter without a verdict.
fn settle(verdict: std::result::Result<Verdict, RecvError>) -> Verdict {
    verdict.unwrap_or(Verdict::Done(Err(Error::Closed)))
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        // Whoever took it out of the room sees to what follows: a grant that nobody has read releases itself.
        drop(self.quit());
        self.rooms.discard(&self.room);
    }
}
