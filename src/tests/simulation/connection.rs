//! The [`Store`] of a simulated client: its pipeline, and the task that keeps the connection up.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::history::Fault;
use super::network::Network;
use super::process::Process;
use super::server::Server;
use super::subscriber::SimSubscribers;
use super::timing::LONGEST_MOMENT;
use super::wire::{Command, Fate, Wire};
use crate::protocol::{
    Answer, Call, Connections, Failure, GetLabel, Listener, Page, Position, ServerId, StoreFuture,
};
use crate::servers::memory::Connection;
use crate::servers::redis::pipeline::{Pipeline, Replacement};
use crate::sync::locked;
use crate::tests::double::{AnyOperation, AnyReply, Double};
use crate::time::clock::{Clock, LocalTime};
use crate::time::clock_offset::Sample;
use crate::time::server_time::millis;
use crate::types::error::ServerError;

/// Timeouts and limits of a client's connections.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    pub(super) attempt_timeout: Duration,
    /// How long a dead connection may go unnoticed while the client makes no calls.
    pub(super) ping_every: Duration,
    /// How many calls that may be delayed can be in flight at once.
    pub(super) max_in_flight: u32,
}

/// The store of one client. Dropping it closes it.
#[derive(Debug)]
pub(super) struct SimConnection(pub(super) Arc<Ends>);

/// What a client's two connections share: the network, the server, and the client's process.
pub(super) struct Ends {
    pub(super) client: usize,
    pub(super) network: Arc<Network>,
    pub(super) server: Arc<Server>,
    pub(super) process: Arc<Process>,
    pub(super) listener: Weak<dyn Listener>,
    pub(super) attempt_timeout: Duration,
    ping_every: Duration,
    pub(super) subscribers: SimSubscribers,
    /// The server's store executes the calls of this client through it, also late ones.
    pub(super) executor: Arc<Connection>,
    pub(super) clock: Clock,
    pipeline: Arc<Pipeline<Wire>>,
    wire: Mutex<Option<Wire>>,
    supervisor: Mutex<Option<AbortHandle>>,
    closed: AtomicBool,
}

impl SimConnection {
    pub(super) fn connect(
        client: usize,
        network: &Arc<Network>,
        server: &Arc<Server>,
        process: &Arc<Process>,
        listener: Weak<dyn Listener>,
        setting: Setting,
    ) -> SimConnection {
        let no_listener: Weak<dyn Listener> = Weak::<NoListener>::new();
        // Each client's clock has its own origin, so a time of one clock means nothing to another.
        let clock = Clock::tokio();
        let (pipeline, condemned) = Pipeline::new(
            ServerId::default(),
            clock,
            setting.attempt_timeout,
            setting.max_in_flight,
        );
        let ends = Arc::new_cyclic(|ends| Ends {
            client,
            network: Arc::clone(network),
            server: Arc::clone(server),
            process: Arc::clone(process),
            listener,
            attempt_timeout: setting.attempt_timeout,
            ping_every: setting.ping_every,
            subscribers: SimSubscribers::new(Weak::clone(ends)),
            executor: server.store().connect(no_listener),
            clock,
            pipeline,
            wire: Mutex::default(),
            supervisor: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        ends.subscribers.open();
        let wire = Wire::new(&ends);
        let generation = ends.open(&wire);
        let supervisor = Arc::clone(&ends).supervise(wire, generation, condemned);
        *locked(&ends.supervisor) = Some(process.spawn(supervisor).abort_handle());
        SimConnection(ends)
    }

    /// Sends a command, and waits for its reply.
    fn ask<T: 'static>(&self, command: Command) -> Call<T> {
        let ends = Arc::clone(&self.0);
        Box::pin(async move {
            ends.stall_task().await;
            let pipeline = Arc::clone(&ends.pipeline);
            let heard = pipeline.call(command).await?;
            ends.stall_task().await;
            Ok(Answer {
                on: ends.pipeline.connection(heard.generation),
                at: Sample {
                    sent: heard.sent,
                    received: heard.received,
                    now: heard.value.now,
                },
                reply: *heard.value.value.downcast().expect("the reply to this call"),
            })
        })
    }
}

impl Ends {
    /// Suspends the calling task for a moment, at random.
    async fn stall_task(&self) {
        if self.network.strikes(Fault::SlowTask, self.client) {
            tokio::time::sleep(self.network.ms(1..=millis(LONGEST_MOMENT))).await;
        }
    }

