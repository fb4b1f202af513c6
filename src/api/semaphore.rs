//! Semaphores: several permits, each of which is held by one guard at a time.

use std::fmt;
use std::time::Duration;

use crate::api::guard::{HoldToken, SemaphoreGuard};
use crate::api::handle::Handle;
use crate::api::manager::LockManager;
use crate::types::error::Result;
use crate::types::fence::Fence;
use crate::types::permits::{Gives, Permits};
use crate::types::status::{LockStream, Status};

impl LockManager {
    /// Returns the semaphore of this name, of which `capacity` permits can be held at the same time (1 to
    /// 99,999). It does no I/O, and shares nothing with the [`lock`](Self::lock) of the same name. In a
    /// quorum it is [`Error::Invalid`](crate::Error::Invalid).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let api = locks.semaphore("api", 10); // at most 10 calls at a time, over all processes
    /// let permit = api.await?;
    /// // ... the call ...
    /// drop(permit);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "RSemaphore")]
    pub fn semaphore(&self, name: impl AsRef<str>, capacity: u32) -> Semaphore {
        let one = Permits { weight: 1, capacity };
        Semaphore(self.handle(Gives::Permits(one), name.as_ref()))
    }
}

/// A named semaphore: a fixed number of permits, held by callers of all processes, first come, first served.
///
/// A guard takes one permit, or as many as [`permits`](Self::permits) says. Each guard has its own lease: if
/// its process dies, its permits come back when that lease ends. All callers of a name should give the same
/// capacity. If they differ, each gets a guard only while, with its own permits, no more are in use than it
/// allows. A request that waits with a smaller capacity holds back nobody who has room.
///
/// A semaphore limits load. It is no protection for a resource: a larger fence does not void the smaller
/// ones. Where more than `capacity` at once would be a bug, let the resource check the fence of each
/// [slot](SemaphoreGuard::slot).
///
/// It is awaited, acquired and looked at as a [`Lock`](crate::Lock) is. The guide has more on
/// [permits](crate::guide::permits). How many calls *begin* within a time is the matter of a
/// [rate limit](LockManager::rate_limit).
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use std::time::Duration;
///
/// let api = locks.semaphore("api", 10).max_hold(Duration::from_secs(60));
/// let answer = api.with(async |token| format!("called under fence {}", token.fence())).await?;
/// # let _ = answer;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a semaphore does nothing until it is acquired"]
pub struct Semaphore(pub(super) Handle);

impl Semaphore {
    /// Returns the name, as it was given to [`LockManager::semaphore`].
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Sets how many permits a guard takes (1, the default, to the capacity).
    ///
    /// The guard has all of them or none. While a request waits for several, the permits that are free stay
    /// free for it, and later requests wait behind it.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let api = locks.semaphore("api", 10);
    /// let bulk = api.clone().permits(3).acquire().await?;
    /// assert_eq!(api.status().await?.permits_in_use, 3);
    /// # drop(bulk);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "acquire_many")]
    pub fn permits(mut self, permits: u32) -> Semaphore {
        if let Gives::Permits(taken) = &mut self.0.gives {
            taken.weight = permits;
        }
        self
    }

    /// Waits for the permits, first come, first served.
    ///
    /// Errors, cancel safety and order are those of [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let permit = locks.semaphore("api", 10).acquire().await?;
    /// permit.release().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "acquire_owned")]
    pub fn acquire(&self) -> impl Future<Output = Result<SemaphoreGuard>> + Send + use<> {
        self.0.acquire(None)
    }

