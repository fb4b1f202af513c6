//! What is known of a cluster: its servers, who has which slot, and which channels are listened to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::address::Node;
use super::super::server::RedisStore;
use super::super::slot::{SLOTS, slot_of};
use super::slots::Range;
use crate::store::ServerId;

pub(super) struct Table {
    /// By id. None is ever taken away: a server that comes back has its number still.
    servers: Vec<Server>,
    /// By slot.
    owners: Vec<Option<ServerId>>,
    /// When slots came to their owners from others, of those that did lately.
    moved: HashMap<usize, Instant>,
    /// In which time those who listen follow a slot.
    settling: Duration,
    /// Where each channel is subscribed, or nowhere yet.
    channels: HashMap<Arc<str>, Option<ServerId>>,
}

struct Server {
    address: Node,
    /// Its client, once there was something to ask it.
    store: Option<Arc<RedisStore>>,
}

/// A channel that is subscribed at another server than the one that has its slot.
pub(super) struct Misplaced {
    pub(super) channel: Arc<str>,
    pub(super) at: ServerId,
}

impl Table {
    pub(super) fn new(settling: Duration) -> Table {
        Table {
            servers: Vec::new(),
            owners: vec![None; SLOTS],
            moved: HashMap::new(),
            settling,
            channels: HashMap::new(),
        }
    }

    pub(super) fn id_of(&mut self, address: &Node) -> ServerId {
        let mut servers = self.servers.iter();
        let index = servers
            .position(|server| server.address == *address)
            .unwrap_or_else(|| {
                self.servers.push(Server {
                    address: address.clone(),
                    store: None,
                });
                self.servers.len() - 1
            });
        id(index)
    }

    pub(super) fn address(&self, id: ServerId) -> &Node {
        &self.servers[index(id)].address
    }

    pub(super) fn addresses(&self) -> Vec<Node> {
        self.servers.iter().map(|server| server.address.clone()).collect()
    }

    /// The client of a server, which `open` makes if there is none.
    pub(super) fn store(
        &mut self,
        id: ServerId,
        open: impl FnOnce(&Node) -> Arc<RedisStore>,
    ) -> Arc<RedisStore> {
        let server = &mut self.servers[index(id)];
        Arc::clone(server.store.get_or_insert_with(|| open(&server.address)))
    }

    /// The clients that there are.
    pub(super) fn stores(&self) -> Vec<Arc<RedisStore>> {
        self.servers
            .iter()
            .filter_map(|server| server.store.clone())
            .collect()
    }

    pub(super) fn owner(&self, slot: usize) -> Option<ServerId> {
        self.owners[slot]
    }

    pub(super) fn any_owner(&self) -> Option<ServerId> {
        self.owners.iter().copied().find_map(|owner| owner)
    }

    pub(super) fn set_owner(&mut self, slot: usize, owner: &Node) {
        let owner = self.id_of(owner);
        self.give(slot, owner);
    }

    fn give(&mut self, slot: usize, owner: ServerId) {
        let former = self.owners[slot].replace(owner);
        if former.is_some_and(|former| former != owner) {
            self.moved.insert(slot, Instant::now());
        }
    }

    /// Whether the slot has come to its owner so lately that those who listen may not have followed.
    pub(super) fn has_moved_lately(&self, slot: usize) -> bool {
        let moved = self.moved.get(&slot);
        moved.is_some_and(|moved| moved.elapsed() < self.settling)
    }

    /// Takes over who has which slot. Slots that nobody has any more keep their last owner, who may come back.
    pub(super) fn apply_slots(&mut self, ranges: &[Range]) {
        self.moved.retain(|_, moved| moved.elapsed() < self.settling);
        for range in ranges {
            // Replicas are made known too: when all masters are gone, they are asked.
            let ids: Vec<_> = range.servers.iter().map(|server| self.id_of(server)).collect();
            for slot in range.first..=range.last {
                self.give(slot, ids[0]);
            }
        }
    }

    /// Whether a server without a connection is one that has slots.
    pub(super) fn misses_an_owner(&self) -> bool {
        let is_down = |server: &Server| server.store.as_ref().is_some_and(|store| !store.is_up());
        let is_owner = |index: usize| self.owners.contains(&Some(id(index)));
        self.servers
            .iter()
            .enumerate()
            .any(|(index, server)| is_down(server) && is_owner(index))
    }

    /// Takes away the clients of servers that are not connected and have no slots.
    pub(super) fn retire(&mut self) -> Vec<Arc<RedisStore>> {
        let owners = &self.owners;
        let mut retired = Vec::new();
        for (index, server) in self.servers.iter_mut().enumerate() {
            if !owners.contains(&Some(id(index))) {
                retired.extend(server.store.take_if(|store| !store.is_up()));
            }
        }
        retired
    }

    pub(super) fn listen(&mut self, channel: &Arc<str>) {
        self.channels.entry(Arc::clone(channel)).or_default();
    }

    /// The channel has been subscribed there. Returns whether that is the right place, and anybody wants it.
    pub(super) fn subscribed(&mut self, channel: &Arc<str>, at: ServerId) -> bool {
        let is_owner = self.owners[slot_of(channel)] == Some(at);
        match self.channels.get_mut(channel) {
            Some(place) => *place = Some(at),
            None => return false,
        }
        is_owner
    }

    pub(super) fn is_wanted(&self, channel: &str) -> bool {
        self.channels.contains_key(channel)
    }

    /// Returns the client that was listening.
    pub(super) fn unlisten(&mut self, channel: &str) -> Option<Arc<RedisStore>> {
        let at = self.channels.remove(channel)??;
        self.servers[index(at)].store.clone()
    }

    /// The client that listens to the channel.
    pub(super) fn listening(&self, channel: &str) -> Option<Arc<RedisStore>> {
        let at = (*self.channels.get(channel)?)?;
        self.servers[index(at)].store.clone()
    }

    pub(super) fn astray(&self) -> Vec<Misplaced> {
        let astray = |(channel, at): (&Arc<str>, &Option<ServerId>)| {
            let at = (*at)?;
            (self.owners[slot_of(channel)] != Some(at)).then(|| Misplaced {
                channel: Arc::clone(channel),
                at,
            })
        };
        self.channels.iter().filter_map(astray).collect()
    }

    /// The client of a server, if there is one.
    pub(super) fn store_at(&self, id: ServerId) -> Option<&Arc<RedisStore>> {
        self.servers[index(id)].store.as_ref()
    }
}

fn index(id: ServerId) -> usize {
    id.0 as usize
}

fn id(index: usize) -> ServerId {
    ServerId(u32::try_from(index).unwrap_or(u32::MAX))
}
