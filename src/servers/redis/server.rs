//! A client of one server, over one connection. A second one waits for replicas, if the options ask for that.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fred::types::Value;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::call::{CallOptions, RedisPipeline, execute, sample};
use super::channels::Channels;
use super::commands::RedisCommand;
use super::connector::Connector;
use super::options::Options;
use super::replication::Replication;
use super::supervisor::Supervisor;
use crate::protocol::interface::{
    Answer, Call, Connections, Failure, Listener, Page, Position, ServerId, StoreFuture,
};
use crate::protocol::keys::Keys;
use crate::protocol::operations::renew::unreplicated;
use crate::protocol::operations::{Confirmed, Operation, Renew};
use crate::protocol::script::{PubSubMode, Script};
use crate::servers::redis::script_set::ScriptSet;
use crate::time::clock::{Clock, LocalTime};
use crate::time::server_time::ServerTime;
use crate::types::error::ServerError;

/// A client of one server.
pub(crate) struct RedisStore {
    pub(super) id: ServerId,
    server: String,
    pipeline: Arc<RedisPipeline>,
    channels: Arc<Channels>,
    /// The task that keeps the connection up.
    supervisor: AbortHandle,
    /// How long the server may take to confirm a subscription.
    patience: Duration,
    /// Exists only if the options ask for replicas.
    replication: Option<Replication>,
    /// The task that listens to the sentinels, if there are any.
    listening: Option<AbortHandle>,
}

impl RedisStore {
    /// Opens the connections in the background. Calls wait for them. The client tries until it is closed or
    /// dropped, or the runtime ends. Must be called within a runtime.
    pub(crate) fn open(
        connector: Connector,
        options: Options,
        listener: &Weak<dyn Listener>,
        place: (ServerId, PubSubMode),
        scripts: &[&'static Script],
    ) -> Arc<RedisStore> {
        let scripts = ScriptSet::new(scripts, options.quorum);
        let connector = Arc::new(connector);
        let (server, pubsub_mode) = place;
        let (pipeline, condemned) = super::call::pipeline(server, options.attempt_timeout);
        let is_sharded = pubsub_mode == PubSubMode::Sharded;
        let channels = Channels::new(server, connector.server(), is_sharded, listener.clone());
        let supervisor = Supervisor {
            server,
            connector: Arc::clone(&connector),
            pipeline: Arc::clone(&pipeline),
            scripts,
            channels: Some(Arc::clone(&channels)),
            listener: listener.clone(),
            condemned,
            ping_every: options.ping_every,
            patience: options.server_timeout,
        };
        let listening = connector.sentinels().map(|sentinels| {
            let listening = Arc::clone(sentinels).listen(options.ping_every);
            tokio::spawn(listening).abort_handle()
        });
        Arc::new(RedisStore {
            id: server,
            server: connector.server().to_owned(),
            pipeline,
            channels,
            supervisor: supervisor.start(),
            patience: options.attempt_timeout,
            replication: (options.replicas > 0)
                .then(|| Replication::start(server, &connector, options, listener)),
            listening,
        })
    }

    pub(super) fn pipeline(&self) -> &Arc<RedisPipeline> {
        &self.pipeline
    }

    /// Whether there is a connection for calls.
    pub(super) fn is_up(&self) -> bool {
        self.pipeline().is_open()
    }

    pub(crate) fn call<O: Operation>(&self, operation: O) -> Call<O::Reply> {
        self.call_in(CallOptions::default(), operation)
    }

    pub(super) fn call_in<O: Operation>(&self, call_options: CallOptions, operation: O) -> Call<O::Reply> {
        let pipeline = Arc::clone(self.pipeline());
        Box::pin(async move { execute(&pipeline, operation, call_options).await })
    }

    pub(crate) fn confirm(&self, call: Renew, within: Duration) -> Call<Confirmed> {
        self.confirm_in(CallOptions::default(), call, within)
    }

    pub(super) fn confirm_in(
        &self,
        call_options: CallOptions,
        call: Renew,
        within: Duration,
    ) -> Call<Confirmed> {
        match &self.replication {
            Some(replication) => replication.confirm(call, within, call_options),
            None => unreplicated(self.call_in(call_options, call)),
        }
    }
}

impl Connections for RedisStore {
    fn address_of(&self, _: &Keys) -> Option<String> {
        Some(self.server.clone())
    }

    fn list(&self, prefix: &str, from: Position) -> StoreFuture<Page> {
        let pipeline = Arc::clone(self.pipeline());
        let prefix = prefix.to_owned();
        Box::pin(async move {
            let response = Arc::clone(&pipeline)
                .call(RedisCommand::scan(&prefix, from.cursor))
                .await?;
            let Some((cursor, keys)) = RedisCommand::scanned(&response.value) else {
                let said = format!("{:?} as the reply to SCAN", response.value);
                return Err(pipeline.desynchronised(response.generation, said));
            };
            let next = (cursor != 0).then_some(Position { cursor, ..from });
            Ok(Page { keys, next })
        })
    }

    fn check(&self) -> StoreFuture<()> {
        match &self.replication {
            Some(replication) => replication.check(),
            None => Box::pin(ready(Ok(()))),
        }
    }

    fn time(&self) -> Call<()> {
        let pipeline = Arc::clone(self.pipeline());
        Box::pin(async move {
            let response = Arc::clone(&pipeline).call(RedisCommand::time()).await?;
            match time_of(&response.value) {
                Some(now) => Ok(Answer {
                    on: pipeline.connection(response.generation),
                    at: sample(&response, now),
                    reply: (),
                }),
                None => {
                    let said = format!("{:?} as the reply to TIME", response.value);
                    Err(pipeline.desynchronised(response.generation, said))
                }
            }
        })
    }

    fn subscribe(&self, channel: Arc<str>) -> StoreFuture<()> {
        let (channels, patience) = (Arc::clone(&self.channels), self.patience);
        Box::pin(async move {
            match timeout(patience, channels.subscribe(&channel)?).await {
                Ok(Ok(confirmed)) => confirmed,
                Ok(Err(_)) => Err(Failure::Unknown(ServerError::new("unsubscribed meanwhile"))),
                Err(_) => Err(Failure::Unknown(ServerError::new(
                    "no confirmation of the subscription",
                ))),
            }
        })
    }

    fn unsubscribe(&self, channel: &str) {
        self.channels.unsubscribe(channel);
    }

    fn why_unheard(&self, _: &str, since: LocalTime) -> Option<Failure> {
        self.pipeline().why_unheard(since)
    }

    fn clock(&self) -> Clock {
        self.pipeline().clock()
    }

    fn close(&self) {
        self.pipeline.close();
        self.channels.close();
        self.supervisor.abort();
        if let Some(replication) = &self.replication {
            replication.close();
        }
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("server", &self.server)
            .field("closed", &self.pipeline().is_closed())
            .finish_non_exhaustive()
    }
}

/// Parses the reply to `TIME`: seconds and microseconds, as strings.
fn time_of(reply: &Value) -> Option<ServerTime> {
    let Value::Array(parts) = reply else { return None };
    let part = |i: usize| parts.get(i)?.as_str()?.parse::<u64>().ok();
    Some(ServerTime::from_ms(part(0)? * 1000 + part(1)? / 1000))
}
