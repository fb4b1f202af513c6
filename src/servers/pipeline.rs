//! The pipeline: the order in which calls go to one server, over a sequence of connections.
//!
//! - A call enters the pipeline and is written to the connection within one critical section. So calls are
//!   sent in the order in which they enter.
//! - While there is no connection, and during a reload, calls wait in the backlog. When the pipeline opens,
//!   the waiting calls are sent in the order in which they entered, before any newer call. So nothing is ever
//!   written to a connection that is not open.
//! - When the window is full, further calls wait in the backlog, and are sent as earlier calls are answered.
//!   Calls that keep a hold go at once ([`Priority`]), then calls that end one, then those of requests that
//!   were queued before, then all others. So a flood delays no renewal and no release, and does not time out
//!   while the server works at full speed. A PING after all calls in flight shows that these are answered,
//!   even if their callers read no reply.
//! - A call leaves the backlog when its caller is dropped. A call is not sent if its sender has given it up
//!   ([`Command::prepare`]).
//!
//! Around a SCRIPT FLUSH, two calls can change places in two cases. First, a caller does not poll its call
//! while the runtime completes ten rounds of 10 ms each; the other calls are then sent again without it.
//! Second, another client loads the scripts between the two calls; only waiting for each reply could prevent
//! that. The order on the server is correct even then, because it follows the tickets.

mod backlog;
mod in_flight;
mod reload;
#[cfg(test)]
mod tests;
mod window;
mod wire;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::mpsc;

use self::backlog::{Backlog, BacklogKey, Resumed};
use self::in_flight::InFlight;
pub(crate) use self::in_flight::MAX_IN_FLIGHT;
use self::wire::Reply;
pub(crate) use self::wire::{Command, Told, Wire, WireError, WireErrorKind};
use crate::protocol::interface::{ConnectionId, Failure, Priority, ServerId};
use crate::sync::outstanding::Token;
use crate::time::clock::{Clock, LocalTime};
use crate::types::error::ServerError;

/// How often one call is sent at most, if the server forgets the scripts again each time.
const SENDINGS: usize = 8;

/// Spawns a background task.
type Spawn = Box<dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync>;

pub(crate) struct Pipeline<W: Wire> {
    server: ServerId,
    state: Mutex<State<W>>,
    in_flight: InFlight,
    condemned: mpsc::UnboundedSender<Replacement>,
    spawn: Spawn,
    clock: Clock,
    attempt_timeout: Duration,
}

/// A request to replace a connection, and its reason.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) generation: u64,
    pub(super) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A call was not answered in time, and neither was any other call since it was sent.
    Silent,
    /// A reply belongs to another call.
    Desynchronised,
    /// The server is now a replica. Its name may lead to another server.
    ReadOnly,
}

struct State<W: Wire> {
    wiring: Wiring<W>,
    /// The number of connections so far.
    generation: u64,
    /// A reload is under way.
    reloading: bool,
    /// The number of reloads so far.
    reloads: u64,
    /// A PING is under way that will show that earlier calls are answered.
    marking: bool,
    entered: u64,
    backlog: Backlog<W>,
}

enum Wiring<W> {
    Open(W),
    Down(Failure),
    Closed,
}

/// A call in flight.
struct Sent<W: Wire> {
    reply: Reply<W>,
    at: LocalTime,
    generation: u64,
    reloads: u64,
    flight: Flight<W>,
}

/// Counts a call as in flight until it is dropped.
struct Flight<W: Wire> {
    pipeline: Arc<Pipeline<W>>,
    /// How many calls that count for the window had been sent, including this one.
    number: u64,
    _token: Token,
}

enum Entry<W: Wire> {
    Sent(Sent<W>),
    Waiting(Resumed<W>),
}

#[derive(Debug)]
pub(crate) struct Response<R> {
    pub(crate) value: R,
    pub(crate) sent: LocalTime,
    pub(crate) received: LocalTime,
    pub(crate) generation: u64,
}

impl<W: Wire> Pipeline<W> {
    /// Creates a pipeline to this server. Nothing is sent before [`open`](Self::open). The window has at most
    /// `max_in_flight` calls, for example [`MAX_IN_FLIGHT`] for a server that many clients share.
    pub(crate) fn new(
        server: ServerId,
        clock: Clock,
        attempt_timeout: Duration,
        max_in_flight: u32,
        spawn: Spawn,
    ) -> (Arc<Pipeline<W>>, mpsc::UnboundedReceiver<Replacement>) {
        let (condemned, to_replace) = mpsc::unbounded_channel();
        let state = State {
            wiring: Wiring::Down(not_executed("not connected yet: the server has not answered")),
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
            condemned,
            spawn,
            clock,
            attempt_timeout,
        };
        (Arc::new(pipeline), to_replace)
    }

