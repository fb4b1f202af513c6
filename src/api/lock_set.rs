//! Several locks that are acquired together.
//!
//! They are acquired one after the other, in the order of their kinds and names. A caller that waits for a
//! lock holds only locks that come before it, so no two callers wait for each other. A set knows nothing of a
//! lock but its calls.

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::pending;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::Instant;

use crate::api::guard::{HoldToken, LockGuard, unless_lost};
use crate::api::handle::Handle;
use crate::api::lock::Lock;
use crate::api::manager::LockManager;
use crate::api::rw_lock::{ReadLock, WriteLock};
use crate::api::semaphore::Semaphore;
use crate::types::error::{Error, HoldEnd, Invalid, Lost, Result};
use crate::types::fence::Fence;

impl LockManager {
    /// Returns several locks that are acquired together: all of them, or none. It does no I/O.
    ///
    /// The names may come in any order, and one of them may come twice. [`LockSet::of`] takes locks with
    /// settings of their own.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn transfer(_from: fairlock::Fence, _to: fairlock::Fence) {}
    /// let accounts = locks.all(["account:7", "account:3"]);
    /// let guard = accounts.acquire().await?;
    /// let [from, to] = guard.fences()[..] else { unreachable!("two names") };
    /// guard.run(transfer(from, to)).await?; // stopped if either lease is lost
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "multi_lock")]
    #[doc(alias = "MultiLock")]
    #[doc(alias = "acquire_many")]
    pub fn all(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> LockSet {
        LockSet::of(names.into_iter().map(|name| self.lock(name)))
    }
}

/// Several locks that are acquired together: all of them, or none.
///
/// Each lock is acquired as by itself, first come, first served, in the order of the names' bytes (of several
/// [kinds](crate::Kind), locks come first, then semaphores, then read/write locks). So sets
/// never wait for each other in a circle, whatever order the names are given in. A set keeps the
/// locks that it has while it waits for the next one. Each lock counts by itself in
/// [`Stats`](crate::Stats). Awaiting a set acquires it.
///
/// A task that holds a guard may acquire further locks only if their names come later. Otherwise two tasks
/// can wait for each other; [`acquire_timeout`](Self::acquire_timeout) bounds that.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let seats = locks.all(["seat:4a", "seat:4b"]);
/// let booked = seats.with(async |tokens| format!("booked under fence {}", tokens[0].fence())).await?;
/// println!("{booked}");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "locks do nothing until they are acquired"]
pub struct LockSet {
    /// As they were given.
    locks: Vec<Handle>,
}

/// How each lock of a set is asked for.
#[derive(Clone, Copy)]
enum Ask {
    Wait,
    Until(Instant),
    Once,
}

impl Ask {
    /// Beyond the end of time is no bound.
    fn within(wait: Duration) -> Ask {
        Instant::now().checked_add(wait).map_or(Ask::Wait, Ask::Until)
    }

    async fn of(self, lock: &Handle) -> Result<LockGuard> {
        match self {
            Ask::Wait => lock.acquire(None).await,
            Ask::Until(until) => {
                let left = until.saturating_duration_since(Instant::now());
                lock.acquire(Some(left)).await
            }
            Ask::Once => lock.try_acquire().await,
        }
    }
}

/// The same as [`LockSet::of`].
impl<L: Into<LockSet>> FromIterator<L> for LockSet {
    fn from_iter<I: IntoIterator<Item = L>>(locks: I) -> LockSet {
        let locks = locks.into_iter().flat_map(|lock| lock.into().locks);
        LockSet {
            locks: locks.collect(),
        }
    }
}

/// A set with this one alone. What takes `impl Into<LockSet>` takes a lock of any kind.
impl From<Lock> for LockSet {
    fn from(lock: Lock) -> LockSet {
        LockSet { locks: vec![lock.0] }
    }
}

/// A set with this one alone. What takes `impl Into<LockSet>` takes a lock of any kind.
impl From<Semaphore> for LockSet {
    fn from(semaphore: Semaphore) -> LockSet {
        LockSet {
            locks: vec![semaphore.0],
        }
    }
}

