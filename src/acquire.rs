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

use crate::attendant::attend;
use crate::client::count;
use crate::clock::Tick;
use crate::error::{Error, Result};
use crate::held::Held;
use crate::hold::Hold;
use crate::key::{Keys, Owner, Request};
use crate::lease::Terms;
use crate::pending_calls::{PendingCall, PendingCalls};
use crate::replication::confirmed;
use crate::retry::{Patience, until_answered};
use crate::room::{Application, Heard, Room, Standing, Started, Verdict, Waiter};
use crate::rooms::Rooms;
use crate::store::{Acquire, Acquired, Answer, Contended, Mode};

/// What is to be acquired, and how.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) keys: Arc<Keys>,
    pub(crate) channel: Arc<str>,
    pub(crate) terms: Terms,
    pub(crate) owner: Option<Owner>,
}

/// Waits for the lock, in the order of the queue, until `until` if there is a bound.
pub(crate) async fn acquire(rooms: Arc<Rooms>, wanted: Wanted, until: Option<Instant>) -> Result<Held> {
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
        // Whoever asks for an owner may hold the lock already.
        is_admitted: wanted.owner.is_some(),
    };
    loop {
        let mut entry = Entry::new(&rooms, &wanted, standing)?;
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
                Some(free_at) => free_at,
                None => match entry.verdict().await {
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
    let calls = PendingCalls::new(wanted.terms.lease(), None);
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

/// A request in its waiting room.
struct Entry<'a> {
    rooms: &'a Arc<Rooms>,
    room: Arc<Room>,
    request: Request,
    calls: Arc<PendingCalls>,
    /// It has to wait until it is admitted to the room.
    application: Option<Box<Application>>,
    verdict: oneshot::Receiver<Verdict>,
}

impl Entry<'_> {
    /// Registers a request before anything is sent: its grant may come before its reply.
    fn new<'a>(rooms: &'a Arc<Rooms>, wanted: &Wanted, standing: Standing) -> Result<Entry<'a>> {
        let request = rooms.client().next_request(&wanted.terms, wanted.owner.as_ref());
        let calls = PendingCalls::new(wanted.terms.lease(), standing.until);
        let (waiter, verdict) = Waiter::new(&request, wanted.terms, standing, &calls);
        let enter = |room: &Room| room.enter(waiter);
        let (room, application) = rooms.enter(&wanted.keys, &wanted.channel, enter);
        let application = application.inspect_err(|_| rooms.discard(&room))?;
        Ok(Entry {
            rooms,
            room,
            request,
            calls,
            application,
            verdict,
        })
    }

    async fn wait(&mut self) -> Verdict {
        let mut started = match self.admitted().await {
            Ok(started) => started,
            Err(error) => return Verdict::Done(Err(error)),
        };
        let client = self.rooms.client();
        let mut patience = Patience::new(client);
        loop {
            // On the heap, so that the hundred thousandth waiter does not carry it along while it sleeps. The verdict
            // is left alone meanwhile: it would wake this task, which runs anyway, once more for each grant.
            let answered = match started.take() {
                Some(started) => started.answered().await,
                None => match self.room.ask(self.request.number(), false) {
                    Some(asked) => Box::pin(self.room.send(asked)).await,
                    None => break,
                },
            };
            match answered {
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
                    let verdict = tokio::time::timeout(pause, &mut self.verdict);
                    if let Ok(verdict) = Box::pin(verdict).await {
                        return settle(verdict);
                    }
                }
            }
        }
        self.verdict().await
    }

    /// Waits until it may be in the queue. Returns its first call, if that was sent then.
    async fn admitted(&mut self) -> Result<Option<Started>> {
        let Some(application) = &mut self.application else {
            return Ok(None);
        };
        let started = (&mut application.admitted).await;
        self.application = None;
        // Without a word the room does not know the request any more, and has given its verdict.
        started.map_or(Ok(None), |started| started.map(Some))
    }

    async fn verdict(&mut self) -> Verdict {
        settle((&mut self.verdict).await)
    }

    /// Takes the request out of the room, and whatever the server has of it with it. Returns when the lock can next be
    /// free, as far as is known; `None` if its verdict was given before.
    fn quit(&mut self) -> Option<Option<Tick>> {
        if let Some(free_at) = self.application.take().and_then(|it| self.room.cancel(&it)) {
            return Some(free_at);
        }
        let keeper = self.rooms.keeper();
        // A closed client keeps running until the keeper knows of the withdrawal.
        let _running = keeper.keep_running();
        let free_at = self.room.quit(self.request.number())?;
        keeper.withdraw(&self.room.keys, &self.request, true, &self.calls);
        Some(free_at)
    }
}

/// The room drops no waiter without a verdict.
fn settle(verdict: std::result::Result<Verdict, RecvError>) -> Verdict {
    verdict.unwrap_or(Verdict::Done(Err(Error::Closed)))
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        // Whoever took it out of the room sees to what follows: a grant that nobody has read releases itself.
        self.quit();
        self.rooms.discard(&self.room);
    }
}
