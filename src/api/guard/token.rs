//! A token of a hold: what tasks watch, and what does not keep the lock.

use std::fmt;
use std::sync::Arc;

use super::unless_lost;
use crate::engine::any_hold::Watched;
use crate::engine::client::Client;
use crate::types::error::{HoldEnd, Lost, Result};
use crate::types::fence::Fence;

/// A token of a lock that is held. It tells the tasks that have it when the hold has ended.
///
/// It is cheap to clone, and can be moved to other tasks. It does not keep the lock: the hold ends when the
/// [`LockGuard`](crate::LockGuard) is released or dropped, or when its lease is lost.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::HoldEnd;
///
/// let guard = locks.lock("invoice:42").acquire().await?;
/// let token = guard.token();
/// assert!(token.check().is_ok());
/// drop(guard);
/// assert_eq!(token.lost().await, HoldEnd::Released);
/// # Ok(()) }
/// ```
#[doc(alias = "CancellationToken")]
#[derive(Clone)]
pub struct HoldToken {
    pub(super) name: Arc<str>,
    pub(super) fence: Fence,
    pub(super) hold: Arc<dyn Watched>,
    pub(super) client: Arc<Client>,
}

impl HoldToken {
    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fencing token, for the resource to check. It is larger than that of every hold before.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Checks by the local clock, without I/O, that the lock is held. Call it right before a step that only
    /// the holder may do.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the hold has ended.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// let token = guard.token();
    /// token.check()?; // right before the step
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<()> {
        Ok(self.hold.check()?)
    }

    /// Waits until the hold ends, whatever the network does, and returns how it ended. The future borrows
    /// nothing.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// let ended = tokio::spawn(guard.token().lost());
    /// guard.release().await?;
    /// println!("{}", ended.await.unwrap());
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = HoldEnd> + Send + use<> {
        let over = self.clone().over();
        async move { over.await.reason }
    }

    pub(crate) async fn over(self) -> Lost {
        let over = self.hold.lost();
        self.client.runtime.serves(over).await
    }

    /// Runs `work` for as long as the hold lasts. When it ends, `work` is dropped at its next `.await`. The
    /// future can be spawned, so tasks of the holder end with its hold.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the hold ended before `work` did, also by a release.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`, which must itself be cancel-safe. The lock stays held.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// let task = tokio::spawn(guard.token().run(std::future::pending::<()>()));
    /// guard.release().await?;
    /// assert!(task.await.unwrap().is_err()); // it ended with the hold
    /// # Ok(()) }
    /// ```
    pub fn run<W: Future>(&self, work: W) -> impl Future<Output = Result<W::Output>> + use<W> {
        let token = self.clone();
        async move {
            token.client.runtime.check();
            unless_lost(token.over(), work).await
        }
    }
}

impl fmt::Debug for HoldToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldToken")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .field("over", &self.check().err())
            .finish()
    }
}
