//! The first contact with a cluster.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;

use super::super::address::Node;
use super::super::connection::Connection;
use super::super::connector::Connector;
use super::super::dial::staggered;
use super::super::failure;
use super::slots::{Range, View, host_names, ranges};
use crate::protocol::interface::Failure;
use crate::protocol::script::PubSubMode;
use crate::types::error::ServerError;

/// How long one server has for its answer before the next one is asked too. While one answers at once, few
/// are asked.
pub(super) const STAGGER: Duration = Duration::from_millis(50);

/// Asks the seeds until one of them knows the cluster. Returns how scripts publish in it, and the owners of
/// the slots.
pub(super) async fn discover(connector: &Connector) -> Result<(PubSubMode, View), Failure> {
    let mut why = Failure::NotExecuted(ServerError::new("no server of the cluster is named"));
    let seeds = connector.seeds().iter();
    let asked = seeds.map(|seed| discover_by(connector, seed));
    let mut asked = pin!(staggered(asked, STAGGER));
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(discovered) => return Ok(discovered),
            // A refusal tells more than a silence.
            Err(failure) if !matches!(why, Failure::Refused(_)) => why = failure,
            Err(_) => {}
        }
    }
    Err(why)
}

async fn discover_by(connector: &Connector, seed: &Node) -> Result<(PubSubMode, View), Failure> {
    let connection = connector.at(seed).open_for_calls().await?;
    let view = view_of(connector, &connection, seed).await?;
    Ok((pubsub_mode_of(&connection).await?, view))
}

/// Asks a server for its view of the cluster, over a separate connection.
pub(super) async fn view_of(
    connector: &Connector,
    connection: &Connection,
    asked: &Node,
) -> Result<View, Failure> {
    let view = View {
        of: asked.clone(),
        ranges: slots_by(connector, connection, asked).await?,
    };
    if view.ranges.is_empty() {
        return Err(Failure::NotExecuted(ServerError::new(format!(
            "{asked}: no server of the cluster has any slot"
        ))));
    }
    Ok(view)
}

async fn slots_by(
    connector: &Connector,
    connection: &Connection,
    asked: &Node,
) -> Result<Vec<Range>, Failure> {
    let reply = connection.line().call(&["CLUSTER", "SLOTS"]).await;
    let reply = reply.map_err(|failure| {
        failure::with_advice(failure, |words| {
            let is_alone = words.contains("cluster support disabled");
            is_alone.then_some("this server is in no cluster: its URL begins with redis:// or rediss://")
        })
    })?;
    for (node, name) in host_names(&reply, asked) {
        connector.is_called(&node, name);
    }
    ranges(&reply, asked).ok_or_else(|| {
        Failure::Unknown(ServerError::new(format!(
            "{reply:?} as the reply to CLUSTER SLOTS"
        )))
    })
}

/// A master of a cluster.
#[cfg(feature = "diagnose")]
pub(in crate::servers::redis) struct SlotOwner {
    pub(in crate::servers::redis) master: Node,
    /// How many slots it has.
    pub(in crate::servers::redis) slots: usize,
    /// The first and the last slot of one of its ranges.
    pub(in crate::servers::redis) range: (usize, usize),
}

/// Asks a server for the masters of its cluster.
#[cfg(feature = "diagnose")]
pub(in crate::servers::redis) async fn owners_by(
    connector: &Connector,
    connection: &Connection,
    asked: &Node,
) -> Result<Vec<SlotOwner>, Failure> {
    let mut owners: Vec<SlotOwner> = Vec::new();
    for range in slots_by(connector, connection, asked).await? {
        let slots = range.last - range.first + 1;
        let master = &range.servers[0];
        match owners.iter_mut().find(|known| known.master == *master) {
            Some(known) => known.slots += slots,
            None => owners.push(SlotOwner {
                master: master.clone(),
                slots,
                range: (range.first, range.last),
            }),
        }
    }
    Ok(owners)
}

/// Shard channels exist since 7.0. Older servers do not know this command.
async fn pubsub_mode_of(connection: &Connection) -> Result<PubSubMode, Failure> {
    match connection.line().call(&["PUBSUB", "SHARDNUMSUB"]).await {
        Ok(_) => Ok(PubSubMode::Sharded),
        Err(Failure::Refused(error)) if failure::code_of(&error.to_string()) == Some("ERR") => {
            Ok(PubSubMode::Uncounted)
        }
        Err(failure) => Err(failure),
    }
}
