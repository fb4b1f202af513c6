//! Locks in a cluster: a store over one client per master, which sends each call to the server that has the slot of
//! its lock, and listens there.
//!
//! - Servers are connected to when there is something to ask them; until then, calls wait in their lanes.
//! - A call that is answered `MOVED` or `ASK` was not executed, and goes where it is told to.
//! - Who has which slot is asked for anew when a call was told to go elsewhere, when a connection breaks, and some fifteen
//!   times in a heartbeat. Channels follow their slots, and who waits there asks again, since messages may have been lost.

mod slots;
mod table;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fred::interfaces::PubsubInterface;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub(super) use self::slots::slot_of;
use self::slots::{Range, Redirection, ranges};
use self::table::Table;
use super::address::Node;
use super::commands::Command;
use super::connection::{Connection, Purpose, keep_trying};
use super::connector::Connector;
use super::{Options, RedisStore, failure};
use crate::clock::Clock;
use crate::error::{Error, ServerError};
use crate::key::Keys;
use crate::script::{Operation, Publishing};
use crate::store::{
    Acquire, Acquired, Call, Confirmed, Failure, Inspect, Inspected, Listener, Release, Released, Renew,
    Renewed, ServerId, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased, Store,
};

/// How often one call is told to go elsewhere at most.
const REDIRECTIONS: usize = 8;

/// A client of a cluster.
pub(super) struct ClusterStore {
    cluster: Arc<Cluster>,
    watch: AbortHandle,
}

/// What the store shares with its task, and with the clients of its servers.
struct Cluster {
    connector: Connector,
    options: Options,
    publishing: Publishing,
    listener: Weak<dyn Listener>,
    table: Mutex<Table>,
    /// Who has which slot may have changed.
    stale: Notify,
    runtime: Handle,
    closed: AtomicBool,
}

impl ClusterStore {
    /// Connects to the cluster of the first of the seeds that knows it.
    pub(super) async fn connect(
        connector: Connector,
        options: Options,
        listener: Weak<dyn Listener>,
    ) -> Result<Arc<ClusterStore>, Error> {
        let deadline = Instant::now() + options.server_timeout;
        let (publishing, ranges) = discover(&connector, deadline).await?;
        let mut table = Table::new();
        table.adopt(&ranges);
        let cluster = Arc::new(Cluster {
            connector,
            options,
            publishing,
            listener,
            table: Mutex::new(table),
            stale: Notify::new(),
            runtime: Handle::current(),
            closed: AtomicBool::new(false),
        });
        let watch = tokio::spawn(watch::watch(Arc::clone(&cluster))).abort_handle();
        Ok(Arc::new(ClusterStore { cluster, watch }))
    }

    fn call<O: Operation + Clone + Sync>(&self, operation: O) -> Call<O::Reply> {
        self.route(slot_of(operation.key()), move |server, asking| {
            server.call_there(operation.clone(), asking)
        })
    }

    /// Has a call sent to the server that has the slot, wherever that turns out to be. `send` is told whether that server
    /// is only importing it.
    fn route<T: 'static>(
        &self,
        slot: usize,
        send: impl Fn(&RedisStore, bool) -> Call<T> + Send + 'static,
    ) -> Call<T> {
        let cluster = Arc::clone(&self.cluster);
        Box::pin(async move {
            let mut importing = None;
            for _ in 0..REDIRECTIONS {
                let asking = importing.is_some();
                let server = match importing.take() {
                    Some(server) => server,
                    None => cluster.owner(slot)?,
                };
                let failure = match send(&server, asking).await {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => failure,
                };
                match Redirection::told_by(&failure, &cluster.address(server.id)) {
                    Some(Redirection::Moved { slot, to }) => cluster.moved(slot, &to),
                    Some(Redirection::Ask { to }) => importing = Some(cluster.server(&to)?),
                    None => return Err(cluster.failed(failure)),
                }
            }
            Err(elsewhere())
        })
    }
}

impl Cluster {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn address(&self, id: ServerId) -> Node {
        self.table().address(id).clone()
    }

    /// The client of the server that has the slot.
    fn owner(self: &Arc<Self>, slot: usize) -> Result<Arc<RedisStore>, Failure> {
        let mut table = self.table();
        match table.owner(slot) {
            Some(owner) => self.open(&mut table, owner),
            None => {
                self.stale.notify_one();
                Err(Failure::NotExecuted(ServerError::new(format!(
                    "no server of the cluster has slot {slot}"
                ))))
            }
        }
    }

    fn server(self: &Arc<Self>, address: &Node) -> Result<Arc<RedisStore>, Failure> {
        let mut table = self.table();
        let id = table.id_of(address);
        self.open(&mut table, id)
    }

    /// Closing looks at the table after it has said so: no client is made that it would miss.
    fn open(self: &Arc<Self>, table: &mut Table, id: ServerId) -> Result<Arc<RedisStore>, Failure> {
        if self.is_closed() {
            return Err(Failure::Closed);
        }
        Ok(table.store(id, |address| {
            let _on = self.runtime.enter();
            let this: Weak<Cluster> = Arc::downgrade(self);
            let listener: Weak<dyn Listener> = this;
            let place = (id, self.publishing);
            RedisStore::opening(self.connector.at(address), self.options, &listener, place)
        }))
    }

    /// A server says that another one has the slot. That is believed at once, and asked about.
    fn moved(&self, slot: usize, to: &Node) {
        self.table().set_owner(slot, to);
        self.stale.notify_one();
    }

    /// What a failed call means to the caller. A server that has left the cluster is not the end of it.
    fn failed(&self, failure: Failure) -> Failure {
        if !matches!(failure, Failure::Refused(_)) {
            self.stale.notify_one();
        }
        match failure {
            Failure::Closed if !self.is_closed() => {
                Failure::Unknown(ServerError::new("the server has left the cluster"))
            }
            failure => failure,
        }
    }