    /// Sends calls over this connection from here on. Returns its generation.
    fn open(&self, wire: &Wire) -> u64 {
        *locked(&self.wire) = Some(wire.clone());
        self.pipeline.open(wire.clone())
    }

    /// Replaces each connection that breaks.
    async fn supervise(
        self: Arc<Self>,
        mut wire: Wire,
        mut generation: u64,
        mut condemned: mpsc::UnboundedReceiver<Replacement>,
    ) {
        loop {
            let ping = Arc::clone(&self.pipeline).call(Command::ping());
            let probe = async {
                tokio::time::sleep(self.ping_every).await;
                drop(ping.await);
            };
            tokio::select! {
                biased;
                () = wire.lost() => {}
                Some(condemned) = condemned.recv() => if condemned.generation != generation {
                    continue;
                },
                () = probe => continue,
            }
            self.pipeline
                .down(Failure::NotExecuted(ServerError::new("the connection is lost")));
            *locked(&self.wire) = None;
            let back = wire.back().unwrap_or_else(|| {
                // The pipeline condemned it because a reply was overdue.
                let back = self.network.ms(0..=3000);
                wire.cut(self.fate(), back);
                self.network
                    .history
                    .fault(Fault::CommandsCut, Some(self.client), back);
                back
            });
            wire.lose(&Failure::Unknown(ServerError::new("the connection broke")));
            tokio::time::sleep(back).await;
            wire = Wire::new(&self);
            // If the server takes no scripts now, they are loaded by the first call that needs them.
            let _ = wire.loaded().await;
            if let Some(listener) = self.listener.upgrade() {
                listener.replaced(ServerId::default());
            }
            generation = self.open(&wire);
            self.subscribers.replace();
        }
    }

    fn fate(&self) -> Fate {
        match self.network.one_in(2) {
            true => Fate::Lost,
            false => Fate::Late(Instant::now() + self.network.ms(0..=6000)),
        }
    }

    /// Breaks the connection. Both sides notice at once, unless it is `silent`: then everything sent is lost
    /// until the client notices. Returns the longest time until the next connection, or `None` if there was
    /// no connection.
    pub(super) fn cut(&self, silent: bool) -> Option<Duration> {
        let wire = locked(&self.wire).clone()?;
        let back = self.network.ms(0..=3000);
        if !wire.cut(self.fate(), back) {
            return None;
        }
        if silent {
            return Some(self.ping_every + self.attempt_timeout + back);
        }
        wire.lose(&Failure::Unknown(ServerError::new("the connection broke")));
        Some(back)
    }

    pub(super) fn is_up(&self) -> bool {
        self.pipeline.is_open()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.pipeline.close();
        if let Some(supervisor) = locked(&self.supervisor).take() {
            supervisor.abort();
        }
        if let Some(wire) = locked(&self.wire).take() {
            // Calls that were already sent still run.
            wire.cut(Fate::Late(Instant::now()), Duration::ZERO);
            wire.lose(&Failure::Closed);
        }
        self.subscribers.close();
    }
}

impl Double for SimConnection {
    fn call(&self, operation: AnyOperation) -> Call<AnyReply> {
        // Labels change nothing, so they are not simulated.
        match operation.get::<GetLabel>() {
            Some(_) => self.0.executor.call(operation),
            None => self.ask(Command::of(operation)),
        }
    }
}

impl Connections for SimConnection {
    /// Lists change nothing, so they are not simulated.
    fn list(&self, prefix: &str, from: Position) -> StoreFuture<Page> {
        self.0.executor.list(prefix, from)
    }

    fn time(&self) -> Call<()> {
        self.ask(Command::time())
    }

    fn subscribe(&self, channel: Arc<str>) -> StoreFuture<()> {
        let ends = Arc::clone(&self.0);
        Box::pin(async move { ends.subscribers.subscribe(channel).await })
    }

    fn unsubscribe(&self, channel: &str) {
        self.0.subscribers.unsubscribe(channel);
    }

    fn why_unheard(&self, _: &str, since: LocalTime) -> Option<Failure> {
        self.0.pipeline.why_unheard(since)
    }

    fn clock(&self) -> Clock {
        self.0.pipeline.clock()
    }

    fn close(&self) {
        self.0.close();
    }
}

impl Drop for SimConnection {
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

/// Ignores all messages.
#[derive(Debug)]
struct NoListener;

impl Listener for NoListener {
    fn pushed(&self, _: ServerId, _: &str, _: &str) {}

    fn replaced(&self, _: ServerId) {}

    fn reconnected(&self, _: ServerId) {}
}
