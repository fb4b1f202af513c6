//! The list of locks.

use std::sync::Arc;

use futures_util::stream::{BoxStream, iter, try_unfold};
use futures_util::{StreamExt, TryStreamExt};
use wildmatch::WildMatch;

use super::LockManager;
use crate::engine::retry::until_answered;
use crate::error::{Error, Invalid, Result};
use crate::status::Listed;
use crate::store::keys::Keys;
use crate::store::{Page, Position};

/// How many locks are inspected at the same time.
const CONCURRENT: usize = 32;

impl LockManager {
    /// Lists the locks of this manager's prefix that are held or waited for, and whose names match a pattern.
    /// In the pattern `*` stands for any number of characters, and `?` for one.
    ///
    /// The methods of a stream are in crates of their own: `cargo add futures-util`, or `tokio-stream`.
    ///
    /// The list is no snapshot: each lock is shown as it is when its turn comes, in no particular order. A lock
    /// may be listed twice, and is listed at least once if it is held or waited for all the time, unless its
    /// slot moves to another server of its cluster.
    ///
    /// The server looks through all keys of the database, on every master of a cluster, in steps of some
    /// tenths of a millisecond (`SCAN`). So this takes long if there are many keys, but no other call has to
    /// wait for it. Each lock that is found takes the calls of a [`status`](crate::Lock::status).
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
    /// use futures_util::TryStreamExt;
    ///
    /// let _guard = locks.lock("invoice:42").acquire().await?;
    /// let mut invoices = locks.list("invoice:*");
    /// while let Some(lock) = invoices.try_next().await? {
    ///     let holder = lock.status.holder.and_then(|holder| holder.label);
    ///     println!("{} is held by {holder:?}, {} wait", lock.name, lock.status.waiting);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "scan")]
    #[doc(alias = "keys")]
    pub fn list(&self, pattern: &str) -> BoxStream<'static, Result<Listed>> {
        if pattern.is_empty() {
            let refused = Invalid::new("pattern \"\": must not be empty; \"*\" lists all locks");
            return iter([Err(refused.into())]).boxed();
        }
        let (paging, inspecting) = (self.clone(), self.clone());
        let pattern = WildMatch::new(pattern);
        let pages = try_unfold(Some(Position::default()), move |from| {
            let manager = paging.clone();
            async move {
                let Some(from) = from else {
                    return Ok::<_, Error>(None);
                };
                let Page { keys, next } = manager.page(from).await?;
                Ok(Some((iter(keys).map(Ok), next)))
            }
        });
        pages
            .try_flatten()
            .try_filter_map(move |key| {
                let name = inspecting.name_of(&key).filter(|name| pattern.matches(name));
                let manager = inspecting.clone();
                async move { Ok(name.map(|name| manager.inspect(name))) }
            })
            .try_buffer_unordered(CONCURRENT)
            .try_filter_map(async |listed| Ok(listed))
            .boxed()
    }

    async fn page(&self, from: Position) -> Result<Page> {
        let client = self.shared.client();
        client.check_open()?;
        self.shared.start()?;
        let list = || client.store.list(&client.options.prefix, from);
        let (page, _) = until_answered(client, list).await?;
        Ok(page)
    }

    /// The name of the lock with this key. Other hashes under the prefix are no locks.
    fn name_of(&self, key: &str) -> Option<Arc<str>> {
        Some(Keys::of_lock_key(&self.shared.client().options.prefix, key)?.name)
    }

    /// A lock that was released stays on the server for a while. It is not listed.
    async fn inspect(self, name: Arc<str>) -> Result<Option<Listed>> {
        let status = self.lock(&name).status().await?;
        let is_in_use = status.holder.is_some() || status.waiting > 0;
        Ok(is_in_use.then(|| Listed {
            name: name.to_string(),
            status,
        }))
    }
}