    /// Subscribes where the slot is, wherever that turns out to be.
    async fn subscribe(self: Arc<Self>, channel: Arc<str>) -> Result<(), Failure> {
        for _ in 0..REDIRECTIONS {
            let server = self.owner(slot_of(&channel))?;
            match server.subscribe(Arc::clone(&channel)).await {
                Ok(()) => {
                    let mut table = self.table();
                    if table.subscribed(&channel, server.id) {
                        return Ok(());
                    }
                    if !table.is_wanted(&channel) {
                        server.unsubscribe(&channel);
                        return Ok(());
                    }
                    // Its slot has moved meanwhile.
                    self.leave(&server, &channel);
                }
                Err(failure) => match Redirection::told_by(&failure, &self.address(server.id)) {
                    Some(Redirection::Moved { slot, to }) => self.moved(slot, &to),
                    _ => return Err(self.failed(failure)),
                },
            }
        }
        Err(elsewhere())
    }

    /// Ends the subscription to a channel whose slot this server no longer has. One that ends it by itself would refuse to do
    /// it again.
    fn leave(&self, server: &RedisStore, channel: &str) {
        if self.publishing.ends_with_the_slot() {
            server.forget(channel);
        } else {
            server.unsubscribe(channel);
        }
    }
}

/// What the servers' clients tell.
impl Listener for Cluster {
    fn pushed(&self, from: ServerId, channel: &str, message: &str) {
        if let Some(listener) = self.listener.upgrade() {
            listener.pushed(from, channel, message);
        }
    }

    fn lost(&self, _: ServerId) {
        self.stale.notify_one();
    }

    fn reconnected(&self, server: ServerId) {
        self.stale.notify_one();
        if let Some(listener) = self.listener.upgrade() {
            listener.reconnected(server);
        }
    }
}

impl Store for ClusterStore {
    fn server_of(&self, keys: &Keys) -> ServerId {
        let owner = self.cluster.table().owner(slot_of(&keys.lock));
        owner.unwrap_or_default()
    }

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
        self.route(slot_of(&call.keys.lock), move |server, asking| {
            server.confirm_there(call.clone(), within, asking)
        })
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

    /// Asks any server that has slots.
    fn time(&self) -> Call<()> {
        let cluster = Arc::clone(&self.cluster);
        Box::pin(async move {
            let server = {
                let mut table = cluster.table();
                let owner = table.any_owner().ok_or_else(elsewhere)?;
                cluster.open(&mut table, owner)?
            };
            server.time().await.map_err(|failure| cluster.failed(failure))
        })
    }

    fn subscribe(&self, channel: Arc<str>) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        let cluster = Arc::clone(&self.cluster);
        Box::pin(async move {
            cluster.table().listen(&channel);
            cluster.subscribe(channel).await
        })
    }

    fn unsubscribe(&self, channel: &str) {
        let listening = self.cluster.table().unlisten(channel);
        if let Some(server) = listening {
            server.unsubscribe(channel);
        }
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    fn close(&self) {
        self.cluster.closed.store(true, Ordering::Release);
        self.watch.abort();
        let stores = self.cluster.table().stores();
        for store in stores {
            store.close();
        }
    }
}

impl Drop for ClusterStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("publishing", &self.publishing)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

async fn discover(connector: &Connector, deadline: Instant) -> Result<(Publishing, Vec<Range>), Error> {
    let unheard = "no server of the cluster answers";
    keep_trying(deadline, unheard, || discover_by_any(connector)).await
}

/// Asks the seeds in turn, and is done with the first that answers or refuses.
async fn discover_by_any(connector: &Connector) -> Result<(Publishing, Vec<Range>), Failure> {
    let mut last = Failure::NotExecuted(ServerError::new("no server of the cluster is named"));
    for seed in connector.seeds() {
        match discover_by(connector, seed).await {
            Err(failure @ (Failure::Unknown(_) | Failure::NotExecuted(_))) => last = failure,
            done => return done,
        }
    }
    Err(last)
}

async fn discover_by(connector: &Connector, seed: &Node) -> Result<(Publishing, Vec<Range>), Failure> {
    let connection = connector.at(seed).open(Purpose::Commands).await?;
    let ranges = slots_by(&connection, seed).await?;
    if ranges.is_empty() {
        return Err(Failure::NotExecuted(ServerError::new(format!(
            "{seed}: no server of the cluster has any slot"
        ))));
    }
    Ok((publishing_of(&connection).await?, ranges))
}

/// Asks a server, on a connection of its own, who has which slot.
async fn slots_by(connection: &Connection, asked: &Node) -> Result<Vec<Range>, Failure> {
    let reply = Command::slots().run(connection.client()).await;
    let reply = reply.map_err(|error| failure::of(&error))?;
    ranges(&reply, asked).ok_or_else(|| {
        Failure::Unknown(ServerError::new(format!(
            "{reply:?} as the reply to CLUSTER SLOTS"
        )))
    })
}

/// Shards have channels of their own since 7.0; servers before that do not know the question.
async fn publishing_of(connection: &Connection) -> Result<Publishing, Failure> {
    let channels: Vec<String> = Vec::new();
    match connection
        .client()
        .pubsub_shardnumsub::<fred::types::Value, _>(channels)
        .await
    {
        Ok(_) => Ok(Publishing::Sharded),
        Err(error) if failure::code(&error) == Some("ERR") => Ok(Publishing::Unproven),
        Err(error) => Err(failure::of(&error)),
    }
}

fn elsewhere() -> Failure {
    Failure::NotExecuted(ServerError::new(
        "the servers of the cluster send each other's calls on",
    ))
}
