//! The pipeline: the order in which calls go to one server, over one connection after the other.
//!
//! - A call enters the pipeline and is written to the connection within one critical section, so that the
//!   order of entering is the order of sending.
//! - While there is no connection, and while the scripts are being loaded again, calls wait in the backlog
//!   instead. When the pipeline opens, all that wait are sent in the order in which they entered, before any
//!   newcomer. So nothing is ever written to a connection that is not open.
//! - While many are in flight, further ones wait too, and are sent as others are answered: those that keep a
//!   hold first ([`Priority`]), then those that end one, then those that ask for one. So a flood of the last
//!   makes no renewal and no release late, and does not time out on a server that answers as fast as it can.
//!   A caller that does not read its answer holds up nobody: a PING that is sent behind all of them tells
//!   that they are answered.
//! - A call whose caller is gone leaves the backlog. One that its sender has given up is not sent
//!   ([`Command::prepare`]).
//!
//! Around a SCRIPT FLUSH two calls change places in two cases: a caller that does not poll its call while the
//! runtime comes round ten times, 10 ms each, so that the others are sent again without it; and another
//! client that loads the scripts between the two, which none can rule out but by waiting for each reply. The
//! server's order, by tickets, is right all the same.

mod backlog;
mod in_flight;
mod reload;
#[cfg(test)]
mod tests;
mod window;
mod wire;

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::mpsc;

use self::backlog::{Backlog, Place, Resumed};
use self::in_flight::InFlight;
pub(crate) use self::in_flight::MAX_IN_FLIGHT;
use self::wire::Reply;
pub(crate) use self::wire::{Command, Priority, Wire, WireError, WireErrorKind};
use super::{ConnectionId, Failure, ServerId};
use crate::error::ServerError;
use crate::sync::outstanding::Token;
use crate::time::clock::{Clock, LocalTime};

/// How often one call is sent at most, when each time the server has forgotten the scripts again.
const SENDINGS: usize = 8;

/// Starts a task in the background.
pub(crate) type Spawn = Box<dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync>;

pub(crate) struct Pipeline<W: Wire> {
    server: ServerId,
    state: Mutex<State<W>>,
    in_flight: InFlight,
    /// When a reply last came, in ns of the clock.
    response: AtomicU64,
    condemned: mpsc::UnboundedSender<Replacement>,
    spawn: Spawn,
    clock: Clock,
    attempt_timeout: Duration,
}

/// A connection that must be replaced, and why.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) generation: u64,
    pub(crate) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A call was not answered in time, and nothing else was since it was sent.
    Silent,
    /// A reply was not to the call that it answered.
    Desynchronised,
    /// The server is a replica now: its name may lead to another one.
    ReadOnly,
}

struct State<W: Wire> {
    gate: Gate<W>,
    /// Counts the connections.
    generation: u64,
    /// Scripts are being loaded.
    reloading: bool,
    /// Counts how often that was done.
    reloads: u64,
    /// A PING is to tell that others are answered.
    marking: bool,
    entered: u64,
    backlog: Backlog<W>,
}

enum Gate<W> {
    Open(W),
    Down(Failure),
    Closed,
}

/// A call under way.
struct Sent<W: Wire> {
    reply: Reply<W>,
    at: LocalTime,
    generation: u64,
    reloads: u64,
    flight: Flight<W>,
}

/// Counts a call as in flight, until this is dropped.
struct Flight<W: Wire> {
    pipeline: Arc<Pipeline<W>>,
    /// How many calls that can wait had been sent with it.
    number: u64,
    _token: Token,
}

enum Entry<W: Wire> {
    Sent(Sent<W>),
    Waiting(Resumed<W>),
}

/// A reply of the server.
#[derive(Debug)]
pub(crate) struct Response<R> {
    pub(crate) value: R,
    pub(crate) sent: LocalTime,
    pub(crate) received: LocalTime,
    pub(crate) generation: u64,
}

