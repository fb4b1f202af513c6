//! The supervisor keeps a connection up, for as long as its runtime lives.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::call::{RedisPipeline, ping};
use super::channels::Channels;
use super::commands::{Wire, load};
use super::connection::{Connection, Line, Messages};
use super::connector::Connector;
use super::failure;
use super::outage::Outage;
use super::pipeline::{Replacement, Why};
use super::server_info::eviction_policy;
use crate::protocol::interface::{Failure, Listener, ServerId};
use crate::servers::redis::script_set::ScriptSet;
use crate::time::backoff::Backoff;
use crate::types::error::ServerError;

/// A server that refuses writes may do so for a long time, and frequent reconnecting does not help.
const READ_ONLY_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    pub(super) server: ServerId,
    pub(super) connector: Arc<Connector>,
    pub(super) pipeline: Arc<RedisPipeline>,
    pub(super) scripts: Arc<ScriptSet>,
    /// The channels that are subscribed on the connection. `None` if it only waits for replicas.
    pub(super) channels: Option<Arc<Channels>>,
    pub(super) listener: Weak<dyn Listener>,
    pub(super) condemned: mpsc::UnboundedReceiver<Replacement>,
    /// How long a dead connection may go unnoticed while there are no calls.
    pub(super) ping_every: Duration,
    /// How long the server may be away before that is reported.
    pub(super) patience: Duration,
}

impl Supervisor {
    /// Opens the connection in the background.
    pub(super) fn start(self) -> AbortHandle {
        // This is the error of calls until the first attempt has failed.
        let unheard = format!("{}: no answer to the connection attempt", self.connector.server());
        self.pipeline
            .down(Failure::NotExecuted(ServerError::new(unheard)));
        tokio::spawn(self.run()).abort_handle()
    }

    /// Runs until it is aborted or its runtime ends. Either closes the pipeline.
    async fn run(mut self) {
        let _closing = Closing(Arc::clone(&self.pipeline), self.channels.clone());
        let mut backoff = Backoff::at_once();
        let mut connection = self.connect(&mut backoff, true).await;
        if self.channels.is_some() {
            warn_of_eviction(connection.line()).await;
        }
        let mut generation = self.open(&connection, true);
        loop {
            let why = self.watch(&mut connection, generation).await;
            tracing::warn!(
                server = self.connector.server(),
                error = %why,
                "the {} connection is lost",
                self.purpose()
            );
            // This comes first, so that no more calls are queued in a client that nothing serves.
            self.pipeline.down(Failure::NotExecuted(why));
            if let Some(channels) = &self.channels {
                channels.lost();
            }
            if let Some(listener) = self.listener() {
                listener.lost(self.server);
            }
            backoff.ended_after(connection.age());
            drop(connection);
            connection = self.connect(&mut backoff, false).await;
            tracing::info!(
                server = self.connector.server(),
                "the {} connection is back",
                self.purpose()
            );
            if let Some(listener) = self.listener.upgrade() {
                listener.reopened(self.purpose(), self.connector.server());
            }
            // This comes before any reply on the new connection, which may lead to another server.
            if let Some(listener) = self.listener() {
                listener.replaced(self.server);
            }
            generation = self.open(&connection, false);
        }
    }

    /// Opens the pipeline to this connection, and returns the connection's number.
    fn open(&self, connection: &Connection, is_first: bool) -> u64 {
        // The subscriptions come before all calls.
        if let Some(channels) = &self.channels {
            channels.open(connection.line(), is_first);
        }
        let generation = self.pipeline.open(Wire {
            line: connection.line().clone(),
            scripts: Arc::clone(&self.scripts),
        });
        if let Some(channels) = &self.channels {
            channels.opened();
        }
        generation
    }

    /// What the connection is for, for people.
    fn purpose(&self) -> &'static str {
        match self.channels {
            Some(_) => "command",
            None => "replication",
        }
    }

    /// Who hears of lost and new connections, if they are those of the calls.
    fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.channels.as_ref().and_then(|_| self.listener.upgrade())
    }

    /// Tries until there is a connection, and loads the scripts into its server.
    async fn connect(&self, backoff: &mut Backoff, is_first: bool) -> Connection {
        let mut outage = Outage::begin(self.patience);
        loop {
            backoff.pause().await;
            match self.open_with_scripts(is_first).await {
                Ok(connection) => return connection,
                Err(failure) => {
                    outage.goes_on(self.connector.server(), &failure);
                    self.pipeline.down(failure::not_sent(failure));
                    if let Some(listener) = self.listener() {
                        listener.lost(self.server);
                    }
                }
            }
        }
    }

    /// Opens a connection and loads the scripts into its server. This is done here rather than when a call
    /// misses them: another client could load them between two of the waiting calls, and then the second call
    /// would overtake the first. If loading fails now, the scripts are loaded when a call misses them. If a
    /// server refuses them to a client that has just begun, its user has too few rights.
    async fn open_with_scripts(&self, is_first: bool) -> Result<Connection, Failure> {
        let messages: Arc<dyn Messages> = match &self.channels {
            Some(channels) => Arc::clone(channels) as _,
            None => Arc::new(()),
        };
        let connection = self.connector.open(&messages).await?;
        match load(connection.line(), &self.scripts).await {
            Err(lost @ Failure::Unknown(_)) => return Err(lost),
            Err(refused @ Failure::Refused(_)) if is_first && self.scripts.quorum.is_none() => {
                return Err(refused);
            }
            Err(Failure::NotExecuted(error) | Failure::Refused(error)) => {
                self.warn_of_missing_scripts(&error);
            }
            Ok(()) | Err(_) => {}
        }
        Ok(connection)
    }

    /// Warns that a server of a quorum did not get the scripts. Only a new connection does so, because calls
    /// find them missing again and again.
    fn warn_of_missing_scripts(&self, error: &ServerError) {
        if self.scripts.quorum.is_some() {
            tracing::warn!(server = self.connector.server(), %error, "a server of the quorum grants nothing");
        }
    }

    /// Waits until the connection must be replaced, and returns the reason.
    async fn watch(&mut self, connection: &mut Connection, generation: u64) -> ServerError {
        let mut nonce = 0;
        let mut authenticated = pin!(connection.keep_authenticated());
        loop {
            let ping = ping(Arc::clone(&self.pipeline), nonce);
            let probe = async {
                tokio::time::sleep(self.ping_every).await;
                ping.await;
            };
            tokio::select! {
                why = connection.lost() => return failure::words(why),
                () = probe => nonce += 1,
                never = &mut authenticated => match never {},
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

/// Warns if the server may evict keys. Then it may evict locks, because eviction policies look for keys with
/// a TTL, and each lock has one.
async fn warn_of_eviction(line: &Line) {
    // Without the permission for INFO, no warning is possible.
    let Ok(info) = line.call(&["INFO", "memory"]).await else {
        return;
    };
    let info = info.as_string().unwrap_or_default();
    if let Some(policy) = eviction_policy(&info).filter(|policy| *policy != "noeviction") {
        tracing::warn!(
            policy,
            "the server may evict locks when its memory is full: set maxmemory-policy to noeviction"
        );
    }
}

/// Closes everything when the runtime drops the task.
struct Closing(Arc<RedisPipeline>, Option<Arc<Channels>>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
        if let Some(channels) = &self.1 {
            channels.close();
        }
    }
}
