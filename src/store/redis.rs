//! Locks on a Redis or Valkey server: two connections, one for calls and one for what the server tells unasked; and a
//! third to wait for replicas on, if they are waited for.
//!
//! Nothing but the files under this one knows fred.

mod address;
mod cluster;
mod commands;
mod connection;
mod connector;
mod failure;
mod flights;
mod lane;
mod link;
mod replication;
mod sentinel;
mod subscriber;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod tls;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fred::types::Value as Wire;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::cluster::ClusterStore;
use self::commands::{Command, Scripts};
use self::connection::{Connection, Purpose, keep_trying};
use self::connector::Connector;
use self::lane::{Heard, Lane};
use self::link::Link;
use self::replication::Replication;
use self::subscriber::{Request, Subscriber};
use crate::clock::Clock;
use crate::error::{Error, ServerError};
use crate::lease::{Exchange, ServerTime};
use crate::script::{self, Operation, Publishing, ReplyError, Script, Value};
use crate::store::{
    Acquire, Acquired, Answer, Call, Confirmed, Failure, Inspect, Inspected, Listener, Release, Released,
    Renew, Renewed, ServerId, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased, Store, unreplicated,
};
use crate::tls::Tls;

/// What a connected client needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// After so long a call, and an attempt to connect, counts as unanswered.
    pub(crate) attempt_timeout: Duration,
    /// For how long connecting is tried.
    pub(crate) server_timeout: Duration,
    /// A third of it may pass before a dead connection is noticed that nothing is called on.
    pub(crate) heartbeat: Duration,
    /// How many replicas must have a hold to confirm it; 0: holds are never to be confirmed.
    pub(crate) replicas: u32,
}

/// Connects to what the URL names (see [`Address`](address::Address)), and stays connected until it is closed or dropped,
/// or the runtime ends.
pub(crate) async fn connect(
    url: &str,
    tls: Option<&Tls>,
    options: Options,
    listener: Weak<dyn Listener>,
) -> Result<Arc<dyn Store>, Error> {
    let connector = Connector::new(url, tls, options.attempt_timeout)?;
    if connector.seeds().is_empty() {
        Ok(RedisStore::connect(connector, options, listener, &script::ALL).await?)
    } else {
        Ok(ClusterStore::connect(connector, options, listener).await?)
    }
}

/// A client of one server.
pub(crate) struct RedisStore {
    id: ServerId,
    publishing: Publishing,
    server: String,
    lane: Arc<Lane>,
    requests: mpsc::UnboundedSender<Request>,
    /// Only for those who wait for replicas.
    replication: Option<Replication>,
    tasks: Vec<AbortHandle>,
    attempt_timeout: Duration,
}

/// The connections that a client begins with; those that are missing it opens.
#[derive(Default)]
struct Opened {
    commands: Option<Connection>,
    messages: Option<Connection>,
    replication: Option<Connection>,
}

