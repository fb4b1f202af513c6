//! The task of a cluster's client. It learns the owners of the slots, and moves the subscriptions of the
//! channels.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::super::address::Node;
use super::super::commands::Command;
use super::super::slot::slot_of;
use super::discovery::slots_by;
use super::slots::{Range, ranges};
use super::table::Misplaced;
use super::{Cluster, look_every};
use crate::store::{Listener, ServerId, Store};

/// The pause between two attempts after a failure. It is short at first, because a failover takes only
/// seconds.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

/// Runs until it is aborted.
pub(super) async fn watch(cluster: Arc<Cluster>) {
    let mut turn = 0;
    loop {
        // No server tells a waiter that its slot has moved and its subscription has ended. Until the client
        // asks, it hears of no hand-over. After three such intervals, hand-overs pass it over.
        let _ = timeout(look_every(cluster.options), cluster.stale.notified()).await;
        let mut pause = SHORTEST;
        loop {
            turn += 1;
            let learnt = cluster.learn(turn).await;
            let in_place = cluster.resubscribe_moved().await;
            if learnt && in_place && !cluster.table().misses_an_owner() {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
        }
        // Each call that fails asks for this, and while a server takes no writes, many fail.
        sleep(SHORTEST).await;
    }
}

impl Cluster {
    /// Asks one server after another for the owners of the slots. Each call starts with another server,
    /// because a server that is cut off keeps its outdated view. Returns whether any server answered.
    async fn learn(&self, turn: usize) -> bool {
        let Some(ranges) = self.ask_around(turn).await else {
            return false;
        };
        let retired = {
            let mut table = self.table();
            table.apply_slots(&ranges);
            table.retire(self.options.attempt_timeout)
        };
        for store in retired {
            store.close();
        }
        true
    }

    async fn ask_around(&self, turn: usize) -> Option<Vec<Range>> {
        let mut stores = self.table().stores();
        stores.retain(|store| store.is_up());
        let first = turn % stores.len().max(1);
        stores.rotate_left(first);
        for store in stores {
            let asked = self.address(store.id);
            let response = Arc::clone(store.pipeline()).call(Command::slots).await;
            let ranges = response.ok().and_then(|response| ranges(&response.value, &asked));
            if let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty()) {
                return Some(ranges);
            }
        }
        for address in self.others() {
            if let Some(ranges) = self.ask(&address).await {
                return Some(ranges);
            }
        }
        None
    }

    /// The servers to ask if no connected server answers: first those in the URL, then the others. Of these,
    /// the most recent one is the most likely to exist still.
    pub(super) fn others(&self) -> Vec<Node> {
        let mut others = self.connector.seeds().to_vec();
        others.extend(self.table().addresses().into_iter().rev());
        others
    }

    async fn ask(&self, address: &Node) -> Option<Vec<Range>> {
        let connection = self.connector.at(address).open().await.ok()?;
        let ranges = slots_by(&connection, address).await.ok()?;
        (!ranges.is_empty()).then_some(ranges)
    }

    /// Moves the subscriptions of channels whose slots have moved, and makes all waiters at the new servers
    /// ask again. Returns whether all subscriptions are in place.
    async fn resubscribe_moved(self: &Arc<Self>) -> bool {
        let astray = self.table().astray();
        let moves = astray
            .into_iter()
            .map(|astray| Arc::clone(self).resubscribe(astray));
        let moved: Vec<Option<ServerId>> = join_all(moves).await;
        let in_place = moved.iter().all(Option::is_some);
        let servers: BTreeSet<u32> = moved.iter().flatten().map(|server| server.0).collect();
        for server in servers {
            self.reconnected(ServerId(server));
        }
        in_place
    }

    /// Returns the server at which the channel is now subscribed.
    async fn resubscribe(self: Arc<Self>, Misplaced { channel, at }: Misplaced) -> Option<ServerId> {
        let former = self.table().store_at(at).cloned();
        if let Some(former) = former {
            self.leave(&former, &channel);
        }
        let slot = slot_of(&channel);
        Arc::clone(&self).subscribe(channel).await.ok()?;
        self.table().owner(slot)
    }
}
