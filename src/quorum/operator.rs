//! What an operator does with a lock of a quorum: look who holds it, and take it away.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::QuorumClient;
use super::answers::{Answers, next_until, stragglers_until};
use super::ballot::ballot_of;
use crate::engine::operator::{self, Seen};
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::{Answer, Inspected};
use crate::time::deadline::LeaseTerms;
use crate::time::server_time::ServerTime;
use crate::types::error::Result;
use crate::types::fence::Fence;
use crate::types::status::{Holder, Status};

/// The holds of one ballot on a majority of the servers.
struct SeenHolder {
    client: ClientId,
    holder: Holder,
    /// The server of each hold, and its fence there.
    fences: Vec<(usize, Fence)>,
}

/// What one server reported.
struct Told {
    server: usize,
    now: ServerTime,
    inspected: Inspected,
}

impl QuorumClient {
    /// Asks all servers who holds the lock. A lock that is held on too few of them has no holder.
    pub(crate) async fn inspect(&self, keys: &Arc<Keys>, terms: &LeaseTerms) -> Result<Seen> {
        let told = self.told(keys, terms).await?;
        let now = self.clocks.median_time();
        let seen = self.holder(&told);
        let (clients, holders): (Vec<_>, Vec<_>) =
            seen.map(|seen| (seen.client, seen.holder)).into_iter().unzip();
        Ok(Seen {
            status: Status {
                holder: holders.first().cloned(),
                permits_in_use: 0,
                capacity: None,
                readers: 0,
                writer: false,
                holders,
                waiting: told.iter().map(|told| told.inspected.waiting).max().unwrap_or(0),
                longest_wait: (told.iter())
                    .filter_map(|told| Some(now.since(told.inspected.first?.time())))
                    .max(),
            },
            clients,
        })
    }

    /// What a majority of the servers report, until it is certain who holds the lock.
    async fn told(&self, keys: &Arc<Keys>, terms: &LeaseTerms) -> Result<Vec<Told>> {
        let mut asked: FuturesUnordered<_> = (self.servers.iter().enumerate())
            .map(|(server, shared)| async move {
                let asked = operator::inspect(shared.client(), keys, terms).await;
                asked.map(|Answer { at, reply, .. }| Told {
                    server,
                    now: at.now,
                    inspected: reply,
                })
            })
            .collect();
        let mut answers = Answers::of(self);
        while let Some(told) = asked.next().await {
            match told {
                Ok(told) => answers.add(told),
                Err(error) => answers.fail(error),
            }
            let most = self.ballots(answers.so_far()).values().map(Vec::len).max();
            let most = most.unwrap_or_default();
            let is_certain = most >= self.majority() || most + answers.outstanding() < self.majority();
            if answers.are_majority() && is_certain {
                break;
            }
        }
        answers.of_majority()
    }

