//! The guard: a lock that is held.

mod ending;
mod kinds;
mod token;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::kinds::Guard;
pub use self::kinds::{ReadGuard, SemaphoreGuard, WriteGuard};
pub use self::token::HoldToken;
use crate::caller::local_queue::turn::Turn;
use crate::caller::place::held::Held;
use crate::engine::any_hold::AnyHold;
use crate::engine::client::Client;
use crate::engine::counters::{Counters, Holding, How};
use crate::types::error::{HoldEnd, Invalid, Lost, Result};
use crate::types::fence::Fence;
use crate::types::lease::Lease;
use crate::types::owner::Owner;

/// A lock that is held until the guard is released or dropped, or until its lease is lost.
///
/// While the guard lives, its lease is renewed in the background, unless it is a fixed one. A lease can be
/// lost all the same: the network, the server or this process may stop for longer than it lasts. The guard
/// notices that, by its local clock, **no later than the server**. [`check`](Self::check) and
/// [`is_lost`](Self::is_lost) look, [`lost`](Self::lost) waits for the loss, and [`run`](Self::run) stops the
/// work. Time passes between a look and a write all the same. So hand [`fence`](Self::fence) to the resource,
/// and have it refuse smaller numbers. That stops late writes, but not the next holder, who may do the work
/// once more: what must take effect once needs an idempotency key too.
///
/// # Drop
/// Dropping a guard releases the lock. The release is written at once, so a later call of the same client
/// finds the lock free. Nobody waits for its confirmation: the client's runtime repeats it until it is
/// answered. A drop never blocks or panics, and it works outside a runtime. Use [`release`](Self::release)
/// for certainty: it reports whether the lock was held until the end.
/// - If the process ends right after a drop, the release may not be sent, and the lock is free when its lease
///   ends. Await [`close`](crate::LockManager::close) before.
/// - `let _ = lock.acquire().await?;` drops the guard at once, and so releases the lock at once. Give the
///   guard a name, as in `let _guard = …`.
/// - Locals that were declared before the guard outlive it: they are dropped after the lock is released.
/// - A leaked guard (`std::mem::forget`) is renewed for ever, unless its lease is fixed: only `max_hold`, a
///   forced release or the end of the process frees the lock.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// # let lock = locks.lock("invoice:42");
/// let guard = lock.acquire().await?;
/// println!("{} is held by {} under fence {}", guard.name(), guard.owner(), guard.fence());
/// // ... the work ...
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct LockGuard {
    kept: Kept,
}

/// What the guard ends when it is dropped.
#[derive(Debug)]
enum Kept {
    Hold(Held),
    /// Boxed, because it is larger, and any guard is moved often.
    Turn(Box<Turn>),
}

impl LockGuard {
    pub(crate) fn new(held: Held) -> LockGuard {
        held.mark_used();
        LockGuard {
            kept: Kept::Hold(held),
        }
    }

    pub(crate) fn of_turn(turn: Turn) -> LockGuard {
        LockGuard {
            kept: Kept::Turn(Box::new(turn)),
        }
    }

    fn hold(&self) -> &dyn AnyHold {
        match &self.kept {
            Kept::Hold(held) => held.hold(),
            Kept::Turn(turn) => turn.hold(),
        }
    }

    fn client(&self) -> &Arc<Client> {
        match &self.kept {
            Kept::Hold(held) => held.client(),
            Kept::Turn(turn) => turn.client(),
        }
    }

    /// How many servers have granted the lock, in a quorum.
    pub(crate) fn votes(&self) -> Option<usize> {
        self.hold().votes()
    }

    pub(crate) fn how(&self) -> How {
        match &self.kept {
            Kept::Hold(held) => held.how(),
            Kept::Turn(turn) => turn.how(),
        }
    }

    /// Has the hold counted until it is over.
    pub(crate) fn begin(&self, counters: &Counters, holding: Holding) {
        self.hold().begin_guard(counters, holding);
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(self.hold().name())
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        self.hold().name()
    }

    /// Returns the holder: the [`Owner`] that was given to the lock, or one of this guard's own. In a quorum
    /// it is always the latter. With [local hand-off](crate::Lock::local_handoffs), all guards that have
    /// their turns in one tenure have the same.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// println!("{:?}", guard.owner()); // as `status` shows it
    /// # Ok(()) }
    /// ```
    pub fn owner(&self) -> &Owner {
        self.hold().owner()
    }

    /// Returns the fencing token, for the resource to [check](Fence). It is larger than that of every holder
    /// before.
    ///
    /// All holds of a re-entrant owner have the same token. In a quorum, so have the holds of a majority of
    /// the servers. With [local hand-off](crate::Lock::local_handoffs), each guard has its own.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let guard = lock.acquire().await?;
    /// let fence = i64::from(guard.fence()); // SQL has no unsigned integers
    /// // Noted at the read, the fence keeps all earlier holders from writing.
    /// let read = "UPDATE invoice SET fence = $1 WHERE id = 42 AND fence <= $1 RETURNING amount";
    /// let write = "UPDATE invoice SET amount = $2 WHERE id = 42 AND fence = $1";
    /// // ... execute both with `fence`: if either finds no row, a later holder was there ...
    /// # let _ = (fence, read, write);
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> Fence {
        match &self.kept {
            Kept::Hold(held) => held.fence(),
            Kept::Turn(turn) => turn.fence(),
        }
    }

