//! What an operator asks of one server: who holds a lock, and that it be taken away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::time::timeout;

use crate::engine::client::Client;
use crate::engine::retry::until_answered;
use crate::protocol::ids::ClientId;
use crate::protocol::keys::Keys;
use crate::protocol::{Answer, GetLabel, Inspect, Inspected, Release, ReleaseOutcome, ReleaseWhat};
use crate::sync::locked;
use crate::time::deadline::LeaseTerms;
use crate::time::server_time::ServerTime;
use crate::types::error::Result;
use crate::types::fence::Fence;
use crate::types::permits::Permits;
use crate::types::status::{Holder, Kind, Status};

/// A status waits for the label of the holder this much longer than it waited for the answer about the lock.
const LABEL_PATIENCE: Duration = Duration::from_millis(50);

/// A lock as its server sees it, or a majority of its servers.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Without the labels of the holders.
    pub(crate) status: Status,
    /// The clients of the holders.
    pub(crate) clients: Vec<ClientId>,
}

impl Seen {
    pub(crate) fn on_one(kind: Kind, answer: Answer<Inspected>) -> Seen {
        let Answer { at, reply, .. } = answer;
        let holders = reply.holders.into_iter().map(|holding| {
            let holder = Holder {
                label: None,
                held_for: held_for(holding.fence, at.now),
                ttl: holding.deadline.since(at.now),
                owner: holding.owner,
                fence: holding.fence,
                holds: holding.holds,
                kept: holding.kept,
                retains: holding.retains,
                permits: if kind == Kind::Semaphore {
                    holding.permits
                } else {
                    1
                },
                capacity: (kind == Kind::Semaphore).then_some(holding.of),
                slot: holding.slot,
                writes: kind == Kind::ReadWrite && holding.permits == Permits::WRITER.weight,
            };
            (holding.client, holder)
        });
        let (clients, holders): (_, Vec<_>) = holders.unzip();
        let writer = holders.iter().any(|holder| holder.writes);
        let newest = holders.iter().max_by_key(|holder| holder.fence);
        let in_use = |of| if kind == of { reply.in_use } else { 0 };
        Seen {
            status: Status {
                permits_in_use: in_use(Kind::Semaphore),
                capacity: newest.and_then(|holder| holder.capacity),
                readers: if writer { 0 } else { in_use(Kind::ReadWrite) },
                writer,
                holder: holders.first().cloned(),
                holders,
                waiting: reply.waiting,
                longest_wait: reply.first.map(|ticket| at.now.since(ticket.time())),
            },
            clients,
        }
    }
}

/// How long a lock has been held at this server time. Its fence is the server time of the grant in µs, unless
/// the clock was set back.
pub(crate) fn held_for(fence: Fence, now: ServerTime) -> Duration {
    now.since(ServerTime::from_ms(fence.get() / 1000))
}

pub(crate) async fn inspect(
    client: &Client,
    keys: &Arc<Keys>,
    terms: &LeaseTerms,
) -> Result<Answer<Inspected>> {
    let call = Inspect {
        keys: Arc::clone(keys),
        request: client.next_request(terms, None),
    };
    let (answer, _) = until_answered(client, || client.call(call.clone())).await?;
    Ok(answer)
}

/// Ends the hold with this fence. Returns whether there was one. In a quorum, the next grant has a fence of
/// `floor` at least.
pub(crate) async fn force_release(
    client: &Client,
    keys: &Arc<Keys>,
    terms: &LeaseTerms,
    fence: Fence,
    floor: Option<Fence>,
) -> Result<bool> {
    let mut call = Release {
        keys: Arc::clone(keys),
        request: client.next_request(terms, None),
        what: ReleaseWhat::Force { fence, from: 0 },
        floor,
    };
    let (mut released, mut unheard) = (false, false);
    loop {
        let (answer, unknown) = until_answered(client, || client.call(call.clone())).await?;
        let reply = answer.reply;
        released |= reply.outcome == ReleaseOutcome::Released;
        unheard |= unknown;
        if !reply.more && reply.searched.is_none() {
            // What an earlier attempt did, whose reply was lost, is this call's doing.
            return Ok(released || unheard && reply.outcome == ReleaseOutcome::Taken);
        }
        let from = reply.searched.unwrap_or_default();
        call.what = ReleaseWhat::Force { fence, from };
    }
}

/// The label of a client, at the first attempt.
pub(crate) fn label_of(asking: &Client, client: &ClientId) -> BoxFuture<'static, Option<String>> {
    let call = asking.store.call(GetLabel::of(&asking.options.prefix, client));
    Box::pin(async move { Some(call.await.ok()?.reply?.as_str().to_owned()) })
}

/// The labels of holders. Each client's label is asked for once, however many locks it holds.
#[derive(Default)]
pub(crate) struct Labels(Mutex<HashMap<ClientId, Shared<BoxFuture<'static, Option<String>>>>>);

impl Labels {
    /// The label of a client, which `ask` asks for. It may be on another server than the lock. The answer
    /// about the lock `took` this long; the label is missing if its own answer takes
    /// [much longer](LABEL_PATIENCE).
    pub(crate) async fn within(
        &self,
        took: Duration,
        client: &ClientId,
        ask: impl FnOnce() -> BoxFuture<'static, Option<String>>,
    ) -> Option<String> {
        let asked = {
            let mut labels = locked(&self.0);
            labels
                .entry(client.clone())
                .or_insert_with(|| ask().shared())
                .clone()
        };
        timeout(took + LABEL_PATIENCE, asked).await.ok().flatten()
    }
}
