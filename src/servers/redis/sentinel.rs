//! Finds the primary with the help of its sentinels.
//!
//! - A client asks all sentinels at once, and waits for more than half of them. It believes the answer with
//!   the newest failover (`config-epoch`). As long as a sentinel is cut off, it may name a
//!   former primary.
//! - The server itself must report that it is a primary (`ROLE`) before it is used.
//! - A connection to a former primary does not break by itself, and for some seconds such a server still
//!   accepts writes. So the client listens to each sentinel. A failover that any of them announces ends the
//!   outdated connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::{ClientLike, PubsubInterface};
use fred::types::config::{Config, Server, ServerConfig};
use fred::types::{ClusterHash, CustomCommand, Value};
use futures_util::future::{join, join_all, try_join};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::dial::dial_by_fred;
use super::failure;
use super::fred_connection::FredConnection;
use super::names::Names;
use super::primary::{Primary, Successor};
use super::resp::named_in;
use crate::protocol::interface::Failure;
use crate::time::backoff::Backoff;
use crate::types::error::ServerError;

/// The channel on which a sentinel announces that another server became the primary.
const SWITCHED: &str = "+switch-master";

/// The sentinels of one primary.
pub(super) struct Sentinels {
    /// How to connect to each sentinel.
    configs: Vec<Config>,
    /// The name by which the sentinels know the primary.
    service: String,
    names: Names,
    attempt_timeout: Duration,
    /// The newest primary that any sentinel has reported.
    latest: watch::Sender<Option<Primary>>,
    /// Whether any sentinel has ever reported one.
    found: AtomicBool,
}

impl Sentinels {
    pub(super) fn new(configs: Vec<Config>, service: String, attempt_timeout: Duration) -> Sentinels {
        Sentinels {
            configs,
            service,
            names: Names::default(),
            attempt_timeout,
            latest: watch::Sender::new(None),
            found: AtomicBool::new(false),
        }
    }

    /// Asks for the primary. If an earlier message announced a later failover, it takes precedence over the
    /// answers, until it is [forgotten](Sentinels::forget).
    ///
    /// At first any refusal counts, because the settings of this client are the likely cause. A refusal of
    /// its certificate is often lost with the connection, so it cannot be expected of most sentinels. Once a
    /// primary was found, only more than half of the sentinels can refuse: a single one that lost its state
    /// must not end all waits while the others are unreachable for a moment.
    pub(super) async fn primary(&self) -> Result<Primary, Failure> {
        let mut answers: FuturesUnordered<_> = self.configs.iter().map(|config| self.ask(config)).collect();
        let deadline = Instant::now() + self.attempt_timeout / 2;
        let half = self.configs.len() / 2;
        let mut believed = None;
        let (mut count, mut refusals) = (0, 0);
        let mut failure = None;
        while count <= half {
            match timeout_at(deadline, answers.next()).await {
                Ok(Some(Ok(primary))) => {
                    count += 1;
                    later(&mut believed, primary);
                }
                Ok(Some(Err(refused @ Failure::Refused(_)))) => {
                    refusals += 1;
                    failure = Some(refused);
                }
                Ok(Some(Err(other))) => failure = failure.or(Some(other)),
                Ok(None) | Err(_) => break,
            }
        }
        if let Some(primary) = believed {
            return Ok(self.tell(primary));
        }
        Err(match failure {
            Some(Failure::Refused(error)) if refusals <= half && self.found.load(Ordering::Relaxed) => {
                Failure::NotExecuted(error)
            }
            Some(failure) => failure,
            None => Failure::Unknown(ServerError::new("no sentinel answered in time")),
        })
    }

    /// Asks each sentinel, and waits for all of them. Returns their names with their answers.
    #[cfg(feature = "diagnose")]
    pub(super) async fn ask_each(&self) -> Vec<(String, Result<Primary, Failure>)> {
        join_all(self.configs.iter().map(async |config| {
            let answer = timeout_at(Instant::now() + self.attempt_timeout, self.ask(config)).await;
            let unheard = || Err(Failure::Unknown(ServerError::new("no answer in time")));
            (name_of(config), answer.unwrap_or_else(|_| unheard()))
        }))
        .await
    }

    /// Discards a primary that could not be reached, or that reports that it is not a primary.
    pub(super) fn forget(&self, primary: &Primary) {
        self.latest.send_if_modified(|latest| {
            let known = latest.as_ref() == Some(primary);
            if known {
                *latest = None;
            }
            known
        });
    }

    pub(super) fn successor_of(&self, former: Primary) -> Successor {
        Successor::new(former, self.latest.subscribe())
    }

    /// Listens to all sentinels for as long as it is polled.
    pub(super) async fn listen(self: Arc<Sentinels>, ping_every: Duration) {
        let listeners = self
            .configs
            .iter()
            .map(|config| self.listen_to(config, ping_every));
        join_all(listeners).await;
    }

    async fn listen_to(&self, config: &Config, ping_every: Duration) {
        let mut backoff = Backoff::at_once();
        loop {
            backoff.pause().await;
            if let Ok(mut connection) = self.dial(config).await {
                // However the connection ended, the next one starts by asking.
                let _ = self.hear(config, &mut connection, ping_every).await;
                backoff.ended_after(connection.age());
            }
        }
    }

