//! Errors, sorted by the caller's next step.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tracing::Span;

use crate::types::fence::Fence;

/// The result of this crate's calls.
///
/// # Examples
/// ```
/// use fairlock::{LockManager, Result};
///
/// async fn is_free(locks: &LockManager, name: &str) -> Result<bool> {
///     Ok(locks.lock(name).status().await?.holder.is_none())
/// }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reasons why a call did not do its work, sorted by the caller's next step.
///
/// | error | [transient](Error::is_transient) | next step | a web handler answers |
/// |---|---|---|---|
/// | [`Busy`](Error::Busy), [`Timeout`](Error::Timeout) | yes | wait longer, or leave it | 503 |
/// | [`QueueFull`](Error::QueueFull), [`TooManyHolds`](Error::TooManyHolds) | yes | shed load | 503 |
/// | [`NotReplicated`](Error::NotReplicated) | yes | try again | 503 |
/// | [`Unavailable`](Error::Unavailable), [`NoQuorum`](Error::NoQuorum) | yes | try again, and alert | 503 |
/// | [`Lost`](Error::Lost) | no | find out what was done, and do the rest again | 503 |
/// | [`Closed`](Error::Closed) | no | the process ends | 503 |
/// | [`Unreleased`](Error::Unreleased) | no | report which locks are taken until their leases end | |
/// | [`Refused`](Error::Refused) | no | correct the configuration | 500 |
/// | [`Invalid`](Error::Invalid) | no | correct the program | 500 |
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
///     Err(Error::Timeout { waited, .. }) => println!("busy for {waited:?}"),
///     Err(error) if error.is_transient() => println!("retry later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The lock is held, or others wait for it, and the call was not to wait
    /// ([`try_acquire`](crate::Lock::try_acquire)). Nothing is held, and nothing is queued.
    #[non_exhaustive]
    Busy {
        /// The name of the lock: of a set, of the one that was busy.
        name: Arc<str>,
        /// The time after which the lock can be free if nobody renews its lease and nobody releases it. It
        /// says nothing about when that will be: most holders are done much sooner.
        ttl: Duration,
        /// How many requests wait for the lock. [`Status::waiting`](crate::Status::waiting) says which ones
        /// count.
        waiting: u64,
    },
    /// The wait ended before it was this request's turn, or before a server answered that could do the work.
    /// Nothing is held, and nothing is queued any more.
    #[non_exhaustive]
    Timeout {
        /// The name of the lock: of a set, of the one that the call waited for.
        name: Arc<str>,
        /// How long the call waited.
        waited: Duration,
        /// As for [`Busy`](Error::Busy). Zero if no server reported a holder.
        ttl: Duration,
    },
    /// This client has as many waiters as its settings allow. Nothing was sent.
    #[non_exhaustive]
    QueueFull {
        /// The name of the lock.
        name: Arc<str>,
        /// The limit, as set by [`max_waiters`](crate::LockManagerBuilder::max_waiters).
        max_waiters: usize,
    },
    /// The owner holds the lock as often as an [`Owner`](crate::Owner) may: 256 times. Nothing was changed.
    #[non_exhaustive]
    TooManyHolds {
        /// The name of the lock.
        name: Arc<str>,
    },
    /// Fewer replicas than required confirmed the grant, and it was given back. See
    /// [`replicas`](crate::LockManagerBuilder::replicas).
    #[non_exhaustive]
    NotReplicated {
        /// The name of the lock.
        name: Arc<str>,
        /// The number of confirmations required.
        wanted: u32,
        /// The number of confirmations that came in time.
        got: u32,
    },
    /// In a quorum: too few servers answered, or too few may grant locks yet. A server that has just started
    /// grants none for a while ([`longest_lease`](crate::Quorum::longest_lease)). Try again
    /// later.
    #[non_exhaustive]
    NoQuorum {
        /// The name of the lock, if the call was about one.
        name: Option<Arc<str>>,
        /// The number of servers.
        servers: usize,
        /// The number of servers that are a majority.
        wanted: usize,
        /// The number of servers that answered, and may grant locks.
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
    /// The lease was lost. Work done under it may be half done, and another holder may have the lock. A
    /// [token](crate::HoldToken::run) also gives it after a release.
    Lost(Lost),
    /// The manager was closed, or the runtime that it connected on is gone.
    Closed,
    /// The manager was [closed](crate::LockManager::close), and left this behind.
    Unreleased(Unreleased),
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
            Error::Busy { .. }
                | Error::Timeout { .. }
                | Error::QueueFull { .. }
                | Error::TooManyHolds { .. }
                | Error::NotReplicated { .. }
                | Error::NoQuorum { .. }
                | Error::Unavailable(_)
        )
    }

    /// Records on the span of a call that it has failed, and why.
    pub(crate) fn record(&self, span: &Span) {
        let kind = match self {
            Error::Busy { .. } => "busy",
            Error::Timeout { .. } => "timeout",
            Error::QueueFull { .. } => "queue_full",
            Error::TooManyHolds { .. } => "too_many_holds",
            Error::NotReplicated { .. } => "not_replicated",
            Error::NoQuorum { .. } => "no_quorum",
            Error::Unavailable(_) => "unavailable",
            Error::Refused(_) => "refused",
            Error::Invalid(_) => "invalid",
            Error::Lost(_) => "lost",
            Error::Closed => "closed",
            Error::Unreleased(_) => "unreleased",
        };
        span.record("error.type", kind)
            .record("otel.status_code", "ERROR");
    }

    /// Returns the name of the lock that the call was about, as far as the error has one.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let held = locks.lock("b").acquire().await?;
    /// let busy = locks.all(["a", "b"]).try_acquire().await.unwrap_err();
    /// assert_eq!(busy.name(), Some("b"));
    /// # drop(held);
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> Option<&str> {
        match self {
            Error::Busy { name, .. }
            | Error::Timeout { name, .. }
            | Error::QueueFull { name, .. }
            | Error::TooManyHolds { name }
            | Error::NotReplicated { name, .. } => Some(name),
            Error::NoQuorum { name, .. } => name.as_deref(),
            Error::Lost(lost) => Some(&lost.name),
            _ => None,
        }
    }

    pub(crate) fn too_many_holds() -> Error {
        Error::TooManyHolds { name: Arc::default() }
    }

    /// The error of a call about this lock. What is below the API does not know names.
    pub(crate) fn of(mut self, lock: &Arc<str>) -> Error {
        match &mut self {
            Error::Busy { name, .. }
            | Error::Timeout { name, .. }
            | Error::QueueFull { name, .. }
            | Error::TooManyHolds { name }
            | Error::NotReplicated { name, .. } => *name = Arc::clone(lock),
            Error::NoQuorum { name, .. } => *name = Some(Arc::clone(lock)),
            _ => {}
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Busy { name, waiting, .. } => {
                write!(
                    f,
                    "{name:?} is busy: it is taken, and {waiting} others wait for it"
                )
            }
            Error::Timeout { name, waited, .. } => write!(f, "{name:?} was not acquired within {waited:?}"),
            Error::QueueFull { name, max_waiters } => write!(
                f,
                "{name:?} was not asked for: this client already has {max_waiters} waiters, its limit \
                 (max_waiters)"
            ),
            Error::TooManyHolds { name } => {
                write!(
                    f,
                    "this owner holds the lock {name:?} 256 times, as often as it may"
                )
            }
            Error::NotReplicated { name, wanted, got } => write!(
                f,
                "{got} of {wanted} replicas confirmed the grant of {name:?}; it was given back"
            ),
            Error::NoQuorum {
                name,
                servers,
                wanted,
                answering,
                why,
            } => {
                if let Some(name) = name {
                    write!(f, "{name:?}: ")?;
                }
                write!(
                    f,
                    "{wanted} of {servers} servers are needed, and {answering} can grant; one that cannot: {why}"
                )
            }
            Error::Unavailable(e) => write!(f, "server unavailable: {e}"),
            Error::Refused(e) => write!(f, "refused by the server: {e}"),
            Error::Invalid(e) => e.fmt(f),
            Error::Lost(e) => e.fmt(f),
            Error::Unreleased(e) => e.fmt(f),
            Error::Closed => {
                f.write_str("the lock manager is closed, or the runtime on which it connected has ended")
            }
        }
    }
}