impl<W: Wire> Pipeline<W> {
    /// A pipeline to this server, on which nothing is sent before [`open`](Self::open). No more than `room`
    /// calls that can wait are in flight, as [`MAX_IN_FLIGHT`] for a server that is shared by many.
    pub(crate) fn new(
        server: ServerId,
        clock: Clock,
        attempt_timeout: Duration,
        max_in_flight: u32,
        spawn: Spawn,
    ) -> (Arc<Pipeline<W>>, mpsc::UnboundedReceiver<Replacement>) {
        let (condemned, to_replace) = mpsc::unbounded_channel();
        let state = State {
            gate: Gate::Down(not_executed("not connected yet")),
            generation: 0,
            reloading: false,
            reloads: 0,
            marking: false,
            entered: 0,
            backlog: Backlog::default(),
        };
        let pipeline = Pipeline {
            server,
            state: Mutex::new(state),
            in_flight: InFlight::new(max_in_flight),
            response: AtomicU64::new(0),
            condemned,
            spawn,
            clock,
            attempt_timeout,
        };
        (Arc::new(pipeline), to_replace)
    }

    /// The connection of this number.
    pub(crate) fn connection(&self, generation: u64) -> ConnectionId {
        ConnectionId {
            server: self.server,
            number: generation,
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Sends the command, at the first poll or as soon as it is its turn, and waits for the reply. It is
    /// asked for again if it must be sent again.
    pub(crate) async fn call(
        self: Arc<Self>,
        command: impl Fn() -> W::Command,
    ) -> Result<Response<W::Reply>, Failure> {
        let mut place = None;
        let mut forgotten = None;
        for _ in 0..SENDINGS {
            let entry = self.enter(&mut place, command())?;
            // Until it waits, a call that met a forgetful server counts as in flight: it has its place.
            drop(forgotten.take());
            let sent = match entry {
                Entry::Sent(sent) => sent,
                Entry::Waiting(resumed) => resumed.sent().await?,
            };
            let result = sent.reply.await;
            let received = self.clock.now();
            let WireError { failure, kind } = match result {
                Ok(value) => {
                    sent.flight.answered(sent.at, received);
                    return Ok(Response {
                        value,
                        sent: sent.at,
                        received,
                        generation: sent.generation,
                    });
                }
                Err(error) => error,
            };
            if !matches!(failure, Failure::Unknown(_)) {
                sent.flight.answered(sent.at, received);
            }
            if kind != WireErrorKind::NoScript {
                return Err(self.failed(failure, kind, sent.generation, sent.at));
            }
            self.reload(sent.reloads);
            forgotten = Some(sent.flight);
        }
        Err(not_executed(
            "the server forgets the scripts as soon as they are loaded",
        ))
    }

    /// Asks for a sign of life. Without one in time, or with another one, the connection is condemned.
    pub(crate) async fn ping(self: Arc<Self>, nonce: u64) {
        let nonce = nonce.to_string();
        // What a failure means for the connection is found there, as with any call.
        if let Ok(response) = Arc::clone(&self).call(|| W::ping(&nonce)).await {
            if !W::echoes(&response.value, &nonce) {
                self.desynchronised(
                    response.generation,
                    format!("{:?} as the reply to PING {nonce}", response.value),
                );
            }
        }
    }

    fn enter(self: &Arc<Self>, place: &mut Option<Place>, command: W::Command) -> Result<Entry<W>, Failure> {
        let mut state = self.state();
        let place = *place.get_or_insert_with(|| {
            state.entered += 1;
            Place {
                priority: command.priority(),
                entered: state.entered,
                gives_up: command.gives_up(),
            }
        });
        // Nobody else waits while the pipeline is open.
        let can_go =
            place.priority == Priority::Keep || (state.backlog.is_empty() && self.in_flight.has_capacity());
        match &state.gate {
            Gate::Open(wire) if !state.reloading && can_go => {
                return Ok(Entry::Sent(self.send(&state, wire, command)?));
            }
            Gate::Closed => return Err(Failure::Closed),
            Gate::Down(refused @ Failure::Refused(_)) => return Err(refused.clone()),
            Gate::Open(_) | Gate::Down(_) => {}
        }
        Ok(Entry::Waiting(Resumed::wait(self, state, place, command)))
    }

    /// Hands the command to the connection, which writes it at the first poll.
    fn send(self: &Arc<Self>, state: &State<W>, wire: &W, command: W::Command) -> Result<Sent<W>, Failure> {
        let can_wait = command.priority() != Priority::Keep;
        let command = command
            .prepare(self.connection(state.generation))
            .ok_or_else(|| not_executed("given up before it was sent"))?;
        let (number, token) = self.in_flight.begin(can_wait);
        let flight = Flight {
            pipeline: Arc::clone(self),
            number,
            _token: token,
        };
        let at = self.clock.now();
        let mut reply = wire.send(command);
        if let Poll::Ready(result) = reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            reply = Box::pin(std::future::ready(result));
        }
        Ok(Sent {
            reply,
            at,
            generation: state.generation,
            reloads: state.reloads,
            flight,
        })
    }

    /// Whether the server has answered any call since then.
    pub(crate) fn has_heard_since(&self, since: LocalTime) -> bool {
        self.response.load(Ordering::Relaxed) > since.as_nanos()
    }

    fn failed(&self, failure: Failure, kind: WireErrorKind, generation: u64, sent: LocalTime) -> Failure {
        match kind {
            WireErrorKind::ReadOnly => self.replace(generation, Why::ReadOnly),
            WireErrorKind::Timeout if !self.has_heard_since(sent) => self.replace(generation, Why::Silent),
            WireErrorKind::Timeout | WireErrorKind::NoScript | WireErrorKind::Other => {}
        }
        match self.state().gate {
            Gate::Closed => Failure::Closed,
            _ => failure,
        }
    }

    /// Asks for the replacement of a connection, unless that has been done.
    pub(crate) fn replace(&self, generation: u64, why: Why) {
        // Without a receiver there is nothing left to replace.
        let _ = self.condemned.send(Replacement { generation, why });
    }

    /// A reply that is not to the call it answered: so may be all that follow on that connection.
    pub(crate) fn desynchronised(&self, generation: u64, said: impl Into<Arc<str>>) -> Failure {
        self.replace(generation, Why::Desynchronised);
        Failure::Unknown(ServerError::new(said))
    }

    /// Opens the pipeline to a new connection, and returns its number.
    pub(crate) fn open(self: &Arc<Self>, wire: W) -> u64 {
        let mut state = self.state();
        if !matches!(state.gate, Gate::Closed) {
            state.gate = Gate::Open(wire);
            state.generation += 1;
            self.in_flight.begin_anew();
        }
        let generation = state.generation;
        self.resume(state);
        generation
    }

    /// Calls that come now wait, and fail like that if they lose patience.
    pub(crate) fn down(&self, failure: Failure) {
        let mut state = self.state();
        if !matches!(state.gate, Gate::Closed) {
            state.gate = Gate::Down(failure);
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.gate = Gate::Closed;
        let backlog = std::mem::take(&mut state.backlog);
        drop(state);
        drop(backlog);
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state().gate, Gate::Closed)
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state().gate, Gate::Open(_))
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Wire> Flight<W> {
    /// The server has answered the call, and so all before it.
    fn answered(&self, sent: LocalTime, received: LocalTime) {
        let pipeline = &self.pipeline;
        pipeline.response.store(received.as_nanos(), Ordering::Relaxed);
        let latency = received.since(sent);
        if pipeline.in_flight.answered(self.number, received, latency) {
            pipeline.resume(pipeline.state());
        }
    }
}

impl<W: Wire> fmt::Debug for Pipeline<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

fn not_executed(why: &'static str) -> Failure {
    Failure::NotExecuted(ServerError::new(why))
}