    /// Waits for the permits for this long at most. With zero it makes one attempt.
    ///
    /// Errors and cancel safety are those of [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let permit = locks.semaphore("api", 10).acquire_timeout(Duration::from_secs(2)).await?;
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    pub fn acquire_timeout(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<SemaphoreGuard>> + Send + use<> {
        self.0.acquire(Some(wait))
    }

    /// Takes the permits if they are free and nobody waits.
    ///
    /// Errors and cancel safety are those of [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let one = locks.semaphore("printer", 1);
    /// let printing = one.try_acquire().await?;
    /// assert!(one.try_acquire().await.is_err());
    /// # drop(printing);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "try_acquire_owned")]
    pub fn try_acquire(&self) -> impl Future<Output = Result<SemaphoreGuard>> + Send + use<> {
        self.0.try_acquire()
    }

    /// Waits for the permits, runs the work, and releases them, as [`Lock::with`](crate::Lock::with) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn call() -> u32 { 7 }
    /// let answer = locks.semaphore("api", 10).with(async |_token| call().await).await?;
    /// assert_eq!(answer, 7);
    /// # Ok(()) }
    /// ```
    pub fn with<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(HoldToken) -> W,
        W: Future,
    {
        self.0.with(None, work)
    }

    /// Does the same as [`with`](Self::with), and waits for the permits for `wait` at most.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let soon = Duration::from_secs(2);
    /// let answer = locks.semaphore("api", 10).with_timeout(soon, async |_token| 7).await?;
    /// assert_eq!(answer, 7);
    /// # Ok(()) }
    /// ```
    pub fn with_timeout<F, W>(
        &self,
        wait: Duration,
        work: F,
    ) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(HoldToken) -> W,
        W: Future,
    {
        self.0.with(Some(wait), work)
    }
}

// How permits are held.
impl Semaphore {
    /// Sets the length of the lease, as [`Lock::lease`](crate::Lock::lease) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let permit = locks.semaphore("api", 10).lease(Duration::from_secs(5)).await?;
    /// assert_eq!(permit.lease().length, Duration::from_secs(5));
    /// # Ok(()) }
    /// ```
    pub fn lease(mut self, lease: Duration) -> Semaphore {
        self.0.options.lease = Some(lease);
        self
    }

    /// Sets whether the lease is renewed while the guard lives, as
    /// [`Lock::auto_renew`](crate::Lock::auto_renew) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// // A permit that comes back after a minute, whatever happens.
    /// let trial = locks.semaphore("trial", 100).lease(Duration::from_secs(60)).auto_renew(false);
    /// let permit = trial.acquire().await?;
    /// assert!(permit.renew().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn auto_renew(mut self, renew: bool) -> Semaphore {
        self.0.options.fixed = !renew;
        self
    }

    /// Limits how long a guard can hold its permits, as [`Lock::max_hold`](crate::Lock::max_hold) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let permit = locks.semaphore("api", 10).max_hold(Duration::from_secs(60)).await?;
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Semaphore {
        self.0.options.max_hold = max_hold.into();
        self
    }

    /// Keeps the permits taken until this long after their grant, as
    /// [`Lock::at_least`](crate::Lock::at_least) does. They come back together if they were taken together,
    /// so it is no good [rate limit](LockManager::rate_limit).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let gate = locks.semaphore("gate", 4).at_least(Duration::from_secs(60));
    /// gate.acquire().await?.release().await?;
    /// assert_eq!(gate.status().await?.permits_in_use, 1); // for the rest of the minute
    /// # Ok(()) }
    /// ```
    pub fn at_least(mut self, at_least: impl Into<Option<Duration>>) -> Semaphore {
        self.0.options.at_least = at_least.into();
        self
    }

    /// Sets the group in which the metrics count the semaphore, as [`Lock::group`](crate::Lock::group) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let permit = locks.semaphore("b9ef64a2", 3).group("customer").await?;
    /// # Ok(()) }
    /// ```
    pub fn group(mut self, group: impl AsRef<str>) -> Semaphore {
        self.0.options.group = Some(group.as_ref().into());
        self
    }
}

// Looking at a semaphore, and freeing its permits.
impl Semaphore {
    /// Returns who holds permits, how many are in use, and how many requests wait, as
    /// [`Lock::status`](crate::Lock::status) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let api = locks.semaphore("api", 10);
    /// let permit = api.acquire().await?;
    /// let status = api.status().await?;
    /// assert_eq!((status.permits_in_use, status.capacity), (1, Some(10)));
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "available_permits")]
    pub fn status(&self) -> impl Future<Output = Result<Status>> + Send + use<> {
        self.0.status()
    }

    /// Takes the permits away from the guard with this fence, as
    /// [`Lock::force_release`](crate::Lock::force_release) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let api = locks.semaphore("api", 10);
    /// let permit = api.acquire().await?;
    /// assert!(api.force_release(permit.fence()).await?);
    /// # Ok(()) }
    /// ```
    pub fn force_release(&self, fence: Fence) -> impl Future<Output = Result<bool>> + Send + use<> {
        self.0.force_release(fence)
    }

    /// Watches who holds permits, as [`Lock::watch`](crate::Lock::watch) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let mut watch = locks.semaphore("api", 10).watch(Duration::from_secs(1));
    /// if let Some(status) = watch.next().await {
    ///     println!("{} permits are in use", status?.permits_in_use);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn watch(&self, every: Duration) -> LockStream<Status> {
        self.0.watch(every)
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug("Semaphore", f)
    }
}