/// A set with this one alone. What takes `impl Into<LockSet>` takes a lock of any kind.
impl From<ReadLock> for LockSet {
    fn from(lock: ReadLock) -> LockSet {
        LockSet { locks: vec![lock.0] }
    }
}

/// A set with this one alone. What takes `impl Into<LockSet>` takes a lock of any kind.
impl From<WriteLock> for LockSet {
    fn from(lock: WriteLock) -> LockSet {
        LockSet { locks: vec![lock.0] }
    }
}

impl LockSet {
    /// Returns a set of locks that have settings of their own, or of semaphores, or of sides of read/write
    /// locks; [`and`](Self::and) adds those of other kinds. They must come from one manager. If one lock
    /// comes twice, it counts once, also a semaphore, and its settings must be the same: a set has only one
    /// side of a read/write lock.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::LockSet;
    ///
    /// let short = Duration::from_secs(5);
    /// let set = LockSet::of([locks.lock("import").lease(short), locks.lock("report")]);
    /// set.acquire().await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn of(locks: impl IntoIterator<Item = impl Into<LockSet>>) -> LockSet {
        locks.into_iter().collect()
    }

    /// Adds a lock, a semaphore, a side of a read/write lock, or another set.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let import = locks.all(["import"]).and(locks.rw_lock("config").read());
    /// let both = import.and(locks.semaphore("database", 10).permits(2)).acquire().await?;
    /// assert_eq!(both.fences().len(), 3);
    /// # Ok(()) }
    /// ```
    pub fn and(mut self, other: impl Into<LockSet>) -> LockSet {
        self.locks.extend(other.into().locks);
        self
    }

    /// Waits for all of the locks, one after the other, in the order of their names.
    ///
    /// The future borrows nothing, so it can be spawned.
    ///
    /// # Errors
    /// - Those of [`Lock::acquire`].
    /// - [`Error::Lost`] if one of the locks was lost while the call waited for another one.
    /// - [`Error::Invalid`] for no lock at all, for locks of two managers, and for one name with two
    ///   settings.
    ///
    /// The locks that the call has by then are released in the background, and none is kept for
    /// [`at_least`](Lock::at_least).
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves no holder and no queue entry. The locks that it has are
    /// released, and its place in a queue is lost.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.all(["account:7", "account:3"]).acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> impl Future<Output = Result<LockSetGuard>> + Send + use<> {
        self.clone().taken(Ask::Wait)
    }

    /// Waits for all of the locks for this long at most, counted over all of them. With zero it makes one
    /// attempt at each.
    ///
    /// # Errors
    /// [`Error::Timeout`] when this time has passed, as for [`Lock::acquire_timeout`], and otherwise as for
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::Error;
    ///
    /// let held = locks.lock("account:7").acquire().await?;
    /// let accounts = locks.all(["account:7", "account:3"]);
    /// let late = accounts.acquire_timeout(Duration::from_secs(2)).await;
    /// assert!(matches!(late, Err(Error::Timeout { .. })));
    /// locks.lock("account:3").try_acquire().await?; // it was given back
    /// # drop(held);
    /// # Ok(()) }
    /// ```
    pub fn acquire_timeout(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<LockSetGuard>> + Send + use<> {
        let set = self.clone();
        async move {
            let began = Instant::now();
            match set.taken(Ask::within(wait)).await {
                Err(Error::Timeout { name, ttl, .. }) => Err(Error::Timeout {
                    name,
                    waited: began.elapsed(),
                    ttl,
                }),
                taken => taken,
            }
        }
    }

    /// Takes all of the locks if each is free and has no waiters. It asks in the order of the names, and
    /// gives back what it has at the first one that is busy.
    ///
    /// # Errors
    /// [`Error::Busy`], which names the first lock that is held or waited for, and otherwise as for
    /// [`Lock::try_acquire`] and [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves no holder.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::Error;
    ///
    /// match locks.all(["seat:4a", "seat:4b"]).try_acquire().await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(Error::Busy { .. }) => println!("one of them is taken"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> impl Future<Output = Result<LockSetGuard>> + Send + use<> {
        self.clone().taken(Ask::Once)
    }

    /// Waits for all of the locks, runs the work, and releases them. The work gets a token of each hold, in
    /// the order of the names as they were given.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), and as for [`Lock::with`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the locks.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn transfer(_from: fairlock::Fence, _to: fairlock::Fence) -> u32 { 7 }
    /// let accounts = locks.all(["account:7", "account:3"]);
    /// let transferring = accounts.with(async |tokens| {
    ///     transfer(tokens[0].fence(), tokens[1].fence()).await
    /// });
    /// assert_eq!(transferring.await?, 7);
    /// # Ok(()) }
    /// ```
    pub fn with<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(Vec<HoldToken>) -> W,
        W: Future,
    {
        let acquiring = self.acquire();
        async move { acquiring.await?.spent_on(work).await }
    }

    /// Does the same as [`with`](Self::with), and waits for the locks for `wait` at most. The work itself has
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
    /// # async fn transfer(_tokens: Vec<fairlock::HoldToken>) -> u32 { 7 }
    /// use std::time::Duration;
    ///
    /// let accounts = locks.all(["account:7", "account:3"]);
    /// let receipt = accounts.with_timeout(Duration::from_secs(2), transfer).await?;
    /// assert_eq!(receipt, 7);
    /// # Ok(()) }
    /// ```
    pub fn with_timeout<F, W>(
        &self,
        wait: Duration,
        work: F,
    ) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(Vec<HoldToken>) -> W,
        W: Future,
    {
        let acquiring = self.acquire_timeout(wait);
        async move { acquiring.await?.spent_on(work).await }
    }

    async fn taken(self, ask: Ask) -> Result<LockSetGuard> {
        let locks = self.in_order()?;
        let mut taken = LockSetGuard {
            guards: Vec::with_capacity(locks.len()),
            places: Vec::new(),
        };
        for lock in &locks {
            let guard = tokio::select! {
                biased;
                guard = ask.of(lock) => guard?,
                lost = taken.first_lost() => return Err(lost.into()),
            };
            // The caller has none of the locks before it has all.
            guard.at_least(None)?;
            taken.guards.push(guard);
        }
        taken.check()?;
        for (lock, guard) in locks.iter().zip(&taken.guards) {
            guard.at_least(lock.kept_for())?;
        }
        let place_of = |given: &Handle| locks.iter().position(|lock| lock.id() == given.id());
        taken.places = self.locks.iter().filter_map(place_of).collect();
        Ok(taken)
    }

    /// The locks in the order in which they are acquired, each once. Refuses what is wrong with any of them
    /// before anything is sent.
    fn in_order(&self) -> Result<Vec<&Handle>> {
        let mut locks: Vec<&Handle> = self.locks.iter().collect();
        locks.sort_by_key(|lock| lock.id());
        for pair in locks.windows(2) {
            let (lock, next) = (pair[0], pair[1]);
            if !lock.has_manager_of(next) {
                return Err(Invalid::new(format!(
                    "locks {:?} and {:?}: the locks of a set must come from one manager",
                    lock.name(),
                    next.name()
                ))
                .into());
            }
            if lock.id() == next.id() && !lock.has_settings_of(next) {
                return Err(Invalid::new(format!(
                    "lock {:?}: comes twice with different settings, which must be the same",
                    lock.name()
                ))
                .into());
            }
        }
        locks.dedup_by_key(|lock| lock.id());
        if locks.is_empty() {
            return Err(Invalid::new("locks: a set must have at least one").into());
        }
        locks.iter().try_for_each(|lock| lock.check())?;
        Ok(locks)
    }
}

