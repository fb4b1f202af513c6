//! Makes a connection to a server.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig,
    UnresponsiveConfig,
};

use super::connection::Connection;
use super::failure;
use crate::error::ServerError;
use crate::store::Failure;

/// The length of each of fred's own queues for events. There are nine, and each holds its memory from the
/// start.
const EVENTS: usize = 4;
/// Connects `within` this time, for calls that wait for their replies for `attempt_timeout`. An error names
/// the server and the reason.
pub(super) async fn dial(
    config: Config,
    attempt_timeout: Duration,
    within: Duration,
) -> Result<Connection, Failure> {
    let server = server_of(&config);
    let client = client(config, attempt_timeout, within);
    let connected = client.clone();
    let mut connected = pin!(connected.wait_for_connect());
    // fred announces the connection once, to those that listen at that time. So this starts to listen before
    // `connect`.
    poll_fn(|context| {
        let _ = connected.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
    let connection = Connection::of(client);
    let failure = match tokio::time::timeout(within, connected).await {
        Ok(Ok(())) => return Ok(connection),
        Ok(Err(error)) if *error.kind() != ErrorKind::Timeout => failure::classify_connecting(&error),
        Ok(Err(_)) | Err(_) => Failure::Unknown(ServerError::new("no answer to the connection attempt")),
    };
    Err(failure::with_server(&server, failure))
}

/// The server's address, for people.
pub(super) fn server_of(config: &Config) -> String {
    match &config.server {
        #[cfg(unix)]
        ServerConfig::Unix { path } => path.display().to_string(),
        server => server.hosts().first().map(Server::to_string).unwrap_or_default(),
    }
}

fn client(config: Config, attempt_timeout: Duration, within: Duration) -> Client {
    let performance = PerformanceConfig {
        default_command_timeout: attempt_timeout,
        broadcast_channel_capacity: EVENTS,
        ..PerformanceConfig::default()
    };
    let connection = ConnectionConfig {
        // TCP takes one round trip. The name of a server that is silent may be that of another machine by
        // now, and a new attempt looks it up again.
        connection_timeout: attempt_timeout,
        internal_command_timeout: within,
        max_command_attempts: 1,
        // A steady stream of calls would postpone fred's own check for ever. PINGs and unanswered calls
        // replace it.
        unresponsive: UnresponsiveConfig {
            max_timeout: None,
            ..UnresponsiveConfig::default()
        },
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