    /// Asks the sentinel each time it announces a failover, until the connection ends.
    async fn hear(
        &self,
        config: &Config,
        connection: &mut FredConnection,
        ping_every: Duration,
    ) -> Result<(), Failure> {
        let mut messages = connection.messages();
        let client = connection.client().clone();
        let (_, answered) = join(client.subscribe(SWITCHED), connection.answers()).await;
        answered?;
        self.tell(self.ask(config).await?);
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Ok(_) | Err(RecvError::Lagged(_)) => drop(self.tell(self.ask(config).await?)),
                    Err(RecvError::Closed) => return Ok(()),
                },
                _ = connection.lost() => return Ok(()),
                () = tokio::time::sleep(ping_every) => connection.answers().await?,
            }
        }
    }

    /// Stores this primary if it is the newest, and returns the newest.
    fn tell(&self, primary: Primary) -> Primary {
        self.found.store(true, Ordering::Relaxed);
        self.latest
            .send_if_modified(|latest| later(latest, primary.clone()));
        self.latest.borrow().clone().unwrap_or(primary)
    }

    async fn dial(&self, config: &Config) -> Result<FredConnection, Failure> {
        dial_by_fred(&self.names, config.clone(), self.attempt_timeout).await
    }

    /// Asks one sentinel, over a separate connection.
    async fn ask(&self, config: &Config) -> Result<Primary, Failure> {
        let connection = self.dial(config).await?;
        let client = connection.client();
        // `MASTER` names the new primary only when all replicas follow it, but knows the epoch before that.
        let (address, state) = try_join(
            self.sentinel(client, "GET-MASTER-ADDR-BY-NAME"),
            self.sentinel(client, "MASTER"),
        )
        .await
        .map_err(|failure| failure::with_server(&name_of(config), failure))?;
        read(&address, &state).ok_or_else(|| {
            let error = format!(
                "{}: no address of {:?}: {address:?}",
                name_of(config),
                self.service
            );
            Failure::Unknown(ServerError::new(error))
        })
    }

    async fn sentinel(&self, client: &Client, subcommand: &'static str) -> Result<Value, Failure> {
        let command = CustomCommand::new_static("SENTINEL", ClusterHash::Random, false);
        let answer = client.custom(command, vec![subcommand, &self.service]).await;
        answer.map_err(|error| {
            failure::with_advice(failure::classify(&error), |words| {
                let is_other = words.contains("unknown command");
                is_other.then_some("this server is no sentinel: its URL begins with redis:// or rediss://")
            })
        })
    }
}

/// Replaces `known` by `primary` if that is newer.
fn later(known: &mut Option<Primary>, primary: Primary) -> bool {
    let is_later = known.as_ref().is_none_or(|known| known.epoch < primary.epoch);
    if is_later {
        *known = Some(primary);
    }
    is_later
}

/// Parses the replies: the address is an array of host and port, and the state an array of alternating names
/// and values.
fn read(address: &Value, state: &Value) -> Option<Primary> {
    let Value::Array(address) = address else {
        return None;
    };
    let [host, port] = &address[..] else { return None };
    Some(Primary {
        epoch: named_in(state, "config-epoch")?.parse().ok()?,
        server: Server::new(host.as_str()?.into_owned(), port.as_str()?.parse().ok()?),
    })
}

fn name_of(config: &Config) -> String {
    match &config.server {
        ServerConfig::Centralized { server } => format!("sentinel {server}"),
        _ => "a sentinel".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use fairlock_testkit::{Server as TestServer, free_port};

    use super::super::tests::OPTIONS;
    use super::*;

    /// Asks sentinels on these ports. Before that, one of them may have named a primary.
    async fn ask(ports: &[u16], is_found: bool) -> Result<Primary, Failure> {
        let configs = ports.iter().map(|port| Config {
            server: ServerConfig::new_centralized("127.0.0.1", *port),
            ..Config::default()
        });
        let sentinels = Sentinels::new(configs.collect(), "main".to_owned(), OPTIONS.attempt_timeout);
        if is_found {
            let primary = Primary {
                epoch: 1,
                server: Server::new("127.0.0.1", 1),
            };
            sentinels.forget(&sentinels.tell(primary));
        }
        sentinels.primary().await
    }

    #[tokio::test]
    async fn one_sentinel_that_refuses_ends_nothing_once_a_primary_was_found() {
        // A server that is no sentinel refuses the question.
        let (one, two) = (TestServer::start().await, TestServer::start().await);
        let (one, two, dead) = (one.port(), two.port(), free_port());
        for (ports, is_found, is_refused) in [
            (&[one, dead][..], false, true),
            (&[one, dead], true, false),
            (&[dead, one, free_port()], true, false),
            (&[one, two, dead], true, true),
            (&[one], true, true),
        ] {
            match ask(ports, is_found).await {
                Err(Failure::Refused(_)) if is_refused => {}
                Err(Failure::NotExecuted(error)) if !is_refused => {
                    assert!(error.to_string().contains("SENTINEL"), "{error}");
                }
                other => panic!("{ports:?}: {other:?}"),
            }
        }
    }
}
