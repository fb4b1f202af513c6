//! A connection pair to one server: a command connection, and a subscriber connection for the server's
//! messages.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::call::RedisPipeline;
use super::connection::Purpose;
use super::connector::Connector;
use super::options::Options;
use super::subscriber::{Instruction, Subscriber};
use super::supervisor::Supervisor;
use crate::protocol::interface::{Failure, Listener, ServerId};
use crate::protocol::script::PubSubMode;
use crate::servers::redis::script_set::ScriptSet;
use crate::types::error::ServerError;

pub(super) struct ConnectionPair {
    pub(super) pipeline: Arc<RedisPipeline>,
    requests: mpsc::UnboundedSender<Instruction>,
    tasks: [AbortHandle; 2],
    /// How long the server may take to confirm a subscription.
    patience: Duration,
}

impl ConnectionPair {
    /// Opens the connections in the background. Calls wait for them.
    pub(super) fn start(
        (server, pubsub_mode): (ServerId, PubSubMode),
        connector: &Arc<Connector>,
        options: Options,
        listener: &Weak<dyn Listener>,
        scripts: &Arc<ScriptSet>,
    ) -> ConnectionPair {
        let (pipeline, condemned) = super::call::pipeline(server, options.attempt_timeout);
        let ping_every = options.ping_every;
        let sharded = pubsub_mode == PubSubMode::Sharded;
        let (subscriber, requests) = Subscriber::new(
            server,
            sharded,
            Arc::clone(connector),
            Arc::clone(&pipeline),
            listener.clone(),
            ping_every,
        );
        let supervisor = Supervisor {
            server,
            connector: Arc::clone(connector),
            pipeline: Arc::clone(&pipeline),
            scripts: Arc::clone(scripts),
            purpose: Purpose::Commands,
            listener: listener.clone(),
            follower: Some(requests.clone()),
            condemned,
            ping_every,
            patience: options.server_timeout,
        };
        ConnectionPair {
            pipeline,
            requests,
            tasks: [supervisor.start(), tokio::spawn(subscriber.run()).abort_handle()],
            patience: options.attempt_timeout,
        }
    }

    pub(super) fn subscribe(
        &self,
        channel: Arc<str>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let pipeline = Arc::clone(&self.pipeline);
        let requests = self.requests.clone();
        let patience = self.patience;
        async move {
            let (waiter, confirmed) = oneshot::channel();
            if requests.send(Instruction::Subscribe(channel, waiter)).is_err() {
                return Err(Failure::Closed);
            }
            match tokio::time::timeout(patience, confirmed).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) if pipeline.is_closed() => Err(Failure::Closed),
                Ok(Err(_)) => Err(Failure::Unknown(ServerError::new("unsubscribed meanwhile"))),
                Err(_) => Err(Failure::Unknown(ServerError::new(
                    "no confirmation of the subscription",
                ))),
            }
        }
    }

    pub(super) fn unsubscribe(&self, channel: &str) {
        // Without a receiver, there is no subscription.
        let _ = self.requests.send(Instruction::Unsubscribe(channel.into()));
    }

    /// Reports that the server of the calls does not see a subscription, although it was confirmed twice.
    pub(super) fn unseen(&self) {
        // Without a receiver, there is no subscription.
        let _ = self.requests.send(Instruction::Unseen);
    }

    /// Reports that the server has ended a subscription by itself.
    pub(super) fn forget(&self, channel: &str) {
        // Without a receiver, there is no subscription.
        let _ = self.requests.send(Instruction::Forget(channel.into()));
    }

    pub(super) fn close(&self) {
        self.pipeline.close();
        for task in &self.tasks {
            task.abort();
        }
    }
}
