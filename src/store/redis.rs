//! Locks on a Redis or Valkey server, over one pair of connections or several; and one more to wait for replicas and disks
//! on, if they are waited for.
//!
//! Nothing but the files under this one knows fred.

mod address;
mod cluster;
mod commands;
mod connection;
mod connector;
mod failure;
mod line;
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

use fred::types::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::cluster::{ClusterStore, slot_of};
use self::commands::{Command, Wire};
use self::connection::{Connection, Purpose, keep_trying};
use self::connector::Connector;
use self::line::{Line, Opened};
use self::replication::Replication;
use crate::clock::Clock;
use crate::error::{Error, ServerError};
use crate::lease::{Exchange, ServerTime};
use crate::options::Durability;
use crate::script::{self, Declared, Operation, Publishing, ReplyError, Script};
use crate::store::pipeline::{self, Pipeline, ROOM};
use crate::store::{
    Acquire, Acquired, Answer, Call, Confirmed, Failure, Inspect, Inspected, Listener, Release, Released,
    Renew, Renewed, ServerId, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased, Store, Withdraw,
    Withdrawn, unreplicated,
};
use crate::tls::Tls;

type Lane = Pipeline<Wire>;
type Heard = pipeline::Heard<Value>;

/// A pipeline that lives on this runtime.
fn lane(
    server: ServerId,
    attempt_timeout: Duration,
) -> (Arc<Lane>, mpsc::UnboundedReceiver<pipeline::Condemned>) {
    let runtime = Handle::current();
    let spawn = move |task| drop(runtime.spawn(task));
    Lane::new(server, Clock::Boot, attempt_timeout, ROOM, Box::new(spawn))
}

/// What a connected client needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// After so long a call, and an attempt to connect, counts as unanswered.
    pub(crate) attempt_timeout: Duration,
    /// For how long connecting is tried.
    pub(crate) server_timeout: Duration,
    /// A third of it may pass before a dead connection is noticed that nothing is called on.
    pub(crate) heartbeat: Duration,
    /// Over how many pairs of connections the locks are spread.
    pub(crate) connections: usize,
    /// Who must have a hold to confirm it; nobody: holds are never to be confirmed.
    pub(crate) durability: Durability,
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

