//! The state of a lease, as its holder sees it.

use std::fmt;
use std::time::Duration;

/// The state of a guard's lease at one moment.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::LeaseState;
///
/// let guard = locks.lock("invoice:42").acquire().await?;
/// let lease = guard.lease();
/// assert_eq!(lease.state, LeaseState::Held);
/// assert!(lease.remaining <= lease.length);
/// # Ok(()) }
/// ```
#[doc(alias = "ttl")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// For how long the server keeps the hold after each renewal.
    pub length: Duration,
    /// For how long the hold is good even if no further renewal succeeds. Zero if the lease is lost.
    pub remaining: Duration,
    /// Whether the lease is still good.
    pub state: LeaseState,
}

/// Whether a lease is still good.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::LeaseState;
///
/// let guard = locks.lock("invoice:42").acquire().await?;
/// match guard.lease().state {
///     LeaseState::Held => println!("start the next batch"),
///     LeaseState::InDoubt => println!("finish, for {:?} at most", guard.lease().remaining),
///     _ => println!("stop"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// The lease is good, and its last renewal succeeded.
    Held,
    /// The lease is good, but renewals fail. Unless one succeeds, it ends in [`Lease::remaining`].
    InDoubt,
    /// The lease has ended: another holder may have the lock.
    Lost,
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LeaseState::Held => "held",
            LeaseState::InDoubt => "in doubt",
            LeaseState::Lost => "lost",
        })
    }
}

impl Lease {
    pub(crate) fn new(length: Duration, remaining: Duration, state: LeaseState) -> Lease {
        Lease {
            length,
            remaining,
            state,
        }
    }
}
