//! The servers of a cluster, as far as this client has to do with them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::{REDIRECTIONS, elsewhere};
use crate::error::ServerError;
use crate::store::redis::address::Node;
use crate::store::redis::call::CallOptions;
use crate::store::redis::cluster::slots::Redirection;
use crate::store::redis::cluster::table::Table;
use crate::store::redis::connector::Connector;
use crate::store::redis::options::Options;
use crate::store::redis::script::{Declared, PubSubMode};
use crate::store::redis::server::RedisStore;
use crate::store::redis::slot::slot_of;
use crate::store::{Failure, Listener, ServerId, Store};

/// What the store shares with its task, and with the clients of its servers.
pub(super) struct Cluster {
    pub(super) connector: Connector,
    pub(super) options: Options,
    pub(super) publishing: PubSubMode,
    pub(super) listener: Weak<dyn Listener>,
    pub(super) table: Mutex<Table>,
    /// Who has which slot may have changed.
    pub(super) stale: Notify,
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

    /// The client of the server that has the slot, and how calls about its locks are made of it now.
    pub(super) fn owner(self: &Arc<Self>, slot: usize) -> Result<(Arc<RedisStore>, CallOptions), Failure> {
        let mut table = self.table();
        let Some(owner) = table.owner(slot) else {
            self.stale.notify_one();
            return Err(Failure::NotExecuted(ServerError::new(format!(
                "no server of the cluster has slot {slot}"
            ))));
        };
        let publishing = match self.publishing {
            PubSubMode::Sharded if table.has_moved_lately(slot) => PubSubMode::Migrating,
            publishing => publishing,
        };
        let call_options = CallOptions {
            publishing,
            importing: false,
            declared: Declared::All,
        };
        Ok((self.open(&mut table, owner)?, call_options))
    }

    pub(super) fn server(self: &Arc<Self>, address: &Node) -> Result<Arc<RedisStore>, Failure> {
        let mut table = self.table();
        let id = table.id_of(address);
        self.open(&mut table, id)
    }

    /// Closing looks at the table after it has said so: no client is made that it would miss.
    pub(super) fn open(
        self: &Arc<Self>,
        table: &mut Table,
        id: ServerId,
    ) -> Result<Arc<RedisStore>, Failure> {
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
    pub(super) fn moved(&self, slot: usize, to: &Node) {
        self.table().set_owner(slot, to);
        self.stale.notify_one();
    }

    /// What a failed call means to the caller. A server that has left the cluster is not the end of it.
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

    /// Subscribes where the slot is, wherever that turns out to be.
    pub(super) async fn subscribe(self: Arc<Self>, channel: Arc<str>) -> Result<(), Failure> {
        for _ in 0..REDIRECTIONS {
            let (server, _) = self.owner(slot_of(&channel))?;
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
    pub(super) fn leave(&self, server: &RedisStore, channel: &str) {
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
            .field("publishing", &self.publishing)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
