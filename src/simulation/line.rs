//! The command connection of a simulated client: the [`Store`] that its code is built on.
//!
//! As on a real connection, nothing overtakes. What was sent on a connection that broke is lost or runs late, perhaps
//! after much that was sent on the next one; its callers hear that nobody knows. Calls that come while there is no
//! connection wait for one, and are sent then, before any newcomer.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ear::Ears;
use super::history::Fault;
use super::network::{Network, Stream};
use super::pace::LONGEST_MOMENT;
use super::process::Process;
use super::server::{Operation, Server, Time};
use crate::client::locked;
use crate::clock::{Clock, Tick};
use crate::error::ServerError;
use crate::lease::{Exchange, ServerTime, millis};
use crate::store::memory::Connection;
use crate::store::{
    Acquire, Acquired, Answer, Call, Failure, Inspect, Inspected, Listener, Release, Released, Renew,
    Renewed, ServerId, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased, Store,
};

/// The store of one client. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Line(pub(super) Arc<Ends>);

/// Both ends of the line, and what lies between.
pub(super) struct Ends {
    pub(super) client: usize,
    pub(super) network: Arc<Network>,
    pub(super) server: Arc<Server>,
    pub(super) process: Arc<Process>,
    pub(super) listener: Weak<dyn Listener>,
    pub(super) attempt_timeout: Duration,
    pub(super) ears: Ears,
    clock: Clock,
    /// By which the server executes the calls, also late ones.
    executor: Arc<Connection>,
    state: Mutex<State>,
}

struct State {
    pipe: Option<Arc<Pipe>>,
    parked: Vec<Sending>,
    closed: bool,
}

/// A call that waits for a connection.
type Sending = Box<dyn FnOnce(&Arc<Pipe>) + Send>;

/// One connection.
struct Pipe {
    calls: Stream,
    replies: Stream,
    end: Mutex<PipeEnd>,
}

#[derive(Default)]
struct PipeEnd {
    /// What becomes of what had not arrived when it broke.
    fate: Option<Fate>,
    /// Tell the callers that it is broken.
    broken: Vec<Box<dyn FnOnce(Failure) + Send>>,
}

#[derive(Clone, Copy)]
enum Fate {
    Lost,
    /// It runs, but not before this time.
    Late(Instant),
}

/// What a caller is told: when the call was sent, the server's time, the reply.
type Told<T> = Result<(Tick, ServerTime, T), Failure>;

/// Where a caller waits to be told.
struct Caller<T> {
    told: Mutex<Option<oneshot::Sender<Told<T>>>>,
    was_sent: AtomicBool,
}

impl<T> Caller<T> {
    fn tell(&self, told: Told<T>) {
        if let Some(caller) = locked(&self.told).take() {
            // Who is not there any more need not hear.
            let _ = caller.send(told);
        }
    }

