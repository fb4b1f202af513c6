//! The lane that all calls take to the server, one after the other.
//!
//! - A call enters the lane and is queued in fred within one critical section, so that the order of entering is the
//!   order of sending.
//! - While there is no connection, and while the scripts are being loaded anew, calls are parked instead. When the
//!   lane opens, all that are parked are sent, in the order of their first entering, before any newcomer. So nothing is
//!   ever queued in a fred client that is not connected, and nothing is sent late by it.
//! - While many that give way are in flight, further ones are parked too, and sent in their order as others are answered.
//!   So a flood of them makes no renewal late, and does not time out on a server that answers as fast as it can. A caller
//!   that does not read its answer holds up nobody: a PING that is sent behind all of them tells that they are answered.
//! - A call whose caller is gone by then is not sent.
//!
//! Around a SCRIPT FLUSH two calls change places in two cases: a caller that does not poll its call while the runtime
//! comes round ten times, 10 ms each, so that the others are sent again without it; and another client that loads the
//! scripts between the two, which none can rule out but by waiting for each reply. The server's order, by tickets, is
//! right all the same.

mod healing;
mod parking;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::types::Value;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use self::parking::{Parked, Place};
use super::commands::{Command, Scripts};
use super::connection::echoes;
use super::failure;
use super::flights::Flights;
use crate::clock::{Clock, Tick};
use crate::error::ServerError;
use crate::script::Script;
use crate::store::Failure;

/// How often one call is sent at most, when each time the server has forgotten the scripts again.
const SENDINGS: usize = 8;

#[derive(Debug)]
pub(super) struct Lane {
    state: Mutex<State>,
    flights: Flights,
    /// When a reply last came, in ns of the clock.
    heard: AtomicU64,
    scripts: Scripts,
    condemned: mpsc::UnboundedSender<Condemned>,
    runtime: Handle,
    clock: Clock,
    attempt_timeout: Duration,
}

/// A connection that must be replaced, and why.
#[derive(Debug)]
pub(super) struct Condemned {
    pub(super) generation: u64,
    pub(super) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A call was not answered in time, and nothing else was since it was sent.
    Silent,
    /// A reply was not to the call that it answered.
    OutOfStep,
    /// The server is a replica now: its name may lead to another one.
    ReadOnly,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    /// Counts the connections.
    generation: u64,
    /// Scripts are being loaded.
    healing: bool,
    /// Counts how often that was done.
    heals: u64,
    /// A PING is to tell that others are answered.
    marking: bool,
    entered: u64,
    /// In the order in which they are sent.
    parked: BTreeMap<Place, Parked>,
}

#[derive(Debug)]
enum Gate {
    Open(Client),
    Down(Failure),
    Closed,
}

type Reply = Pin<Box<dyn Future<Output = Result<Value, Error>> + Send>>;

/// A call under way.
struct Sent {
    reply: Reply,
    at: Tick,
    generation: u64,
    heals: u64,
    flight: Flight,
}

/// Counts a call as in flight, until this is dropped.
#[derive(Debug)]
struct Flight {
    lane: Arc<Lane>,
    /// How many calls that give way had been sent with it.
    number: u64,
}

enum Entry {
    Sent(Sent),
    Parked(oneshot::Receiver<Result<Sent, Failure>>),
}

/// A reply of the server.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) value: Value,
    pub(super) sent: Tick,
    pub(super) received: Tick,
    pub(super) generation: u64,
}