impl RedisStore {
    async fn connect(
        connector: Connector,
        options: Options,
        listener: Weak<dyn Listener>,
        scripts: &[&'static Script],
    ) -> Result<Arc<RedisStore>, Error> {
        let deadline = Instant::now() + options.server_timeout;
        let commands = first_connection(&connector, Purpose::Commands, deadline).await?;
        let messages = first_connection(&connector, Purpose::Messages, deadline).await?;
        let loaded = Scripts::new(scripts).load(commands.client()).await;
        if let Err(Failure::Refused(error)) = loaded {
            return Err(Error::Refused(error));
        }
        commands.warn_of_eviction().await;
        let mut replication = None;
        if options.replicas > 0 {
            let connection = first_connection(&connector, Purpose::Replication, deadline).await?;
            Replication::check_rights(&connection).await?;
            replication = Some(connection);
        }
        let place = (ServerId::default(), Publishing::Plain);
        let first = Opened {
            commands: Some(commands),
            messages: Some(messages),
            replication,
        };
        Ok(RedisStore::start(
            connector, options, listener, scripts, place, first,
        ))
    }

    /// A client whose connections are still to be opened; calls wait for them.
    fn opening(
        connector: Connector,
        options: Options,
        listener: Weak<dyn Listener>,
        place: (ServerId, Publishing),
    ) -> Arc<RedisStore> {
        RedisStore::start(
            connector,
            options,
            listener,
            &script::ALL,
            place,
            Opened::default(),
        )
    }

    fn start(
        connector: Connector,
        options: Options,
        listener: Weak<dyn Listener>,
        scripts: &[&'static Script],
        (id, publishing): (ServerId, Publishing),
        first: Opened,
    ) -> Arc<RedisStore> {
        let connector = Arc::new(connector);
        let (lane, condemned) = Lane::new(scripts, options.attempt_timeout);
        let ping_every = options.heartbeat / 3;
        let replication =
            (options.replicas > 0).then(|| Replication::start(id, &connector, options, first.replication));
        let link = Link {
            server: id,
            connector: Arc::clone(&connector),
            lane: Arc::clone(&lane),
            purpose: Purpose::Commands,
            listener: Some(listener.clone()),
            condemned,
            ping_every,
        };
        let server = connector.server().to_owned();
        let sharded = publishing == Publishing::Sharded;
        let sentinels = connector.sentinels().map(Arc::clone);
        let (subscriber, requests) = Subscriber::new(id, sharded, connector, listener, ping_every);
        let commands = first.commands.map(|commands| {
            let generation = lane.open(commands.client());
            (commands, generation)
        });
        let mut tasks = vec![
            tokio::spawn(link.run(commands)).abort_handle(),
            tokio::spawn(subscriber.run(first.messages)).abort_handle(),
        ];
        if let Some(sentinels) = sentinels {
            tasks.push(tokio::spawn(sentinels.listen(ping_every)).abort_handle());
        }
        Arc::new(RedisStore {
            id,
            publishing,
            server,
            lane,
            requests,
            replication,
            tasks,
            attempt_timeout: options.attempt_timeout,
        })
    }

    /// Whether there is a connection for calls.
    fn is_up(&self) -> bool {
        self.lane.is_open()
    }

    /// Takes note that the server has ended a subscription by itself.
    fn forget(&self, channel: &str) {
        // Without a receiver there is no subscription either.
        let _ = self.requests.send(Request::Forget(channel.into()));
    }

    fn call<O: Operation + Sync>(&self, operation: O) -> Call<O::Reply> {
        self.call_there(operation, false)
    }

    /// `asking`: of a server that is importing the slot.
    fn call_there<O: Operation + Sync>(&self, operation: O, asking: bool) -> Call<O::Reply> {
        let lane = Arc::clone(&self.lane);
        let place = (self.id, self.publishing);
        Box::pin(async move {
            let (answer, _) = execute(&lane, place, operation, asking).await?;
            Ok(answer)
        })
    }

    fn confirm_there(&self, call: Renew, within: Duration, asking: bool) -> Call<Confirmed> {
        match &self.replication {
            Some(replication) => replication.confirm(call, within, asking),
            None => unreplicated(self.call_there(call, asking)),
        }
    }
}

impl Store for RedisStore {
    fn acquire(&self, call: Acquire) -> Call<Acquired> {
        self.call(call)
    }

    fn release(&self, call: Release) -> Call<Released> {
        self.call(call)
    }

    fn renew(&self, call: Renew) -> Call<Renewed> {
        self.call(call)
    }

    fn confirm(&self, call: Renew, within: Duration) -> Call<Confirmed> {
        self.confirm_there(call, within, false)
    }

    fn inspect(&self, call: Inspect) -> Call<Inspected> {
        self.call(call)
    }

    fn spin_acquire(&self, call: SpinAcquire) -> Call<SpinAcquired> {
        self.call(call)
    }

    fn spin_release(&self, call: SpinRelease) -> Call<SpinReleased> {
        self.call(call)
    }

    fn time(&self) -> Call<()> {
        let lane = Arc::clone(&self.lane);
        let from = self.id;
        Box::pin(async move {
            let heard = Arc::clone(&lane).call(Command::time).await?;
            match time_of(&heard.value) {
                Some(now) => Ok(Answer {
                    from,
                    at: exchange(&heard, now),
                    reply: (),
                }),
                None => {
                    let said = format!("{:?} as the reply to TIME", heard.value);
                    Err(lane.out_of_step(heard.generation, said))
                }
            }
        })
    }

    fn subscribe(&self, channel: Arc<str>) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        let lane = Arc::clone(&self.lane);
        let requests = self.requests.clone();
        let patience = self.attempt_timeout;
        Box::pin(async move {
            let (waiter, confirmed) = oneshot::channel();
            if requests.send(Request::Subscribe(channel, waiter)).is_err() {
                return Err(Failure::Closed);
            }
            match tokio::time::timeout(patience, confirmed).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) if lane.is_closed() => Err(Failure::Closed),
                Ok(Err(_)) => Err(Failure::Unknown(ServerError::new("unsubscribed meanwhile"))),
                Err(_) => Err(Failure::Unknown(ServerError::new(
                    "no confirmation of the subscription",
                ))),
            }
        })
    }

    fn unsubscribe(&self, channel: &str) {
        // Without a receiver there is no subscription either.
        let _ = self.requests.send(Request::Unsubscribe(channel.into()));
    }

    fn clock(&self) -> Clock {
        self.lane.clock()
    }

    fn close(&self) {
        self.lane.close();
        if let Some(replication) = &self.replication {
            replication.close();
        }
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("server", &self.server)
            .field("closed", &self.lane.is_closed())
            .finish_non_exhaustive()
    }
}