/// A client of one server. Each lock, and its channel, has its place on one of the lines.
pub(crate) struct RedisStore {
    id: ServerId,
    server: String,
    lines: Vec<Line>,
    /// Only for those who wait for replicas, or for disks.
    replication: Option<Replication>,
    /// Listens to the sentinels, if there are any.
    listening: Option<AbortHandle>,
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
        let loaded = commands::load(commands.client(), scripts).await;
        if let Err(Failure::Refused(error)) = loaded {
            return Err(Error::Refused(error));
        }
        commands.warn_of_eviction().await;
        let mut replication = None;
        if options.durability.wanted() > 0 {
            let connection = first_connection(&connector, Purpose::Replication, deadline).await?;
            Replication::check(&connection, options.durability).await?;
            replication = Some(connection);
        }
        let place = (ServerId::default(), Publishing::Plain);
        let first = Opened {
            commands: Some(commands),
            messages: Some(messages),
        };
        Ok(RedisStore::start(
            connector,
            options,
            &listener,
            scripts,
            place,
            first,
            replication,
        ))
    }

    /// A client whose connections are still to be opened; calls wait for them.
    fn opening(
        connector: Connector,
        options: Options,
        listener: &Weak<dyn Listener>,
        place: (ServerId, Publishing),
    ) -> Arc<RedisStore> {
        let first = Opened::default();
        RedisStore::start(connector, options, listener, &script::ALL, place, first, None)
    }

    fn start(
        connector: Connector,
        options: Options,
        listener: &Weak<dyn Listener>,
        scripts: &[&'static Script],
        place: (ServerId, Publishing),
        first: Opened,
        replication: Option<Connection>,
    ) -> Arc<RedisStore> {
        let connector = Arc::new(connector);
        let scripts: Arc<[&'static Script]> = scripts.into();
        let mut first = Some(first);
        let lines = (0..options.connections).map(|_| {
            let first = first.take().unwrap_or_default();
            Line::start(place, &connector, options, listener, &scripts, first)
        });
        let lines = lines.collect();
        let listening = connector.sentinels().map(|sentinels| {
            let listening = Arc::clone(sentinels).listen(options.heartbeat / 3);
            tokio::spawn(listening).abort_handle()
        });
        Arc::new(RedisStore {
            id: place.0,
            server: connector.server().to_owned(),
            lines,
            replication: (options.durability.wanted() > 0)
                .then(|| Replication::start(place.0, &connector, options, replication)),
            listening,
        })
    }

    /// The line of a key or a channel: one and the same for all of a lock, so that its calls keep their order.
    fn line(&self, of: &str) -> &Line {
        &self.lines[slot_of(of) % self.lines.len()]
    }

    /// The lane of what concerns no lock.
    fn lane(&self) -> &Arc<Lane> {
        &self.lines[0].lane
    }

    /// Whether there is a connection for calls.
    fn is_up(&self) -> bool {
        self.lines.iter().any(|line| line.lane.is_open())
    }

    /// Takes note that the server has ended a subscription by itself.
    fn forget(&self, channel: &str) {
        self.line(channel).forget(channel);
    }

    fn call<O: Operation + Sync>(&self, operation: O) -> Call<O::Reply> {
        self.call_in(Manner::default(), operation)
    }

    fn call_in<O: Operation + Sync>(&self, manner: Manner, operation: O) -> Call<O::Reply> {
        let lane = Arc::clone(&self.line(operation.key()).lane);
        Box::pin(async move { execute(&lane, operation, manner).await })
    }

    fn confirm_in(&self, manner: Manner, call: Renew, within: Duration) -> Call<Confirmed> {
        match &self.replication {
            Some(replication) => replication.confirm(call, within, manner),
            None => unreplicated(self.call_in(manner, call)),
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

    fn withdraw(&self, call: Withdraw) -> Call<Withdrawn> {
        self.call(call)
    }

    fn renew(&self, call: Renew) -> Call<Renewed> {
        self.call(call)
    }

    fn confirm(&self, call: Renew, within: Duration) -> Call<Confirmed> {
        self.confirm_in(Manner::default(), call, within)
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
        let lane = Arc::clone(self.lane());
        Box::pin(async move {
            let heard = Arc::clone(&lane).call(Command::time).await?;
            match time_of(&heard.value) {
                Some(now) => Ok(Answer {
                    on: lane.connection(heard.generation),
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
        let line = self.line(&channel);
        Box::pin(line.subscribe(channel))
    }

    fn unsubscribe(&self, channel: &str) {
        self.line(channel).unsubscribe(channel);
    }

    fn unseen(&self, channel: &str) {
        self.line(channel).unseen();
    }

    fn clock(&self) -> Clock {
        self.lane().clock()
    }

    fn close(&self) {
        for line in &self.lines {
            line.close();
        }
        if let Some(replication) = &self.replication {
            replication.close();
        }
        if let Some(listening) = &self.listening {
            listening.abort();
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
            .field("closed", &self.lane().is_closed())
            .finish_non_exhaustive()
    }
}

/// What a call fails by that was made for the lock alone, and takes more: as a server of a cluster says it.
const ELSEWHERE: &str = "TRYAGAIN the lock is waited for, and its slot is being moved";

/// How a call is made of a server.
#[derive(Clone, Copy)]
struct Manner {
    publishing: Publishing,
    /// The server is still importing the slot, and has its keys.
    importing: bool,
    declared: Declared,
}

impl Default for Manner {
    /// Of a server that is no part of a cluster.
    fn default() -> Manner {
        Manner {
            publishing: Publishing::Plain,
            importing: false,
            declared: Declared::All,
        }
    }
}

/// Runs a script.
async fn execute<O: Operation>(
    lane: &Arc<Lane>,
    operation: O,
    manner: Manner,
) -> Result<Answer<O::Reply>, Failure> {
    let command = || {
        let invocation = operation.invocation(manner.publishing, manner.declared);
        Command::script(invocation, operation.priority()).asking(manner.importing)
    };
    let heard = Arc::clone(lane).call(command).await?;
    let line = match &heard.value {
        Value::String(line) => operation.read(line),
        other => Err(ReplyError::OutOfStep(format!("{other:?}"))),
    };
    match line {
        Ok((now, reply)) => Ok(Answer {
            on: lane.connection(heard.generation),
            at: exchange(&heard, now),
            reply,
        }),
        Err(ReplyError::OutOfStep(said)) => Err(lane.out_of_step(heard.generation, said)),
        Err(ReplyError::Elsewhere) => Err(Failure::NotExecuted(ServerError::new(ELSEWHERE))),
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

/// `TIME` answers seconds and microseconds, as strings.
fn time_of(reply: &Value) -> Option<ServerTime> {
    let Value::Array(parts) = reply else { return None };
    let part = |i: usize| parts.get(i)?.as_str()?.parse::<u64>().ok();
    Some(ServerTime::from_ms(part(0)? * 1000 + part(1)? / 1000))
}
