//! The subscriber: the connection for this client's channels and their messages.
//!
//! One task owns the connection, and does one thing at a time on it. It subscribes to all channels that were
//! requested in the meantime, or ends subscriptions, and waits until the server has done it. A second task
//! only forwards messages.
//!
//! The connection must lead to the same server as the calls. That server publishes the messages, and does not
//! count subscribers elsewhere, so hand-overs would pass over them. So the connection is opened only after
//! the command connection is known to be up. It is replaced together with the command connection. It is also
//! replaced when the server of the calls does not see a subscription that was confirmed here.

mod channels;
mod succession;
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
use crate::protocol::interface::{Failure, Listener, ServerId};
use crate::servers::redis::subscriber::channels::Channel;
use crate::time::backoff::Backoff;
use crate::types::error::ServerError;

/// How long a refusal is remembered. Requests within this time get the same refusal, and the server is not
/// asked.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// The shortest and the longest time for which a connection is kept when its subscriptions are not seen. Each
/// replacement for this reason doubles the time.
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
    /// The server of the calls does not see a subscription, although it was confirmed here twice.
    Unseen,
}

type Waiter = oneshot::Sender<Result<(), Failure>>;

pub(super) struct Subscriber {
    server: ServerId,
    /// The channels belong to a shard of a cluster.
    sharded: bool,
    connector: Arc<Connector>,
    /// The pipeline of the calls.
    pipeline: Arc<RedisPipeline>,
    listener: Weak<dyn Listener>,
    requests: mpsc::UnboundedReceiver<Instruction>,
    ping_every: Duration,
    pings: u64,
    /// Each channel is confirmed, or is in `asked` or `todo`.
    channels: HashMap<Arc<str>, Channel>,
    /// The channels that were requested since the last SUBSCRIBE.
    asked: Vec<Arc<str>>,
    /// The channels that are subscribed before those, each part by one SUBSCRIBE.
    todo: VecDeque<Vec<Arc<str>>>,
    /// The channels that the server refused recently, with the time and the failure.
    refused: HashMap<Arc<str>, (Instant, Failure)>,
    /// The command connection was replaced since this one was opened.
    follows: bool,
    /// The server of the calls does not see subscriptions of this connection.
    unseen: bool,
    /// How long this connection is kept in that case.
    unseen_for: Duration,
}

/// Why a connection is given up.
enum Ended {
    Lost(ServerError),
    /// Nothing can send requests any more.
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

    /// Runs until it is aborted, or until nothing can send requests any more.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::at_once();
        let mut connection = self.reconnect(&mut backoff).await;
        // Messages may have been lost. The listener is told when all channels are subscribed again.
        let mut missed = false;
        loop {
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
            // These channels have a part of their own and come first, so that the refusal of another channel
            // does not delay them.
            self.todo.push_front(former);
            connection = self.reconnect(&mut backoff).await;
            if let Some(listener) = self.listener.upgrade() {
                listener.reopened(Purpose::Messages.name(), self.connector.server());
            }
        }
    }

    /// Opens a connection. Takes in requests meanwhile, so that they do not accumulate.
    async fn reconnect(&mut self, backoff: &mut Backoff) -> Connection {
        let (connector, pipeline) = (Arc::clone(&self.connector), Arc::clone(&self.pipeline));
        loop {
            (self.follows, self.unseen) = (false, false);
            let mut connecting = pin!(connect(&connector, &pipeline, backoff));
            while !self.follows {
                tokio::select! {
                    connection = &mut connecting => return connection,
                    // No subscription is confirmed, so the request ends none.
                    Some(request) = self.requests.recv() => drop(self.take_in(request)),
                }
            }
        }
    }

    /// Serves requests on this connection until it must be given up.
    async fn serve(&mut self, connection: &mut Connection, missed: &mut bool) -> Ended {
        let mut successor = Box::pin(self.successor_of(connection));
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
                next = &mut successor => {
                    if let Err(verdict) = self.move_to(next, connection, missed).await {
                        return verdict;
                    }
                    successor.set(self.successor_of(connection));
                }
                () = tokio::time::sleep(unseen_left), if self.unseen => {
                    self.unseen_for = match connection.age() > 2 * LONGEST_UNSEEN {
                        true => SHORTEST_UNSEEN,
                        false => LONGEST_UNSEEN.min(2 * self.unseen_for),
                    };
                    let why = "subscriptions are not seen where the calls go";
                    return Ended::Lost(ServerError::new(why));
                }
                // On an idle connection, only a PING shows that it is dead.
                () = tokio::time::sleep(self.ping_every) => {
                    let pong = self.ping(connection);
                    if let Err(Failure::Unknown(error)) = connection.unless_lost(pong).await {
                        return Ended::Lost(error);
                    }
                }
            }
        }
    }

    /// Takes in this request and all others that have arrived.
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
        let what = match self.sharded {
            false => Subscribing::Ends,
            true => Subscribing::EndsInShard,
        };
        self.pings += 1;
        match connection.change(what, &unsubscribe, self.pings).await {
            // The slot of a channel has moved, which ended the subscription.
            Ok(()) | Err(Failure::NotExecuted(_)) => Ok(()),
            Err(Failure::Refused(error)) => {
                // The subscriptions go on until the connection ends, and their messages are ignored.
                tracing::warn!(server = self.connector.server(), %error, "the server refuses to end a subscription");
                Ok(())
            }
            Err(failure) => Err(Ended::from(failure)),
        }
    }

    /// Subscribes to all requested channels.
    async fn subscribe(&mut self, connection: &mut Connection) -> Result<(), Ended> {
        if let Some(messages) = connection.make_room(self.channels.len()) {
            tokio::spawn(pump(messages, self.server, self.listener.clone()));
        }
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
                    // The server refuses all channels because of one. This divides them to find it.
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

    /// Subscribes to the channels of the server's shard, one by one, because they belong to different slots.
    /// Each reply is read separately, so a channel that is refused, or whose slot is elsewhere, does not
    /// disturb others. If the server answers nothing at all, as a busy one, the channels are subscribed on
    /// the next connection.
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
                Err(failure) if failure::is_of_a_slot_unserved(&failure) => self.unserved(name, &failure),
                Err(Failure::Refused(error)) => self.refuse(name, &error),
                Err(failure @ Failure::NotExecuted(_)) if pong.is_ok() => self.end(name, &failure),
                Err(_) => again.push(Arc::clone(name)),
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
            Failure::GivenUp | Failure::Closed => Ended::Over,
        }
    }
}

/// Tries until there is a connection. Calls must have reached their server first, because an address may now
/// lead to another server.
async fn connect(connector: &Connector, pipeline: &Arc<RedisPipeline>, backoff: &mut Backoff) -> Connection {
    loop {
        backoff.pause().await;
        Arc::clone(pipeline).ping(0).await;
        match connector.open().await {
            Ok(connection) => return connection,
            Err(failure) => {
                tracing::debug!(server = connector.server(), ?failure, "no subscriber connection");
            }
        }
    }
}

/// Forwards messages until the connection is dropped, or has room for more of them elsewhere.
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
