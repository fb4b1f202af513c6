//! One command connection of a simulated client, as the client's pipeline uses it.
//!
//! As on a real connection, no message overtakes another. When the connection breaks, the messages in flight
//! are lost or run late, perhaps after much that was sent on the next connection. Their callers learn that
//! the outcome is unknown.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::connection::Ends;
use super::history::Fault;
use super::network::Stream;
use crate::protocol::ids::RequestId;
use crate::protocol::{Acquire, Answer, ConnectionId, Failure, Operation, Priority, Stamp, Withdraw};
use crate::servers::redis::failure;
use crate::servers::redis::pipeline::{self, Told, Unanswered};
use crate::sync::locked;
use crate::tests::double::AnyOperation;
use crate::time::clock::LocalTime;
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

#[derive(Clone, Debug)]
pub(super) struct Command {
    priority: Priority,
    what: What,
    /// The stamp that the call was prepared with.
    not_after: Option<ServerTime>,
}

#[derive(Clone, Debug)]
enum What {
    Call(AnyOperation),
    Time,
    Ping,
    /// Loads the scripts.
    Load,
}

impl Command {
    fn new(priority: Priority, what: What) -> Command {
        Command {
            priority,
            what,
            not_after: None,
        }
    }

    pub(super) fn of(operation: AnyOperation) -> Command {
        Command::new(operation.priority(), What::Call(operation))
    }

    pub(super) fn time() -> Command {
        Command::new(Priority::Ask, What::Time)
    }

    pub(super) fn ping() -> Command {
        Command::new(Priority::Keep, What::Ping)
    }

    /// What the server gets.
    fn stamped(&self) -> Command {
        let mut stamped = self.clone();
        if let (What::Call(operation), Some(not_after)) = (&self.what, self.not_after) {
            if let Some(acquire) = operation.get::<Acquire>() {
                stamped.what = What::Call(AnyOperation::new(Acquire {
                    not_after: Arc::new(not_after),
                    ..acquire.clone()
                }));
            }
        }
        stamped
    }
}

impl pipeline::Command for Command {
    fn priority(&self) -> Priority {
        self.priority
    }

    fn gives_up(&self) -> GivesUp {
        match &self.what {
            What::Call(call) => call.stamp().map_or(GivesUp::Unknown, Stamp::gives_up),
            What::Time | What::Ping | What::Load => GivesUp::Unknown,
        }
    }

    fn prepare(&mut self, on: ConnectionId) -> Result<(), Failure> {
        if let What::Call(operation) = &self.what {
            if let Some(acquire) = operation.get::<Acquire>() {
                self.not_after = Some(acquire.not_after.written(on).ok_or(Failure::GivenUp)?);
            }
        }
        Ok(())
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

/// What is told of a reply, until it has come.
struct Caller(Mutex<Option<Told<Reply>>>);

impl Caller {
    fn tell(&self, said: Result<Reply, Unanswered>, at: LocalTime) {
        let told = locked(&self.0).take();
        if let Some(mut told) = told {
            told(said, at);
        }
    }

    /// Tells that there is no reply in time. It may still come.
    fn tell_late(&self, at: LocalTime) {
        let told = locked(&self.0).take();
        if let Some(mut told) = told {
            told(Err(Unanswered::Late), at);
            *locked(&self.0) = Some(told);
        }
    }
}

fn error(said: &str) -> Unanswered {
    Unanswered::Error(said.to_owned())
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
        let now = self.0.ends.clock.now();
        for caller in callers {
            caller.tell(Err(Unanswered::Lost(failure.clone())), now);
        }
        self.0.lost.notify_one();
    }

    /// Loads the scripts.
    pub(super) async fn loaded(&self) -> Result<(), Failure> {
        let (answer, answered) = oneshot::channel();
        let mut answer = Some(answer);
        let told = move |said, _| {
            if let Some(answer) = answer.take() {
                // The caller may be gone.
                let _ = answer.send(said);
            }
        };
        self.call(Command::new(Priority::Keep, What::Load), Box::new(told));
        match answered.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(why)) => Err(failure::not_sent(why.into())),
            Err(_) => Err(Failure::NotExecuted(ServerError::new("the connection is broken"))),
        }
    }

    /// Waits until the client knows of the break.
    pub(super) async fn lost(&self) {
        self.0.lost.notified().await;
    }

    /// Sends a command, with what is told of its reply.
    fn call(&self, command: Command, told: Told<Reply>) {
        let mut state = locked(&self.0.state);
        if state.lost {
            return;
        }
        let caller = Arc::new(Caller(Mutex::new(Some(told))));
        state.callers.push(Arc::clone(&caller));
        drop(state);
        let delay = self.0.delay(&command, Fault::SlowCall);
        let ends = &self.0.ends;
        let (pipe, waits) = (Arc::clone(&self.0), Arc::clone(&caller));
        let arrival = self.0.calls.arrival(delay);
        ends.network.at(arrival, move || pipe.arrived(command, caller));
        let late = Arc::clone(ends);
        ends.network.after(ends.attempt_timeout, move || {
            let process = Arc::clone(&late.process);
            process.deliver(move || waits.tell_late(late.clock.now()));
        });
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
            let process = Arc::clone(&pipe.ends.process);
            process.deliver(move || {
                if pipe.fate().is_none() {
                    caller.tell(told, pipe.ends.clock.now());
                }
            });
        });
    }

    /// Executes a command and returns the reply, or `None` if the connection is closed.
    fn executed(&self, command: &Command) -> Option<Result<Reply, Unanswered>> {
        let server = &self.ends.server;
        if server.refuses() {
            return Some(Err(error("LOADING")));
        }
        let value: Box<dyn Any + Send> = match &command.what {
            What::Call(_) if !server.knows_scripts() => {
                return Some(Err(error("NOSCRIPT")));
            }
            What::Call(call) => {
                let answer = server.execute(self.ends.client, &self.ends.executor, call)?;
                return Some(Ok(Reply::of(answer)));
            }
            What::Time => {
                let answer = server.time(self.ends.client, &self.ends.executor)?;
                return Some(Ok(Reply::of(answer)));
            }
            What::Ping => Box::new(()),
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
                What::Time | What::Ping | What::Load => None,
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

    fn send(&self, command: Command, told: impl FnOnce(Command) -> Told<Reply> + Send + 'static) {
        self.call(command.stamped(), told(command));
    }

    fn load(&self, then: impl FnOnce(Result<(), Failure>) + Send + 'static) {
        let (wire, process) = (self.clone(), Arc::clone(&self.0.ends.process));
        drop(process.spawn(async move { then(wire.loaded().await) }));
    }
}
