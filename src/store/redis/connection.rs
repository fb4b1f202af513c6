//! One connection to a server.
//!
//! A fred client serves one connection here and is then thrown away. Its own reconnecting is never waited for: it
//! would send again what was queued, it cannot be reached while a write is stuck on a dead link, and a client that
//! is dropped as a whole answers everything in flight at once. So the reconnect policy is there only to keep fred's
//! task from ending by itself (then calls that are queued in it would hang), with a delay beyond any patience.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig,
    UnresponsiveConfig,
};
use fred::types::{ClusterHash, ConnectHandle, CustomCommand, InfoKind, Message, Value};
use futures_util::future::{Either, select};
use tokio::sync::broadcast;

use super::failure;
use super::primary::Successor;
use crate::error::{Error, ServerError};
use crate::store::Failure;
use crate::time::backoff::Backoff;

/// How many messages may lie unread between fred and the task that moves them on. Each slot costs some 600 bytes,
/// since fred makes all its channels that long.
const UNREAD_MESSAGES: usize = 8192;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Commands,
    Messages,
    Replication,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Purpose::Commands => "command",
            Purpose::Messages => "subscriber",
            Purpose::Replication => "replication",
        })
    }
}

/// Connects, or says why not and whom it tried.
pub(super) async fn dial(
    config: Config,
    purpose: Purpose,
    attempt_timeout: Duration,
) -> Result<Connection, Failure> {
    let server = match &config.server {
        #[cfg(unix)]
        ServerConfig::Unix { path } => path.display().to_string(),
        server => server.hosts().first().map(Server::to_string).unwrap_or_default(),
    };
    let client = client(config, purpose, attempt_timeout);
    let connected = client.clone();
    let mut connected = pin!(connected.wait_for_connect());
    // fred tells it once, to those who listen by then.
    poll_fn(|context| {
        let _ = connected.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
    let connection = Connection {
        errors: client.error_rx(),
        router: client.connect(),
        since: Instant::now(),
        client,
        successor: None,
    };
    let failure = match tokio::time::timeout(attempt_timeout, connected).await {
        Ok(Ok(())) => return Ok(connection),
        Ok(Err(error)) => failure::classify_connecting(&error),
        Err(_) => Failure::Unknown(ServerError::new("no answer to the connection attempt")),
    };
    Err(failure::with_server(&server, failure))
}

fn client(config: Config, purpose: Purpose, attempt_timeout: Duration) -> Client {
    let performance = PerformanceConfig {
        default_command_timeout: attempt_timeout,
        broadcast_channel_capacity: match purpose {
            Purpose::Commands | Purpose::Replication => 4,
            Purpose::Messages => UNREAD_MESSAGES,
        },
        ..PerformanceConfig::default()
    };
    let connection = ConnectionConfig {
        connection_timeout: attempt_timeout,
        internal_command_timeout: attempt_timeout,
        max_command_attempts: 1,
        // A steady stream of calls would put off fred's own check for ever; ours are pings and unanswered calls.
        unresponsive: UnresponsiveConfig {
            max_timeout: None,
            ..UnresponsiveConfig::default()
        },
        // fred gives the one reply to every call in flight, some of which may have been executed.
        tcp: TcpConfig {
            nodelay: Some(true),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    };
    let mut never = ReconnectPolicy::new_constant(0, u32::MAX);
    never.set_jitter(0);
    Client::new(config, Some(performance), Some(connection), Some(never))
}

/// An open connection. Dropping it closes the socket and fails everything in flight, at once.
pub(super) struct Connection {
    client: Client,
    errors: broadcast::Receiver<(fred::error::Error, Option<Server>)>,
    router: ConnectHandle,
    since: Instant,
    successor: Option<Successor>,
}

impl Connection {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Has the connection count as lost when another server takes the place of this one.
    pub(super) fn until(mut self, successor: Successor) -> Connection {
        self.successor = Some(successor);
        self
    }

    pub(super) fn messages(&self) -> broadcast::Receiver<Message> {
        self.client.message_rx()
    }

    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns why the connection is over, once it is. May be cancelled and called again.
    pub(super) async fn lost(&mut self) -> ServerError {
        let replaced = async {
            match &mut self.successor {
                Some(successor) => successor.appears().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = self.errors.recv() => match error {
                Ok((error, _)) => failure::message(&error),
                Err(_) => ServerError::new("the connection is over"),
            },
            _ = &mut self.router => ServerError::new("the connection is over"),
            server = replaced => ServerError::new(format!("the primary is {server} now")),
        }
    }

    /// A server that may evict keys may evict locks: each has a TTL, which is what the policies go by.
    pub(super) async fn warn_of_eviction(&self) {
        // A user without the right to ask can't be warned.
        let Ok(info) = self.client.info::<String>(Some(InfoKind::Memory)).await else {
            return;
        };
        let policy = info
            .lines()
            .find_map(|line| line.trim().strip_prefix("maxmemory_policy:"));
        if let Some(policy) = policy.filter(|policy| *policy != "noeviction") {
            tracing::warn!(
                policy,
                "the server may evict locks when its memory is full: set maxmemory-policy to noeviction"
            );
        }
    }

    /// What becomes of `attempt`, unless the connection is lost first: what is sent after that has no answer but the
    /// end of its time.
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

    /// Sends `PING <nonce>` and checks the echo: a barrier behind everything that was sent before.
    pub(super) fn ping(&self, nonce: u64) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let client = self.client.clone();
        async move {
            let nonce = nonce.to_string();
            match client.ping::<Value>(Some(nonce.clone())).await {
                Ok(reply) if echoes(&reply, &nonce) => Ok(()),
                Ok(reply) => Err(desynchronised(&reply, &nonce)),
                Err(error) => Err(failure::classify(&error)),
            }
        }
    }

    /// Subscribes to channels or ends subscriptions, all by one command, and waits until the server has done it. If it
    /// refuses ([`Failure::Refused`]), nothing has changed, and the connection is as good as before.
    ///
    /// Success has no reply of its own: fred keeps for itself what a server answers to these commands. An error it gives
    /// to the command, if that was sent as one that has a reply. So a PING behind the command tells the two apart: either
    /// the command is given an error, and the PING its echo; or the command is given that echo, and then the PING
    /// waits for one reply more. It gets the error of a command without channels, which fred itself waits
    /// for no reply to.
    pub(super) async fn change(
        &mut self,
        what: Subscribing,
        channels: &[Arc<str>],
        nonce: u64,
    ) -> Result<(), Failure> {
        let client = self.client.clone();
        self.unless_lost(change(&client, what, channels, nonce)).await
    }

    /// Asks for any sign of life: sentinels before 7.0 refuse a PING with a nonce.
    pub(super) async fn answers(&self) -> Result<(), Failure> {
        let pong = self.client.ping::<Value>(None).await;
        pong.map(drop).map_err(|error| failure::classify(&error))
    }
}

async fn change(
    client: &Client,
    what: Subscribing,
    channels: &[Arc<str>],
    nonce: u64,
) -> Result<(), Failure> {
    let name = match what {
        Subscribing::Begins => "SUBSCRIBE",
        Subscribing::Ends => "UNSUBSCRIBE",
    };
    let command = CustomCommand::new_static(name, ClusterHash::Random, false);
    let channels: Vec<_> = channels.iter().map(ToString::to_string).collect();
    let changed = pin!(client.custom::<Value, _>(command, channels));
    let nonce = nonce.to_string();
    let pong = pin!(client.ping::<Value>(Some(nonce.clone())));
    // Both are sent, one behind the other, and the first is given the first reply.
    let (reply, pong) = match select(changed, pong).await {
        Either::Left((reply, pong)) => (reply, pong),
        Either::Right((pong, _)) => {
            let pong = pong.map_err(|error| failure::classify(&error))?;
            return Err(desynchronised(&pong, &nonce));
        }
    };
    match reply {
        Ok(reply) if echoes(&reply, &nonce) => {
            let _ = client.subscribe(Vec::<String>::new()).await;
            let _ = pong.await;
            Ok(())
        }
        Ok(reply) => Err(desynchronised(&reply, &nonce)),
        Err(error) => {
            let failure = failure::classify(&error);
            match pong.await {
                Ok(reply) if echoes(&reply, &nonce) => Err(failure),
                Ok(reply) => Err(desynchronised(&reply, &nonce)),
                Err(error) => Err(failure::classify(&error)),
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.router.abort();
    }
}

/// What is done to subscriptions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subscribing {
    Begins,
    Ends,
}

fn desynchronised(reply: &Value, nonce: &str) -> Failure {
    Failure::Unknown(ServerError::new(format!(
        "out of step: {reply:?} as the reply to PING {nonce}"
    )))
}

/// A connection with subscriptions answers `["pong", nonce]`, another one `nonce`.
pub(super) fn echoes(reply: &Value, nonce: &str) -> bool {
    match reply {
        Value::Array(parts) => parts.last().is_some_and(|last| echoes(last, nonce)),
        reply => reply.as_str().is_some_and(|text| text == nonce),
    }
}

/// Tries until the deadline, unless a server refuses. What the last attempt failed by is told, or `unheard`.
pub(super) async fn keep_trying<T, F: Future<Output = Result<T, Failure>>>(
    deadline: tokio::time::Instant,
    unheard: impl Into<Arc<str>>,
    attempt: impl Fn() -> F,
) -> Result<T, Error> {
    let mut backoff = Backoff::at_once();
    let mut last = ServerError::new(unheard);
    loop {
        let attempt = async {
            backoff.pause().await;
            attempt().await
        };
        match tokio::time::timeout_at(deadline, attempt).await {
            Ok(Ok(success)) => return Ok(success),
            Ok(Err(Failure::Refused(error))) => return Err(Error::Refused(error)),
            Ok(Err(Failure::Unknown(error) | Failure::NotExecuted(error))) => last = error,
            Ok(Err(Failure::Closed)) => return Err(Error::Closed),
            Err(_) => return Err(Error::Unavailable(last)),
        }
    }
}
