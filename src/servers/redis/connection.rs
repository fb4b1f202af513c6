//! One connection to a server.
//!
//! A fred client serves one connection here, and is then dropped. Its own reconnecting is not used, for three
//! reasons: it would send queued calls again; a client cannot be reached while a write is stuck on a dead
//! connection; and dropping the client answers everything in flight at once. The reconnect policy only keeps
//! fred's task from ending by itself, because calls in its queue would then hang. The delay of the policy is
//! longer than anybody waits.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::Server;
use fred::types::{ClusterHash, ConnectHandle, CustomCommand, InfoKind, Message, Value};
use futures_util::future::join_all;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::broadcast;

use super::credentials::Renewal;
use super::failure;
use super::primary::Successor;
use super::server_info::eviction_policy;
use crate::protocol::interface::Failure;
use crate::protocol::label::Label;
use crate::types::error::ServerError;

/// The fewest and the most unread messages between fred and the task that forwards them. Each place takes
/// some 200 bytes.
const FEWEST_UNREAD: usize = 256;
const MOST_UNREAD: usize = 8192;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Commands,
    Messages,
    Replication,
}

impl Purpose {
    /// The kind of connection, for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Purpose::Commands => "command",
            Purpose::Messages => "subscriber",
            Purpose::Replication => "replication",
        }
    }
}

/// An open connection. Dropping it closes the socket, and fails everything in flight at once.
pub(super) struct Connection {
    client: Client,
    errors: broadcast::Receiver<(fred::error::Error, Option<Server>)>,
    router: ConnectHandle,
    since: Instant,
    /// How many messages may be unread.
    room: usize,
    successor: Option<Successor>,
    /// What renews the credentials, if a provider has them.
    renewal: Option<Renewal>,
    /// Why the connection is over, once that is known.
    over: Option<ServerError>,
}

