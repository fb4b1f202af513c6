//! Errors, sorted by the caller's next step.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of this crate's calls.
///
/// # Examples
/// ```
/// use fairlock::{Fence, Lock, Result};
///
/// async fn fence_of(lock: &Lock) -> Result<Fence> {
///     Ok(lock.acquire().await?.fence())
/// }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reasons why a call did not do its work, sorted by the caller's next step.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use std::time::Duration;
/// use fairlock::Error;
///
/// match locks.lock("invoice:42").acquire_timeout(Duration::from_secs(1)).await {
///     Ok(guard) => guard.release().await?,
///     Err(Error::Timeout { retry_after, .. }) => println!("busy, retry in {retry_after:?}"),
///     Err(error) if error.is_transient() => println!("retry later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The wait was over before it was this request's turn, or before a server answered that could do the
    /// work. Nothing is held, and nothing is queued any more.
    Timeout {
        /// How long the call waited.
        waited: Duration,
        /// The time until the holder's lease ends if it is not renewed (1 ms at least, also if no server told
        /// of a holder). The holder may release the lock sooner, or renew its lease.
        retry_after: Duration,
    },
    /// This client has as many waiters as its settings allow. Nothing was sent.
    QueueFull {
        /// The limit, as set by [`max_waiters`](crate::LockManagerBuilder::max_waiters).
        max_waiters: usize,
    },
    /// The owner holds the lock as often as an [`Owner`](crate::Owner) may: 256 times. Nothing was changed.
    TooManyHolds,
    /// Fewer replicas than required confirmed the grant, and it was given back. See
    /// [`replicas`](crate::LockManagerBuilder::replicas).
    NotReplicated {
        /// The number of confirmations required.
        wanted: u32,
        /// The number of confirmations that came in time.
        got: u32,
    },
    /// In a quorum: too few servers answered, or too few may grant locks yet. A server that has just started
    /// grants none for a while ([`longest_lease`](crate::LockManagerBuilder::longest_lease)). Try again
    /// later.
    NoQuorum {
        /// The number of servers.
        servers: usize,
        /// The number of servers that are a majority.
        wanted: usize,
        /// The number of servers that answered.
        answering: usize,
        /// What was wrong with one of the others.
        why: ServerError,
    },
    /// No server answered, or none that could do the work. Try again later.
    Unavailable(ServerError),
    /// The server refuses this client. Its set-up has to change (ACL, password, a key of another type under
    /// the name), or somebody has damaged the data of the lock.
    Refused(ServerError),
    /// The call itself is wrong. Nothing was sent.
    Invalid(Invalid),
    /// The lease was lost. Work done under it may be half done, and another holder may have the lock.
    Lost(Lost),
    /// The manager was closed, or the runtime that it connected on is gone.
    Closed,
}

impl Error {
    /// Returns whether the same call can succeed later although nothing but the time has changed.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::Error;
    ///
    /// let error = locks.lock("").acquire().await.unwrap_err();
    /// assert!(!error.is_transient()); // an empty name stays wrong
    /// # Ok(()) }
    /// ```
    #[doc(alias = "is_retryable")]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Error::Timeout { .. }
                | Error::QueueFull { .. }
                | Error::TooManyHolds
                | Error::NotReplicated { .. }
                | Error::NoQuorum { .. }
                | Error::Unavailable(_)
        )
    }

    /// Returns how long to wait before the next try, where that is known: the `retry_after` of
    /// [`Error::Timeout`]. It suits an HTTP `Retry-After`.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let lock = locks.lock("invoice:42");
    /// let _held = lock.acquire().await?;
    /// let error = lock.acquire_timeout(Duration::ZERO).await.unwrap_err();
    /// assert!(error.retry_after().is_some());
    /// # Ok(()) }
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Timeout { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Timeout { waited, retry_after } => {
                write!(
                    f,
                    "not acquired within {waited:?}; the lock may be free in {retry_after:?}"
                )
            }
            Error::QueueFull { max_waiters } => {
                write!(
                    f,
                    "this client already has {max_waiters} waiters, its limit (max_waiters)"
                )
            }
            Error::TooManyHolds => f.write_str("this owner holds the lock 256 times, as often as it may"),
            Error::NotReplicated { wanted, got } => {
                write!(
                    f,
                    "{got} of {wanted} servers confirmed the grant; it was given back"
                )
            }
            Error::NoQuorum {
                servers,
                wanted,
                answering,
                why,
            } => {
                write!(
                    f,
                    "{wanted} of {servers} servers are needed, and {answering} answered; one that did not: {why}"
                )
            }
            Error::Unavailable(e) => write!(f, "server unavailable: {e}"),
            Error::Refused(e) => write!(f, "refused by the server: {e}"),
            Error::Invalid(e) => e.fmt(f),
            Error::Lost(e) => e.fmt(f),
            Error::Closed => {
                f.write_str("the lock manager is closed, or the runtime on which it connected has ended")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Unavailable(e) | Error::Refused(e) | Error::NoQuorum { why: e, .. } => Some(e),
            Error::Invalid(e) => Some(e),
            Error::Lost(e) => Some(e),
            _ => None,
        }
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Error {
        Error::Lost(lost)
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Error {
        Error::Invalid(invalid)
    }
}

/// The message of the server, or of the connection to it.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::Error;
///
/// if let Err(Error::Unavailable(why)) = locks.ping().await {
///     eprintln!("the lock server is away: {why}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    message: Arc<str>,
}