    fn is_gone(&self) -> bool {
        locked(&self.told).as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

fn unknown(why: &'static str) -> Failure {
    Failure::Unknown(ServerError::new(why))
}

fn not_executed(why: &'static str) -> Failure {
    Failure::NotExecuted(ServerError::new(why))
}

impl Line {
    pub(super) fn connect(
        client: usize,
        network: &Arc<Network>,
        server: &Arc<Server>,
        process: &Arc<Process>,
        listener: Weak<dyn Listener>,
        attempt_timeout: Duration,
    ) -> Line {
        let deaf: Weak<dyn Listener> = Weak::<Nobody>::new();
        let state = State {
            pipe: Some(Arc::new(Pipe::new())),
            parked: Vec::new(),
            closed: false,
        };
        let ends = Arc::new_cyclic(|ends| Ends {
            client,
            network: Arc::clone(network),
            server: Arc::clone(server),
            process: Arc::clone(process),
            listener,
            attempt_timeout,
            ears: Ears::new(Weak::clone(ends)),
            // Its origin is its own: a time of one client's clock means nothing to another.
            clock: Clock::tokio(),
            executor: server.store.connect(deaf),
            state: Mutex::new(state),
        });
        ends.ears.open();
        Line(ends)
    }

    fn call<O: Operation>(&self, operation: O) -> Call<O::Reply> {
        let ends = Arc::clone(&self.0);
        Box::pin(async move {
            let (told, answer) = oneshot::channel();
            let caller = Arc::new(Caller {
                told: Mutex::new(Some(told)),
                was_sent: AtomicBool::new(false),
            });
            ends.dawdle().await;
            ends.enter(operation, Arc::clone(&caller))?;
            let patience = ends.attempt_timeout;
            let began = Instant::now();
            let (sent, now, reply) = match tokio::time::timeout(patience, answer).await {
                // Whoever was stopped meanwhile may see first that the time is over.
                Ok(_) if began.elapsed() > patience && ends.network.one_in(2) => {
                    return Err(unknown("no reply in time"));
                }
                Ok(told) => told.unwrap_or(Err(Failure::Closed))?,
                Err(_) if caller.was_sent.load(Ordering::Relaxed) => return Err(unknown("no reply in time")),
                Err(_) => return Err(not_executed("no connection")),
            };
            let received = ends.clock.now();
            ends.dawdle().await;
            Ok(Answer {
                from: ServerId::default(),
                at: Exchange { sent, received, now },
                reply,
            })
        })
    }
}

impl Ends {
    /// The thread of the calling task may stand still.
    async fn dawdle(&self) {
        if self.network.strikes(Fault::SlowTask, self.client) {
            tokio::time::sleep(self.network.ms(1..=millis(LONGEST_MOMENT))).await;
        }
    }

    /// Sends a call, or has it wait for a connection.
    fn enter<O: Operation>(
        self: &Arc<Self>,
        operation: O,
        caller: Arc<Caller<O::Reply>>,
    ) -> Result<(), Failure> {
        let mut state = locked(&self.state);
        if state.closed {
            return Err(Failure::Closed);
        }
        if let Some(pipe) = state.pipe.clone() {
            drop(state);
            self.send(&pipe, operation, caller);
            return Ok(());
        }
        let ends = Arc::clone(self);
        state.parked.push(Box::new(move |pipe| {
            if !caller.is_gone() {
                ends.send(pipe, operation, caller);
            }
        }));
        Ok(())
    }

    fn send<O: Operation>(self: &Arc<Self>, pipe: &Arc<Pipe>, operation: O, caller: Arc<Caller<O::Reply>>) {
        caller.was_sent.store(true, Ordering::Relaxed);
        let sent = self.clock.now();
        let told = Arc::clone(&caller);
        locked(&pipe.end)
            .broken
            .push(Box::new(move |failure| told.tell(Err(failure))));
        let slow = self.network.strikes(Fault::SlowCall, self.client);
        let delay = self.network.latency()
            + if slow {
                self.network.ms(10..=3000)
            } else {
                Duration::ZERO
            };
        let ends = Arc::clone(self);
        let on = Arc::clone(pipe);
        self.network.at(pipe.calls.arrival(delay), move || {
            ends.arrived(&on, sent, operation, caller);
        });
    }

    /// A call comes to the server.
    fn arrived<O: Operation>(
        self: &Arc<Self>,
        pipe: &Arc<Pipe>,
        sent: Tick,
        operation: O,
        caller: Arc<Caller<O::Reply>>,
    ) {
        let wait = match pipe.fate() {
            Some(Fate::Lost) => return,
            Some(Fate::Late(until)) if until > Instant::now() => Some(until),
            _ => self.server.stalled(),
        };
        if let Some(until) = wait {
            let ends = Arc::clone(self);
            let on = Arc::clone(pipe);
            self.network
                .at(until, move || ends.arrived(&on, sent, operation, caller));
            return;
        }
        if self.server.refuses() {
            self.reply(pipe, move || caller.tell(Err(not_executed("LOADING"))));
            return;
        }
        let Some(answer) = self.server.execute(self.client, &self.executor, &operation) else {
            return;
        };
        if self.network.strikes(Fault::LostReply, self.client) {
            if self.network.one_in(3) {
                self.repeat(self.network.ms(0..=4000), operation);
            }
            return;
        }
        if self.network.strikes(Fault::ExecutedTwice, self.client) {
            self.server.execute(self.client, &self.executor, &operation);
        }
        self.reply(pipe, move || caller.tell(Ok((sent, answer.at.now, answer.reply))));
    }

    /// Has a call executed once more, whose caller hears nothing.
    fn repeat<O: Operation>(self: &Arc<Self>, delay: Duration, operation: O) {
        let ends = Arc::clone(self);
        self.network.after(delay, move || {
            if !ends.is_closed() {
                ends.server.execute(ends.client, &ends.executor, &operation);
            }
        });
    }

    fn reply(&self, pipe: &Arc<Pipe>, tell: impl FnOnce() + Send + 'static) {
        let slow = self.network.strikes(Fault::SlowReply, self.client);
        let delay = self.network.latency()
            + if slow {
                self.network.ms(10..=3000)
            } else {
                Duration::ZERO
            };
        let on = Arc::clone(pipe);
        self.network.at(pipe.replies.arrival(delay), move || {
            if on.fate().is_none() {
                tell();
            }
        });
    }

    /// The connection breaks: at once for everybody, or, if `silent`, only for what is sent.
    /// Returns when there will be a new one, if there was any.
    pub(super) fn cut(self: &Arc<Self>, silent: bool) -> Option<Duration> {
        let pipe = locked(&self.state).pipe.clone()?;
        let fate = if self.network.one_in(2) {
            Fate::Lost
        } else {
            Fate::Late(Instant::now() + self.network.ms(0..=6000))
        };
        locked(&pipe.end).fate.get_or_insert(fate);
        let noticed = match silent {
            // Until a call is not answered in time.
            true => self.attempt_timeout + self.network.ms(0..=1000),
            false => Duration::ZERO,
        };
        let back = self.network.ms(0..=3000);
        let ends = Arc::clone(self);
        let down = move || {
            locked(&ends.state).pipe = None;
            pipe.fail(&unknown("the connection broke"));
            let up = Arc::clone(&ends);
            ends.network.after(back, move || {
                let process = Arc::clone(&up.process);
                process.deliver(move || up.open());
            });
        };
        if silent {
            self.network.after(noticed, down);
        } else {
            down();
        }
        Some(noticed + back)
    }

    /// A new connection: told to the client before any reply that comes on it.
    fn open(self: &Arc<Self>) {
        if self.is_closed() {
            return;
        }
        if let Some(listener) = self.listener.upgrade() {
            listener.replaced(ServerId::default());
        }
        let pipe = Arc::new(Pipe::new());
        let parked = {
            let mut state = locked(&self.state);
            state.pipe = Some(Arc::clone(&pipe));
            std::mem::take(&mut state.parked)
        };
        for send in parked {
            send(&pipe);
        }
        self.ears.replace();
    }

    pub(super) fn is_up(&self) -> bool {
        locked(&self.state).pipe.is_some()
    }

    pub(super) fn is_closed(&self) -> bool {
        locked(&self.state).closed
    }

    fn close(&self) {
        let (pipe, parked) = {
            let mut state = locked(&self.state);
            state.closed = true;
            (state.pipe.take(), std::mem::take(&mut state.parked))
        };
        drop(parked);
        if let Some(pipe) = pipe {
            // What was sent before still runs.
            locked(&pipe.end).fate.get_or_insert(Fate::Late(Instant::now()));
            pipe.fail(&Failure::Closed);
        }
        self.ears.close();
    }
}

impl Pipe {
    fn new() -> Pipe {
        Pipe {
            calls: Stream::new(),
            replies: Stream::new(),
            end: Mutex::default(),
        }
    }

    fn fate(&self) -> Option<Fate> {
        locked(&self.end).fate
    }

    fn fail(&self, failure: &Failure) {
        let broken = std::mem::take(&mut locked(&self.end).broken);
        for tell in broken {
            tell(failure.clone());
        }
    }
}

impl Store for Line {
    fn acquire(&self, call: Acquire) -> Call<Acquired> {
        self.call(call)
    }

    fn release(&self, call: Release) -> Call<Released> {
        self.call(call)
    }

    fn renew(&self, call: Renew) -> Call<Renewed> {
        self.call(call)
    }

    fn inspect(&self, call: Inspect) -> Call<Inspected> {
        self.call(call)
    }

    fn spin_acquire(&self, call: SpinAcquire) -> Call<SpinAcquired> {
        self.call(call)
    }

    fn spin_release(&self, call: SpinRelease) -> Call<SpinReleased> {
        self.call(call)
    }

    fn time(&self) -> Call<()> {
        self.call(Time)
    }

    fn subscribe(&self, channel: Arc<str>) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        let ends = Arc::clone(&self.0);
        Box::pin(async move { ends.ears.subscribe(channel).await })
    }

    fn unsubscribe(&self, channel: &str) {
        self.0.ears.unsubscribe(channel);
    }

    fn unseen(&self, _: &str) {
        self.0.ears.replace();
    }

    fn clock(&self) -> Clock {
        self.0.clock
    }

    fn close(&self) {
        self.0.close();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ends")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// Hears nothing.
#[derive(Debug)]
struct Nobody;

impl Listener for Nobody {
    fn pushed(&self, _: ServerId, _: &str, _: &str) {}

    fn replaced(&self, _: ServerId) {}

    fn reconnected(&self, _: ServerId) {}
}
