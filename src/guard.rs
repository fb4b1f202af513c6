//! The guard: a lock that is held.

use std::fmt;

use crate::engine::client::runtime;
use crate::engine::hold::owned::OwnedHold;
use crate::error::{Error, Lost, LostReason, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::owner::Owner;

/// A lock that is held, until it is released or dropped, or its lease is lost.
///
/// While it lives, its lease is renewed in the background (unless it is a fixed one). A lease can be lost all
/// the same: the network, the server or this process may stop for longer than it lasts. The guard knows, by
/// its local clock, **no later than the server**: [`check`](Self::check) and [`is_lost`](Self::is_lost) tell,
/// [`lost`](Self::lost) waits for it, [`run`](Self::run) stops the work. What must never happen twice needs more: hand
/// [`fence`](Self::fence) to the resource, and have it refuse smaller numbers.
///
/// # Drop
/// Dropping a guard releases the lock in the background: it never blocks, spawns or panics, and works outside
/// a runtime. [`release`](Self::release) is for certainty: it tells whether the lock was held until the end.
/// - `let _ = lock.acquire().await?;` drops the guard, and so releases the lock, at once. Give it a name, as
///   in `let _guard = …`.
/// - Locals that were declared before the guard outlive it: they are dropped after the lock is released.
/// - A guard that is leaked (`std::mem::forget`) is renewed for ever: only `max_hold` or the end of the
///   process frees it.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct LockGuard {
    held: OwnedHold,
}

impl LockGuard {
    pub(crate) fn new(held: OwnedHold) -> LockGuard {
        LockGuard { held }
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.held.hold().keys.name
    }

    /// Who holds: the [`Owner`] that was given to the lock, or one of this guard's own.
    pub fn owner(&self) -> &Owner {
        &self.held.hold().owner
    }

    /// The fencing token: larger than that of every holder before, for the resource to check.
    ///
    /// All holds of a re-entrant owner have the same.
    pub fn fence(&self) -> Fence {
        self.held.hold().fence
    }

    /// How the lease stands now.
    pub fn lease(&self) -> Lease {
        self.held.hold().lease()
    }

    /// Whether the lease is over.
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// Looks at the clock, without I/O: right before a step that needs the lock.
    ///
    /// # Errors
    /// [`Lost`] when the lease is over.
    pub fn check(&self) -> Result<(), Lost> {
        self.held.hold().check()
    }

    /// Waits until the lease is over, whatever the network does. Borrows nothing, so that a watcher can be
    /// spawned; once the guard is released or dropped it resolves too, with [`LostReason::Released`].
    ///
    /// # Panics
    /// When it is polled outside of a Tokio runtime, like Tokio's own timers.
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let hold = self.held.hold().clone();
        async move { hold.lost().await }
    }

    /// Runs `work` as long as the lease lasts. When the lease is lost, `work` is dropped at its next
    /// `.await`, and other holders may already be at theirs; a half-done step stays half done.
    ///
    /// `run(tokio::spawn(work))` stops only the waiting: the spawned task goes on.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lease was lost before `work` ended; [`Error::Invalid`] outside of a Tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping it drops `work`, which must itself be cancel-safe; the lock stays held.
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output> {
        runtime()?;
        self.check()?;
        tokio::select! {
            biased;
            lost = self.held.hold().lost() => Err(lost.into()),
            output = work => Ok(output),
        }
    }

    /// Renews the lease now: a round trip that proves that the lock is still held.
    ///
    /// # Errors
    /// [`Error::Lost`] when it is not; [`Error::Unavailable`] when the server did not answer, and the lease stands
    /// as it was; [`Error::Invalid`] outside of a Tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping it changes nothing; the lease may have been renewed.
    pub async fn renew(&self) -> Result<Lease> {
        runtime()?;
        self.check()?;
        self.held.background().renew(self.held.hold()).await?;
        self.check()?;
        Ok(self.lease())
    }

    /// Releases the lock, and waits until the server has confirmed it; the next waiter has it then.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lease was over before: somebody else may have held the lock meanwhile.
    /// [`Error::Unavailable`] when no server answered for the `server_timeout`; the release is then repeated in the
    /// background for as long as the lease can last. [`Error::Invalid`] outside of a Tokio runtime: then it
    /// is released in the background.
    ///
    /// # Cancel safety
    /// Dropped midway, it goes on in the background.
    pub async fn release(self) -> Result<()> {
        runtime()?;
        let span = tracing::debug_span!(
            "fairlock.release",
            lock.name = self.name(),
            lock.fence = self.fence().get(),
            lock.outcome = tracing::field::Empty
        );
        let release = async {
            let released = self.held.release().await;
            tracing::Span::current().record(
                "lock.outcome",
                if released.is_ok() { "released" } else { "error" },
            );
            released
        };
        tracing::Instrument::instrument(release, span).await
    }

    /// Lets the lease run out by itself, with no release: nobody gets the lock before. For work that must not
    /// be repeated for a while.
    ///
    /// The lease is not renewed any more; but if the lock was handed over by its former holder, and the lease
    /// was never renewed so far, it is once, in the background, so that it lasts for its whole length.
    pub fn forget(self) {
        self.held.forget();
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

/// The lease of a guard whose work ended: whether a failed release means that the work was not covered.
pub(crate) fn after_work<T>(output: T, released: Result<()>) -> Result<T> {
    match released {
        Err(Error::Lost(lost)) if lost.reason() != LostReason::Released => Err(lost.into()),
        Err(error) => {
            tracing::warn!(%error, "the work is done, but its release was not confirmed; it goes on in the background");
            Ok(output)
        }
        Ok(()) => Ok(output),
    }
}
