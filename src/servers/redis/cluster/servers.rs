//! The servers of a cluster, as far as this client uses them.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{REDIRECTIONS, elsewhere};
use crate::protocol::interface::{Connections, Failure, Listener, ServerId};
use crate::protocol::script::{self, Declared, PubSubMode};
use crate::servers::redis::address::Node;
use crate::servers::redis::call::CallOptions;
use crate::servers::redis::cluster::slots::Redirection;
use crate::servers::redis::cluster::table::Table;
use crate::servers::redis::connector::Connector;
use crate::servers::redis::options::Options;
use crate::servers::redis::server::RedisStore;
use crate::servers::redis::slot::{slot_of, unserved};
use crate::sync::outstanding::Outstanding;
use crate::types::error::ServerError;

/// The state that the store shares with its task and with the clients of its servers.
pub(super) struct Cluster {
    pub(super) connector: Connector,
    pub(super) options: Options,
    pub(super) listener: Weak<dyn Listener>,
    pub(super) table: Mutex<Table>,
    /// Wakes the task when slots may have new owners.
    pub(super) stale: Notify,
    /// Wakes the calls that wait for owners when some are known.
    pub(super) learnt: Notify,
    /// The calls that wait for the owners of their slots to be known.
    pub(super) held_back: Arc<Outstanding>,
    pub(super) runtime: Handle,
    pub(super) closed: AtomicBool,
}

impl Cluster {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn address(&self, id: ServerId) -> Node {
        self.table().address(id).clone()
    }

    /// The client of the server that has the slot, and the options for calls about its locks. Waits for as
    /// long as a call waits for a connection.
    pub(super) async fn owner(
        self: &Arc<Self>,
        slot: usize,
    ) -> Result<(Arc<RedisStore>, CallOptions), Failure> {
        let owner = self.learnt(|| self.serving(slot)).await?;
        owner.ok_or_else(|| self.why_unserved(slot))
    }

    /// Waits for the first answer of any server, for as long as a call waits for a connection.
    pub(super) async fn met(&self) -> Result<(), Failure> {
        let met = self
            .learnt(|| Ok(self.has_met(&self.table())?.then_some(())))
            .await?;
        met.ok_or_else(|| self.why_unserved(0))
    }

    /// Waits for something that the task learns, for as long as a call waits for a connection.
    async fn learnt<T>(&self, known: impl Fn() -> Result<Option<T>, Failure>) -> Result<Option<T>, Failure> {
        if let Some(known) = known()? {
            return Ok(Some(known));
        }
        let _held_back = Outstanding::begin(&self.held_back);
        self.stale.notify_one();
        let learnt = async {
            loop {
                let mut learnt = pin!(self.learnt.notified());
                learnt.as_mut().enable();
                if let Some(known) = known()? {
                    return Ok(Some(known));
                }
                learnt.await;
            }
        };
        let learnt = timeout(self.options.attempt_timeout, learnt).await;
        learnt.unwrap_or(Ok(None))
    }

    /// Whether a server has reported the owners of the slots. Fails if there is no use in waiting for that.
    fn has_met(&self, table: &Table) -> Result<bool, Failure> {
        match table.unmet() {
            _ if self.is_closed() => Err(Failure::Closed),
            Some(refused @ Failure::Refused(_)) => Err(refused.clone()),
            unmet => Ok(unmet.is_none()),
        }
    }

    /// Why no server serves the slot.
    pub(super) fn why_unserved(&self, slot: usize) -> Failure {
        self.table().unmet().cloned().unwrap_or_else(|| unserved(slot))
    }

    /// The same, if a server serves the slot.
    pub(super) fn serving(
        self: &Arc<Self>,
        slot: usize,
    ) -> Result<Option<(Arc<RedisStore>, CallOptions)>, Failure> {
        let mut table = self.table();
        let Some(owner) = table.owner(slot) else {
            return self.has_met(&table).map(|_| None);
        };
        let pubsub_mode = match table.pubsub_mode() {
            PubSubMode::Sharded if table.has_moved_recently(slot) => PubSubMode::Migrating,
            pubsub_mode => pubsub_mode,
        };
        let call_options = CallOptions {
            pubsub_mode,
            importing: false,
            declared: Declared::All,
        };
        Ok(Some((self.open(&mut table, owner)?, call_options)))
    }

    /// A server refused to serve the slot, which another one may have.
    pub(super) fn refused(&self, slot: usize) {
        self.table().unsettle(slot);
        self.stale.notify_one();
    }

    pub(super) fn server(self: &Arc<Self>, address: &Node) -> Result<Arc<RedisStore>, Failure> {
        let mut table = self.table();
        let id = table.id_of(address);
        self.open(&mut table, id)
    }

    /// Returns the client of a server, and makes it if necessary. `close` sets its flag before it looks at
    /// the table, so it misses no client that is made here.
    pub(super) fn open(
        self: &Arc<Self>,
        table: &mut Table,
        id: ServerId,
    ) -> Result<Arc<RedisStore>, Failure> {
        if self.is_closed() {
            return Err(Failure::Closed);
        }
        let place = (id, table.pubsub_mode());
        Ok(table.store(id, |address| {
            let _on = self.runtime.enter();
            let this: Weak<Cluster> = Arc::downgrade(self);
            let listener: Weak<dyn Listener> = this;
            RedisStore::open(
                self.connector.at(address),
                self.options,
                &listener,
                place,
                &script::ALL,
            )
        }))
    }

    /// Stores the owner that a server named in a redirection, and has the task ask for all owners.
    pub(super) fn moved(&self, slot: usize, to: &Node) {
        self.table().set_owner(slot, to);
        self.learnt.notify_waiters();
        self.stale.notify_one();
    }

    /// Converts a failure for the caller. If one server has left the cluster, the store is not closed.
    pub(super) fn failed(&self, failure: Failure) -> Failure {
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

    /// Subscribes at the server that has the slot, and follows redirections.
    pub(super) async fn subscribe(self: Arc<Self>, channel: Arc<str>) -> Result<(), Failure> {
        for _ in 0..REDIRECTIONS {
            let (server, _) = self.owner(slot_of(&channel)).await?;
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
                    drop(table);
                    // The slot has moved in the meantime.
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

    /// Ends the subscription to a channel whose slot this server no longer has.
    pub(super) fn leave(&self, server: &RedisStore, channel: &str) {
        self.table().left(server.id, channel);
        server.unsubscribe(channel);
    }
}

/// Receives the events of the servers' clients.
impl Listener for Cluster {
    fn pushed(&self, from: ServerId, channel: &str, message: &str) {
        if let Some(listener) = self.listener.upgrade() {
            listener.pushed(from, channel, message);
        }
    }

    fn reopened(&self, connection: &'static str, server: &str) {
        if let Some(listener) = self.listener.upgrade() {
            listener.reopened(connection, server);
        }
    }

    fn lost(&self, server: ServerId) {
        self.stale.notify_one();
        if let Some(listener) = self.listener.upgrade() {
            listener.lost(server);
        }
    }

    fn left(&self, server: ServerId, channel: &str) {
        self.table().left(server, channel);
        self.refused(slot_of(channel));
        if let Some(listener) = self.listener.upgrade() {
            listener.left(server, channel);
        }
    }

    fn replaced(&self, server: ServerId) {
        self.stale.notify_one();
        if let Some(listener) = self.listener.upgrade() {
            listener.replaced(server);
        }
    }

    fn reconnected(&self, server: ServerId) {
        self.stale.notify_one();
        if let Some(listener) = self.listener.upgrade() {
            listener.reconnected(server);
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("pubsub_mode", &self.table().pubsub_mode())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
