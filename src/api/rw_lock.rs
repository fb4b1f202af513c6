//! Read/write locks: many readers at a time, or one writer.

mod read;
mod write;

use std::fmt;
use std::time::Duration;

pub use self::read::ReadLock;
pub use self::write::WriteLock;
#[cfg(doc)]
use crate::api::guard::WriteGuard;
use crate::api::handle::Handle;
use crate::api::manager::LockManager;
use crate::types::error::Result;
use crate::types::fence::Fence;
use crate::types::permits::{Gives, Permits};
use crate::types::status::{LockStream, Status};

impl LockManager {
    /// Returns the read/write lock of this name: many readers hold it at a time, or one writer. It does no
    /// I/O, and shares nothing with the [`lock`](Self::lock) of the same name. In a quorum it is
    /// [`Error::Invalid`](crate::Error::Invalid).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let config = locks.rw_lock("config");
    /// let both = (config.read().await?, config.read().await?);
    /// drop(both);
    /// let writing = config.write().await?; // alone
    /// writing.release().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ReadWriteLock")]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock(self.handle(Gives::Shared(Permits::READER), name.as_ref()))
    }
}

/// A named lock that many readers hold at a time, or one writer.
///
/// Awaiting [`read`](Self::read) or [`write`](Self::write) acquires it. Readers and writers wait in one
/// queue, first come, first served: a writer waits for the readers before it, and readers that come later
/// wait for the writer. So neither side starves. A release after which several readers are first lets all of
/// them in at once.
///
/// # Deadlocks
/// The lock is not re-entrant. A task that reads, and asks to read again, waits for a writer that came in
/// between, which waits for the task. A reader cannot become a writer: two that try would wait for each
/// other. Release the one guard, and acquire the other. A writer can become a reader, by
/// [`downgrade`](WriteGuard::downgrade).
///
/// # Fences
/// Each guard has a fence, larger than all before it. A resource that notes the largest fence that it has
/// seen, of readers too, refuses writes under smaller ones.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// # async fn store(_fence: fairlock::Fence) {}
/// let config = locks.rw_lock("config");
/// config.write().with(async |token| store(token.fence()).await).await?;
/// let reading = config.read().await?;
/// println!("reads under fence {}", reading.fence());
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct RwLock(pub(super) Handle);

impl RwLock {
    /// Returns the name, as it was given to [`LockManager::rw_lock`].
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the lock as readers take it: together with other readers.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let config = locks.rw_lock("config");
    /// let readers = (config.read().await?, config.read().await?);
    /// # drop(readers);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "shared")]
    #[doc(alias = "read_owned")]
    pub fn read(&self) -> ReadLock {
        ReadLock(self.0.clone())
    }

    /// Returns the lock as writers take it: alone.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let config = locks.rw_lock("config");
    /// let writing = config.write().await?;
    /// assert!(config.read().try_acquire().await.is_err());
    /// # drop(writing);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "exclusive")]
    #[doc(alias = "write_owned")]
    pub fn write(&self) -> WriteLock {
        let mut write = self.0.clone();
        write.gives = Gives::Shared(Permits::WRITER);
        WriteLock(write)
    }
}

// How both sides are held.
impl RwLock {
    /// Sets the length of the lease, as [`Lock::lease`](crate::Lock::lease) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let config = locks.rw_lock("config").lease(Duration::from_secs(5));
    /// assert_eq!(config.read().await?.lease().length, Duration::from_secs(5));
    /// # Ok(()) }
    /// ```
    pub fn lease(mut self, lease: Duration) -> RwLock {
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
    /// let config = locks.rw_lock("config").lease(Duration::from_secs(60)).auto_renew(false);
    /// let writing = config.write().await?; // for a minute at most
    /// # drop(writing);
    /// # Ok(()) }
    /// ```
    pub fn auto_renew(mut self, renew: bool) -> RwLock {
        self.0.options.fixed = !renew;
        self
    }

    /// Limits how long a guard can hold the lock, as [`Lock::max_hold`](crate::Lock::max_hold) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let writing = locks.rw_lock("config").max_hold(Duration::from_secs(60)).write().await?;
    /// # drop(writing);
    /// # Ok(()) }
    /// ```
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> RwLock {
        self.0.options.max_hold = max_hold.into();
        self
    }

    /// Keeps the lock taken until this long after each grant, as [`Lock::at_least`](crate::Lock::at_least)
    /// does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let config = locks.rw_lock("config").at_least(Duration::from_secs(60));
    /// config.write().await?.release().await?;
    /// assert!(config.write().try_acquire().await.is_err()); // for the rest of the minute
    /// # Ok(()) }
    /// ```
    pub fn at_least(mut self, at_least: impl Into<Option<Duration>>) -> RwLock {
        self.0.options.at_least = at_least.into();
        self
    }

    /// Sets the group in which the metrics count the lock, as [`Lock::group`](crate::Lock::group) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let reading = locks.rw_lock("b9ef64a2").group("config").read().await?;
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    pub fn group(mut self, group: impl AsRef<str>) -> RwLock {
        self.0.options.group = Some(group.as_ref().into());
        self
    }
}

// Looking at a read/write lock, and freeing it.
impl RwLock {
    /// Returns who holds the lock, as reader or as writer, and how many requests wait, as
    /// [`Lock::status`](crate::Lock::status) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let config = locks.rw_lock("config");
    /// let reading = config.read().await?;
    /// let status = config.status().await?;
    /// assert_eq!((status.readers, status.writer), (1, false));
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    pub fn status(&self) -> impl Future<Output = Result<Status>> + Send + use<> {
        self.0.status()
    }

    /// Takes the lock away from the reader or writer with this fence, as
    /// [`Lock::force_release`](crate::Lock::force_release) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let config = locks.rw_lock("config");
    /// let writing = config.write().await?;
    /// assert!(config.force_release(writing.fence()).await?);
    /// # Ok(()) }
    /// ```
    pub fn force_release(&self, fence: Fence) -> impl Future<Output = Result<bool>> + Send + use<> {
        self.0.force_release(fence)
    }

    /// Watches who holds the lock, as [`Lock::watch`](crate::Lock::watch) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let mut watch = locks.rw_lock("config").watch(Duration::from_secs(1));
    /// if let Some(status) = watch.next().await {
    ///     println!("{} read", status?.readers);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn watch(&self, every: Duration) -> LockStream<Status> {
        self.0.watch(every)
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug("RwLock", f)
    }
}
