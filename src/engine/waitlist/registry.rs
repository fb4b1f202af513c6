//! All waiting rooms of a client, by channel: where pushes and reconnects come in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use dashmap::DashMap;

use crate::engine::background::Keeper;
use crate::engine::client::Client;
use crate::engine::waitlist::Room;
use crate::error::{Error, Result};
use crate::store::keys::Keys;
use crate::store::{Listener, ServerId};

#[derive(Debug)]
pub(crate) struct Rooms {
    client: Arc<Client>,
    keeper: Arc<Keeper>,
    rooms: DashMap<Arc<str>, Arc<Room>>,
    waiting: AtomicUsize,
}

impl Rooms {
    pub(crate) fn new(client: Arc<Client>, keeper: Arc<Keeper>) -> Rooms {
        Rooms {
            client,
            keeper,
            rooms: DashMap::new(),
            waiting: AtomicUsize::new(0),
        }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    pub(crate) fn len(&self) -> usize {
        self.rooms.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A place among the waiters of this client, for as long as the permit lives.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Permit> {
        let max_waiters = self.client.options.max_waiters;
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= max_waiters {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::QueueFull { max_waiters });
        }
        Ok(Permit(Arc::clone(self)))
    }

    /// Enters the room of a lock, which is made if need be; `join` runs before anybody can remove it.
    pub(crate) fn enter<T>(
        &self,
        keys: &Arc<Keys>,
        channel: &Arc<str>,
        join: impl FnOnce(&Room) -> T,
    ) -> (Arc<Room>, T) {
        let make = || {
            Room::new(
                Arc::clone(keys),
                Arc::clone(channel),
                Arc::clone(&self.client),
                Arc::clone(&self.keeper),
            )
        };
        let room = self.rooms.entry(Arc::clone(channel)).or_insert_with(make);
        let joined = join(&room);
        (Arc::clone(&room), joined)
    }

    /// Removes a room that never had an attendant, unless somebody is in it.
    pub(crate) fn discard(&self, room: &Room) {
        if room.is_idle() {
            self.rooms.remove_if(&room.channel, |_, room| room.is_idle());
        }
    }

    /// Removes a room whose attendant leaves, unless somebody has come in. The subscription ends while nobody can
    /// make the room anew, so that it ends before the next one begins.
    pub(crate) fn remove(&self, room: &Room) -> bool {
        let leaves = |_: &Arc<str>, room: &Arc<Room>| {
            let leaves = room.is_empty();
            if leaves {
                self.client.store.unsubscribe(&room.channel);
            }
            leaves
        };
        self.rooms.remove_if(&room.channel, leaves).is_some()
    }

    /// Ends the wait of everybody; the attendants leave.
    pub(crate) fn close(&self) {
        let _running = self.keeper.keep_running();
        self.client.set_closed();
        for room in self.all() {
            room.fail_all(&Error::Closed);
        }
    }

    /// In the order of their channels: what follows does not depend on that of the map.
    fn all(&self) -> Vec<Arc<Room>> {
        let mut rooms: Vec<_> = self.rooms.iter().map(|room| Arc::clone(&room)).collect();
        rooms.sort_unstable_by(|a, b| a.channel.cmp(&b.channel));
        rooms
    }
}

impl Listener for Rooms {
    fn pushed(&self, from: ServerId, channel: &str, message: &str) {
        let room = self.rooms.get(channel).map(|room| Arc::clone(&room));
        if let Some(room) = room {
            room.pushed(from, message);
        }
    }

    fn replaced(&self, server: ServerId) {
        self.client.clocks.forget(server);
        // The records may be gone, whatever is answered to calls of before.
        self.client.presence.lost();
    }

    fn reconnected(&self, server: ServerId) {
        self.replaced(server);
        for room in self.all() {
            if self.client.store.server_of(&room.keys) == server {
                room.reconnected();
            }
        }
    }
}

/// One waiter more, while it lives.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Rooms>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Stands in for the rooms while the store that they are built on connects.
#[derive(Debug, Default)]
pub(crate) struct Relay(OnceLock<Weak<Rooms>>);

impl Relay {
    pub(crate) fn lead_to(&self, rooms: &Arc<Rooms>) {
        // It is set once, by the one who made it.
        let _ = self.0.set(Arc::downgrade(rooms));
    }

    fn rooms(&self) -> Option<Arc<Rooms>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

impl Listener for Relay {
    fn pushed(&self, from: ServerId, channel: &str, message: &str) {
        if let Some(rooms) = self.rooms() {
            rooms.pushed(from, channel, message);
        }
    }

    fn replaced(&self, server: ServerId) {
        if let Some(rooms) = self.rooms() {
            rooms.replaced(server);
        }
    }

    fn reconnected(&self, server: ServerId) {
        if let Some(rooms) = self.rooms() {
            rooms.reconnected(server);
        }
    }
}
