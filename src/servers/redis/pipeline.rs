//! The pipeline: the order in which calls go to one server, over a sequence of connections.
//!
//! - A call enters the pipeline and is passed to the connection within one critical section. So calls are
//!   sent in the order in which they enter.
//! - While there is no connection, and while the scripts are loaded, calls wait in the backlog. When the
//!   pipeline opens, the waiting calls are sent in the order in which they entered, before any newer call.
//!   So nothing is ever sent to a connection that is not open.
//! - When the window is full, further calls wait in the backlog, and are sent as earlier calls are
//!   answered. Calls that keep a hold go at once ([`Priority`]), then calls that end one, then those of
//!   requests that were queued before, then all others. So a flood delays no renewal and no release, and
//!   does not time out while the server works at full speed.
//! - The connection reports each reply as it is read, whether or not the caller runs. A call that met a
//!   missing script returns to its place in the backlog at that time. So all such calls are sent again in
//!   their order, once the scripts are loaded.
//! - A call leaves the backlog when its caller is dropped. A call is not sent if its sender has given it up
//!   ([`Command::prepare`]).
//!
//! Around a SCRIPT FLUSH, two calls can change places if another client loads the scripts between them;
//! only waiting for each reply could prevent that. The order on the server is correct even then, because it
//! follows the tickets.

mod backlog;
mod in_flight;
#[cfg(test)]
mod tests;
mod window;
mod wire;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::backlog::{Backlog, BacklogKey};
use self::in_flight::InFlight;
pub(crate) use self::in_flight::MAX_IN_FLIGHT;
pub(crate) use self::wire::{Command, Wire};
#[cfg(test)]
pub(crate) use super::connection::Told;
pub(crate) use super::connection::Unanswered;
use super::failure;
use crate::protocol::interface::{ConnectionId, Failure, Priority, ServerId};
use crate::sync::locked;
use crate::time::clock::{Clock, LocalTime};
use crate::types::error::ServerError;

/// How often one call is sent at most, if the server forgets the scripts again each time.
const SENDINGS: usize = 8;

pub(crate) struct Pipeline<W: Wire> {
    server: ServerId,
    state: Mutex<State<W>>,
    condemned: mpsc::UnboundedSender<Replacement>,
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
    /// The scripts are being loaded.
    is_loading: bool,
    entered: u64,
    backlog: Backlog<Call<W>>,
    in_flight: InFlight,
}

enum Wiring<W> {
    Open(W),
    Down(Failure),
    Closed,
}

/// A call whose outcome is not known.
struct Call<W: Wire> {
    command: W::Command,
    key: BacklogKey,
    /// How often it was sent.
    sendings: usize,
    caller: oneshot::Sender<Outcome<W>>,
}

/// When and where a call was sent.
#[derive(Clone, Copy)]
struct Sent {
    at: LocalTime,
    generation: u64,
    /// How many calls that count for the window had been sent, including this one.
    number: u64,
}

enum Outcome<W: Wire> {
    Final(Result<Response<W::Reply>, Failure>),
    /// The call is sent again.
    Again(Caller<W>),
}

