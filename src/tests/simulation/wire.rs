//! One command connection of a simulated client, as the client's pipeline uses it.
//!
//! As on a real connection, no message overtakes another. When the connection breaks, the messages in flight
//! are lost or run late, perhaps after much that was sent on the next connection. Their callers learn that
//! the outcome is unknown.

use std::any::Any;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::EnterGuard;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::connection::Ends;
use super::history::Fault;
use super::network::Stream;
use crate::protocol::ids::RequestId;
use crate::protocol::{Acquire, Answer, ConnectionId, Failure, Operation, Priority, Stamp, Withdraw};
use crate::servers::pipeline;
use crate::servers::pipeline::{Told, WireError, WireErrorKind};
use crate::sync::locked;
use crate::tests::double::AnyOperation;
use crate::time::clock::Clock;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::ServerTime;
use crate::types::error::ServerError;

/// The server's time and its answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) now: ServerTime,
    pub(super) value: Box<dyn Any + Send>,
}

impl Reply {
    fn of<T: Send + 'static>(answer: Answer<T>) -> Reply {
        Reply {
            now: answer.at.now,
            value: Box::new(answer.reply),
        }
    }
}

#[derive(Debug)]
pub(super) struct Command {
    priority: Priority,
    what: What,
}

#[derive(Debug)]
enum What {
    Call(AnyOperation),
    Time,
    Ping(String),
    /// Loads the scripts.
    Load,
}

impl Command {
    pub(super) fn of(operation: AnyOperation) -> Command {
        Command {
            priority: operation.priority(),
            what: What::Call(operation),
        }
    }

    pub(super) fn time() -> Command {
        Command {
            priority: Priority::Ask,
            what: What::Time,
        }
    }
}

impl pipeline::Command for Command {
    fn priority(&self) -> Priority {
        self.priority
    }

    fn gives_up(&self) -> GivesUp {
        match &self.what {
            What::Call(call) => call.stamp().map_or(GivesUp::Unknown, Stamp::gives_up),
            What::Time | What::Ping(_) | What::Load => GivesUp::Unknown,
        }
    }

    fn prepare(self, on: ConnectionId) -> Result<Command, Failure> {
        let What::Call(operation) = &self.what else {
            return Ok(self);
        };
        let Some(acquire) = operation.get::<Acquire>() else {
            return Ok(self);
        };
        let acquire = Acquire {
            not_after: Arc::new(acquire.not_after.written(on).ok_or(Failure::GivenUp)?),
            ..acquire.clone()
        };
        let what = What::Call(AnyOperation::new(acquire));
        Ok(Command { what, ..self })
    }
}

/// One connection.
#[derive(Clone)]
pub(super) struct Wire(Arc<Pipe>);

struct Pipe {
    ends: Arc<Ends>,
    calls: Stream,
    replies: Stream,
    state: Mutex<State>,
    lost: Notify,
}

#[derive(Default)]
struct State {
    /// What becomes of messages in flight after the break, and the time until the next connection.
    broken: Option<(Fate, Duration)>,
    /// Whether the client knows of the break.
    lost: bool,
    callers: Vec<Arc<Caller>>,
    /// Requests that were withdrawn over this connection.
    withdrawn: BTreeSet<RequestId>,
}

/// What becomes of calls that had not arrived when the connection broke.
#[derive(Clone, Copy)]
pub(super) enum Fate {
    Lost,
    /// They run, but not before this time.
    Late(Instant),
}

/// A caller that waits for the outcome of its call.
struct Caller(Mutex<Option<oneshot::Sender<Result<Reply, WireError>>>>);

impl Caller {
    fn tell(&self, told: Result<Reply, WireError>) {
        if let Some(caller) = locked(&self.0).take() {
            // The caller may be gone.
            let _ = caller.send(told);
        }
    }
}

fn error(failure: Failure, kind: WireErrorKind) -> WireError {
    WireError { failure, kind }
}

fn unknown(why: &'static str, kind: WireErrorKind) -> WireError {
    error(Failure::Unknown(ServerError::new(why)), kind)
}

