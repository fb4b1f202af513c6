//! Work that is done while a lock is held.

use std::time::Duration;

use super::{Bound, Lock};
use crate::error::Result;
use crate::fence::Fence;

impl Lock {
    /// Waits for the lock, runs the work, and releases the lock.
    ///
    /// The work gets the fencing token. If the lease is lost, the work is dropped, as by
    /// [`LockGuard::run`](crate::LockGuard::run). The future does not borrow the lock, so it can be spawned.
    /// It takes its place in the queue when it is first polled.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), and [`Error::Lost`](crate::Error::Lost) if the work was stopped, or
    /// if the lease no longer covered its end. The work's own result stays nested, as with
    /// `tokio::time::timeout`.
    ///
    /// The result of work that is done waits for the server for 10 ms at most. A release that is confirmed
    /// later goes on by itself, and a failure of it is reported at WARN alone. Await
    /// [`LockManager::close`](crate::LockManager::close) before the program ends, so that nothing is cut off.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn settle(_account: u32, _fence: fairlock::Fence) {}
    /// use tokio::task::JoinSet;
    ///
    /// let mut set = JoinSet::new();
    /// for account in [1, 2, 3] {
    ///     let lock = locks.lock(format!("account:{account}"));
    ///     set.spawn(lock.with(async move |fence| settle(account, fence).await));
    /// }
    /// for settled in set.join_all().await {
    ///     settled?;
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "synchronized")]
    pub fn with<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        self.clone().run_within(Bound::None, work)
    }

    /// Does the same as [`with`](Self::with), and waits for the lock for `wait` at most. The work itself has
    /// no time limit.
    ///
    /// # Errors
    /// As for [`acquire_timeout`](Self::acquire_timeout) and [`with`](Self::with).
    ///
    /// # Cancel safety
    /// As for [`with`](Self::with).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// # async fn charge(_fence: fairlock::Fence) -> u32 { 7 }
    /// use std::time::Duration;
    ///
    /// let receipt = lock.with_timeout(Duration::from_secs(2), charge).await?;
    /// assert_eq!(receipt, 7);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "synchronized")]
    pub fn with_timeout<F, W>(
        &self,
        wait: Duration,
        work: F,
    ) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        self.clone().run_within(Bound::Within(wait), work)
    }

    async fn run_within<F, W>(self, bound: Bound, work: F) -> Result<W::Output>
    where
        F: FnOnce(Fence) -> W,
        W: Future,
    {
        let guard = self.acquire_within(bound).await?;
        let output = guard.run(work(guard.fence())).await?;
        guard.check()?;
        guard.release_after_work().await?;
        Ok(output)
    }
}
