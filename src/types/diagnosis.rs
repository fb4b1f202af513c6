//! What an examination of a server finds.

use std::fmt;

/// One thing that the [examination of a server](crate::diagnose::server) has looked at.
///
/// # Examples
/// ```no_run
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// use fairlock::LockManager;
/// use fairlock::diagnose::{self, Verdict};
///
/// let settings = LockManager::builder();
/// for finding in diagnose::server(settings, "redis://127.0.0.1:6379").await? {
///     if finding.verdict != Verdict::Fine {
///         eprintln!("{}: {}: {}", finding.server, finding.subject, finding.text);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The server that was looked at: its address, without credentials.
    pub server: String,
    /// What was looked at.
    pub subject: Subject,
    /// What the finding means for locks.
    pub verdict: Verdict,
    /// What was found, and what can be done about it.
    pub text: String,
}

/// What a [`Finding`] is about.
///
/// # Examples
/// ```
/// use fairlock::diagnose::Subject;
///
/// assert_eq!(Subject::Right("+hget".to_owned()).to_string(), "right +hget");
/// assert_eq!(Subject::Eviction.to_string(), "eviction");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// Whether the server answers this user, and whether it has closed connections to save memory.
    Connection,
    /// Its version.
    Version,
    /// A right of the user, as `ACL SETUSER` takes it: `+hget`, `~fairlock:*` or `&fairlock:*`.
    Right(String),
    /// Whether the server takes writes at present.
    Writes,
    /// Whether it may evict locks (`maxmemory-policy`).
    Eviction,
    /// What a restart of the server forgets.
    Persistence,
    /// Its clock, beside that of this machine.
    Clock,
    /// Its replicas.
    Replicas,
    /// One of its sentinels.
    Sentinel,
    /// The cluster as a whole.
    Cluster,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Connection => "connection",
            Subject::Version => "version",
            Subject::Right(right) => return write!(f, "right {right}"),
            Subject::Writes => "writes",
            Subject::Eviction => "eviction",
            Subject::Persistence => "persistence",
            Subject::Clock => "clock",
            Subject::Replicas => "replicas",
            Subject::Sentinel => "sentinel",
            Subject::Cluster => "cluster",
        })
    }
}

/// What a [`Finding`] means for locks on that server.
///
/// # Examples
/// ```
/// use fairlock::diagnose::Verdict;
///
/// let worst = [Verdict::Fine, Verdict::Refused, Verdict::Warning].into_iter().max();
/// assert_eq!(worst, Some(Verdict::Refused));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// It is as locks need it.
    Fine,
    /// Locks work, with less than they could have.
    Warning,
    /// Calls that need it are [`Error::Unavailable`](crate::Error::Unavailable), and may succeed later.
    Unavailable,
    /// Calls that need it are [`Error::Refused`](crate::Error::Refused), until somebody changes something.
    Refused,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Fine => "fine",
            Verdict::Warning => "warning",
            Verdict::Unavailable => "unavailable",
            Verdict::Refused => "refused",
        })
    }
}
