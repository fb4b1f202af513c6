//! A spin lock: it tries again and again, with back-off, as most libraries do.
//!
//! It serves as the baseline that the fair lock is measured against, and as a fallback where pub/sub is not
//! available. It keeps no order: under contention a waiter can starve, and a free lock can stay idle for as
//! long as the longest pause. It has no fence and no renewal, so the lease must be long enough for the work.
//!
//! # Examples
//! ```
//! # #[tokio::main] async fn main() -> fairlock::Result<()> {
//! use std::time::Duration;
//! use fairlock::{LockManager, spin::SpinLock};
//!
//! let locks = LockManager::in_memory();
//! let lock = SpinLock::new(&locks, "invoice:42");
//! if lock.try_lock(Duration::from_secs(1), Duration::from_secs(30)).await? {
//!     // ... at most 30 s of work ...
//!     lock.unlock().await?;
//! }
//! # Ok(()) }
//! ```

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::api::manager::LockManager;
use crate::caller::place::Place;
use crate::engine::options::{MAX_LEASE, MIN_LEASE, check_span};
use crate::engine::retry::RetryBudget;
use crate::protocol::keys::Keys;
use crate::protocol::{SpinAcquire, SpinAcquired, SpinRelease, SpinReleased};
use crate::types::error::{Error, HoldEnd, Invalid, Lost, Result};
use crate::types::owner::Owner;

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// A lock by hash and count, which waits by trying again after 1, 2, 4 … 128 ms.
///
/// It is re-entrant by owner. Each `SpinLock` is an owner of its own, together with its clones. It can be
/// taken any number of times, and has to be unlocked as often. It shares nothing with the fair lock of the
/// same name.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use std::time::Duration;
/// use fairlock::spin::SpinLock;
///
/// let lock = SpinLock::new(&locks, "invoice:42");
/// if lock.try_lock(Duration::from_secs(1), Duration::from_secs(30)).await? {
///     println!("{} is held for 30 s", lock.name());
///     lock.unlock().await?;
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "spinlock")]
#[derive(Clone)]
pub struct SpinLock {
    place: Place,
    name: Arc<str>,
    /// The keys, or the reason why there can be none. The first call returns it.
    keys: Result<Arc<Keys>, Invalid>,
    owner: Owner,
}

impl SpinLock {
    /// Creates the spin lock of this name, for a new owner. It does no I/O.
    ///
    /// # Examples
    /// ```
    /// use fairlock::LockManager;
    /// use fairlock::spin::SpinLock;
    ///
    /// let locks = LockManager::in_memory();
    /// let lock = SpinLock::new(&locks, "invoice:42");
    /// let again = lock.clone(); // the same owner
    /// # let _ = again;
    /// ```
    pub fn new(manager: &LockManager, name: impl AsRef<str>) -> SpinLock {
        let place = manager.place().clone();
        let keys = match place {
            Place::One(_) => Keys::new(&place.client().options.prefix, name.as_ref()).map(Arc::new),
            Place::Quorum(_) => Err(Invalid::new("a spin lock must be on one server, not in a quorum")),
        };
        SpinLock {
            place,
            name: name.as_ref().into(),
            keys,
            owner: Owner::new(),
        }
    }

    /// Sets the owner for whom the lock is taken.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::Owner;
    /// use fairlock::spin::SpinLock;
    ///
    /// let (me, wait, lease) = (Owner::named("worker-7"), Duration::ZERO, Duration::from_secs(30));
    /// assert!(SpinLock::new(&locks, "a").owner(&me).try_lock(wait, lease).await?);
    /// assert!(SpinLock::new(&locks, "a").owner(&me).try_lock(wait, lease).await?); // it is re-entrant
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn owner(self, owner: &Owner) -> SpinLock {
        SpinLock {
            owner: owner.clone(),
            ..self
        }
    }

    /// Returns the name, as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tries to take the lock for `wait` at most (zero: once), with a lease of this length (100 ms to 1 day).
    /// The lease starts over with each further hold of the same owner. Returns whether the lock is held.
    /// While no server answers, it goes on for the
    /// [`server_timeout`](crate::LockManagerBuilder::server_timeout), whatever `wait` says.
    ///
    /// A call without a reply is repeated, and counts once. It counts twice if another call for the same
    /// owner took a hold in between.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Invalid`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// None. A dropped call may have taken the lock, for one lease. So may a call that ended with
    /// [`Error::Unavailable`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::spin::SpinLock;
    ///
    /// let (wait, lease) = (Duration::from_millis(50), Duration::from_secs(30));
    /// assert!(SpinLock::new(&locks, "a").try_lock(wait, lease).await?);
    /// assert!(!SpinLock::new(&locks, "a").try_lock(wait, lease).await?); // another owner has it
    /// # Ok(()) }
    /// ```
    #[doc(alias = "lock")]
    #[doc(alias = "acquire")]
    pub async fn try_lock(&self, wait: Duration, lease: Duration) -> Result<bool> {
        let keys = self.open()?;
        check_span("lease", lease, MIN_LEASE, MAX_LEASE)?;
        let runtime = &self.place.client().runtime;
        runtime.serves(pin!(self.try_within(keys, wait, lease))).await
    }

    async fn try_within(&self, keys: Arc<Keys>, wait: Duration, lease: Duration) -> Result<bool> {
        let client = self.place.client();
        let until = client.now().after(wait);
        let request = Uuid::new_v4();
        let mut pause = Duration::from_millis(1);
        let mut budget = RetryBudget::new(client);
        loop {
            let call = SpinAcquire {
                keys: Arc::clone(&keys),
                owner: self.owner.clone(),
                request,
                lease,
            };
            match client.store.call(call).await {
                Ok(answer) if matches!(answer.reply, SpinAcquired::Held(_)) => return Ok(true),
                Ok(_) => {
                    budget.reset();
                    let left = until.since(client.now());
                    if left.is_zero() {
                        return Ok(false);
                    }
                    tokio::time::sleep(pause.min(left)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(failure) => tokio::time::sleep(budget.next_delay(failure)?).await,
            }
        }
    }

    /// Gives one hold back.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was no longer held; [`Error::Unavailable`], [`Error::Refused`],
    /// [`Error::Invalid`] or [`Error::Closed`]. It makes one attempt. After [`Error::Unavailable`] the hold
    /// may have been given back, so another call could end a second hold of the same owner.
    ///
    /// # Cancel safety
    /// None. A dropped call may or may not have given the hold back.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::Error;
    /// use fairlock::spin::SpinLock;
    ///
    /// let lock = SpinLock::new(&locks, "a");
    /// assert!(lock.try_lock(Duration::ZERO, Duration::from_secs(30)).await?);
    /// lock.unlock().await?;
    /// assert!(matches!(lock.unlock().await, Err(Error::Lost(_)))); // one hold, one unlock
    /// # Ok(()) }
    /// ```
    #[doc(alias = "release")]
    pub async fn unlock(&self) -> Result<()> {
        let keys = self.open()?;
        let call = SpinRelease {
            keys,
            owner: self.owner.clone(),
        };
        let client = self.place.client();
        let answer = client.runtime.serves(client.store.call(call)).await?;
        match answer.reply {
            SpinReleased::Left(_) => Ok(()),
            SpinReleased::NotHeld => Err(Error::Lost(Lost::new(Arc::clone(&self.name), HoldEnd::Expired))),
        }
    }

    fn open(&self) -> Result<Arc<Keys>> {
        let keys = self.keys.clone()?;
        self.place.client().check_open()?;
        self.place.start();
        Ok(keys)
    }
}

impl fmt::Debug for SpinLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock")
            .field("name", &self.name)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