    /// The holds of each ballot.
    fn ballots<'a>(&self, told: &'a [Told]) -> HashMap<(&'a str, u64), Vec<&'a Told>> {
        let mut ballots: HashMap<_, Vec<_>> = HashMap::new();
        for told in told {
            let Some(holding) = told.inspected.holders.first() else {
                continue;
            };
            let request = RequestId::from_wire(holding.owner.as_str());
            let ballot = request.map_or(0, |request| ballot_of(request.number()));
            ballots
                .entry((holding.client.as_str(), ballot))
                .or_default()
                .push(told);
        }
        ballots
    }

    fn holder(&self, told: &[Told]) -> Option<SeenHolder> {
        let mut ballots = self.ballots(told).into_iter();
        let ((client, ballot), told) = ballots.find(|(_, told)| told.len() >= self.majority())?;
        let holds = told
            .iter()
            .filter_map(|told| Some((told, told.inspected.holders.first()?)));
        let fences: Vec<_> = holds
            .clone()
            .map(|(told, hold)| (told.server, hold.fence))
            .collect();
        let has_majority = |fence: &Fence| {
            let same = fences.iter().filter(|(_, other)| other == fence);
            same.count() >= self.majority()
        };
        let smallest = fences.iter().map(|(_, fence)| *fence).min()?;
        let agreed = fences.iter().map(|(_, fence)| *fence).find(has_majority);
        let mut ttls: Vec<_> = holds.map(|(told, hold)| hold.deadline.since(told.now)).collect();
        ttls.sort_unstable();
        let client = ClientId::from_wire(client);
        let fence = agreed.unwrap_or(smallest);
        let holder = Holder {
            label: None,
            owner: self.owner_of(&client, ballot),
            fence,
            holds: 1,
            held_for: operator::held_for(fence, self.clocks.latest_time()),
            ttl: ttls[ttls.len() - self.majority()],
            kept: false,
            retains: false,
            permits: 1,
            capacity: None,
            slot: None,
            writes: false,
        };
        Some(SeenHolder {
            client,
            holder,
            fences,
        })
    }

    /// Takes the lock away from the holder with this fence. Returns whether the
    /// servers that did not are too few for a majority.
    pub(crate) async fn force_release(
        &self,
        keys: &Arc<Keys>,
        terms: &LeaseTerms,
        fence: Fence,
    ) -> Result<bool> {
        let told = self.told(keys, terms).await?;
        let Some(seen) = (self.holder(&told)).filter(|seen| seen.holder.fence == fence) else {
            return Ok(false);
        };
        let floor = Some(self.clocks.floor()?);
        let mut forced: FuturesUnordered<_> = (self.servers.iter().enumerate())
            .map(|(server, shared)| {
                let (client, keys, terms) = (Arc::clone(shared.client()), Arc::clone(keys), *terms);
                // A server that has not told may have a hold under the same fence. It ends now, and not only
                // when the holder hears that it has lost the lock.
                let told = seen.fences.iter().find(|(told, _)| *told == server);
                let fence = told.map_or(fence, |(_, fence)| *fence);
                let has_told = told.is_some();
                async move {
                    let forced = operator::force_release(&client, &keys, &terms, fence, floor).await;
                    (has_told, forced)
                }
            })
            .collect();
        let mut answers = Answers::of(self);
        let (mut released, mut left) = (0, seen.fences.len());
        let began = Instant::now();
        let mut until = None;
        while let Some((has_told, answer)) = next_until(&mut forced, until).await {
            left -= usize::from(has_told);
            match answer {
                Ok(was_held) => {
                    released += usize::from(was_held);
                    if was_held || has_told {
                        answers.add(());
                    }
                }
                Err(error) => answers.fail(error),
            }
            if left == 0 {
                until.get_or_insert_with(|| stragglers_until(began));
            }
        }
        self.client()
            .spawn(async move { while forced.next().await.is_some() {} });
        let is_over = self.servers.len() - released < self.majority();
        if !is_over {
            answers.of_majority()?;
        }
        Ok(is_over)
    }

    /// The label of a client, from the first server that knows it.
    pub(crate) fn label_of(&self, client: &ClientId) -> BoxFuture<'static, Option<String>> {
        let asked: FuturesUnordered<_> = (self.servers.iter())
            .map(|shared| operator::label_of(shared.client(), client))
            .collect();
        Box::pin(async move {
            let mut known = pin!(asked.filter_map(std::future::ready));
            known.next().await
        })
    }

    /// Returns when a majority of the servers have answered.
    pub(crate) async fn ping(&self) -> Result<()> {
        let mut asked: FuturesUnordered<_> = (self.servers.iter())
            .map(|shared| async { shared.client().store.time().await })
            .collect();
        let mut answers = Answers::of(self);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(_) => answers.add(()),
                Err(failure) => answers.fail(failure.into()),
            }
            if answers.are_majority() {
                break;
            }
        }
        answers.of_majority().map(drop)
    }
}
