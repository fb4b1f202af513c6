//! The subscriber connection: which channels this client listens to, and what comes in on them.
//!
//! One task owns the connection, and does one thing on it at a time: it subscribes to all the channels that were
//! asked for meanwhile, or ends subscriptions, and waits until the server has done it. A second task only moves
//! messages on.
//!
//! The connection must lead to the server that the calls go to: messages are published there, and subscribers
//! elsewhere are not counted, so that they are passed over. So it is opened only once the command connection is
//! known to be up, it is replaced whenever that one was, and it is replaced when the server of the calls does not
//! see a subscription that was confirmed here.

mod channels;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fred::interfaces::PubsubInterface;
use fred::types::Message;
use futures_util::future::{FutureExt, join, join_all};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::Instant;

use super::call::RedisPipeline;
use super::connection::{Connection, Purpose, Subscribing};
use super::connector::Connector;
use super::failure;
use crate::error::ServerError;
use crate::store::redis::subscriber::channels::Channel;
use crate::store::{Failure, Listener, ServerId};
use crate::time::backoff::Backoff;

/// For how long a refusal is remembered: who asks again meanwhile is told the same, and the server is not asked.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// How long a connection is kept at least on which subscriptions are not seen, at first and at last: each one that is
/// replaced for it doubles the time.
const SHORTEST_UNSEEN: Duration = Duration::from_secs(1);
const LONGEST_UNSEEN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum Instruction {
    Subscribe(Arc<str>, Waiter),
    Unsubscribe(Arc<str>),
    /// The server has ended the subscription by itself.
    Forget(Arc<str>),
    /// The command connection was replaced.
    Follow,
    /// The server of the calls does not see a subscription that was confirmed here, and confirmed again.
    Unseen,
}

type Waiter = oneshot::Sender<Result<(), Failure>>;

pub(super) struct Subscriber {
    server: ServerId,
    /// Channels belong to a shard of a cluster.
    sharded: bool,
    connector: Arc<Connector>,
    /// Where the calls go.
    pipeline: Arc<RedisPipeline>,
    listener: Weak<dyn Listener>,
    requests: mpsc::UnboundedReceiver<Instruction>,
    ping_every: Duration,
    pings: u64,
    /// Each is confirmed, or one of `asked` or `todo`.
    channels: HashMap<Arc<str>, Channel>,
    /// What was asked for since the last SUBSCRIBE.
    asked: Vec<Arc<str>>,
    /// What is to be subscribed before that, each part by one SUBSCRIBE.
    todo: VecDeque<Vec<Arc<str>>>,
    /// What the server refused lately, and when.
    refused: HashMap<Arc<str>, (Instant, Failure)>,
    /// The command connection was replaced since this one was opened.
    follows: bool,
    /// Subscriptions of this connection are not seen where the calls go.
    unseen: bool,
    /// How long this connection is kept all the same.
    unseen_for: Duration,
}

/// Why a connection is given up.
enum Ended {
    Lost(ServerError),
    /// Nobody can ask for anything any more.
    Over,
}

impl Subscriber {
    pub(super) fn new(
        server: ServerId,
        sharded: bool,
        connector: Arc<Connector>,
        pipeline: Arc<RedisPipeline>,
        listener: Weak<dyn Listener>,
        ping_every: Duration,
    ) -> (Subscriber, mpsc::UnboundedSender<Instruction>) {
        let (sender, requests) = mpsc::unbounded_channel();
        let subscriber = Subscriber {
            server,
            sharded,
            connector,
            pipeline,
            listener,
            requests,
            ping_every,
            pings: 0,
            channels: HashMap::new(),
            asked: Vec::new(),
            todo: VecDeque::new(),
            refused: HashMap::new(),
            follows: false,
            unseen: false,
            unseen_for: SHORTEST_UNSEEN,
        };
        (subscriber, sender)
    }

