//! Locks in a cluster. This store has one client per primary. It sends each call to the server that has the
//! lock's slot, and listens there.
//!
//! - A connection to a server is opened when there is a call for it. Until it is open, calls wait in the
//!   backlog.
//! - A call that is answered `MOVED` or `ASK` was not executed, and is sent to the named server. While a slot
//!   moves between two servers, its subscribers are not where its keys are, so no lock could be handed over.
//!   Acquires and releases wait a little until the slot has arrived. Then, until the subscribers have
//!   followed, hand-overs take every client for one that listens.
//! - A call whose slot no server serves is answered `CLUSTERDOWN`. It was not executed, and is made again.
//! - The client asks for the owners of the slots after a redirection, after a lost connection, and once a
//!   second. Channels follow their slots. Their waiters ask again, because messages may
//!   have been lost.

mod discovery;
mod servers;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

#[cfg(feature = "diagnose")]
pub(super) use self::discovery::owners_by;
use self::slots::Redirection;
use self::table::Table;
use super::call::CallOptions;
use super::connector::Connector;
use super::failure;
use super::options::Options;
use super::server::RedisStore;
use super::slot::{slot_of, unserved};
use crate::protocol::interface::{
    Call, Connections, Failure, Listener, Page, Position, ServerId, StoreFuture,
};
use crate::protocol::keys::Keys;
use crate::protocol::operations::{Confirmed, Operation, Renew};
use crate::protocol::script::Declared;
use crate::servers::redis::cluster::servers::Cluster;
use crate::sync::outstanding::Outstanding;
use crate::time::clock::{Clock, LocalTime};
use crate::types::error::ServerError;

/// How often one call may be redirected.
const REDIRECTIONS: usize = 8;
/// How long a call waits for a slot that moves, and the pause between attempts. A slot with many keys takes
/// longer; then the lock is worth more than the order.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct ClusterStore {
    cluster: Arc<Cluster>,
    watch: AbortHandle,
}

impl ClusterStore {
    /// Connects in the background, through the first seed that knows the cluster. Calls wait for that. Must
    /// be called within a runtime.
    pub(crate) fn open(
        connector: Connector,
        options: Options,
        listener: Weak<dyn Listener>,
    ) -> Arc<ClusterStore> {
        let cluster = Arc::new(Cluster {
            connector,
            options,
            listener,
            table: Mutex::new(Table::new(3 * look_every(options))),
            stale: Notify::new(),
            learnt: Notify::new(),
            held_back: Arc::new(Outstanding::default()),
            runtime: Handle::current(),
            closed: AtomicBool::new(false),
        });
        let watch = tokio::spawn(watch::watch(Arc::clone(&cluster))).abort_handle();
        Arc::new(ClusterStore { cluster, watch })
    }
}

impl ClusterStore {
    pub(crate) fn call<O: Operation>(&self, operation: O) -> Call<O::Reply> {
        self.cluster.call(operation)
    }

    pub(crate) fn confirm(&self, call: Renew, within: Duration) -> Call<Confirmed> {
        let slot = slot_of(&call.keys.lock);
        self.cluster.route(
            slot,
            Duration::ZERO,
            call.goes_alone(),
            move |server, call_options| server.confirm_in(call_options, call.clone(), within),
        )
    }
}

impl Cluster {
    fn call<O: Operation>(self: &Arc<Self>, operation: O) -> Call<O::Reply> {
        let patience = match operation.hands_over() {
            true => PATIENCE,
            false => Duration::ZERO,
        };
        let goes_alone = operation.goes_alone();
        self.route(
            slot_of(operation.key()),
            patience,
            goes_alone,
            move |server, call_options| server.call_in(call_options, operation.clone()),
        )
    }

