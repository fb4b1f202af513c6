//! How a guard ends the hold, unless it is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::Span;
use tracing::field::Empty;

use super::{Kept, LockGuard};
use crate::types::error::{Error, HoldEnd, Lost, Result};

/// How long the result of work that is done waits for the release. The release is on its way by then, even if
/// the program ends next, and a server that is well has confirmed it.
const AFTER_WORK: Duration = Duration::from_millis(10);

impl LockGuard {
    /// Releases the lock, and waits until the server has confirmed it. In a quorum, it waits for a majority
    /// of the servers. By then the next waiter has the lock. If that is another guard of this process
    /// ([`local_handoffs`](crate::Lock::local_handoffs)), or if the lock is
    /// [retained](crate::Lock::retain), the server is not asked.
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost) if the lease had ended before: another holder may have had the
    ///   lock meanwhile.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if no server answered for the
    ///   [`server_timeout`](crate::LockManagerBuilder::server_timeout), and in a quorum
    ///   [`Error::NoQuorum`](crate::Error::NoQuorum) if too few did. The release is then [repeated in
    ///   the background](crate::guide::operations#when-things-break).
    /// - [`Error::Refused`](crate::Error::Refused) if the server refuses this client. The lock is free when
    ///   the lease ends.
    ///
    /// # Cancel safety
    /// If the future is dropped midway, the release goes on in the background.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # let lock = locks.lock("invoice:42");
    /// use fairlock::Error;
    ///
    /// let guard = lock.acquire().await?;
    /// // ... the work ...
    /// match guard.release().await {
    ///     Err(Error::Lost(lost)) => println!("the work may have overlapped with another holder's: {lost}"),
    ///     released => released?,
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        let client = Arc::clone(self.client());
        client.runtime.check();
        let name = self.shared_name();
        let span = tracing::debug_span!(
            "fairlock.release",
            lock.name = self.name(),
            lock.fence = self.fence().get(),
            lock.outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty
        );
        // Pinned and in place, since a future that is passed on is copied.
        let release = pin!(async {
            let held = match self.kept {
                Kept::Hold(held) => Some(held),
                Kept::Turn(turn) => turn.release(),
            };
            let released = match held {
                Some(held) => held.release().await,
                None => Ok(()),
            };
            let outcome = match &released {
                Ok(()) => "released",
                Err(error) => {
                    error.record(&Span::current());
                    "error"
                }
            };
            Span::current().record("lock.outcome", outcome);
            released
        });
        let release = tracing::Instrument::instrument(release, span);
        let released = client.runtime.serves(release).await;
        released.map_err(|error| error.of(&name))
    }

    /// Releases the lock after work that is done. The release is written at once. It is waited for shortly,
    /// and then goes on by itself, on the client's runtime. Fails if the server has said by then that the
    /// lock was lost before.
    pub(crate) async fn release_after_work(self) -> Result<(), Lost> {
        let client = Arc::clone(self.client());
        let name = self.shared_name();
        let released = async move {
            match self.release().await {
                Err(Error::Lost(lost)) if lost.reason != HoldEnd::Released => Err(lost),
                Err(error) => {
                    tracing::warn!(lock.name = &*name, %error,
                        "the work is done, but its release was not confirmed; the lease ends by itself");
                    Ok(())
                }
                Ok(()) => Ok(()),
            }
        };
        let mut released = Box::pin(released);
        {
            let shortly = pin!(async { tokio::time::timeout(AFTER_WORK, &mut released).await });
            if let Ok(released) = client.runtime.serves(shortly).await {
                return released;
            }
        }
        client.spawn(async move {
            if let Err(lost) = released.await {
                tracing::warn!(%lost, "the work may have overlapped with that of another holder");
            }
        });
        Ok(())
    }
}