impl Connection {
    /// The connection that this client makes. It is not open yet.
    pub(super) fn of(client: Client) -> Connection {
        Connection {
            errors: client.error_rx(),
            router: client.connect(),
            since: Instant::now(),
            room: 0,
            client,
            successor: None,
            renewal: None,
            over: None,
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Treats the connection as lost when another server replaces this one.
    pub(super) fn until(mut self, successor: Successor) -> Connection {
        self.successor = Some(successor);
        self
    }

    pub(super) fn renewed_by(mut self, renewal: Renewal) -> Connection {
        self.renewal = Some(renewal);
        self
    }

    /// Renews the credentials of this connection, for as long as it is polled.
    pub(super) fn keep_authenticated(&self) -> impl Future<Output = Infallible> + Send + use<> {
        let (renewal, client) = (self.renewal.clone(), self.client.clone());
        async move {
            match renewal {
                Some(renewal) => renewal.keep_up(client).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until a connection with newer credentials should replace this one.
    pub(super) fn outlived(&self) -> impl Future<Output = ()> + Send + use<> {
        let renewal = self.renewal.clone();
        async move {
            match renewal {
                Some(renewal) => renewal.is_due().await,
                None => std::future::pending().await,
            }
        }
    }

    /// The messages of a connection that gets few of them.
    pub(super) fn messages(&self) -> broadcast::Receiver<Message> {
        self.client.message_rx()
    }

    /// Makes room for the messages of this many channels, if there is too little. From then on, messages come
    /// to the receiver that is returned. An earlier one ends after the messages from before.
    ///
    /// Each channel has room for two: a grant, and another one after that ran out unread. So a client that
    /// reads nothing for a while loses none, and a client with few locks does not pay for many.
    pub(super) fn make_room(&mut self, channels: usize) -> Option<broadcast::Receiver<Message>> {
        let room = (2 * channels)
            .next_power_of_two()
            .clamp(FEWEST_UNREAD, MOST_UNREAD);
        if room <= self.room {
            return None;
        }
        self.room = room;
        let (sender, receiver) = broadcast::channel(room);
        self.client.inner().notifications.pubsub.store(Arc::new(sender));
        Some(receiver)
    }

    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits until the connection is over, and returns the reason. May be cancelled, and called again.
    pub(super) async fn lost(&mut self) -> ServerError {
        if let Some(why) = &self.over {
            return why.clone();
        }
        let replaced = async {
            match &mut self.successor {
                Some(successor) => successor.appears().await,
                None => std::future::pending().await,
            }
        };
        let why = tokio::select! {
            error = self.errors.recv() => match error {
                Ok((error, _)) => failure::message(&error),
                Err(_) => ServerError::new("the connection is over"),
            },
            _ = &mut self.router => ServerError::new("the connection is over"),
            server = replaced => ServerError::new(format!("the primary is {server} now")),
        };
        self.over.insert(why).clone()
    }

    /// Tells the server, for its `CLIENT LIST`, who uses this connection: the label as the connection's name,
    /// and this library with its version. A server that refuses either of them loses nothing else. Fails if
    /// the connection is lost meanwhile.
    pub(super) async fn introduce(&mut self, label: &Label) -> Result<(), Failure> {
        let mut commands = vec![vec!["SETNAME", label.as_str()]];
        let version = self.client.server_version();
        // An older server would write the unknown command to the log of its ACL.
        if version.is_some_and(|version| (version.major, version.minor) >= (7, 2)) {
            commands.push(vec!["SETINFO", "LIB-NAME", env!("CARGO_PKG_NAME")]);
            commands.push(vec!["SETINFO", "LIB-VER", env!("CARGO_PKG_VERSION")]);
        }
        let client = self.client.clone();
        let sent = commands.into_iter().map(|words| {
            let name = CustomCommand::new_static("CLIENT", ClusterHash::Random, false);
            let words: Vec<_> = words.into_iter().map(Value::from).collect();
            client.custom::<Value, _>(name, words)
        });
        let sent = join_all(sent).map(|_| Ok(()));
        self.unless_lost(sent).await
    }

    /// Warns if the server may evict keys. Then it may evict locks, because eviction policies look for keys
    /// with a TTL, and each lock has one.
    pub(super) async fn warn_of_eviction(&mut self) {
        let client = self.client.clone();
        let info = client.info::<String>(Some(InfoKind::Memory));
        let info = info.map(|info| info.map_err(|error| failure::classify(&error)));
        // Without the permission for INFO, no warning is possible.
        let Ok(info) = self.unless_lost(info).await else {
            return;
        };
        if let Some(policy) = eviction_policy(&info).filter(|policy| *policy != "noeviction") {
            tracing::warn!(
                policy,
                "the server may evict locks when its memory is full: set maxmemory-policy to noeviction"
            );
        }
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

    /// Sends `PING <nonce>` and checks the echo. The reply shows that all earlier commands were processed.
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

    /// Begins or ends subscriptions, and waits until the server has done it. If the server refuses
    /// ([`Failure::Refused`]) or has not executed a command, the connection can still be used.
    ///
    /// Success has no reply of its own, because fred consumes the server's replies to these commands. But
    /// fred passes an error to the command, if the command was sent as one with a reply. So a PING follows
    /// the commands. Its echo comes after the errors, and the commands get these replies in the order in
    /// which they were sent. Those that are left over, of which the PING is the last, wait for one more reply
    /// each. They get the errors of commands without channels, for which fred itself expects no reply.
    pub(super) async fn change(
        &mut self,
        what: Subscribing,
        channels: &[Arc<str>],
        nonce: u64,
    ) -> Result<(), Failure> {
        let client = self.client.clone();
        self.unless_lost(change(&client, what, channels, nonce)).await
    }

    /// Asks for any reply. Sentinels before 7.0 refuse a PING with a nonce.
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
    let (name, at_once) = match what {
        Subscribing::Begins => ("SUBSCRIBE", channels.len()),
        Subscribing::Ends => ("UNSUBSCRIBE", channels.len()),
        // The channels belong to different slots.
        Subscribing::EndsInShard => ("SUNSUBSCRIBE", 1),
    };
    let commands = channels.chunks(at_once).map(|channels| {
        let command = CustomCommand::new_static(name, ClusterHash::Random, false);
        let channels: Vec<_> = channels.iter().map(ToString::to_string).collect();
        client.custom::<Value, _>(command, channels).boxed()
    });
    let nonce = nonce.to_string();
    let ping = client.ping::<Value>(Some(nonce.clone())).boxed();
    // All are sent in this order at the first poll.
    let mut replies: FuturesOrdered<_> = commands.chain([ping]).collect();
    let mut outcome = Ok(());
    while let Some(reply) = replies.next().await {
        match reply {
            Ok(reply) if echoes(&reply, &nonce) => {
                for _ in 0..replies.len() {
                    let _ = client.subscribe(Vec::<String>::new()).await;
                }
                while replies.next().await.is_some() {}
                return outcome;
            }
            Ok(reply) => return Err(desynchronised(&reply, &nonce)),
            Err(error) => match failure::classify(&error) {
                lost @ Failure::Unknown(_) => return Err(lost),
                failure => outcome = Err(failure),
            },
        }
    }
    outcome
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.router.abort();
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Subscribing {
    Begins,
    Ends,
    EndsInShard,
}

fn desynchronised(reply: &Value, nonce: &str) -> Failure {
    Failure::Unknown(ServerError::new(format!(
        "out of step: {reply:?} as the reply to PING {nonce}"
    )))
}

/// A field of a reply, which is a map, or with RESP2 an array of alternating names and values.
pub(super) fn named_in(reply: &Value, name: &str) -> Option<String> {
    match reply {
        Value::Map(fields) => fields.get(&name.into())?.as_string(),
        Value::Array(parts) => {
            let mut pairs = parts.chunks_exact(2);
            pairs.find(|pair| pair[0].as_str().as_deref() == Some(name))?[1].as_string()
        }
        _ => None,
    }
}

/// A connection with subscriptions answers `["pong", nonce]`. Other connections answer `nonce`.
pub(super) fn echoes(reply: &Value, nonce: &str) -> bool {
    match reply {
        Value::Array(parts) => parts.last().is_some_and(|last| echoes(last, nonce)),
        reply => reply.as_str().is_some_and(|text| text == nonce),
    }
}