    /// Sends a call to the server that has the slot, and follows redirections. While the slot moves, the call
    /// first declares the lock's key alone, if it can. After `patience`, it is sent with all keys to the
    /// server that imports the slot.
    fn route<T: 'static>(
        self: &Arc<Self>,
        slot: usize,
        patience: Duration,
        goes_alone: bool,
        send: impl Fn(&RedisStore, CallOptions) -> Call<T> + Send + 'static,
    ) -> Call<T> {
        let cluster = Arc::clone(self);
        Box::pin(async move {
            let (since, mut importing, mut redirections) = (Instant::now(), None, 0);
            let (mut declared, mut may_go_alone) = (Declared::All, goes_alone);
            while redirections < REDIRECTIONS {
                let (server, mut call_options) = match importing.take() {
                    Some(server) => (
                        server,
                        CallOptions {
                            pubsub_mode: cluster.table().pubsub_mode(),
                            importing: true,
                            ..CallOptions::default()
                        },
                    ),
                    None => cluster.owner(slot).await?,
                };
                call_options.declared = declared;
                let failure = match send(&server, call_options).await {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => failure,
                };
                match Redirection::told_by(&failure, &cluster.address(server.id)) {
                    // The slot is moving.
                    Some(Redirection::Incomplete | Redirection::Ask { .. }) if may_go_alone => {
                        (declared, may_go_alone) = (Declared::LockAlone, false);
                        continue;
                    }
                    // The call needs more keys.
                    Some(Redirection::Incomplete) if declared == Declared::LockAlone => {
                        declared = Declared::All;
                        continue;
                    }
                    Some(Redirection::Ask { .. })
                        if declared == Declared::All && since.elapsed() < patience =>
                    {
                        sleep(PAUSE).await;
                        continue;
                    }
                    Some(Redirection::Moved { slot, to }) => cluster.moved(slot, &to),
                    Some(Redirection::Ask { to }) => importing = Some(cluster.server(&to)?),
                    None if failure::is_of_a_slot_unserved(&failure) => {
                        cluster.refused(slot);
                        return Err(unserved(slot));
                    }
                    Some(Redirection::Incomplete) | None => return Err(cluster.failed(failure)),
                }
                redirections += 1;
            }
            Err(elsewhere())
        })
    }
}

impl Connections for ClusterStore {
    fn server_of(&self, keys: &Keys) -> ServerId {
        let owner = self.cluster.table().owner(slot_of(&keys.lock));
        owner.unwrap_or_default()
    }

    fn address_of(&self, keys: &Keys) -> Option<String> {
        let table = self.cluster.table();
        let owner = table.owner(slot_of(&keys.lock))?;
        Some(table.address(owner).to_string())
    }

    /// Lists the locks of one server that has slots after the other.
    fn list(&self, prefix: &str, from: Position) -> StoreFuture<Page> {
        let (cluster, prefix) = (Arc::clone(&self.cluster), prefix.to_owned());
        Box::pin(async move {
            cluster.met().await?;
            let Some(owner) = cluster.table().first_owner(from.server) else {
                return Ok(Page::default());
            };
            let server = cluster.open(&mut cluster.table(), owner)?;
            let from = if owner == from.server {
                from
            } else {
                Position {
                    server: owner,
                    cursor: 0,
                }
            };
            let page = server.list(&prefix, from).await;
            let page = page.map_err(|failure| cluster.failed(failure))?;
            let next_server = ServerId(owner.0 + 1);
            let next = page.next.or_else(|| {
                let server = cluster.table().first_owner(next_server)?;
                Some(Position { server, cursor: 0 })
            });
            Ok(Page { next, ..page })
        })
    }

    /// Asks a server that has slots, and others besides if that takes long.
    fn time(&self) -> Call<()> {
        let cluster = Arc::clone(&self.cluster);
        Box::pin(async move {
            cluster.met().await?;
            let attempt_timeout = cluster.options.attempt_timeout;
            let asks_until = Instant::now() + attempt_timeout;
            let mut asked = FuturesUnordered::new();
            let mut from = ServerId::default();
            let mut failure = elsewhere();
            loop {
                let next = cluster.table().first_owner(from);
                if let Some(owner) = next.filter(|_| Instant::now() < asks_until) {
                    let server = cluster.open(&mut cluster.table(), owner)?;
                    asked.push(async move { server.time().await });
                    from = ServerId(owner.0 + 1);
                }
                match timeout(attempt_timeout / 4, asked.next()).await {
                    Ok(Some(Ok(answer))) => return Ok(answer),
                    Ok(Some(Err(failed))) => failure = cluster.failed(failed),
                    Ok(None) => return Err(failure),
                    Err(_) => {}
                }
            }
        })
    }

    fn subscribe(&self, channel: Arc<str>) -> StoreFuture<()> {
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

    fn why_unheard(&self, key: &str, since: LocalTime) -> Option<Failure> {
        let slot = slot_of(key);
        match self.cluster.serving(slot) {
            Ok(Some((server, _))) => server.why_unheard(key, since),
            Ok(None) => Some(self.cluster.why_unserved(slot)),
            Err(failure) => Some(failure),
        }
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    fn close(&self) {
        self.cluster.closed.store(true, Ordering::Release);
        self.cluster.learnt.notify_waiters();
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

/// How often the client asks for the owners of the slots without a reason.
fn look_every(options: Options) -> Duration {
    options.ping_every / 5
}

fn elsewhere() -> Failure {
    Failure::NotExecuted(ServerError::new(
        "the servers of the cluster send each other's calls on",
    ))
}
