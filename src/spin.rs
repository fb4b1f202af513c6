//! The spin lock: tries again and again, with back-off. What most libraries do.
//!
//! It is here as the baseline that the fair lock is measured against, and as a fallback where pub/sub is not
//! to be had. It knows no order: under contention a waiter can starve, and a free lock can stay idle for as
//! long as the longest pause. It has no fence, and no renewal: the lease must be long enough for the work.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::engine::retry::RetryBudget;
use crate::engine::shared::Shared;
use crate::error::{Error, Invalid, Lost, LostReason, Result};
use crate::manager::LockManager;
use crate::options::{MAX_LEASE, MIN_LEASE, check_span};
use crate::owner::Owner;
use crate::store::keys::Keys;
use crate::store::{SpinAcquire, SpinAcquired, SpinRelease, SpinReleased};

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// A lock by hash and count, which waits by trying again after 1, 2, 4 … 128 ms.
///
/// Re-entrant by owner: each `SpinLock` is an owner of its own, and so are its clones together; take it as
/// often as you like, and unlock it as often. It shares nothing with the fair lock of the same name.
#[derive(Clone)]
pub struct SpinLock {
    shared: Arc<Shared>,
    name: Arc<str>,
    keys: Result<Arc<Keys>, Invalid>,
    owner: Owner,
}

impl SpinLock {
    /// The spin lock of this name, for a new owner. No I/O.
    pub fn new(manager: &LockManager, name: impl AsRef<str>) -> SpinLock {
        let shared = Arc::clone(manager.shared());
        let keys = Keys::new(&shared.client().options.prefix, name.as_ref()).map(Arc::new);
        SpinLock {
            shared,
            name: name.as_ref().into(),
            keys,
            owner: Owner::new(),
        }
    }

    /// The same lock, taken for this owner.
    #[must_use]
    pub fn owner(self, owner: &Owner) -> SpinLock {
        SpinLock {
            owner: owner.clone(),
            ..self
        }
    }

    /// The name, as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tries to take the lock for `wait` at most (zero: once), with a lease of this length (100 ms to 1 day),
    /// which starts anew with each hold of the same owner. Returns whether the lock is held.
    ///
    /// A call without a reply is repeated, and counts once; but twice if another one of the same owner took a
    /// hold in between.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Invalid`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// None: a dropped call may have taken the lock, for one lease; so may one that ended with
    /// [`Error::Unavailable`].
    pub async fn try_lock(&self, wait: Duration, lease: Duration) -> Result<bool> {
        let keys = self.open()?;
        check_span("lease", lease, MIN_LEASE, MAX_LEASE)?;
        let client = self.shared.client();
        let until = client.now().after(wait);
        let request = Uuid::new_v4();
        let mut pause = Duration::from_millis(1);
        let mut patience = RetryBudget::new(client);
        loop {
            let call = SpinAcquire {
                keys: Arc::clone(&keys),
                owner: self.owner.clone(),
                request,
                lease,
            };
            match client.store.spin_acquire(call).await {
                Ok(answer) if matches!(answer.reply, SpinAcquired::Held(_)) => return Ok(true),
                Ok(_) => {
                    patience.reset();
                    let left = until.since(client.now());
                    if left.is_zero() {
                        return Ok(false);
                    }
                    tokio::time::sleep(pause.min(left)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(failure) => tokio::time::sleep(patience.next_delay(failure)?).await,
            }
        }
    }

    /// Gives one hold back.
    ///
    /// # Errors
    /// [`Error::Lost`] when it was not held any more; [`Error::Unavailable`], [`Error::Refused`], [`Error::Invalid`],
    /// [`Error::Closed`].
    ///
    /// # Cancel safety
    /// None: a dropped call may have given the hold back or not.
    pub async fn unlock(&self) -> Result<()> {
        let keys = self.open()?;
        let call = SpinRelease {
            keys,
            owner: self.owner.clone(),
        };
        let answer = self.shared.client().store.spin_release(call).await?;
        match answer.reply {
            SpinReleased::Left(_) => Ok(()),
            SpinReleased::NotHeld => Err(Error::Lost(Lost::new(
                Arc::clone(&self.name),
                LostReason::Expired,
            ))),
        }
    }

    fn open(&self) -> Result<Arc<Keys>> {
        let keys = self.keys.clone()?;
        self.shared.client().check_open()?;
        self.shared.start()?;
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
