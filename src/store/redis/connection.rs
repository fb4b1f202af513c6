//! One connection to a server, and how to come by one.
//!
//! A fred client serves one connection here and is then thrown away. Its own reconnecting is never waited for: it
//! would send again what was queued, it cannot be reached while a write is stuck on a dead link, and a client that
//! is dropped as a whole answers everything in flight at once. So the reconnect policy is there only to keep fred's
//! task from ending by itself (then calls that are queued in it would hang), with a delay beyond any patience.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig,
    UnresponsiveConfig,
};
use fred::types::{ConnectHandle, InfoKind, Message, Value};
use tokio::sync::broadcast;

use super::failure;
use crate::error::{Invalid, ServerError};
use crate::store::Failure;

/// How many messages may lie unread between fred and the task that moves them on. Each slot costs some 600 bytes,
/// since fred makes all its channels that long.
const UNREAD_MESSAGES: usize = 8192;

/// How to connect to one server.
pub(super) struct Connector {
    config: Config,
    server: String,
    attempt_timeout: Duration,
}

/// Where a server of a cluster listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

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

impl Connector {
    pub(super) fn new(url: &str, attempt_timeout: Duration) -> Result<Connector, Invalid> {
        let invalid = |why: &str| Invalid::new(format!("server URL {:?}: {why}", without_password(url)));
        match url.split_once("://") {
            Some(("redis" | "valkey" | "redis-cluster" | "valkey-cluster", _)) => {}
            Some(_) => {
                return Err(invalid(
                    "the scheme must be redis:// or redis-cluster:// (or valkey:// or valkey-cluster://)",
                ));
            }
            None => return Err(invalid("must be like redis://user:password@host:6379")),
        }
        let mut config = Config::from_url(url).map_err(|error| invalid(error.details()))?;
        // Selecting the database that every connection begins with would take a right of its own.
        config.database = config.database.filter(|database| *database != 0);
        if let ServerConfig::Centralized { server } = &mut config.server {
            // The resolver does not know the brackets of an IPv6 address.
            server.host = server.host.trim_matches(['[', ']']).into();
        }
        let server = config
            .server
            .hosts()
            .last()
            .map(Server::to_string)
            .unwrap_or_default();
        Ok(Connector {
            config,
            server,
            attempt_timeout,
        })
    }

    /// The servers of a cluster that the URL names; `None` when it names a single server.
    pub(super) fn seeds(&self) -> Option<Vec<Address>> {
        let ServerConfig::Clustered { hosts, .. } = &self.config.server else {
            return None;
        };
        let address = |server: &Server| Address {
            host: server.host.trim_matches(['[', ']']).to_owned(),
            port: server.port,
        };
        // fred puts the one before the `?` last.
        Some(hosts.iter().rev().map(address).collect())
    }

    /// How to connect to another server as the same user.
    pub(super) fn at(&self, address: &Address) -> Connector {
        let server = Server::new(address.host.as_str(), address.port);
        let mut config = self.config.clone();
        config.server = ServerConfig::Centralized { server };
        Connector {
            config,
            server: address.to_string(),
            attempt_timeout: self.attempt_timeout,
        }
    }

    /// The server's address, for people.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) async fn open(&self, purpose: Purpose) -> Result<Connection, Failure> {
        let client = self.client(purpose);
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
        };
        match tokio::time::timeout(self.attempt_timeout, connected).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(error)) => Err(self.named(failure::of(&error))),
            Err(_) => Err(self.named(Failure::Unknown(ServerError::new(
                "no answer to the connection attempt",
            )))),
        }
    }

    /// The failure, with the server's address in front.
    fn named(&self, failure: Failure) -> Failure {
        let named = |error: ServerError| ServerError::new(format!("{}: {error}", self.server));
        match failure {
            Failure::Unknown(error) => Failure::Unknown(named(error)),
            Failure::NotExecuted(error) => Failure::NotExecuted(named(error)),
            Failure::Refused(error) => Failure::Refused(named(error)),
            Failure::Closed => Failure::Closed,
        }
    }

    fn client(&self, purpose: Purpose) -> Client {
        let performance = PerformanceConfig {
            default_command_timeout: self.attempt_timeout,
            broadcast_channel_capacity: match purpose {
                Purpose::Commands | Purpose::Replication => 4,
                Purpose::Messages => UNREAD_MESSAGES,
            },
            ..PerformanceConfig::default()
        };
        let connection = ConnectionConfig {
            connection_timeout: self.attempt_timeout,
            internal_command_timeout: self.attempt_timeout,
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
        Client::new(
            self.config.clone(),
            Some(performance),
            Some(connection),
            Some(never),
        )
    }
}