impl Lane {
    pub(super) fn new(
        scripts: &[&'static Script],
        attempt_timeout: Duration,
    ) -> (Arc<Lane>, mpsc::UnboundedReceiver<Condemned>) {
        let (condemned, to_replace) = mpsc::unbounded_channel();
        let state = State {
            gate: Gate::Down(Failure::NotExecuted(ServerError::new("not connected yet"))),
            generation: 0,
            healing: false,
            heals: 0,
            marking: false,
            entered: 0,
            parked: BTreeMap::new(),
        };
        let lane = Lane {
            state: Mutex::new(state),
            flights: Flights::default(),
            heard: AtomicU64::new(0),
            scripts: Scripts::new(scripts),
            condemned,
            runtime: Handle::current(),
            clock: Clock::Boot,
            attempt_timeout,
        };
        (Arc::new(lane), to_replace)
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    pub(super) fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    /// Sends the command, at the first poll or as soon as others have landed for which it gives way, and waits for the
    /// reply. It is asked for again if it must be sent again.
    pub(super) async fn call(self: Arc<Lane>, command: impl Fn() -> Command) -> Result<Heard, Failure> {
        let mut place = None;
        let mut forgotten = None;
        for _ in 0..SENDINGS {
            let entry = self.enter(&mut place, command())?;
            // Until it is parked, a call that met a forgetful server counts as in flight: it has its place.
            drop(forgotten.take());
            let sent = match entry {
                Entry::Sent(sent) => sent,
                Entry::Parked(resumed) => self.resumed(resumed).await?,
            };
            let result = sent.reply.await;
            let received = self.clock.now();
            let error = match result {
                Ok(value) => {
                    sent.flight.answered(received);
                    return Ok(Heard {
                        value,
                        sent: sent.at,
                        received,
                        generation: sent.generation,
                    });
                }
                Err(error) => error,
            };
            let failure = failure::of(&error);
            if !matches!(failure, Failure::Unknown(_)) {
                sent.flight.answered(received);
            }
            if failure::code(&error) != Some("NOSCRIPT") {
                return Err(self.failed(&error, failure, sent.generation, sent.at));
            }
            self.heal(sent.heals);
            forgotten = Some(sent.flight);
        }
        Err(not_executed(
            "the server forgets the scripts as soon as they are loaded",
        ))
    }

    /// Asks for a sign of life. Without one in time, or with another one, the connection is condemned.
    pub(super) async fn ping(self: Arc<Lane>, nonce: u64) {
        let nonce = nonce.to_string();
        // What a failure means for the connection is found there, as with any call.
        if let Ok(heard) = Arc::clone(&self).call(|| Command::ping(&nonce)).await {
            if !echoes(&heard.value, &nonce) {
                self.out_of_step(
                    heard.generation,
                    format!("{:?} as the reply to PING {nonce}", heard.value),
                );
            }
        }
    }

    fn enter(self: &Arc<Lane>, place: &mut Option<Place>, command: Command) -> Result<Entry, Failure> {
        let mut state = self.state();
        let place = *place.get_or_insert_with(|| {
            state.entered += 1;
            Place {
                gives_way: command.gives_way,
                entered: state.entered,
            }
        });
        // Nobody else is parked while the lane is open.
        let goes = !command.gives_way || (state.parked.is_empty() && self.flights.has_room());
        match &state.gate {
            Gate::Open(client) if !state.healing && goes => {
                return Ok(Entry::Sent(self.send(&state, client, command)));
            }
            Gate::Closed => return Err(Failure::Closed),
            Gate::Down(refused @ Failure::Refused(_)) => return Err(refused.clone()),
            Gate::Open(_) | Gate::Down(_) => {}
        }
        let (resume, resumed) = oneshot::channel();
        state.parked.insert(place, Parked { command, resume });
        self.mark(state);
        Ok(Entry::Parked(resumed))
    }

    /// Hands the command to fred, which queues it at the first poll.
    fn send(self: &Arc<Lane>, state: &State, client: &Client, command: Command) -> Sent {
        let flight = Flight {
            lane: Arc::clone(self),
            number: self.flights.begin(command.gives_way),
        };
        let at = self.clock.now();
        let client = client.clone();
        let mut reply: Reply = Box::pin(async move { command.run(&client).await });
        if let Poll::Ready(result) = reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            reply = Box::pin(std::future::ready(result));
        }
        Sent {
            reply,
            at,
            generation: state.generation,
            heals: state.heals,
            flight,
        }
    }

    /// Whether the server has answered any call since then.
    pub(super) fn has_heard_since(&self, since: Tick) -> bool {
        self.heard.load(Ordering::Relaxed) > since.as_nanos()
    }

    fn failed(&self, error: &Error, failure: Failure, generation: u64, sent: Tick) -> Failure {
        if failure::code(error) == Some("READONLY") {
            self.condemn(generation, Why::ReadOnly);
        } else if *error.kind() == ErrorKind::Timeout && !self.has_heard_since(sent) {
            self.condemn(generation, Why::Silent);
        }
        match self.state().gate {
            Gate::Closed => Failure::Closed,
            _ => failure,
        }
    }

    /// Asks for the replacement of a connection, unless that has been done.
    pub(super) fn condemn(&self, generation: u64, why: Why) {
        // Without a receiver there is nothing left to replace.
        let _ = self.condemned.send(Condemned { generation, why });
    }

    /// A reply that is not to the call it answered: so may be all that follow on that connection.
    pub(super) fn out_of_step(&self, generation: u64, said: impl Into<Arc<str>>) -> Failure {
        self.condemn(generation, Why::OutOfStep);
        Failure::Unknown(ServerError::new(said))
    }

    /// Opens the lane to a new connection, and returns its number.
    pub(super) fn open(self: &Arc<Lane>, client: &Client) -> u64 {
        let mut state = self.state();
        if !matches!(state.gate, Gate::Closed) {
            state.gate = Gate::Open(client.clone());
            state.generation += 1;
            self.flights.begin_anew();
        }
        let generation = state.generation;
        self.resume(state);
        generation
    }

    /// Calls that come now are parked, and fail like that if they lose patience.
    pub(super) fn down(&self, failure: Failure) {
        let mut state = self.state();
        if !matches!(state.gate, Gate::Closed) {
            state.gate = Gate::Down(failure);
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        state.gate = Gate::Closed;
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        drop(parked);
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state().gate, Gate::Closed)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state().gate, Gate::Open(_))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// The server has answered the call, and so all before it.
    fn answered(&self, received: Tick) {
        self.lane.heard.store(received.as_nanos(), Ordering::Relaxed);
        if self.lane.flights.answered(self.number) {
            self.lane.resume(self.lane.state());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.lane.flights.end();
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

fn not_executed(why: &'static str) -> Failure {
    Failure::NotExecuted(ServerError::new(why))
}