/// The caller's side of a call. Dropping it removes the call from the backlog, so nothing is kept for callers
/// that are gone.
struct Caller<W: Wire> {
    pipeline: Arc<Pipeline<W>>,
    key: BacklogKey,
    /// The call may be in the backlog.
    waits: bool,
    outcome: oneshot::Receiver<Outcome<W>>,
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
    ) -> (Arc<Pipeline<W>>, mpsc::UnboundedReceiver<Replacement>) {
        let (condemned, to_replace) = mpsc::unbounded_channel();
        let state = State {
            wiring: Wiring::Down(not_executed("not connected yet: the server has not answered")),
            generation: 0,
            is_loading: false,
            entered: 0,
            backlog: Backlog::default(),
            in_flight: InFlight::new(max_in_flight),
        };
        let pipeline = Pipeline {
            server,
            state: Mutex::new(state),
            condemned,
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

    /// Sends the command at the first poll, or as soon as its turn comes, and waits for the reply.
    pub(crate) async fn call(self: Arc<Self>, command: W::Command) -> Result<Response<W::Reply>, Failure> {
        let mut caller = self.enter(command)?;
        loop {
            match caller.outcome().await {
                Outcome::Final(result) => return result,
                Outcome::Again(next) => caller = next,
            }
        }
    }

    fn enter(self: &Arc<Self>, command: W::Command) -> Result<Caller<W>, Failure> {
        let mut state = self.state();
        state.entered += 1;
        let key = BacklogKey {
            priority: command.priority(),
            entered: state.entered,
            gives_up: command.gives_up(),
        };
        let (call, mut caller) = self.pair(command, key, 0);
        // While the pipeline is open, the backlog contains no `Keep` call that this one could overtake.
        let can_go =
            key.priority == Priority::Keep || (state.backlog.is_empty() && state.in_flight.has_capacity());
        match &state.wiring {
            Wiring::Open(wire) if !state.is_loading && can_go => {
                let wire = wire.clone();
                self.send(&mut state, &wire, call);
            }
            Wiring::Closed => return Err(Failure::Closed),
            Wiring::Down(refused @ Failure::Refused(_)) => return Err(refused.clone()),
            Wiring::Open(_) | Wiring::Down(_) => {
                caller.waits = true;
                state.backlog.insert(key, call);
            }
        }
        Ok(caller)
    }

    fn pair(self: &Arc<Self>, command: W::Command, key: BacklogKey, sendings: usize) -> (Call<W>, Caller<W>) {
        let (caller, outcome) = oneshot::channel();
        let call = Call {
            command,
            key,
            sendings,
            caller,
        };
        let caller = Caller {
            pipeline: Arc::clone(self),
            key,
            waits: false,
            outcome,
        };
        (call, caller)
    }

    /// Passes a call to the connection.
    fn send(self: &Arc<Self>, state: &mut State<W>, wire: &W, call: Call<W>) {
        let Call {
            mut command,
            key,
            sendings,
            caller,
        } = call;
        if let Err(given_up) = command.prepare(self.connection(state.generation)) {
            // Other callers may still wait for the outcome.
            drop(caller.send(Outcome::Final(Err(given_up))));
            return;
        }
        let at = self.clock.now();
        let sent = Sent {
            at,
            generation: state.generation,
            number: state.in_flight.begin(key.priority != Priority::Keep, at),
        };
        let pipeline = Arc::clone(self);
        wire.send(command, move |command| {
            let mut call = Some(Call {
                command,
                key,
                sendings: sendings + 1,
                caller,
            });
            Box::new(move |said, at| pipeline.told(sent, &mut call, said, at))
        });
    }

    /// Handles what has become known of a call in flight. If it was late, its caller is gone.
    fn told(
        self: &Arc<Self>,
        sent: Sent,
        call: &mut Option<Call<W>>,
        said: Result<W::Reply, Unanswered>,
        at: LocalTime,
    ) {
        let forgotten = match &said {
            Err(Unanswered::Error(said)) if failure::code_of(said) == Some("NOSCRIPT") => {
                call.take_if(|call| call.sendings < SENDINGS)
            }
            _ => None,
        };
        if matches!(said, Ok(_) | Err(Unanswered::Error(_))) {
            self.answered(sent, at, forgotten);
        }
        let Some(call) = call.take() else { return };
        let result = match said {
            Ok(value) => Ok(Response {
                value,
                sent: sent.at,
                received: at,
                generation: sent.generation,
            }),
            Err(unanswered) => Err(self.failed(sent, unanswered)),
        };
        call.ends(result);
    }

    /// The server has answered this call, and therefore all calls before it. If it has forgotten the scripts,
    /// the call is sent again once they are loaded.
    fn answered(self: &Arc<Self>, sent: Sent, at: LocalTime, forgotten: Option<Call<W>>) {
        let mut state = self.state();
        let is_present = sent.generation == state.generation;
        let is_time = is_present && state.in_flight.answered(sent.number, at, at.since(sent.at));
        let Some(call) = forgotten else {
            if is_time {
                self.resume(state);
            }
            return;
        };
        let load = match &state.wiring {
            Wiring::Open(wire) if is_present && !state.is_loading => Some(wire.clone()),
            Wiring::Closed => return call.ends(Err(Failure::Closed)),
            _ => None,
        };
        let key = call.key;
        let (again, mut caller) = self.pair(call.command, key, call.sendings);
        state.is_loading |= load.is_some();
        caller.waits = true;
        state.backlog.insert(key, again);
        // The drop of the caller's side takes the lock, and so does the end of a runtime that loads nothing.
        drop(state);
        drop(call.caller.send(Outcome::Again(caller)));
        if let Some(wire) = load {
            let pipeline = Arc::clone(self);
            wire.load(move |loaded| pipeline.loaded(sent.generation, loaded));
        }
    }

    fn loaded(self: &Arc<Self>, generation: u64, loaded: Result<(), Failure>) {
        let mut state = self.state();
        // A new connection has the scripts.
        if state.generation == generation {
            state.is_loading = false;
            match loaded {
                Ok(()) => self.resume(state),
                Err(failure) => state.fail_waiting(&failure),
            }
        }
    }

    /// Sends the waiting calls, as far as the window allows.
    fn resume(self: &Arc<Self>, mut state: MutexGuard<'_, State<W>>) {
        let state = &mut *state;
        let Wiring::Open(wire) = &state.wiring else { return };
        if state.is_loading {
            return;
        }
        let wire = wire.clone();
        let now = self.clock.now();
        state.in_flight.resume();
        while let Some(next) = state.backlog.next(now, &mut state.in_flight) {
            // If the caller leaves at this moment, the call stays in flight, like any call whose caller
            // leaves.
            self.send(state, &wire, next);
        }
        while let Some(expired) = state.backlog.expired(now) {
            expired.ends(Err(Failure::GivenUp));
        }
    }

    fn failed(&self, sent: Sent, unanswered: Unanswered) -> Failure {
        let state = self.state();
        if matches!(state.wiring, Wiring::Closed) {
            return Failure::Closed;
        }
        match &unanswered {
            Unanswered::Error(said) if failure::code_of(said) == Some("READONLY") => {
                self.replace(sent.generation, Why::ReadOnly);
            }
            Unanswered::Error(said) if failure::code_of(said) == Some("NOSCRIPT") => {
                return not_executed("the server forgets the scripts as soon as they are loaded");
            }
            Unanswered::Late if !state.in_flight.has_heard_since(sent.at) => {
                self.replace(sent.generation, Why::Silent);
            }
            _ => {}
        }
        unanswered.into()
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
            state.is_loading = false;
            state.in_flight.start_over();
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
            state.fail_waiting(&failure);
        }
        state.wiring = Wiring::Down(failure);
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.wiring = Wiring::Closed;
        state.fail_waiting(&Failure::Closed);
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state().wiring, Wiring::Closed)
    }

    /// Whether there is a connection.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state().wiring, Wiring::Open(_))
    }

    /// Why the server has answered no call since this time. `None` if it has answered one, or if it was not
    /// asked for most of the time: those who wait for a place in this process make no calls.
    pub(crate) fn why_unheard(&self, since: LocalTime) -> Option<Failure> {
        let state = self.state();
        let is_answering = match state.wiring {
            Wiring::Open(_) => !state.in_flight.is_silent_since(since, self.clock.now()),
            _ => state.in_flight.has_heard_since(since),
        };
        if is_answering {
            return None;
        }
        state.why_waiting(since)
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        locked(&self.state)
    }
}