impl fmt::Debug for LockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.locks.iter().map(Handle::name))
            .finish()
    }
}

/// Several locks that are held, until the guard is released or dropped, or until one of the leases is lost.
/// Dropping it releases all of them, as dropping a [`LockGuard`] does.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let guard = locks.all(["account:7", "account:3"]).acquire().await?;
/// let from = guard.get("account:7").map(|held| held.fence());
/// guard.check()?; // both leases still last
/// guard.release().await?;
/// # let _ = from;
/// # Ok(()) }
/// ```
#[must_use = "the locks are released as soon as their guard is dropped"]
pub struct LockSetGuard {
    /// In the order in which they were acquired.
    guards: Vec<LockGuard>,
    /// Which guard is that of each lock, as the locks were given.
    places: Vec<usize>,
}

impl LockSetGuard {
    /// Returns the guard of one of the locks, for its fence and its lease. If locks of several kinds have the
    /// name, it is the one that was acquired first.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.all(["account:7", "account:3"]).acquire().await?;
    /// let seven = guard.get("account:7").expect("a name of the set");
    /// println!("{} under fence {}", seven.name(), seven.fence());
    /// # Ok(()) }
    /// ```
    pub fn get(&self, name: &str) -> Option<&LockGuard> {
        self.guards.iter().find(|guard| guard.name() == name)
    }