/// There is no source: the text says all, and a report of the whole chain would say it twice.
impl std::error::Error for Error {}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Error {
        Error::Lost(lost)
    }
}

impl From<Unreleased> for Error {
    fn from(unreleased: Unreleased) -> Error {
        Error::Unreleased(unreleased)
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Error {
        Error::Invalid(invalid)
    }
}

/// The locks and releases that [`LockManager::close`](crate::LockManager::close) left behind.
///
/// The locks are those of guards that still live: each stays held until its guard is dropped or its lease
/// ends. The releases are those that no server confirmed, or that no majority of a quorum did. Calls of
/// `release` and `try_acquire` that were still under way count as such.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let guard = locks.lock("invoice:42").acquire().await?;
/// let unreleased = locks.close().await.unwrap_err();
/// assert_eq!(unreleased.held, [("invoice:42".into(), guard.fence())]);
/// assert_eq!(unreleased.unconfirmed, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreleased {
    /// The locks that guards of this manager still hold, each with its name and fencing token.
    pub held: Vec<(Arc<str>, Fence)>,
    /// How many releases, and waits that were given up, no server had confirmed, and how many calls of
    /// `release` and `try_acquire` were under way. What they left on the server ends with its lease at the
    /// latest.
    pub unconfirmed: usize,
}

