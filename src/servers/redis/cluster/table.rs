//! The known state of a cluster: its servers, the owners of its slots, and the channels in use.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::address::Node;
use super::super::server::RedisStore;
use super::super::slot::{SLOTS, slot_of};
use super::slots::View;
use crate::protocol::interface::{Failure, ServerId};
use crate::protocol::script::PubSubMode;
use crate::types::error::ServerError;

pub(super) struct Table {
    /// The servers by id. No entry is ever removed, so a server that returns still has its id.
    servers: Vec<Server>,
    /// The servers in the last view of the cluster, and the one whose view it is.
    view: BTreeSet<ServerId>,
    /// The owners by slot.
    owners: Vec<Option<ServerId>>,
    /// When slots moved to their present owners, or were served by nobody, if that was recently.
    moved: HashMap<usize, Instant>,
    /// The time within which subscribers follow a slot.
    settling: Duration,
    /// Where the channels are subscribed, by their slots.
    channels: HashMap<usize, HashMap<Arc<str>, Subscribed>>,
    /// How scripts publish in this cluster, or why no server has reported that yet.
    met: Result<PubSubMode, Failure>,
}

/// Where a channel is subscribed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Subscribed {
    /// Nowhere yet. The caller subscribes.
    #[default]
    Asked,
    At(ServerId),
    /// Nowhere any more, because its slot has left the server.
    Left,
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

/// A channel that is not subscribed at the server that has its slot.
pub(super) struct Misplaced {
    pub(super) channel: Arc<str>,
    /// The server at which it is subscribed, if any.
    pub(super) at: Option<ServerId>,
}

impl Table {
    pub(super) fn new(settling: Duration) -> Table {
        let unheard = ServerError::new("no server of the cluster answers");
        Table {
            servers: Vec::new(),
            view: BTreeSet::new(),
            owners: vec![None; SLOTS],
            moved: HashMap::new(),
            settling,
            channels: HashMap::new(),
            met: Err(Failure::NotExecuted(unheard)),
        }
    }

    /// Stores what the first server to answer has reported of the cluster, or why none has.
    pub(super) fn meet(&mut self, met: Result<(PubSubMode, View), Failure>) {
        self.met = met.map(|(pubsub_mode, view)| {
            self.apply(&view);
            pubsub_mode
        });
    }

    /// Why nothing is known of the cluster yet.
    pub(super) fn unmet(&self) -> Option<&Failure> {
        self.met.as_ref().err()
    }

    /// How scripts publish. Before that is known, no server is, to which a script could be sent.
    pub(super) fn pubsub_mode(&self) -> PubSubMode {
        *self.met.as_ref().unwrap_or(&PubSubMode::Uncounted)
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

    /// The server that has the slot, or had it last.
    pub(super) fn owner(&self, slot: usize) -> Option<ServerId> {
        self.owners[slot]
    }

    /// The server with the least id that has slots and is not before `from`.
    pub(super) fn first_owner(&self, from: ServerId) -> Option<ServerId> {
        let owners = self.owners.iter().copied().flatten();
        owners.filter(|owner| *owner >= from).min()
    }

    /// Stores the owner of a slot that another server named.
    pub(super) fn set_owner(&mut self, slot: usize, owner: &Node) {
        let owner = self.id_of(owner);
        self.give(slot, owner);
    }

    fn give(&mut self, slot: usize, owner: ServerId) {
        let former = self.owners[slot].replace(owner);
        if former.is_some_and(|former| former != owner) {
            self.unsettle(slot);
        }
    }

    /// Subscribers may not be where the slot is. A server that gives up a slot ends the subscriptions to its
    /// channels.
    pub(super) fn unsettle(&mut self, slot: usize) {
        self.moved.insert(slot, Instant::now());
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

    fn place(&mut self, channel: &str) -> Option<&mut Subscribed> {
        self.channels.get_mut(&slot_of(channel))?.get_mut(channel)
    }

    pub(super) fn listen(&mut self, channel: &Arc<str>) {
        let channels = self.channels.entry(slot_of(channel)).or_default();
        channels.entry(Arc::clone(channel)).or_default();
    }

    /// Stores where the channel has been subscribed. Returns whether the channel is still wanted and that
    /// server has its slot.
    pub(super) fn subscribed(&mut self, channel: &Arc<str>, at: ServerId) -> bool {
        let is_served_there = self.owner(slot_of(channel)) == Some(at);
        match self.place(channel) {
            Some(place) => *place = Subscribed::At(at),
            None => return false,
        }
        is_served_there
    }

    pub(super) fn is_wanted(&self, channel: &str) -> bool {
        let channels = self.channels.get(&slot_of(channel));
        channels.is_some_and(|channels| channels.contains_key(channel))
    }

    /// Stores that this server has no subscription to the channel any more.
    pub(super) fn left(&mut self, server: ServerId, channel: &str) {
        let place = self.place(channel);
        if let Some(place) = place.filter(|place| **place == Subscribed::At(server)) {
            *place = Subscribed::Left;
        }
    }

    /// Removes the channel, and returns the client that listens to it, or that may do so soon.
    pub(super) fn unlisten(&mut self, channel: &str) -> Option<Arc<RedisStore>> {
        let slot = slot_of(channel);
        let channels = self.channels.get_mut(&slot)?;
        let place = channels.remove(channel)?;
        if channels.is_empty() {
            self.channels.remove(&slot);
        }
        let at = match place {
            Subscribed::At(at) => at,
            Subscribed::Asked | Subscribed::Left => self.owner(slot)?,
        };
        self.store_at(at).cloned()
    }

    /// The channels that are not subscribed at the servers that have their slots.
    pub(super) fn misplaced(&self) -> Vec<Misplaced> {
        let mut misplaced = Vec::new();
        for (slot, channels) in &self.channels {
            let Some(owner) = self.owner(*slot) else {
                continue;
            };
            for (channel, place) in channels {
                let at = match *place {
                    Subscribed::At(at) if at != owner => Some(at),
                    Subscribed::Left => None,
                    Subscribed::At(_) | Subscribed::Asked => continue,
                };
                let channel = Arc::clone(channel);
                misplaced.push(Misplaced { channel, at });
            }
        }
        misplaced
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