impl ServerError {
    pub(crate) fn new(message: impl Into<Arc<str>>) -> ServerError {
        ServerError {
            message: message.into(),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServerError {}

/// A value that was refused before anything was sent. The message names the value and the allowed ones.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::Error;
///
/// match locks.lock("a{b").acquire().await {
///     Err(Error::Invalid(invalid)) => eprintln!("{invalid}"),
///     _ => unreachable!("a name has no braces"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    message: Arc<str>,
}

impl Invalid {
    pub(crate) fn new(message: impl Into<Arc<str>>) -> Invalid {
        Invalid {
            message: message.into(),
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Invalid {}

/// A lease that is over: the lock may already have another holder.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::LostReason;
///
/// let guard = locks.lock("invoice:42").acquire().await?;
/// let lost = guard.lost();
/// drop(guard);
/// let lost = lost.await;
/// assert_eq!((lost.name(), lost.reason()), ("invoice:42", LostReason::Released));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    name: Arc<str>,
    reason: LostReason,
}

/// The reason why a lease is over.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::LostReason;
///
/// # let guard = locks.lock("invoice:42").acquire().await?;
/// if let Err(lost) = guard.check() {
///     match lost.reason() {
///         LostReason::Expired => println!("the server was out of reach, or the lease was fixed"),
///         LostReason::Taken => println!("taken by force, or forgotten by a failover"),
///         reason => println!("{reason:?}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out: no renewal succeeded in time, or it was a fixed lease.
    Expired,
    /// The server has another holder, or none: the lock was taken by force, its key was deleted, or its grant
    /// was forgotten by a failover. In a quorum, a majority of the servers say so.
    Taken,
    /// The hold reached its `max_hold`.
    MaxHold,
    /// The guard was released or dropped. Nothing is wrong.
    Released,
}

impl Lost {
    pub(crate) fn new(name: Arc<str>, reason: LostReason) -> Lost {
        Lost { name, reason }
    }

    /// Returns the name of the lock.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::Error;
    ///
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// let fence = guard.fence();
    /// locks.lock("invoice:42").force_release(fence).await?;
    /// if let Err(Error::Lost(lost)) = guard.renew().await {
    ///     assert_eq!(lost.name(), "invoice:42");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns why the lease is over.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use fairlock::{Error, LostReason};
    ///
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// let fence = guard.fence();
    /// locks.lock("invoice:42").force_release(fence).await?;
    /// if let Err(Error::Lost(lost)) = guard.renew().await {
    ///     assert_eq!(lost.reason(), LostReason::Taken);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn reason(&self) -> LostReason {
        self.reason
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.reason {
            LostReason::Expired => "it expired",
            LostReason::Taken => "it was taken away on the server",
            LostReason::MaxHold => "the maximum hold time was reached",
            LostReason::Released => "it was released",
        };
        write!(f, "the lease on lock {:?} is over: {why}", self.name)
    }
}

impl std::error::Error for Lost {}
