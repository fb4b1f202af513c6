//! Keeps a connection that calls are sent on up, for as long as its runtime lives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::call::RedisPipeline;
use super::commands::{Wire, load};
use super::connection::{Connection, Purpose};
use super::connector::Connector;
use super::failure;
use super::subscriber::Instruction;
use crate::error::ServerError;
use crate::store::pipeline::{Replacement, Why};
use crate::store::redis::script::Script;
use crate::store::{Failure, Listener, ServerId};
use crate::time::backoff::Backoff;

/// A server that refuses writes may do so for long, and reconnecting to it more often does not help.
const READ_ONLY_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    pub(super) server: ServerId,
    pub(super) connector: Arc<Connector>,
    pub(super) pipeline: Arc<RedisPipeline>,
    pub(super) scripts: Arc<[&'static Script]>,
    pub(super) purpose: Purpose,
    /// Who is to know of a connection that is lost or new.
    pub(super) listener: Option<Weak<dyn Listener>>,
    /// The subscriber, which must be connected to the same server.
    pub(super) follower: Option<mpsc::UnboundedSender<Instruction>>,
    pub(super) condemned: mpsc::UnboundedReceiver<Replacement>,
    /// How long a dead link may go unnoticed while nothing is called.
    pub(super) ping_every: Duration,
}

impl Supervisor {
    /// Begins with that connection, which the pipeline is open to from now on, or opens one.
    pub(super) fn start(self, first: Option<Connection>) -> AbortHandle {
        let first = first.map(|connection| {
            let generation = self.open(&connection);
            (connection, generation)
        });
        tokio::spawn(self.run(first)).abort_handle()
    }

    /// Runs until it is aborted or its runtime ends; either closes the pipeline. `first` is the connection that the pipeline
    /// is open to, and its number; without one, it is opened here.
    async fn run(mut self, first: Option<(Connection, u64)>) {
        let _closing = Closing(Arc::clone(&self.pipeline));
        let mut backoff = Backoff::at_once();
        let (mut connection, mut generation) = match first {
            Some(first) => first,
            None => {
                let connection = self.connect(&mut backoff).await;
                if self.purpose == Purpose::Commands {
                    connection.warn_of_eviction().await;
                }
                let generation = self.open(&connection);
                (connection, generation)
            }
        };
        loop {
            let why = self.watch(&mut connection, generation).await;
            tracing::warn!(server = self.connector.server(), error = %why, "the {} connection is lost", self.purpose);
            // First, so that nothing more is queued in a client that nobody serves.
            self.pipeline.down(Failure::NotExecuted(why));
            if let Some(listener) = self.listener() {
                listener.lost(self.server);
            }
            backoff.ended_after(connection.age());
            drop(connection);
            connection = self.connect(&mut backoff).await;
            tracing::info!(
                server = self.connector.server(),
                "the {} connection is back",
                self.purpose
            );
            // Before any reply of the new connection, which may be one to another server.
            if let Some(listener) = self.listener() {
                listener.replaced(self.server);
            }
            if let Some(follower) = &self.follower {
                // Without a receiver there is nothing to follow with.
                let _ = follower.send(Instruction::Follow);
            }
            generation = self.open(&connection);
        }
    }

    /// Opens the pipeline to this connection, and returns its number.
    fn open(&self, connection: &Connection) -> u64 {
        self.pipeline.open(Wire::new(connection.client(), &self.scripts))
    }

    fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.listener.as_ref()?.upgrade()
    }

    /// Tries until there is a connection, whose server knows the scripts.
    async fn connect(&self, backoff: &mut Backoff) -> Connection {
        loop {
            backoff.pause().await;
            match self.connector.open(self.purpose).await {
                Ok(connection) => {
                    // Here rather than when they are missed, since another client may load them between two of
                    // the calls that wait here: the second one would overtake the first. If the server takes none
                    // now, they are loaded when they are missed.
                    let _ = load(connection.client(), &self.scripts).await;
                    return connection;
                }
                Err(failure) => {
                    self.pipeline.down(failure::not_sent(failure));
                    if let Some(listener) = self.listener() {
                        listener.lost(self.server);
                    }
                }
            }
        }
    }

    /// Returns why the connection must be replaced, once it must.
    async fn watch(&mut self, connection: &mut Connection, generation: u64) -> ServerError {
        let mut nonce = 0;
        loop {
            let ping = Arc::clone(&self.pipeline).ping(nonce);
            let probe = async {
                tokio::time::sleep(self.ping_every).await;
                ping.await;
            };
            tokio::select! {
                why = connection.lost() => return why,
                () = probe => nonce += 1,
                Some(condemned) = self.condemned.recv() => {
                    let patient = condemned.why == Why::ReadOnly && connection.age() < READ_ONLY_PATIENCE;
                    if condemned.generation == generation && !patient {
                        return ServerError::new(match condemned.why {
                            Why::Silent => "the server does not answer",
                            Why::Desynchronised => "replies are out of step with calls",
                            Why::ReadOnly => "the server is a read-only replica",
                        });
                    }
                }
            }
        }
    }
}

/// Closes the pipeline when the runtime drops the task.
struct Closing(Arc<RedisPipeline>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}
