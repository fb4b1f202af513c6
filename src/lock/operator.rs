//! What an operator does with a lock: look who holds it, and take it away.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Lock, Place};
use crate::engine::client::Client;
use crate::engine::operator::{self, Labels};
use crate::error::Result;
use crate::fence::Fence;
use crate::quorum::{Quorum, Seen};
use crate::status::{Holder, Status};
use crate::store::Inspected;
use crate::store::keys::Keys;
use crate::time::deadline::LeaseTerms;
use crate::time::server_time::ServerTime;

impl Lock {
    /// Returns the holder of the lock, if there is one, and how many requests wait. If there is a holder, a
    /// second call asks for its label, for at most 50 ms longer than the first one took.
    /// [`LockManager::list`](crate::LockManager::list) does this for many locks.
    ///
    /// In a quorum, the holder is the client with holds on a majority of the servers. There is none while
    /// several clients have a minority each.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) (in a quorum
    /// [`Error::NoQuorum`](crate::Error::NoQuorum)), [`Error::Refused`](crate::Error::Refused),
    /// [`Error::Invalid`](crate::Error::Invalid) or [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let _guard = lock.acquire().await?;
    /// let status = lock.status().await?;
    /// if let Some(holder) = status.holder {
    ///     println!("held by {:?} for {:?}, {} wait", holder.label, holder.held_for, status.waiting);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "is_locked")]
    #[doc(alias = "who")]
    pub fn status(&self) -> impl Future<Output = Result<Status>> + Send + use<> {
        self.status_with(Arc::default())
    }

    /// The status of one of several locks, whose holders may be the same clients.
    pub(crate) fn status_with(
        &self,
        labels: Arc<Labels>,
    ) -> impl Future<Output = Result<Status>> + Send + use<> {
        let lock = self.clone();
        async move {
            let (keys, terms, _) = lock.open()?;
            let asking = pin!(async {
                match lock.place() {
                    Place::One(shared) => status_of_one(shared.client(), &keys, &terms, &labels).await,
                    Place::Quorum(quorum) => Box::pin(status_of_quorum(quorum, &keys, &terms, &labels)).await,
                }
            });
            lock.client().runtime.serves(asking).await
        }
    }

    /// Takes the lock away from the holder with this fence, and hands it to the next waiter. Returns whether
    /// the lock was held under that fence.
    ///
    /// [`status`](Self::status) shows the fence of the holder. Because of it, a repeated call never takes the
    /// lock from the next holder. The former holder learns of its loss at its next renewal, so until then
    /// both may believe that they hold the lock. With a [fixed lease](Self::fixed_lease), it learns of it
    /// when the lease ends.
    ///
    /// In a quorum the call ends the holds on all servers, and waits for the servers that showed this holder.
    /// It returns `true` if too few are left for the holder to keep the lock.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) (in a quorum
    /// [`Error::NoQuorum`](crate::Error::NoQuorum)), [`Error::Refused`](crate::Error::Refused),
    /// [`Error::Invalid`](crate::Error::Invalid) or [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// If the future is dropped midway, the lock may or may not have been released.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let stuck = lock.acquire().await?;
    /// if let Some(holder) = lock.status().await?.holder {
    ///     assert!(lock.force_release(holder.fence).await?);
    ///     assert!(!lock.force_release(holder.fence).await?); // no longer the holder's fence
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "force_unlock")]
    pub fn force_release(&self, fence: Fence) -> impl Future<Output = Result<bool>> + Send + use<> {
        let lock = self.clone();
        async move {
            let (keys, terms, _) = lock.open()?;
            let releasing = pin!(async {
                match lock.place() {
                    Place::One(shared) => {
                        operator::force_release(shared.client(), &keys, &terms, fence, None).await
                    }
                    Place::Quorum(quorum) => Box::pin(quorum.force_release(&keys, &terms, fence)).await,
                }
            });
            lock.client().runtime.serves(releasing).await
        }
    }
}

async fn status_of_one(
    client: &Client,
    keys: &Arc<Keys>,
    terms: &LeaseTerms,
    labels: &Labels,
) -> Result<Status> {
    let began = Instant::now();
    let answer = operator::inspect(client, keys, terms).await?;
    let took = began.elapsed();
    let Inspected {
        holder,
        waiting,
        first,
    } = answer.reply;
    let holder = match holder {
        Some(holding) => Some(Holder {
            label: labels
                .within(took, &holding.client, || {
                    operator::label_of(client, &holding.client)
                })
                .await,
            held_for: held_for(holding.fence, answer.at.now),
            ttl: holding.deadline.since(answer.at.now),
            owner: holding.owner,
            fence: holding.fence,
            holds: holding.holds,
            kept: holding.kept,
        }),
        None => None,
    };
    Ok(Status {
        holder,
        waiting,
        longest_wait: first.map(|ticket| answer.at.now.since(ticket.time())),
    })
}

async fn status_of_quorum(
    quorum: &Quorum,
    keys: &Arc<Keys>,
    terms: &LeaseTerms,
    labels: &Labels,
) -> Result<Status> {
    let began = Instant::now();
    let Seen {
        holder,
        waiting,
        longest_wait,
    } = quorum.inspect(keys, terms).await?;
    let took = began.elapsed();
    let holder = match holder {
        Some(seen) => Some(Holder {
            label: labels
                .within(took, &seen.client, || quorum.label_of(&seen.client))
                .await,
            held_for: held_for(seen.fence, seen.now),
            ttl: seen.ttl,
            owner: seen.owner,
            fence: seen.fence,
            holds: 1,
            kept: false,
        }),
        None => None,
    };
    Ok(Status {
        holder,
        waiting,
        longest_wait,
    })
}

/// How long a lock has been held at this server time. Its fence is the server time of the grant in µs, unless
/// the clock was set back.
fn held_for(fence: Fence, now: ServerTime) -> Duration {
    now.since(ServerTime::from_ms(fence.get() / 1000))
}