impl fmt::Display for Unreleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("closed")?;
        if !self.held.is_empty() {
            let locks = if self.held.len() == 1 { "lock" } else { "locks" };
            write!(f, " with {} {locks} still held", self.held.len())?;
        }
        for (i, (name, fence)) in self.held.iter().take(8).enumerate() {
            write!(f, "{} {name:?} (fence {fence})", if i == 0 { ":" } else { "," })?;
        }
        if self.held.len() > 8 {
            f.write_str(", …")?;
        }
        if self.unconfirmed > 0 {
            write!(f, "; calls not confirmed: {}", self.unconfirmed)?;
        }
        Ok(())
    }
}

impl std::error::Error for Unreleased {}

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
    /// The most bytes that are kept of what a server says.
    const LONGEST: usize = 1000;

    pub(crate) fn new(message: impl Into<Arc<str>>) -> ServerError {
        let message = message.into();
        if message.len() <= Self::LONGEST {
            return ServerError { message };
        }
        let end = (0..=Self::LONGEST).rev().find(|at| message.is_char_boundary(*at));
        ServerError {
            message: format!("{}…", &message[..end.unwrap_or_default()]).into(),
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

/// A lease that has ended: the lock may already have another holder.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::{Error, HoldEnd};
///
/// let guard = locks.lock("invoice:42").acquire().await?;
/// locks.lock("invoice:42").force_release(guard.fence()).await?;
/// if let Err(Error::Lost(lost)) = guard.renew().await {
///     assert_eq!((&*lost.name, lost.reason), ("invoice:42", HoldEnd::Taken));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// The name of the lock.
    pub name: Arc<str>,
    /// Why the lease ended.
    pub reason: HoldEnd,
}

/// How a hold ended.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::HoldEnd;
///
/// let guard = locks.lock("invoice:42").acquire().await?;
/// let token = guard.token();
/// tokio::spawn(async move {
///     match token.lost().await {
///         HoldEnd::Released => {} // the work is done
///         lost => eprintln!("stop: {lost}"),
///     }
/// });
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldEnd {
    /// The guard was released or dropped. Nothing is wrong.
    Released,
    /// The lease ran out: no renewal succeeded in time, or it was not to be renewed.
    Expired,
    /// The server has another holder, or none: the lock was taken by force, its key was deleted, or its grant
    /// was forgotten by a failover. In a quorum, the votes that are left cannot form a majority.
    Taken,
    /// The hold reached its `max_hold`.
    MaxHold,
}

impl fmt::Display for HoldEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HoldEnd::Released => "it was released",
            HoldEnd::Expired => "it expired",
            HoldEnd::Taken => "it was taken away on the server",
            HoldEnd::MaxHold => "the maximum hold time was reached",
        })
    }
}

impl Lost {
    pub(crate) fn new(name: Arc<str>, reason: HoldEnd) -> Lost {
        Lost { name, reason }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lost { name, reason } = self;
        write!(f, "the lease on lock {name:?} is over: {reason}")
    }
}

impl std::error::Error for Lost {}