/// Runs a script, and returns with its answer the number of the connection that it ran on. `asking`: on a server that is
/// importing the slot.
async fn execute<O: Operation>(
    lane: &Arc<Lane>,
    (from, way): (ServerId, Publishing),
    operation: O,
    asking: bool,
) -> Result<(Answer<O::Reply>, u64), Failure> {
    let heard = Arc::clone(lane)
        .call(|| lane.scripts().command(operation.invocation(way)).asking(asking))
        .await?;
    let reply = elements(&heard.value).ok_or_else(|| ReplyError::OutOfStep(format!("{:?}", heard.value)));
    match reply.and_then(|reply| operation.read(&reply)) {
        Ok((now, reply)) => {
            let at = exchange(&heard, now);
            Ok((Answer { from, at, reply }, heard.generation))
        }
        Err(ReplyError::OutOfStep(said)) => Err(lane.out_of_step(heard.generation, said)),
        Err(ReplyError::NewerFormat) => Err(Failure::Refused(ServerError::new(
            "the lock is kept in the format of a newer version of this library",
        ))),
    }
}

async fn first_connection(
    connector: &Connector,
    purpose: Purpose,
    deadline: Instant,
) -> Result<Connection, Error> {
    let unheard = format!("{}: no answer to the connection attempt", connector.server());
    keep_trying(deadline, unheard, || connector.open(purpose)).await
}

fn exchange(heard: &Heard, now: ServerTime) -> Exchange {
    Exchange {
        sent: heard.sent,
        received: heard.received,
        now,
    }
}

/// The elements of a flat array; `None` for anything else.
fn elements(reply: &Wire) -> Option<Vec<Value>> {
    let Wire::Array(elements) = reply else { return None };
    let element = |element: &Wire| match element {
        Wire::Integer(number) => Some(Value::Int(*number)),
        Wire::String(text) => Some(Value::Text(text.to_string())),
        _ => None,
    };
    elements.iter().map(element).collect()
}

/// `TIME` answers seconds and microseconds, as strings.
fn time_of(reply: &Wire) -> Option<ServerTime> {
    let Wire::Array(parts) = reply else { return None };
    let part = |i: usize| parts.get(i)?.as_str()?.parse::<u64>().ok();
    Some(ServerTime::from_ms(part(0)? * 1000 + part(1)? / 1000))
}