    /// Runs until it is aborted, or nobody can ask for anything any more. Without a first connection it opens one.
    pub(super) async fn run(mut self, first: Option<Connection>) {
        let mut backoff = Backoff::at_once();
        let mut connection = match first {
            Some(first) => first,
            None => self.reconnect(&mut backoff).await,
        };
        // Messages may have been lost, which is told once everything is subscribed again.
        let mut missed = false;
        loop {
            tokio::spawn(pump(connection.messages(), self.server, self.listener.clone()));
            match self.serve(&mut connection, &mut missed).await {
                Ended::Over => return,
                Ended::Lost(error) => {
                    tracing::warn!(server = self.connector.server(), %error, "the subscriber connection is lost");
                    missed = true;
                    backoff.ended_after(connection.age());
                }
            }
            drop(connection);
            let former = self.disown();
            missed |= !former.is_empty();
            // By themselves and first: a refusal of others is not to hold them up.
            self.todo.push_front(former);
            connection = self.reconnect(&mut backoff).await;
        }
    }

    /// Opens a connection, and takes in requests meanwhile, so that they don't pile up.
    async fn reconnect(&mut self, backoff: &mut Backoff) -> Connection {
        let (connector, pipeline) = (Arc::clone(&self.connector), Arc::clone(&self.pipeline));
        loop {
            (self.follows, self.unseen) = (false, false);
            let mut connecting = pin!(connect(&connector, &pipeline, backoff));
            while !self.follows {
                tokio::select! {
                    connection = &mut connecting => return connection,
                    // Nothing is confirmed, so it ends no subscription.
                    Some(request) = self.requests.recv() => drop(self.take_in(request)),
                }
            }
        }
    }

    /// Serves requests on this connection until it must be given up.
    async fn serve(&mut self, connection: &mut Connection, missed: &mut bool) -> Ended {
        loop {
            if let Err(verdict) = self.subscribe(connection).await {
                return verdict;
            }
            if std::mem::take(missed) {
                if let Some(listener) = self.listener.upgrade() {
                    listener.reconnected(self.server);
                }
            }
            let unseen_left = self.unseen_for.saturating_sub(connection.age());
            tokio::select! {
                request = self.requests.recv() => {
                    let Some(request) = request else { return Ended::Over };
                    if let Err(verdict) = self.accept(request, connection).await {
                        return verdict;
                    }
                    if self.follows {
                        return Ended::Lost(ServerError::new("the command connection was replaced"));
                    }
                }
                error = connection.lost() => return Ended::Lost(error),
                () = tokio::time::sleep(unseen_left), if self.unseen => {
                    self.unseen_for = match connection.age() > 2 * LONGEST_UNSEEN {
                        true => SHORTEST_UNSEEN,
                        false => LONGEST_UNSEEN.min(2 * self.unseen_for),
                    };
                    let why = "subscriptions are not seen where the calls go";
                    return Ended::Lost(ServerError::new(why));
                }
                // An idle connection shows by nothing else that it is dead.
                () = tokio::time::sleep(self.ping_every) => {
                    let pong = self.ping(connection);
                    if let Err(Failure::Unknown(error)) = connection.unless_lost(pong).await {
                        return Ended::Lost(error);
                    }
                }
            }
        }
    }

    /// Takes in this request and all others that have come.
    async fn accept(&mut self, request: Instruction, connection: &mut Connection) -> Result<(), Ended> {
        let mut unsubscribe = Vec::new();
        let mut next = Some(request);
        while let Some(request) = next {
            unsubscribe.extend(self.take_in(request));
            next = self.requests.try_recv().ok();
        }
        if unsubscribe.is_empty() {
            return Ok(());
        }
        if self.sharded {
            let client = connection.client().clone();
            let pong = self.ping(connection);
            let each = unsubscribe
                .iter()
                .map(|name| client.sunsubscribe(name.to_string()));
            let ended = async { join(join_all(each), pong).await.1 };
            return connection.unless_lost(ended).await.map_err(Ended::from);
        }
        self.pings += 1;
        match connection
            .change(Subscribing::Ends, &unsubscribe, self.pings)
            .await
        {
            Ok(()) => Ok(()),
            Err(Failure::Refused(error)) => {
                // They go on until the connection ends, and what comes on them is ignored.
                tracing::warn!(server = self.connector.server(), %error, "the server refuses to end a subscription");
                Ok(())
            }
            Err(failure) => Err(Ended::from(failure)),
        }
    }