impl<W: Wire> State<W> {
    /// The failure of a call that has waited since this time, or `None` while earlier calls are still being
    /// answered.
    fn why_waiting(&self, since: LocalTime) -> Option<Failure> {
        match &self.wiring {
            Wiring::Open(_) if self.is_loading => Some(not_executed("the scripts were not loaded in time")),
            Wiring::Open(_) if self.in_flight.has_heard_since(since) => None,
            Wiring::Open(_) => Some(not_executed("the server does not answer")),
            Wiring::Down(failure) => Some(failure.clone()),
            Wiring::Closed => Some(Failure::Closed),
        }
    }

    fn fail_waiting(&mut self, failure: &Failure) {
        for call in std::mem::take(&mut self.backlog).into_calls() {
            call.ends(Err(failure.clone()));
        }
    }
}

impl<W: Wire> Call<W> {
    fn ends(self, result: Result<Response<W::Reply>, Failure>) {
        // The caller may be gone.
        drop(self.caller.send(Outcome::Final(result)));
    }
}

impl<W: Wire> Caller<W> {
    /// Waits for the outcome, as long as it can be expected.
    async fn outcome(mut self) -> Outcome<W> {
        while self.waits {
            let since = self.pipeline.clock.now();
            if let Ok(outcome) = timeout(self.pipeline.attempt_timeout, &mut self.outcome).await {
                return self.ended(outcome.ok());
            }
            let mut state = self.pipeline.state();
            if let Some(failure) = state.why_waiting(since) {
                if state.backlog.remove(self.key).is_some() {
                    return Outcome::Final(Err(failure));
                }
                // It was sent in the meantime.
                break;
            }
        }
        let outcome = (&mut self.outcome).await;
        self.ended(outcome.ok())
    }

    fn ended(mut self, outcome: Option<Outcome<W>>) -> Outcome<W> {
        self.waits = false;
        // A connection that is over drops what it is given.
        outcome.unwrap_or_else(|| Outcome::Final(Err(not_executed("the connection is over"))))
    }
}

impl<W: Wire> Drop for Caller<W> {
    fn drop(&mut self) {
        if self.waits {
            let left = self.pipeline.state().backlog.remove(self.key);
            drop(left);
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
