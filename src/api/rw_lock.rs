//! Read/write locks: many readers at a time, or one writer.

use crate::api::lock::Lock;
use crate::api::manager::LockManager;
use crate::types::permits::{Gives, Permits};

impl LockManager {
    /// Returns the read/write lock of this name: many readers hold it at a time, or one writer. It does no
    /// I/O, and shares nothing with the [`lock`](Self::lock) of the same name.
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
        RwLock {
            read: self.giving(Gives::Shared(Permits::READER), name.as_ref()),
            write: self.giving(Gives::Shared(Permits::WRITER), name.as_ref()),
        }
    }
}

/// A named lock that many readers hold at a time, or one writer.
///
/// Each side is a [`Lock`], with its settings and its ways to wait; awaiting it acquires it. Readers and
/// writers wait in one queue, first come, first served: a writer waits for the readers before it, and readers
/// that come later wait for the writer. So neither side starves. A release after which several readers are
/// first lets all of them in at once.
///
/// # Deadlocks
/// The lock is not re-entrant. A task that reads, and asks to read again, waits for a writer that came in
/// between, which waits for the task. A reader cannot become a writer: two that try would wait for each
/// other. Release the one guard, and acquire the other. A writer can become a reader, by
/// [`downgrade`](crate::LockGuard::downgrade).
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
/// config.write().with(store).await?;
/// let reading = config.read().await?;
/// println!("reads under fence {}", reading.fence());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct RwLock {
    read: Lock,
    write: Lock,
}

impl RwLock {
    /// Returns the name, as it was given to [`LockManager::rw_lock`].
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// Returns the lock as readers take it: together with other readers.
    #[doc(alias = "shared")]
    #[doc(alias = "read_owned")]
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// Returns the lock as writers take it: alone.
    #[doc(alias = "exclusive")]
    #[doc(alias = "write_owned")]
    pub fn write(&self) -> Lock {
        self.write.clone()
    }
}