    /// Subscribes to what is to be subscribed.
    async fn subscribe(&mut self, connection: &mut Connection) -> Result<(), Ended> {
        self.todo.push_back(std::mem::take(&mut self.asked));
        while let Some(mut names) = self.todo.pop_front() {
            names.retain(|name| self.is_wanted(name));
            if names.is_empty() {
                continue;
            }
            if self.sharded {
                self.subscribe_to_shard(connection, names).await?;
                continue;
            }
            self.pings += 1;
            match connection.change(Subscribing::Begins, &names, self.pings).await {
                Ok(()) => names.iter().for_each(|name| self.confirm(name)),
                Err(Failure::Refused(error)) if names.len() == 1 => self.refuse(&names[0], &error),
                Err(Failure::Refused(_)) => {
                    // One of them is refused, and so were all: look for it.
                    let other_half = names.split_off(names.len() / 2);
                    self.todo.push_front(other_half);
                    self.todo.push_front(names);
                }
                Err(failure) => {
                    self.todo.push_front(names);
                    return Err(Ended::from(failure));
                }
            }
        }
        Ok(())
    }

    /// Subscribes to channels of the server's shard, one by one: they are of different slots. Each reply is read for itself,
    /// so that one which is refused, or whose slot is elsewhere, disturbs no other.
    async fn subscribe_to_shard(
        &mut self,
        connection: &mut Connection,
        names: Vec<Arc<str>>,
    ) -> Result<(), Ended> {
        let client = connection.client().clone();
        let each = names.iter().map(|name| client.ssubscribe(name.to_string()));
        let begun = join(join_all(each), self.ping(connection));
        let (replies, pong) = match connection.unless_lost(begun.map(Ok)).await {
            Ok(answers) => answers,
            Err(failure) => {
                self.todo.push_front(names);
                return Err(Ended::from(failure));
            }
        };
        let mut again = Vec::new();
        for (name, reply) in names.iter().zip(replies) {
            match reply.map_err(|error| failure::classify(&error)) {
                Ok(()) => self.confirm(name),
                Err(Failure::Refused(error)) => self.refuse(name, &error),
                Err(failure @ Failure::NotExecuted(_)) => self.end(name, &failure),
                Err(Failure::Unknown(_) | Failure::Closed) => again.push(Arc::clone(name)),
            }
        }
        self.todo.push_front(again);
        pong.map_err(Ended::from)
    }

    /// Queues the PING at the first poll, like every command.
    fn ping(&mut self, connection: &Connection) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        self.pings += 1;
        connection.ping(self.pings)
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        match failure {
            Failure::Refused(error) | Failure::Unknown(error) | Failure::NotExecuted(error) => {
                Ended::Lost(error)
            }
            Failure::Closed => Ended::Over,
        }
    }
}

/// Tries until there is a connection. Calls must have found their server before: an address may lead to another one
/// by now.
async fn connect(connector: &Connector, pipeline: &Arc<RedisPipeline>, backoff: &mut Backoff) -> Connection {
    loop {
        backoff.pause().await;
        Arc::clone(pipeline).ping(0).await;
        match connector.open(Purpose::Messages).await {
            Ok(connection) => return connection,
            Err(failure) => {
                tracing::debug!(server = connector.server(), ?failure, "no subscriber connection");
            }
        }
    }
}

/// Moves messages on until the connection is dropped.
async fn pump(mut messages: broadcast::Receiver<Message>, server: ServerId, listener: Weak<dyn Listener>) {
    loop {
        let message = messages.recv().await;
        let Some(listener) = listener.upgrade() else {
            return;
        };
        match message {
            Ok(message) => {
                if let Some(text) = message.value.as_str() {
                    listener.pushed(server, &message.channel, &text);
                }
            }
            Err(RecvError::Lagged(count)) => {
                tracing::warn!(
                    count,
                    "messages were lost in this process, so all who wait ask again"
                );
                listener.reconnected(server);
            }
            Err(RecvError::Closed) => return,
        }
    }
}