    /// The id of the connection with this number.
    pub(crate) fn connection(&self, generation: u64) -> ConnectionId {
        ConnectionId {
            server: self.server,
            number: generation,
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Sends the command at the first poll, or as soon as its turn comes, and waits for the reply. `command`
    /// is called again if the command must be sent again.
    pub(crate) async fn call(
        self: Arc<Self>,
        command: impl Fn() -> W::Command,
    ) -> Result<Response<W::Reply>, Failure> {
        let mut key = None;
        let mut forgotten = None;
        for _ in 0..SENDINGS {
            let entry = self.enter(&mut key, command())?;
            // A call that met a missing script counts as in flight until it waits in the backlog, so it keeps
            // its place.
            drop(forgotten.take());
            let sent = match entry {
                Entry::Sent(sent) => sent,
                Entry::Waiting(resumed) => resumed.sent().await?,
            };
            let (result, received) = sent.reply.await;
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

    /// Checks that the server answers. The connection is replaced if the reply does not come in time or is a
    /// wrong one.
    pub(crate) async fn ping(self: Arc<Self>, nonce: u64) {
        let nonce = nonce.to_string();
        // `call` handles the consequences of a failure for the connection.
        if let Ok(response) = Arc::clone(&self).call(|| W::ping(&nonce)).await {
            if !W::echoes(&response.value, &nonce) {
                self.desynchronised(
                    response.generation,
                    format!("{:?} as the reply to PING {nonce}", response.value),
                );
            }
        }
    }

    fn enter(
        self: &Arc<Self>,
        key: &mut Option<BacklogKey>,
        command: W::Command,
    ) -> Result<Entry<W>, Failure> {
        let mut state = self.state();
        let key = *key.get_or_insert_with(|| {
            state.entered += 1;
            BacklogKey {
                priority: command.priority(),
                entered: state.entered,
                gives_up: command.gives_up(),
            }
        });
        // While the pipeline is open, the backlog contains no `Keep` call that this one could overtake.
        let can_go =
            key.priority == Priority::Keep || (state.backlog.is_empty() && self.in_flight.has_capacity());
        match &state.wiring {
            Wiring::Open(wire) if !state.reloading && can_go => {
                return Ok(Entry::Sent(self.send(&state, wire, command)?));
            }
            Wiring::Closed => return Err(Failure::Closed),
            Wiring::Down(refused @ Failure::Refused(_)) => return Err(refused.clone()),
            Wiring::Open(_) | Wiring::Down(_) => {}
        }
        Ok(Entry::Waiting(Resumed::wait(self, state, key, command)))
    }

    /// Passes the command to the connection and polls it once, which writes the command.
    fn send(self: &Arc<Self>, state: &State<W>, wire: &W, command: W::Command) -> Result<Sent<W>, Failure> {
        let can_wait = command.priority() != Priority::Keep;
        let command = command.prepare(self.connection(state.generation))?;
        let at = self.clock.now();
        let (number, token) = self.in_flight.begin(can_wait, at);
        let flight = Flight {
            pipeline: Arc::clone(self),
            number,
            _token: token,
        };
        let mut reply = wire.send(command, self.clock);
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

    fn failed(&self, failure: Failure, kind: WireErrorKind, generation: u64, sent: LocalTime) -> Failure {
        match kind {
            WireErrorKind::ReadOnly => self.replace(generation, Why::ReadOnly),
            WireErrorKind::Timeout if !self.in_flight.has_heard_since(sent) => {
                self.replace(generation, Why::Silent)
            }
            WireErrorKind::Timeout | WireErrorKind::NoScript | WireErrorKind::Other => {}
        }
        match self.state().wiring {
            Wiring::Closed => Failure::Closed,
            _ => failure,
        }
    }

    /// Asks for the replacement of a connection. A request for an earlier connection has no effect.
    pub(super) fn replace(&self, generation: u64, why: Why) {
        // Without a receiver, there is no connection left to replace.
        let _ = self.condemned.send(Replacement { generation, why });
    }

    /// Handles a reply that does not belong to its call. All later replies on that connection may be wrong
    /// too.
    pub(super) fn desynchronised(&self, generation: u64, said: impl Into<Arc<str>>) -> Failure {
        self.replace(generation, Why::Desynchronised);
        Failure::Unknown(ServerError::new(said))
    }

    /// Opens the pipeline to a new connection, and returns its number.
    pub(crate) fn open(self: &Arc<Self>, wire: W) -> u64 {
        let mut state = self.state();
        if !matches!(state.wiring, Wiring::Closed) {
            state.wiring = Wiring::Open(wire);
            state.generation += 1;
            self.in_flight.start_over();
        }
        let generation = state.generation;
        self.resume(state);
        generation
    }

    /// Stops sending until there is another connection. Calls wait, and fail with `failure` if they wait for
    /// too long. If the server refuses this client, waiting does not help, and they fail at once.
    pub(crate) fn down(&self, failure: Failure) {
        let mut state = self.state();
        if matches!(state.wiring, Wiring::Closed) {
            return;
        }
        if matches!(failure, Failure::Refused(_)) {
            std::mem::take(&mut state.backlog).fail(&failure);
        }
        state.wiring = Wiring::Down(failure);
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.wiring = Wiring::Closed;
        let backlog = std::mem::take(&mut state.backlog);
        drop(state);
        drop(backlog);
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state().wiring, Wiring::Closed)
    }

    /// Whether there is a connection.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state().wiring, Wiring::Open(_))
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Wire> Flight<W> {
    /// The server has answered this call, and therefore all calls before it.
    fn answered(&self, sent: LocalTime, received: LocalTime) {
        let pipeline = &self.pipeline;
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
