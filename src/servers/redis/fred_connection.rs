//! A connection that fred serves, for what is said once in a while: to sentinels.
//!
//! A fred client serves one connection here, and is then dropped. Its own reconnecting is not used, for three
//! reasons: it would send queued calls again; a client cannot be reached while a write is stuck on a dead
//! connection; and dropping the client answers everything in flight at once. The reconnect policy only keeps
//! fred's task from ending by itself, because calls in its queue would then hang. The delay of the policy is
//! longer than anybody waits.

use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::config::Server;
use fred::types::{ConnectHandle, Message, Value};
use tokio::sync::broadcast;

use super::failure;
use crate::protocol::interface::Failure;
use crate::types::error::ServerError;

/// An open connection. Dropping it closes the socket, and fails everything in flight at once.
pub(super) struct FredConnection {
    client: Client,
    errors: broadcast::Receiver<(fred::error::Error, Option<Server>)>,
    router: ConnectHandle,
    since: Instant,
    /// Why the connection has ended, once that is known.
    over: Option<ServerError>,
}

impl FredConnection {
    /// The connection that this client makes. It is not open yet.
    pub(super) fn of(client: Client) -> FredConnection {
        FredConnection {
            errors: client.error_rx(),
            router: client.connect(),
            since: Instant::now(),
            client,
            over: None,
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The messages of a connection that gets few of them.
    pub(super) fn messages(&self) -> broadcast::Receiver<Message> {
        self.client.message_rx()
    }

    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits until the connection ends, and returns the reason. May be cancelled, and called again.
    pub(super) async fn lost(&mut self) -> ServerError {
        if let Some(why) = &self.over {
            return why.clone();
        }
        let why = tokio::select! {
            error = self.errors.recv() => match error {
                Ok((error, _)) => failure::message(&error),
                Err(_) => ServerError::new("the connection is over"),
            },
            _ = &mut self.router => ServerError::new("the connection is over"),
        };
        self.over.insert(why).clone()
    }

    /// Runs `attempt`, unless the connection is lost first. A command that is sent after the loss gets no
    /// answer before its time-out.
    pub(super) async fn unless_lost<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = attempt => done,
            error = self.lost() => Err(Failure::Unknown(error)),
        }
    }

    /// Asks for any reply. Sentinels before 7.0 refuse a PING with a nonce.
    pub(super) async fn answers(&self) -> Result<(), Failure> {
        let pong = self.client.ping::<Value>(None).await;
        pong.map(drop).map_err(|error| failure::classify(&error))
    }
}

impl Drop for FredConnection {
    fn drop(&mut self) {
        self.router.abort();
    }
}
