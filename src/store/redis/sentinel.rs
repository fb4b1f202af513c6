//! Which server is the primary, by the word of the sentinels that watch over it.
//!
//! - Whoever connects asks all sentinels at once, waits for more than half of them, and believes the one that knows of the
//!   latest failover (`config-epoch`). A sentinel that was cut off may name a former primary for as long as it is.
//! - The server has to say itself that it is a primary (`ROLE`) before it is used.
//! - A connection to a former primary does not break by itself, and for some seconds such a server still takes writes.
//!   So each sentinel is listened to, and a failover that one of them tells of ends the connections that it outdates.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::{ClientLike, PubsubInterface};
use fred::types::config::{Config, Server, ServerConfig};
use fred::types::{ClusterHash, CustomCommand, Value};
use futures_util::future::{join, try_join};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::connection::{Connection, Purpose, dial};
use super::failure;
use super::primary::{Primary, Successor};
use crate::error::ServerError;
use crate::store::Failure;
use crate::time::backoff::Backoff;

/// What a sentinel publishes when another server became the primary.
const SWITCHED: &str = "+switch-master";

/// The sentinels of one primary.
pub(super) struct Sentinels {
    /// How to connect to each.
    configs: Vec<Config>,
    /// The name that they know the primary by.
    service: String,
    attempt_timeout: Duration,
    /// The latest that any of them told of.
    latest: watch::Sender<Option<Primary>>,
}

impl Sentinels {
    pub(super) fn new(configs: Vec<Config>, service: String, attempt_timeout: Duration) -> Sentinels {
        Sentinels {
            configs,
            service,
            attempt_timeout,
            latest: watch::Sender::new(None),
        }
    }

    /// Asks for the primary. What was heard of a later failover before counts more than the answers, until it is
    /// [`forget`](Sentinels::forget)ten.
    pub(super) async fn primary(&self) -> Result<Primary, Failure> {
        let mut answers: FuturesUnordered<_> = self.configs.iter().map(|config| self.ask(config)).collect();
        let deadline = Instant::now() + self.attempt_timeout / 2;
        let mut believed = None;
        let mut count = 0;
        let mut failure = None;
        while count <= self.configs.len() / 2 {
            match timeout_at(deadline, answers.next()).await {
                Ok(Some(Ok(primary))) => {
                    count += 1;
                    later(&mut believed, primary);
                }
                Ok(Some(Err(refused @ Failure::Refused(_)))) => failure = Some(refused),
                Ok(Some(Err(other))) => failure = failure.or(Some(other)),
                Ok(None) | Err(_) => break,
            }
        }
        match believed {
            Some(primary) => Ok(self.tell(primary)),
            None => {
                Err(failure
                    .unwrap_or_else(|| Failure::Unknown(ServerError::new("no sentinel answered in time"))))
            }
        }
    }

    /// Takes a primary back that could not be reached, or is none by its own word.
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
        futures_util::future::join_all(listeners).await;
    }

    async fn listen_to(&self, config: &Config, ping_every: Duration) {
        let mut backoff = Backoff::at_once();
        loop {
            backoff.pause().await;
            if let Ok(mut connection) = dial(config.clone(), Purpose::Commands, self.attempt_timeout).await {
                // Whichever way it ended, the next connection begins by asking.
                let _ = self.hear(config, &mut connection, ping_every).await;
                backoff.ended_after(connection.age());
            }
        }
    }

    /// Asks the sentinel whenever it says that there was a failover, until the connection ends.
    async fn hear(
        &self,
        config: &Config,
        connection: &mut Connection,
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

    /// Makes this the latest primary, if it is, and returns the latest.
    fn tell(&self, primary: Primary) -> Primary {
        self.latest
            .send_if_modified(|latest| later(latest, primary.clone()));
        self.latest.borrow().clone().unwrap_or(primary)
    }

    /// Asks one sentinel, by a connection of its own.
    async fn ask(&self, config: &Config) -> Result<Primary, Failure> {
        let connection = dial(config.clone(), Purpose::Commands, self.attempt_timeout).await?;
        let client = connection.client();
        // `MASTER` names the new primary only when all replicas follow it, but knows the epoch before.
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

    async fn sentinel(&self, client: &Client, poll: &'static str) -> Result<Value, Failure> {
        let command = CustomCommand::new_static("SENTINEL", ClusterHash::Random, false);
        let answer = client.custom(command, vec![poll, &self.service]).await;
        answer.map_err(|error| failure::classify(&error))
    }
}

/// Has the server say itself that it is a primary.
pub(super) async fn check_primary(connection: &Connection) -> Result<(), Failure> {
    let command = CustomCommand::new_static("ROLE", ClusterHash::Random, false);
    let role = connection
        .client()
        .custom::<Value, &str>(command, Vec::new())
        .await;
    match role.map_err(|error| failure::classify(&error))? {
        Value::Array(parts) if parts.first().and_then(Value::as_str).as_deref() == Some("master") => Ok(()),
        _ => Err(Failure::NotExecuted(ServerError::new(
            "the sentinels name it, but it is no primary",
        ))),
    }
}

/// Replaces what is known by `primary`, if that is later.
fn later(known: &mut Option<Primary>, primary: Primary) -> bool {
    let is_later = known.as_ref().is_none_or(|known| known.epoch < primary.epoch);
    if is_later {
        *known = Some(primary);
    }
    is_later
}

/// The address is an array of host and port, the state one of names and values in turn.
fn read(address: &Value, state: &Value) -> Option<Primary> {
    let (Value::Array(address), Value::Array(state)) = (address, state) else {
        return None;
    };
    let [host, port] = &address[..] else { return None };
    let epoch = state
        .chunks_exact(2)
        .find(|pair| pair[0].as_str().as_deref() == Some("config-epoch"))?;
    Some(Primary {
        epoch: epoch[1].as_str()?.parse().ok()?,
        server: Server::new(host.as_str()?.into_owned(), port.as_str()?.parse().ok()?),
    })
}

fn name_of(config: &Config) -> String {
    match &config.server {
        ServerConfig::Centralized { server } => format!("sentinel {server}"),
        _ => "a sentinel".to_owned(),
    }
}
