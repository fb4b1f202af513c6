//! The task of a cluster's client. It learns the owners of the slots, and moves the subscriptions of the
//! channels.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::super::address::Node;
use super::super::commands::RedisCommand;
use super::super::dial::staggered;
use super::super::failure;
use super::super::outage::Outage;
use super::super::slot::slot_of;
use super::discovery::{STAGGER, discover, view_of};
use super::slots::{View, ranges};
use super::table::Misplaced;
use super::{Cluster, look_every};
use crate::protocol::interface::Connections;
use crate::protocol::interface::{Listener, ServerId};
use crate::servers::redis::server::RedisStore;
use crate::time::backoff::Backoff;

/// The pause between two attempts after a failure. It is short at first, because a failover takes only
/// seconds.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_millis(500);

/// Runs until it is aborted.
pub(super) async fn watch(cluster: Arc<Cluster>) {
    cluster.meet().await;
    let mut turn = 0;
    loop {
        // Before 7.0, no server tells a waiter that its slot has moved. Until the client asks, it may hear of
        // no hand-over. After three such intervals, hand-overs pass it over.
        let _ = timeout(look_every(cluster.options), cluster.stale.notified()).await;
        let mut pause = SHORTEST;
        loop {
            turn += 1;
            let learnt = cluster.learn(turn).await;
            let in_place = cluster.resubscribe_moved().await;
            let is_waited_for = cluster.held_back.count() > 0;
            if learnt && in_place && !is_waited_for && !cluster.table().misses_an_owner() {
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
    /// Asks the seeds until one of them knows the cluster.
    async fn meet(&self) {
        let mut backoff = Backoff::at_once();
        let mut outage = Outage::begin(self.options.server_timeout);
        while self.table().unmet().is_some() {
            backoff.pause().await;
            let met = discover(&self.connector).await;
            if let Err(failure) = &met {
                outage.goes_on(self.connector.server(), failure);
            }
            self.table().meet(met.map_err(failure::not_sent));
            self.learnt.notify_waiters();
        }
    }

    /// Asks the servers for the owners of the slots until one answers. Each call starts with another server,
    /// because a server that is cut off keeps its outdated view. Returns whether any server answered.
    pub(super) async fn learn(&self, turn: usize) -> bool {
        let view = self.ask_around(turn).await;
        let retired = {
            let mut table = self.table();
            if let Some(view) = &view {
                table.apply(view);
            }
            table.retire(self.options.attempt_timeout)
        };
        self.learnt.notify_waiters();
        for store in retired {
            store.close();
        }
        view.is_some()
    }

    async fn ask_around(&self, turn: usize) -> Option<View> {
        let mut stores = self.table().stores();
        stores.retain(|store| store.is_up());
        let first = turn % stores.len().max(1);
        stores.rotate_left(first);
        let asked = stores.iter().map(|store| self.view_by(store));
        let mut asked = pin!(staggered(asked, STAGGER));
        while let Some(answer) = asked.next().await {
            if answer.is_some() {
                return answer;
            }
        }
        self.ask_others().await
    }

    /// The view of a server that is connected.
    async fn view_by(&self, store: &RedisStore) -> Option<View> {
        let of = self.address(store.id);
        let response = Arc::clone(store.pipeline())
            .call(RedisCommand::slots())
            .await
            .ok()?;
        let ranges = ranges(&response.value, &of).filter(|ranges| !ranges.is_empty())?;
        Some(View { of, ranges })
    }

    /// Asks over separate connections, each server again and again, until one answers. After two attempts,
    /// other servers may be connected.
    async fn ask_others(&self) -> Option<View> {
        let others = self.others();
        let asked = others.iter().map(|address| self.ask(address));
        let mut asked = pin!(staggered(asked, STAGGER));
        let answer = timeout(2 * self.options.attempt_timeout, asked.next());
        answer.await.ok().flatten()
    }

    /// The servers to ask if no connected server answers: first those in the URL, then the others. Addresses
    /// that the cluster no longer names are not among them, because they may be silent for ever.
    pub(super) fn others(&self) -> Vec<Node> {
        let mut others = self.connector.seeds().to_vec();
        for known in self.table().known() {
            if !others.contains(&known) {
                others.push(known);
            }
        }
        others
    }

    async fn ask(&self, address: &Node) -> View {
        let mut pause = SHORTEST;
        loop {
            let connector = self.connector.at(address);
            if let Ok(connection) = connector.open_for_calls().await {
                if let Ok(view) = view_of(&connector, &connection, address).await {
                    return view;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Moves the subscriptions of channels whose slots have moved, and makes all waiters at the new servers
    /// ask again. Returns whether all subscriptions are in place.
    async fn resubscribe_moved(self: &Arc<Self>) -> bool {
        let misplaced = self.table().misplaced();
        let moves = misplaced
            .into_iter()
            .map(|misplaced| Arc::clone(self).resubscribe(misplaced));
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
        let former = at.and_then(|at| self.table().store_at(at).cloned());
        if let Some(former) = former {
            self.leave(&former, &channel);
        }
        let slot = slot_of(&channel);
        Arc::clone(&self).subscribe(channel).await.ok()?;
        self.table().owner(slot)
    }
}
