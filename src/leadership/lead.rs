//! Being the leader: what resigns when it is dropped, and what tasks watch.

use std::fmt;
use std::sync::Arc;

use crate::error::{Lost, Result};
use crate::fence::Fence;
use crate::guard::Watched;
use crate::guard::{LockGuard, unless_lost};
use crate::lease::Lease;

/// The lead: this process is the leader until it resigns, until the lead is dropped, or until its lease is
/// lost.
///
/// While it lives, its lease is renewed in the background. [`term`](Self::term) is what tasks of the leader
/// get: it reports the end of the lead, and does not keep it.
///
/// # Drop
/// Dropping it resigns in the background. It never blocks, and it works outside a runtime. Use
/// [`resign`](Self::resign) for certainty.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let lead = locks.leadership("scheduler").campaign().await?;
/// println!("leading under fence {}", lead.fence());
/// lead.resign().await?;
/// # Ok(()) }
/// ```
#[must_use = "the leader resigns as soon as its lead is dropped"]
pub struct Lead {
    guard: LockGuard,
}

impl Lead {
    pub(super) fn new(guard: LockGuard) -> Lead {
        Lead { guard }
    }

    /// Returns the name of the leadership.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// assert_eq!(lead.name(), "scheduler");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        self.guard.name()
    }

    /// Returns the fencing token, for the resource to check. It is larger than that of every leader before.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// let fence = i64::from(lead.fence()); // SQL has no unsigned integers
    /// # let _ = fence;
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// Returns the state of the lease at this moment. It does no I/O.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// println!("leading for {:?} even if the server is away", lead.lease().remaining());
    /// # Ok(()) }
    /// ```
    pub fn lease(&self) -> Lease {
        self.guard.lease()
    }

    /// Returns the term of this lead, for tasks that have to end with it.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// let term = lead.term();
    /// let task = tokio::spawn(async move { println!("stop: {}", term.lost().await) });
    /// lead.resign().await?;
    /// # task.await.unwrap();
    /// # Ok(()) }
    /// ```
    pub fn term(&self) -> Term {
        Term {
            name: self.guard.shared_name(),
            fence: self.guard.fence(),
            watched: self.guard.watched(),
        }
    }

    /// Checks by the local clock, without I/O, that this process still leads. Call it right before a step
    /// that only the leader may do.
    ///
    /// # Errors
    /// [`Lost`] if the lease is over.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// lead.check()?; // right before the step
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<(), Lost> {
        self.guard.check()
    }

    /// Waits until the lead is over, whatever the network does. The future borrows nothing. Once the leader
    /// has resigned, it resolves too, with [`LostReason::Released`](crate::LostReason::Released).
    ///
    /// # Panics
    /// If it is polled outside of a Tokio runtime, like Tokio's own timers. Not if the manager has [a thread
    /// of its own](crate::LockManagerBuilder::own_thread).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn schedule() {}
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// tokio::select! {
    ///     lost = lead.lost() => println!("{lost}"),
    ///     () = schedule() => lead.resign().await?,
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        self.guard.lost()
    }

    /// Runs `work` for as long as this process leads, as [`LockGuard::run`] does.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the lead was lost before `work` ended, and
    /// [`Error::Invalid`](crate::Error::Invalid) outside of a Tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`, which must itself be cancel-safe. The lead goes on.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn schedule() -> u32 { 7 }
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// assert_eq!(lead.run(schedule()).await?, 7);
    /// # Ok(()) }
    /// ```
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output> {
        self.guard.run(work).await
    }

    /// Renews the lease now, in one round trip that proves that this process still leads. In a quorum, a
    /// majority of the servers confirm that.
    ///
    /// # Errors
    /// As for [`LockGuard::renew`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, except that the lease may have been renewed.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// let lease = lead.renew().await?; // right before a step that nothing can stop
    /// println!("{:?} for that step", lease.remaining());
    /// # Ok(()) }
    /// ```
    pub async fn renew(&self) -> Result<Lease> {
        self.guard.renew().await
    }

    /// Resigns, and waits until the server has confirmed it. By then the next process that campaigns leads.
    ///
    /// # Errors
    /// As for [`LockGuard::release`]: [`Error::Lost`](crate::Error::Lost) if the lead was over before.
    ///
    /// # Cancel safety
    /// If the future is dropped midway, the resignation goes on in the background.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let scheduler = locks.leadership("scheduler");
    /// let lead = scheduler.campaign().await?;
    /// let next = tokio::spawn(scheduler.campaign());
    /// lead.resign().await?;
    /// next.await.unwrap()?.resign().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "release")]
    #[doc(alias = "step_down")]
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    pub(super) async fn resign_after_work(self) -> Result<(), Lost> {
        self.guard.release_after_work().await
    }
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead").field("guard", &self.guard).finish()
    }
}

/// One term of a leader: a token that its tasks hold, which tells them when the lead is over.
///
/// It is cheap to clone, and can be moved to other tasks. It does not keep the lead: that ends when the
/// [`Lead`] is dropped, or the work of [`Leadership::run`](crate::Leadership::run) ends.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::LostReason;
///
/// let lead = locks.leadership("scheduler").campaign().await?;
/// let term = lead.term();
/// assert!(term.check().is_ok());
/// drop(lead);
/// assert_eq!(term.lost().await.reason(), LostReason::Released);
/// # Ok(()) }
/// ```
#[doc(alias = "CancellationToken")]
#[derive(Clone)]
pub struct Term {
    name: Arc<str>,
    fence: Fence,
    watched: Watched,
}

impl Term {
    /// Returns the name of the leadership.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// assert_eq!(lead.term().name(), "scheduler");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fencing token of this term, for the resource to check. It is larger than that of every
    /// term before.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// let fence = i64::from(lead.term().fence()); // SQL has no unsigned integers
    /// let sql = "UPDATE schedule SET next = $2, fence = $1 WHERE fence <= $1";
    /// # let _ = (fence, sql);
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Checks by the local clock, without I/O, that the term goes on. Call it right before a step that only
    /// the leader may do.
    ///
    /// # Errors
    /// [`Lost`] if the term is over.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// let term = lead.term();
    /// term.check()?; // right before the step
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<(), Lost> {
        self.watched.check()
    }

    /// Waits until the term is over, whatever the network does. The future borrows nothing. If the leader has
    /// resigned, it resolves with [`LostReason::Released`](crate::LostReason::Released).
    ///
    /// # Panics
    /// If it is polled outside of a Tokio runtime, like Tokio's own timers. Not if the manager has [a thread
    /// of its own](crate::LockManagerBuilder::own_thread).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// let ended = tokio::spawn(lead.term().lost());
    /// lead.resign().await?;
    /// println!("{}", ended.await.unwrap());
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        self.watched.clone().lost()
    }

    /// Runs `work` for as long as the term lasts. When that is over, `work` is dropped at its next `.await`.
    /// The future can be spawned, so tasks of the leader end with it.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the term ended before `work` did, also by a resignation, and
    /// [`Error::Invalid`](crate::Error::Invalid) outside of a Tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`, which must itself be cancel-safe. The term goes on.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// let task = tokio::spawn(lead.term().run(std::future::pending::<()>()));
    /// lead.resign().await?;
    /// assert!(task.await.unwrap().is_err()); // it ended with the term
    /// # Ok(()) }
    /// ```
    pub async fn run<W: Future>(self, work: W) -> Result<W::Output> {
        self.watched.client().runtime.check()?;
        unless_lost(self.watched.lost(), work).await
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .field("over", &self.check().err())
            .finish()
    }
}