/// An open connection. Dropping it closes the socket and fails everything in flight, at once.
pub(super) struct Connection {
    client: Client,
    errors: broadcast::Receiver<(fred::error::Error, Option<Server>)>,
    router: ConnectHandle,
    since: Instant,
}

impl Connection {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn messages(&self) -> broadcast::Receiver<Message> {
        self.client.message_rx()
    }

    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
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

    /// Returns why the connection is over, once it is. May be cancelled and called again.
    pub(super) async fn lost(&mut self) -> ServerError {
        tokio::select! {
            error = self.errors.recv() => match error {
                Ok((error, _)) => failure::words(&error),
                Err(_) => ServerError::new("the connection is over"),
            },
            _ = &mut self.router => ServerError::new("the connection is over"),
        }
    }

    /// Sends `PING <nonce>` and checks the echo: a barrier behind everything that was sent before.
    pub(super) fn ping(&self, nonce: u64) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let client = self.client.clone();
        async move {
            let nonce = nonce.to_string();
            match client.ping::<Value>(Some(nonce.clone())).await {
                Ok(reply) if echoes(&reply, &nonce) => Ok(()),
                Ok(reply) => Err(Failure::Unknown(ServerError::new(format!(
                    "out of step: {reply:?} as the reply to PING {nonce}"
                )))),
                Err(error) => Err(failure::of(&error)),
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.router.abort();
    }
}

/// A connection with subscriptions answers `["pong", nonce]`, another one `nonce`.
fn echoes(reply: &Value, nonce: &str) -> bool {
    match reply {
        Value::Array(parts) => parts.last().is_some_and(|last| echoes(last, nonce)),
        reply => reply.as_str().is_some_and(|text| text == nonce),
    }
}

/// The pause before the next attempt to connect: none at first, then up to a second.
#[derive(Default)]
pub(super) struct Backoff {
    pause: Duration,
}

impl Backoff {
    const SHORTEST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(super) fn next(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).clamp(Self::SHORTEST, Self::LONGEST);
        pause
    }

    /// Starts anew, unless the connection that ended had only just begun: then it goes on.
    pub(super) fn ended_after(&mut self, age: Duration) {
        if age >= Self::LONGEST {
            *self = Backoff::default();
        }
    }
}

/// A URL that may be shown: whoever mistypes one may have put a password into any place before the last `@`.
pub(super) fn without_password(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    match rest.rsplit_once('@') {
        None => url.split('?').next().unwrap_or_default().to_owned(),
        Some((_, host)) => {
            let host = host.split('?').next().unwrap_or_default();
            format!("{scheme}***@{host}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        for url in [
            "redis://user:s3cret@host:6379",
            "redis://:s3cret@host:port",
            "redis://user:s3c@s3cret@host",
            "user:s3cret@host",
            "http://user:s3cret@host",
            "redis://host?password=s3cret",
        ] {
            assert!(!without_password(url).contains("s3c"), "{url}");
            if let Err(invalid) = Connector::new(url, Duration::from_secs(1)) {
                assert!(!invalid.to_string().contains("s3c"), "{invalid}");
            }
        }
    }

    #[test]
    fn urls_that_name_no_server_are_invalid() {
        for url in [
            "",
            "127.0.0.1:6379",
            "http://host",
            "redis://",
            "redis://host:port",
            "redis://host/x",
            "redis://host:99999",
        ] {
            assert!(Connector::new(url, Duration::from_secs(1)).is_err(), "{url}");
        }
    }

    #[test]
    fn urls_may_leave_out_what_has_a_default() {
        for (url, server) in [
            ("redis://host", "host:6379"),
            ("redis://host:1/", "host:1"),
            ("valkey://user:password@host:1/3", "host:1"),
            ("redis://[::1]:1", "::1:1"),
        ] {
            let connector = Connector::new(url, Duration::from_secs(1)).unwrap();
            assert_eq!(connector.server(), server);
        }
    }

    #[test]
    fn the_pause_grows_and_starts_anew_after_a_good_connection() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses, [0, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.ended_after(Duration::from_millis(999));
        assert_eq!(backoff.next(), Backoff::LONGEST);
        backoff.ended_after(Duration::from_secs(1));
        assert_eq!(backoff.next(), Duration::ZERO);
    }
}