fn not_executed(why: &'static str, kind: WireErrorKind) -> WireError {
    error(Failure::NotExecuted(ServerError::new(why)), kind)
}

impl Wire {
    pub(super) fn new(ends: &Arc<Ends>) -> Wire {
        Wire(Arc::new(Pipe {
            ends: Arc::clone(ends),
            calls: Stream::new(),
            replies: Stream::new(),
            state: Mutex::default(),
            lost: Notify::new(),
        }))
    }

    /// Breaks the connection without notifying the client, unless it is broken already. The next connection
    /// comes after `back`.
    pub(super) fn cut(&self, fate: Fate, back: Duration) -> bool {
        let mut state = locked(&self.0.state);
        let was_whole = state.broken.is_none();
        state.broken.get_or_insert((fate, back));
        was_whole
    }

    /// Returns the time until the next connection, if this one is broken.
    pub(super) fn back(&self) -> Option<Duration> {
        locked(&self.0.state).broken.map(|(_, back)| back)
    }

    /// Notifies the client of the break.
    pub(super) fn lose(&self, failure: &Failure) {
        let callers = {
            let mut state = locked(&self.0.state);
            state.lost = true;
            std::mem::take(&mut state.callers)
        };
        for caller in callers {
            caller.tell(Err(error(failure.clone(), WireErrorKind::Other)));
        }
        self.0.lost.notify_one();
    }

    /// Waits until the client knows of the break.
    pub(super) async fn lost(&self) {
        self.0.lost.notified().await;
    }

    /// Sends a command, and returns the receiver of its reply.
    fn call(&self, command: Command) -> oneshot::Receiver<Result<Reply, WireError>> {
        let (told, answer) = oneshot::channel();
        let caller = Arc::new(Caller(Mutex::new(Some(told))));
        let mut state = locked(&self.0.state);
        if state.lost {
            drop(state);
            caller.tell(Err(unknown("the connection is broken", WireErrorKind::Other)));
            return answer;
        }
        state.callers.push(Arc::clone(&caller));
        drop(state);
        let delay = self.0.delay(&command, Fault::SlowCall);
        let pipe = Arc::clone(&self.0);
        let network = &self.0.ends.network;
        network.at(self.0.calls.arrival(delay), move || pipe.arrived(command, caller));
        answer
    }
}

impl Pipe {
    fn fate(&self) -> Option<Fate> {
        locked(&self.state).broken.map(|(fate, _)| fate)
    }

    /// Draws whether this fault happens to this message. Messages that keep the connection up have no faults
    /// of their own.
    fn strikes(&self, fault: Fault, what: &What) -> bool {
        matches!(what, What::Call(_) | What::Time) && self.ends.network.strikes(fault, self.ends.client)
    }

    fn delay(&self, command: &Command, slow: Fault) -> Duration {
        let network = &self.ends.network;
        let more = match self.strikes(slow, &command.what) {
            true => network.ms(10..=3000),
            false => Duration::ZERO,
        };
        network.latency() + more
    }

    /// Handles a command that arrives at the server.
    fn arrived(self: Arc<Self>, command: Command, caller: Arc<Caller>) {
        let server = &self.ends.server;
        let wait = match self.fate() {
            Some(Fate::Lost) => return,
            Some(Fate::Late(until)) if until > Instant::now() => Some(until),
            _ => server.stalled(),
        };
        if let Some(until) = wait {
            let pipe = Arc::clone(&self);
            self.ends.network.at(until, move || pipe.arrived(command, caller));
            return;
        }
        let told = self.executed(&command);
        let Some(told) = told else { return };
        if let What::Call(call) = &command.what {
            let withdrawn = call
                .get::<Withdraw>()
                .map(|withdraw| withdraw.requests.iter().cloned());
            locked(&self.state)
                .withdrawn
                .extend(withdrawn.into_iter().flatten());
        }
        if told.is_ok() && self.strikes(Fault::LostReply, &command.what) {
            if self.ends.network.one_in(3) {
                self.repeat(self.ends.network.ms(0..=4000), command);
            }
            return;
        }
        if told.is_ok() && self.strikes(Fault::ExecutedTwice, &command.what) {
            drop(self.executed(&command));
        }
        let delay = self.delay(&command, Fault::SlowReply);
        let pipe = Arc::clone(&self);
        self.ends.network.at(self.replies.arrival(delay), move || {
            if pipe.fate().is_none() {
                caller.tell(told);
            }
        });
    }

