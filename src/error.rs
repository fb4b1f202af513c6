//! What can go wrong, by what a caller would do about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not do what it was asked to, sorted by what a caller would do next.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The wait was over before it was this request's turn. Nothing is held and nothing is queued any more.
    Timeout {
        /// How long the call waited.
        waited: Duration,
        /// The earliest time, from now, at which the lock may be free (never zero).
        retry_after: Duration,
    },
    /// This client has as many waiters as its configuration allows; nothing was sent.
    QueueFull {
        /// The bound, as configured.
        max_waiters: usize,
    },
    /// The owner holds the lock as often as an [`Owner`](crate::Owner) may: 256 times. Nothing was changed.
    TooManyHolds,
    /// Fewer servers than wanted confirmed the grant, which was given back: see
    /// [`replicas`](crate::LockManagerBuilder::replicas) and [`fsynced`](crate::LockManagerBuilder::fsynced).
    NotReplicated {
        /// How many were to confirm: the replicas, and the primary too if the grant was to be on disks.
        wanted: u32,
        /// How many did in time.
        got: u32,
    },
    /// No server answered, or none that could do the work: try later.
    Unavailable(ServerError),
    /// The server refuses this client: mend its set-up (ACL, password, a key of another type under the name).
    Refused(ServerError),
    /// The call itself is wrong; nothing was sent.
    Invalid(Invalid),
    /// The lease was lost: work done under it may be half done, and somebody else may hold the lock.
    Lost(Lost),
    /// The manager was closed, or the runtime that it connected on is gone.
    Closed,
}

impl Error {
    /// Tells whether the same call can succeed later with nothing changed but the time.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Error::Timeout { .. }
                | Error::QueueFull { .. }
                | Error::TooManyHolds
                | Error::NotReplicated { .. }
                | Error::Unavailable(_)
        )
    }

    /// How long to wait before the next try, where that is known: for an HTTP `Retry-After`.
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
            Error::Unavailable(e) => write!(f, "server unavailable: {e}"),
            Error::Refused(e) => write!(f, "refused by the server: {e}"),
            Error::Invalid(e) => e.fmt(f),
            Error::Lost(e) => e.fmt(f),
            Error::Closed => f.write_str("the lock manager is closed"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Unavailable(e) | Error::Refused(e) => Some(e),
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

/// What the server, or the connection to it, said.
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

/// A value that was refused before anything was sent: which one, and what is allowed.
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

/// A lease that is over: the lock may have another holder by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    name: Arc<str>,
    reason: LostReason,
}

/// Why a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// It ran out: no renewal got through in time, or it was a fixed lease.
    Expired,
    /// The server has another holder, or none: the lock was taken by force, its key deleted, or its grant forgotten by
    /// a failover.
    Taken,
    /// The hold reached its `max_hold`.
    MaxHold,
    /// The guard was released or dropped; nothing is wrong.
    Released,
}

impl Lost {
    pub(crate) fn new(name: Arc<str>, reason: LostReason) -> Lost {
        Lost { name, reason }
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why the lease is over.
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
