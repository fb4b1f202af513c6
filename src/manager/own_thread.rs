//! A thread for a manager.

use super::LockManagerBuilder;

impl LockManagerBuilder {
    /// Gives the manager a thread of its own, named `fairlock`, for its connections and its renewals. So no
    /// lease is lost because other threads block. Without it, leases are renewed on the runtime of the first
    /// call.
    ///
    /// Calls need no Tokio runtime then: any executor can poll them, and so can `block_on` on a plain thread.
    /// Work that is given to [`with`](crate::Lock::with) or [`run`](crate::LockGuard::run) stays in the task
    /// of its caller, on the caller's runtime. A function for [`credentials`](Self::credentials) runs on the
    /// thread, and must not block it.
    ///
    /// Grants come from one thread to another, which costs throughput where many wait. The thread ends when
    /// the manager is closed or its last clone is dropped, and no guard is left.
    ///
    /// # Examples
    /// A manager for all threads of a program, in no runtime at all:
    /// ```
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// let locks = LockManager::builder().own_thread().in_memory(&MemoryStore::new())?;
    /// let guard = pollster::block_on(locks.lock("invoice:42").acquire())?;
    /// // ... work that blocks ...
    /// pollster::block_on(guard.release())?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    #[doc(alias = "blocking")]
    #[doc(alias = "block_on")]
    pub fn own_thread(mut self) -> Self {
        self.own_thread = true;
        self
    }
}