    /// Returns the guards, in the order of the names as they were given. A name that came twice comes twice.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let both = locks.all(["account:7", "account:3"]).acquire().await?;
    /// for held in both.iter() {
    ///     held.renew().await?; // before a step that nothing can stop
    /// }
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &LockGuard> {
        self.places.iter().map(|place| &self.guards[*place])
    }

    /// Returns the fences, in the order of the names as they were given. Each belongs to its own name: a
    /// resource compares only fences of one name.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.all(["account:7", "account:3"]).acquire().await?;
    /// assert_eq!(Some(guard.fences()[0]), guard.get("account:7").map(|held| held.fence()));
    /// # Ok(()) }
    /// ```
    pub fn fences(&self) -> Vec<Fence> {
        self.iter().map(LockGuard::fence).collect()
    }

    fn tokens(&self) -> Vec<HoldToken> {
        self.iter().map(LockGuard::token).collect()
    }

    /// Returns whether any of the leases has ended. It does no I/O.
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// Checks by the local clock, without I/O, that all leases still last. Call it right before a step that
    /// needs the locks.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost), which names the lock, if one of the leases has ended.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.all(["account:7", "account:3"]).acquire().await?;
    /// guard.check()?; // right before the step
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(LockGuard::check)
    }

    /// Waits until one of the holds ends, whatever the network does, and returns how it ended. The future
    /// borrows nothing, so that a watcher can be spawned.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.all(["account:7", "account:3"]).acquire().await?;
    /// let lost = guard.lost();
    /// let watcher = tokio::spawn(async move { println!("stop: {}", lost.await) });
    /// guard.release().await?;
    /// # watcher.await.unwrap();
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = HoldEnd> + Send + use<> {
        let lost = self.first_lost();
        async move { lost.await.reason }
    }

    /// Runs `work` for as long as all leases last, as [`LockGuard::run`] does for one.
    ///
    /// # Errors
    /// [`Error::Lost`] if one of the leases was lost before `work` ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`, which must itself be cancel-safe. The locks stay held.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn transfer(_fences: Vec<fairlock::Fence>) {}
    /// let guard = locks.all(["account:7", "account:3"]).acquire().await?;
    /// guard.run(transfer(guard.fences())).await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output> {
        self.check()?;
        unless_lost(self.first_lost(), work).await
    }

    /// Releases all of the locks together, and waits until the server has confirmed that.
    ///
    /// # Errors
    /// As for [`LockGuard::release`], of the first lock in the order of the names whose release failed. The
    /// others are released all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped midway, the releases go on in the background.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.all(["account:7", "account:3"]).acquire().await?;
    /// // ... the work ...
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        let released = join_all(self.guards.into_iter().map(LockGuard::release)).await;
        released.into_iter().collect()
    }

    async fn spent_on<F, W>(self, work: F) -> Result<W::Output>
    where
        F: FnOnce(Vec<HoldToken>) -> W,
        W: Future,
    {
        let output = self.run(work(self.tokens())).await?;
        self.check()?;
        let released = self.guards.into_iter().map(LockGuard::release_after_work);
        let released = join_all(released).await;
        released.into_iter().collect::<Result<(), Lost>>()?;
        Ok(output)
    }

    /// The first lock whose hold has ended.
    fn first_lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let over: Vec<_> = (self.guards.iter())
            .map(|guard| Box::pin(guard.token().over()))
            .collect();
        async move {
            match over.is_empty() {
                true => pending().await,
                false => select_all(over).await.0,
            }
        }
    }
}

impl fmt::Debug for LockSetGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
