//! The known state of a cluster: its servers, the owners of its slots, and the channels in use.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::address::Node;
use super::super::server::RedisStore;
use super::super::slot::{SLOTS, slot_of};
use super::slots::View;
use crate::store::ServerId;

pub(super) struct Table {
    /// The servers by id. No entry is ever removed, so a server that returns still has its id.
    servers: Vec<Server>,
    /// The servers in the last view of the cluster, and the one whose view it is.
    view: BTreeSet<ServerId>,
    /// The owners by slot.
    owners: Vec<Option<ServerId>>,
    /// When slots moved to their present owners, for slots that moved recently.
    moved: HashMap<usize, Instant>,
    /// The time within which subscribers follow a slot.
    settling: Duration,
    /// The server at which each channel is subscribed, if any.
    channels: HashMap<Arc<str>, Option<ServerId>>,
}

struct Server {
    address: Node,
    /// The client of the server, once there was a call for it, and when it was made.
    store: Option<(Arc<RedisStore>, Instant)>,
}

impl Server {
    fn store(&self) -> Option<&Arc<RedisStore>> {
        self.store.as_ref().map(|(store, _)| store)
    }
}

/// A channel that is subscribed at a server that does not have its slot.
pub(super) struct Misplaced {
    pub(super) channel: Arc<str>,
    pub(super) at: ServerId,
}

impl Table {
    pub(super) fn new(settling: Duration) -> Table {
        Table {
            servers: Vec::new(),
            view: BTreeSet::new(),
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

    /// The servers that the cluster named last, and those that have slots as far as this client knows.
    pub(super) fn known(&self) -> Vec<Node> {
        let owners = self.owners.iter().copied().flatten();
        let known: BTreeSet<_> = owners.chain(self.view.iter().copied()).collect();
        // The most recent one is the most likely to exist still.
        known
            .into_iter()
            .rev()
            .map(|id| self.address(id).clone())
            .collect()
    }

    /// The client of a server. `open` makes it if there is none.
    pub(super) fn store(
        &mut self,
        id: ServerId,
        open: impl FnOnce(&Node) -> Arc<RedisStore>,
    ) -> Arc<RedisStore> {
        let server = &mut self.servers[index(id)];
        let open = || (open(&server.address), Instant::now());
        Arc::clone(&server.store.get_or_insert_with(open).0)
    }

    /// All existing clients.
    pub(super) fn stores(&self) -> Vec<Arc<RedisStore>> {
        self.servers
            .iter()
            .filter_map(|server| server.store().cloned())
            .collect()
    }

    pub(super) fn owner(&self, slot: usize) -> Option<ServerId> {
        self.owners[slot]
    }

    /// The server with the least id that has slots and is not before `from`.
    pub(super) fn first_owner(&self, from: ServerId) -> Option<ServerId> {
        let owners = self.owners.iter().copied().flatten();
        owners.filter(|owner| *owner >= from).min()
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

    /// Whether the slot moved to its owner so recently that subscribers may not have followed.
    pub(super) fn has_moved_recently(&self, slot: usize) -> bool {
        let moved = self.moved.get(&slot);
        moved.is_some_and(|moved| moved.elapsed() < self.settling)
    }

    /// Stores the owners of the slots. A slot without an owner keeps its last one, which may return.
    pub(super) fn apply(&mut self, view: &View) {
        self.moved.retain(|_, moved| moved.elapsed() < self.settling);
        let asked = self.id_of(&view.of);
        self.view = BTreeSet::from([asked]);
        for range in &view.ranges {
            // Replicas are stored too, because they are asked when all primaries are gone.
            let ids: Vec<_> = range.servers.iter().map(|server| self.id_of(server)).collect();
            for slot in range.first..=range.last {
                self.give(slot, ids[0]);
            }
            self.view.extend(ids);
        }
    }

    /// Whether a server that has slots has no connection.
    pub(super) fn misses_an_owner(&self) -> bool {
        let is_down = |server: &Server| server.store().is_some_and(|store| !store.is_up());
        let is_owner = |index: usize| self.owners.contains(&Some(id(index)));
        self.servers
            .iter()
            .enumerate()
            .any(|(index, server)| is_down(server) && is_owner(index))
    }

    /// Removes and returns the clients of servers that have neither a connection nor slots. A client has the
    /// time for two attempts to connect: a slot may be on its way to the server.
    pub(super) fn retire(&mut self, attempt_timeout: Duration) -> Vec<Arc<RedisStore>> {
        let owners = &self.owners;
        let mut retired = Vec::new();
        for (index, server) in self.servers.iter_mut().enumerate() {
            if !owners.contains(&Some(id(index))) {
                let is_down = |(store, since): &mut (Arc<RedisStore>, Instant)| {
                    !store.is_up() && since.elapsed() >= 2 * attempt_timeout
                };
                retired.extend(server.store.take_if(is_down).map(|(store, _)| store));
            }
        }
        retired
    }

    pub(super) fn listen(&mut self, channel: &Arc<str>) {
        self.channels.entry(Arc::clone(channel)).or_default();
    }

    /// Stores where the channel has been subscribed. Returns whether the channel is still wanted and that
    /// server has its slot.
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

    /// Removes the channel, and returns the client that listens to it, or that may do so soon.
    pub(super) fn unlisten(&mut self, channel: &str) -> Option<Arc<RedisStore>> {
        let at = self.channels.remove(channel)?.or(self.owners[slot_of(channel)])?;
        self.servers[index(at)].store().cloned()
    }

    /// The client that listens to the channel.
    pub(super) fn listening(&self, channel: &str) -> Option<Arc<RedisStore>> {
        let at = (*self.channels.get(channel)?)?;
        self.servers[index(at)].store().cloned()
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
        self.servers[index(id)].store()
    }
}

fn index(id: ServerId) -> usize {
    id.0 as usize
}

fn id(index: usize) -> ServerId {
    ServerId(u32::try_from(index).unwrap_or(u32::MAX))
}
