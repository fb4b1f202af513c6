//! Makes a connection to a server.

#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig,
    UnresponsiveConfig,
};
use futures_util::FutureExt;
use futures_util::stream::{self, FuturesUnordered, Stream, StreamExt};

use super::connection::{Connection, Messages};
use super::failure;
use super::fred_connection::FredConnection;
use super::greeting::greet;
use super::names::Names;
use super::role::Expected;
use super::socket::{self, unanswered};
use crate::protocol::interface::Failure;
use crate::protocol::label::Label;

/// The length of each of fred's own queues for events. There are nine, and each holds its memory from the
/// start.
const EVENTS: usize = 4;

/// How long an address may be silent before the next one is tried too (RFC 8305 recommends this).
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to a server that is what it has to be, for calls that wait for their replies for
/// `attempt_timeout`. An error names the server and the reason.
pub(super) async fn dial(
    names: &Names,
    config: Config,
    attempt_timeout: Duration,
    expected: Expected,
    label: Option<&Label>,
    messages: &Arc<dyn Messages>,
) -> Result<Connection, Failure> {
    let open = |config, address| open(config, address, attempt_timeout, expected, label, messages);
    dial_by(names, config, 5 * attempt_timeout / 2, open).await
}

async fn open(
    config: Config,
    address: Option<SocketAddr>,
    attempt_timeout: Duration,
    expected: Expected,
    label: Option<&Label>,
    messages: &Arc<dyn Messages>,
) -> Result<Connection, Failure> {
    let stream = socket::open(&config, address, attempt_timeout).await?;
    let connection = Connection::new(stream, attempt_timeout, Arc::clone(messages));
    let said = greet(connection.line(), &config, label).await?;
    expected.judge(&said)?;
    Ok(connection)
}

/// The same by fred, for what is said once in a while. fred authenticates, selects the database, and asks for
/// the id of the connection and for the version of the server. So a sentinel that is busy is connected if it
/// answers each of these calls in half of its time.
pub(super) async fn dial_by_fred(
    names: &Names,
    config: Config,
    attempt_timeout: Duration,
) -> Result<FredConnection, Failure> {
    let within = 5 * attempt_timeout / 2;
    let open = |config, _| open_by_fred(config, attempt_timeout, within);
    dial_by(names, config, within, open).await
}

/// Opens a connection to one of the addresses of the server. Fails if that takes longer than `within`.
async fn dial_by<T, F: Future<Output = Result<T, Failure>>>(
    names: &Names,
    config: Config,
    within: Duration,
    open: impl Fn(Config, Option<SocketAddr>) -> F,
) -> Result<T, Failure> {
    let server = server_of(&config);
    let dialled = async {
        let ServerConfig::Centralized { server } = &config.server else {
            return open(config, None).await;
        };
        let addresses = names.addresses_of(&server.host, server.port).await?;
        let attempt = |address| {
            let server = ServerConfig::Centralized {
                server: at(address, server),
            };
            let config = Config {
                server,
                ..config.clone()
            };
            open(config, Some(address))
        };
        first_to_answer(names, addresses, within, attempt).await
    };
    let dialled = match tokio::time::timeout(within, dialled).await {
        Ok(dialled) => dialled,
        Err(_) => Err(unanswered()),
    };
    dialled.map_err(|failure| failure::with_server(&server, failure))
}

/// Makes an attempt at each address, and returns the first success or refusal. A name may have addresses that
/// lead nowhere, and those of replicas. If all fail, what a server said is returned rather than its silence.
async fn first_to_answer<T, F: Future<Output = Result<T, Failure>>>(
    names: &Names,
    addresses: Vec<SocketAddr>,
    within: Duration,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, Failure> {
    // The last one has its time too.
    let stagger = STAGGER.min(within / (1 + u32::try_from(addresses.len()).unwrap_or(u32::MAX)));
    let attempts = addresses.iter().map(|address| {
        let attempt = attempt(*address);
        async { (*address, attempt.await) }
    });
    let mut attempts = pin!(staggered(attempts, stagger));
    let (mut failed, mut last) = (Vec::new(), unanswered());
    while let Some((address, done)) = attempts.next().await {
        match done {
            Ok(_) | Err(Failure::Refused(_)) => {
                let before = addresses.iter().take_while(|other| **other != address);
                names.were_silent(before.filter(|other| !failed.contains(*other)).copied());
                return done;
            }
            Err(failure) => {
                failed.push(address);
                if !matches!(last, Failure::NotExecuted(_)) {
                    last = failure;
                }
            }
        }
    }
    Err(last)
}

/// Begins one attempt after the other: the next one as soon as one has ended, and after `pause` at the
/// latest. Those that are under way go on. Yields what each comes to.
pub(super) fn staggered<F: Future>(
    attempts: impl Iterator<Item = F>,
    pause: Duration,
) -> impl Stream<Item = F::Output> {
    let begin = (attempts.fuse(), FuturesUnordered::new());
    stream::unfold(begin, move |(mut attempts, mut under_way)| async move {
        loop {
            let next = attempts.next();
            let may_be_more = next.is_some();
            under_way.extend(next);
            tokio::select! {
                ended = under_way.next() => return Some((ended?, (attempts, under_way))),
                () = tokio::time::sleep(pause), if may_be_more => {}
            }
        }
    })
}

async fn open_by_fred(
    config: Config,
    attempt_timeout: Duration,
    within: Duration,
) -> Result<FredConnection, Failure> {
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
    let mut connection = FredConnection::of(client);
    let opened = connected.map(|connected| match connected {
        Err(error) if *error.kind() != ErrorKind::Timeout => Err(failure::classify_connecting(&error)),
        connected => connected.map_err(|_| unanswered()),
    });
    connection.unless_lost(opened).await?;
    Ok(connection)
}

/// The server at this address, whose certificate is for its name. If fred knew the name, it would try all
/// addresses one after the other, within the time of one.
fn at(address: SocketAddr, server: &Server) -> Server {
    let text = address.to_string();
    // An IPv6 address keeps its brackets, and may have a zone in them.
    let host = text.rsplit_once(':').map_or("", |(host, _)| host);
    let mut there = server.clone();
    there.host = host.into();
    there.port = address.port();
    #[cfg(any(feature = "rustls", feature = "native-tls"))]
    {
        let name = server.tls_server_name.as_ref().unwrap_or(&server.host);
        there.tls_server_name = Some(name.clone());
    }
    there
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