    /// Returns a token of the hold, for tasks that have to end with it. It does not keep the lock.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// let token = guard.token();
    /// let task = tokio::spawn(async move { println!("stop: {}", token.lost().await) });
    /// guard.release().await?;
    /// # task.await.unwrap();
    /// # Ok(()) }
    /// ```
    #[doc(alias = "CancellationToken")]
    pub fn token(&self) -> HoldToken {
        HoldToken {
            name: self.shared_name(),
            fence: self.fence(),
            hold: match &self.kept {
                Kept::Hold(held) => held.watched(),
                Kept::Turn(turn) => turn.watched(),
            },
            client: Arc::clone(self.client()),
        }
    }

    /// Returns the state of the lease at this moment. It does no I/O.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let guard = lock.acquire().await?;
    /// let lease = guard.lease();
    /// println!("{:?}, for another {:?}", lease.state, lease.remaining);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ttl")]
    pub fn lease(&self) -> Lease {
        self.hold().lease()
    }

    /// Returns whether the lease has ended. It does no I/O.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let guard = lock.acquire().await?;
    /// for page in 1..=3 {
    ///     if guard.is_lost() {
    ///         break;
    ///     }
    ///     println!("page {page}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// Checks by the local clock, without I/O, that the lease still lasts. Call it right before a step that
    /// needs the lock.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the lease has ended.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let guard = lock.acquire().await?;
    /// let invoice = std::path::Path::new("invoice-42.pdf");
    /// // ... a long preparation ...
    /// guard.check()?; // stops here if the lock was lost meanwhile
    /// println!("send {}", invoice.display());
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<()> {
        Ok(self.hold().check()?)
    }

    /// Waits until the hold ends, whatever the network does, and returns how it ended. The future borrows
    /// nothing, so that a watcher can be spawned.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let guard = lock.acquire().await?;
    /// let lost = guard.lost();
    /// let watcher = tokio::spawn(async move { println!("stop: {}", lost.await) });
    /// guard.release().await?;
    /// # watcher.await.unwrap();
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = HoldEnd> + Send + use<> {
        self.token().lost()
    }

    /// Runs `work` for as long as the lease lasts.
    ///
    /// If the lease is lost, `work` is dropped at its next `.await`. By then other holders may already be at
    /// their own work, and a half-done step stays half done.
    ///
    /// `run(tokio::spawn(work))` stops only the waiting: the spawned task goes on.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the lease was lost before `work` ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`, which must itself be cancel-safe. The lock stays held.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// # async fn charge(_fence: fairlock::Fence) -> u32 { 7 }
    /// let guard = lock.acquire().await?;
    /// let receipt = guard.run(charge(guard.fence())).await?;
    /// assert_eq!(receipt, 7);
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output> {
        self.client().runtime.check();
        self.check()?;
        unless_lost(self.token().over(), work).await
    }

    /// Renews the lease now, in one round trip that proves that the lock is still held. In a quorum, a
    /// majority of the servers confirm that.
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost) if the lock is no longer held.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the server did not answer, for 2 s at most, and
    ///   in a quorum [`Error::NoQuorum`](crate::Error::NoQuorum) if no majority did. The lease lasts as long
    ///   as before, and is in doubt.
    /// - [`Error::Refused`](crate::Error::Refused) if the server refuses this client.
    /// - [`Error::Invalid`](crate::Error::Invalid) if the lock has
    ///   [`auto_renew(false)`](crate::Lock::auto_renew).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, except that the lease may have been renewed.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// let guard = lock.acquire().await?;
    /// let lease = guard.renew().await?; // right before a step that nothing can stop
    /// println!("{:?} for that step", lease.remaining);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "extend")]
    #[doc(alias = "refresh")]
    pub async fn renew(&self) -> Result<Lease> {
        let runtime = &self.client().runtime;
        runtime.check();
        self.check()?;
        let renewed = pin!(async {
            match &self.kept {
                Kept::Hold(held) => held.renew().await,
                Kept::Turn(turn) => turn.renew().await,
            }
        });
        let renewed = runtime.serves(renewed).await;
        renewed.map_err(|error| error.of(self.hold().name()))?;
        self.check()?;
        Ok(self.lease())
    }

    /// Sets how long from now on the lock stays taken at least, even if it is released sooner.
    /// [`Lock::at_least`](crate::Lock::at_least) sets that for each guard, from its grant on. With `None`,
    /// the release frees the lock at once: another instance can do work that has failed, or that could not
    /// begin. It does no I/O. The last call counts.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a time that the lock must not have, for any time in a
    /// [quorum](crate::Quorum), and for any time with [local hand-off](crate::Lock::local_handoffs). The
    /// guard stays as it was.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn send_report() -> Result<(), &'static str> { Err("no route to host") }
    /// use std::time::Duration;
    ///
    /// let nightly = locks.lock("job:nightly").at_least(Duration::from_secs(50));
    /// let guard = nightly.try_acquire().await?;
    /// if send_report().await.is_err() {
    ///     guard.at_least(None)?; // another instance may do better
    /// }
    /// guard.release().await?;
    /// assert!(nightly.try_acquire().await.is_ok());
    /// # Ok(()) }
    /// ```
    pub fn at_least(&self, at_least: impl Into<Option<Duration>>) -> Result<()> {
        match (&self.kept, at_least.into()) {
            (Kept::Hold(held), at_least) => Ok(held.keep_for(at_least)?),
            (Kept::Turn(_), None) => Ok(()),
            (Kept::Turn(_), Some(_)) => {
                let why = "at_least: must not be set for a guard with local hand-off; set it for the lock";
                Err(Invalid::new(why).into())
            }
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .field("owner", self.owner())
            .field("lease", &self.lease())
            .finish()
    }
}

/// Does the work until it ends, or the lease is lost.
pub(crate) async fn unless_lost<W: Future>(lost: impl Future<Output = Lost>, work: W) -> Result<W::Output> {
    tokio::select! {
        biased;
        lost = lost => Err(lost.into()),
        output = work => Ok(output),
    }
}