    /// Executes a command and returns the reply, or `None` if the connection is closed.
    fn executed(&self, command: &Command) -> Option<Result<Reply, WireError>> {
        let server = &self.ends.server;
        if server.refuses() {
            return Some(Err(not_executed("LOADING", WireErrorKind::Other)));
        }
        let value: Box<dyn Any + Send> = match &command.what {
            What::Call(_) if !server.knows_scripts() => {
                return Some(Err(not_executed("NOSCRIPT", WireErrorKind::NoScript)));
            }
            What::Call(call) => {
                let answer = server.execute(self.ends.client, &self.ends.executor, call)?;
                return Some(Ok(Reply::of(answer)));
            }
            What::Time => {
                let answer = server.time(self.ends.client, &self.ends.executor)?;
                return Some(Ok(Reply::of(answer)));
            }
            What::Ping(nonce) => Box::new(nonce.clone()),
            What::Load => {
                server.learn_scripts();
                Box::new(())
            }
        };
        let now = ServerTime::default();
        Some(Ok(Reply { now, value }))
    }

    /// Executes a command once more, without an answer to its caller. Skips requests that were withdrawn in
    /// the meantime, because a connection keeps the order of its calls.
    fn repeat(self: &Arc<Self>, delay: Duration, command: Command) {
        let pipe = Arc::clone(self);
        self.ends.network.after(delay, move || {
            let request = match &command.what {
                What::Call(call) => call.get::<Acquire>().map(|acquire| &acquire.request),
                What::Time | What::Ping(_) | What::Load => None,
            };
            let is_withdrawn = request.is_some_and(|request| locked(&pipe.state).withdrawn.contains(request));
            if !pipe.ends.is_closed() && !is_withdrawn {
                drop(pipe.executed(&command));
            }
        });
    }
}

impl pipeline::Wire for Wire {
    type Command = Command;
    type Reply = Reply;

    fn send(&self, command: Command, clock: Clock) -> Pin<Box<dyn Future<Output = Told<Reply>> + Send>> {
        let answer = self.call(command);
        let began = Instant::now();
        let ends = Arc::clone(&self.0.ends);
        Box::pin(async move {
            let patience = ends.attempt_timeout;
            let too_late = || Err(unknown("no reply in time", WireErrorKind::Timeout));
            let told = match tokio::time::timeout_at(began + patience, answer).await {
                // A process that was stopped in the meantime may see the timeout before the reply.
                Ok(_) if began.elapsed() > patience && ends.network.one_in(2) => too_late(),
                Ok(told) => told.unwrap_or(Err(error(Failure::Closed, WireErrorKind::Other))),
                Err(_) => too_late(),
            };
            (told, clock.now())
        })
    }

    /// A world has one runtime.
    fn enter(&self) -> Option<EnterGuard<'_>> {
        None
    }

    fn load(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        let load = Command {
            priority: Priority::Keep,
            what: What::Load,
        };
        let loaded = self.send(load, Clock::Boot);
        Box::pin(async move {
            match loaded.await.0 {
                Ok(_) => Ok(()),
                Err(WireError {
                    failure: Failure::Unknown(error),
                    ..
                }) => Err(Failure::NotExecuted(error)),
                Err(WireError { failure, .. }) => Err(failure),
            }
        })
    }

    fn ping(nonce: &str) -> Command {
        Command {
            priority: Priority::Keep,
            what: What::Ping(nonce.to_owned()),
        }
    }

    fn echoes(reply: &Reply, nonce: &str) -> bool {
        reply
            .value
            .downcast_ref::<String>()
            .is_some_and(|echo| echo == nonce)
    }
}
