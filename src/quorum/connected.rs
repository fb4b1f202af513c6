//! To which servers a client has a connection.

use std::sync::{Arc, Once};

use tokio::sync::watch;

use crate::engine::shared::Shared;

/// A set of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerSet(u16);

/// The servers to which there is a connection, as far as is known. A server counts as connected until it is
/// known not to be.
#[derive(Debug)]
pub(super) struct Connected {
    servers: Arc<watch::Sender<ServerSet>>,
    is_started: Once,
}

impl ServerSet {
    pub(super) fn has(self, server: usize) -> bool {
        self.0 & 1 << server != 0
    }

    /// Adds the server, or removes it. Returns whether that changes anything.
    fn set(&mut self, server: usize, is_in: bool) -> bool {
        let after = self.0 & !(1 << server) | u16::from(is_in) << server;
        std::mem::replace(&mut self.0, after) != after
    }
}

impl Connected {
    pub(super) fn new() -> Connected {
        Connected {
            servers: Arc::new(watch::Sender::new(ServerSet(u16::MAX))),
            is_started: Once::new(),
        }
    }

    /// Follows the connections to these servers from now on. Does nothing if it does so already.
    pub(super) fn start(&self, servers: &[Arc<Shared>]) {
        self.is_started.call_once(|| {
            for (n, server) in servers.iter().enumerate() {
                let connected = Arc::clone(&self.servers);
                let mut news = server.client().store.connected();
                server.client().spawn(async move {
                    loop {
                        let is_connected = *news.borrow_and_update();
                        connected.send_if_modified(|servers| servers.set(n, is_connected));
                        if news.changed().await.is_err() {
                            // The store is gone, or has no news.
                            return;
                        }
                    }
                });
            }
        });
    }

    /// The servers that are connected, as they change.
    pub(super) fn subscribe(&self) -> watch::Receiver<ServerSet> {
        self.servers.subscribe()
    }
}
