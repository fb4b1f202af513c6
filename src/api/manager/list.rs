//! The list of locks.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{iter, try_unfold};
use futures_util::{StreamExt, TryStreamExt};
use wildmatch::WildMatch;

use super::LockManager;
use crate::caller::place::Place;
use crate::engine::client::Client;
use crate::engine::operator::Labels;
use crate::engine::retry::until_answered;
use crate::protocol::keys::{Keys, LockId};
use crate::protocol::{Page, Position};
use crate::quorum::{majority_of, no_majority};
use crate::types::error::{Error, Invalid, Result};
use crate::types::permits::Gives;
use crate::types::status::{Listed, LockStream};

/// How many locks are inspected at the same time.
const CONCURRENT: usize = 32;

impl LockManager {
    /// Lists the locks of this manager's prefix that are held or waited for, and whose names match a pattern.
    /// In the pattern `*` stands for any number of characters, and `?` for one.
    ///
    /// The list is no snapshot: each lock is shown as it is when its turn comes, in no particular order. A
    /// lock may be listed twice, and is listed at least once if it is held or waited for all the time, unless
    /// its slot moves to another server of its cluster.
    ///
    /// The server looks through all keys of the database, on every master of a cluster, in steps of some
    /// tenths of a millisecond (`SCAN`). So this takes long if there are many keys, but no other call has to
    /// wait for it. Each lock that is found takes the calls of a [`status`](crate::Lock::status), but each
    /// client's label is asked for once.
    ///
    /// In a quorum, one server after the other is searched, until these are a majority. Each lock is listed
    /// once. Each server that is away takes a [`server_timeout`](crate::LockManagerBuilder::server_timeout).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pattern is empty, and otherwise as for [`status`](crate::Lock::status). If
    /// the search itself fails, no more locks are found after that error. If the status of one lock cannot be
    /// read, that error takes its place, and the list goes on.
    ///
    /// # Cancel safety
    /// Dropping the stream, or a future that waits for its next item, changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let _guard = locks.lock("invoice:42").acquire().await?;
    /// let mut invoices = locks.list("invoice:*");
    /// while let Some(lock) = invoices.next().await {
    ///     let lock = lock?;
    ///     let holder = lock.status.holder.and_then(|holder| holder.label);
    ///     println!("{} is held by {holder:?}, {} wait", lock.name, lock.status.waiting);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "scan")]
    #[doc(alias = "keys")]
    pub fn list(&self, pattern: &str) -> LockStream<Listed> {
        if pattern.is_empty() {
            let refused = Invalid::new("pattern \"\": must not be empty; \"*\" lists all locks");
            return LockStream::of(iter([Err(refused.into())]).boxed());
        }
        let (manager, labels) = (self.clone(), Arc::<Labels>::default());
        let pattern = WildMatch::new(pattern);
        // The servers of a quorum know the same locks.
        let mut seen = matches!(self.place(), Place::Quorum(_)).then(HashSet::new);
        let pages = try_unfold(Search::of(self.place()), async |search| {
            let client = Arc::clone(search.place.client());
            let next = pin!(search.next());
            let Some((keys, search)) = client.runtime.serves(next).await? else {
                return Ok::<_, Error>(None);
            };
            Ok(Some((iter(keys).map(Ok), search)))
        });
        let listed = pages
            .try_flatten()
            .try_filter_map(move |key| {
                let mut id = manager.id_of(&key).filter(|(_, name)| pattern.matches(name));
                if let Some(seen) = &mut seen {
                    id = id.filter(|id| seen.insert(id.clone()));
                }
                let (manager, labels) = (manager.clone(), Arc::clone(&labels));
                async move { Ok(id.map(|id| manager.inspect(id, labels))) }
            })
            .try_buffer_unordered(CONCURRENT)
            .try_filter_map(async |listed| Ok(listed));
        LockStream::of(listed.boxed())
    }

    /// Lists all of them, as [`list`](Self::list) does, and fails with the first error.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let _guard = locks.lock("invoice:42").acquire().await?;
    /// assert_eq!(locks.list_all("invoice:*").await?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn list_all(&self, pattern: &str) -> Result<Vec<Listed>> {
        self.list(pattern).try_collect().await
    }

    /// What the key says of its lock. Other hashes under the prefix are no locks.
    fn id_of(&self, key: &str) -> Option<LockId> {
        Some(Keys::of_lock_key(&self.place().client().options.prefix, key)?.id())
    }

    /// A lock that was released stays on the server for a while. It is not listed.
    async fn inspect(self, (kind, name): LockId, labels: Arc<Labels>) -> Result<Option<Listed>> {
        let status = self
            .handle(Gives::looked_at(kind), &name)
            .status_with(labels)
            .await?;
        let is_in_use = status.holder.is_some() || status.waiting > 0;
        Ok(is_in_use.then(|| Listed {
            name: name.to_string(),
            kind,
            status,
        }))
    }
}

/// A search through the keys of one server after the other. In a quorum it ends when a majority are searched,
/// since a lock that is held is held on one of those.
struct Search {
    place: Place,
    /// The servers that are still to be searched.
    clients: Vec<Arc<Client>>,
    /// How many of them have to be.
    wanted: usize,
    from: Position,
    errors: Vec<Error>,
}

impl Search {
    fn of(place: &Place) -> Search {
        let clients = place.clients();
        Search {
            place: place.clone(),
            wanted: majority_of(clients.len()),
            clients,
            from: Position::default(),
            errors: Vec::new(),
        }
    }

    /// The next keys, and where the search goes on.
    async fn next(mut self) -> Result<Option<(Vec<String>, Search)>> {
        self.place.client().check_open()?;
        self.place.start();
        while self.wanted > 0 {
            let Some(client) = self.clients.last() else {
                let servers = self.place.clients().len();
                return Err(match self.errors.pop() {
                    Some(error) if servers == 1 => error,
                    last => {
                        self.errors.extend(last);
                        no_majority(servers, servers - self.errors.len(), &self.errors)
                    }
                });
            };
            let from = self.from;
            let list = || client.store.list(&client.options.prefix, from);
            match until_answered(client, list).await {
                Ok((Page { keys, next }, _)) => {
                    if next.is_none() {
                        self.clients.pop();
                        self.wanted -= 1;
                    }
                    self.from = next.unwrap_or_default();
                    return Ok(Some((keys, self)));
                }
                Err(error) => {
                    self.errors.push(error);
                    self.clients.pop();
                    self.from = Position::default();
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::MemoryStore;
    use crate::tests::scripted_store::client;

    #[tokio::test(start_paused = true)]
    async fn many_locks_of_one_client_are_listed_without_many_waits_for_its_label() {
        const LOCKS: usize = 1000;
        let second = Duration::from_secs(1);
        let store = MemoryStore::new();
        let (others, _) = client(&store, &[]);
        let mut guards = Vec::new();
        for n in 0..LOCKS {
            guards.push(others.lock(n.to_string()).acquire().await.unwrap());
        }
        let (locks, seen) = client(&store, &[]);
        seen.answer_after(Duration::ZERO, second);
        let began = Instant::now();
        let listed: Vec<_> = locks.list("*").try_collect().await.unwrap();
        let took = began.elapsed();
        let named = listed
            .iter()
            .filter_map(|lock| lock.status.holder.as_ref()?.label.as_ref());
        let named = named.count();
        assert_eq!((listed.len(), seen.labels()), (LOCKS, 1));
        // Some locks are listed before the label is known. None waits for it once it is.
        assert!((1..LOCKS).contains(&named), "{named}");
        assert!(took <= second + second / 10, "{took:?}");
    }
}
