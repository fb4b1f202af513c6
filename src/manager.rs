//! The manager: one client of a server, from which locks come.

mod builder;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use self::builder::LockManagerBuilder;
use crate::engine::shared::Shared;
use crate::error::Result;
use crate::fence::Fence;
use crate::lock::Lock;
use crate::store::memory::MemoryStore;

/// One client of a Redis or Valkey server, or of an in-memory store: what locks are made from. Cheap to clone; a
/// process needs one.
///
/// It has two connections (one for commands, one for subscriptions; a third to wait for
/// [replicas](LockManagerBuilder::replicas) or [disks](LockManagerBuilder::fsynced), if it does; in a cluster, to each master that it has to do with) and a
/// background task, the background task, which
/// renews leases and releases what dropped guards leave. The background task lives on the runtime that connected; when that is
/// gone, every call answers [`Error::Closed`](crate::Error::Closed).
///
/// Don't use one across a `fork`, nor in two copies of a virtual machine's snapshot: both would have the same ids.
///
/// ```
/// # async fn charge(fence: fairlock::Fence) {}
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// use fairlock::{LockManager, TryAcquire};
///
/// let locks = LockManager::in_memory();                // or LockManager::connect("redis://127.0.0.1:6379").await?
/// let lock = locks.lock("invoice:42");                 // a name and options: no I/O
///
/// let guard = lock.acquire().await?;                   // first come, first served
/// guard.run(charge(guard.fence())).await?;             // stopped with Err(Lost) if the lease is lost
/// guard.release().await?;                              // certain; a dropped guard is released in the background
///
/// match lock.try_acquire().await? {                    // never waits, never overtakes
///     TryAcquire::Acquired(guard) => guard.release().await?,
///     TryAcquire::Busy(busy) => println!("retry in {:?}", busy.retry_after()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<Shared>,
}

impl LockManager {
    /// Connects to the server at this URL, with all settings at their defaults.
    ///
    /// | URL | |
    /// |---|---|
    /// | `redis://[user:password@]host[:6379][/database]` | |
    /// | `rediss://…` | by TLS: with the feature `rustls` or `native-tls`, see [`tls`](LockManagerBuilder::tls) |
    /// | `redis-cluster://[user:password@]host[:6379][?node=host:port&node=…]` | the cluster that these servers belong to; by TLS `rediss-cluster://` |
    /// | `redis-sentinel://[user:password@]host[:26379][/database]?node=host:port&node=…&sentinelServiceName=name` | the primary that these sentinels know by that name, also after a failover; user and password are the server's, `&sentinelUsername=…&sentinelPassword=…` the sentinels'; by TLS `rediss-sentinel://` |
    /// | `unix://[user:password@localhost]/path[?db=database]` | by a Unix socket; also `redis+unix://` |
    ///
    /// Each `redis` may be `valkey`. User, password and path may have `%`-escapes. `?protocol=3` speaks RESP3,
    /// for proxies that ask for it; nothing else differs.
    ///
    /// In a cluster each lock lives on the master that has its hash slot. A call is sent on when the slot has moved, and
    /// repeated, like any call without an answer, while a replica takes over.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a URL that is none; [`Error::Unavailable`](crate::Error::Unavailable) when the server did not answer within the
    /// `server_timeout` (10 s by default); [`Error::Refused`](crate::Error::Refused) when it refuses this user,
    /// or one of the two the other's certificate.
    ///
    /// # Cancel safety
    /// Dropping it ends the connections.
    #[cfg(feature = "redis")]
    pub async fn connect(url: &str) -> Result<LockManager> {
        LockManager::builder().connect(url).await
    }

    /// Locks inside this process: the same order, leases and fences without a server, for a service that runs once,
    /// for examples, and for tests. Time is tokio's clock, so a paused test can let leases end.
    ///
    /// Works outside a runtime too; the background task lives on the runtime that polls the first call.
    pub fn in_memory() -> LockManager {
        LockManagerBuilder::default().build(&MemoryStore::new())
    }

    /// Settings other than the defaults.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder::default()
    }

    /// The lock of this name: 1 to 512 bytes, no braces (but for one hash tag at the start, as in `{user:7}:cart`, which
    /// puts the lock beside other keys of that tag in a cluster). No I/O; a name that is not allowed is refused by the
    /// first call.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.shared), name.as_ref())
    }

    /// One round trip to the server: for health checks.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Refused`](crate::Error::Refused), [`Error::Closed`](crate::Error::Closed);
    /// [`Error::Invalid`](crate::Error::Invalid) outside of a Tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub async fn ping(&self) -> Result<()> {
        self.shared.client().check_open()?;
        self.shared.start()?;
        self.shared.client().store.time().await?;
        Ok(())
    }

    /// What this client has and has done.
    pub fn stats(&self) -> Stats {
        let counters = &self.shared.client().counters;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            held: self.shared.background().held_count(),
            waiting: self.shared.waitlists().waiting(),
            acquired: read(&counters.acquired),
            handed_over: read(&counters.handed_over),
            lost: read(&counters.lost),
            timed_out: read(&counters.timed_out),
            released_by_drop: read(&counters.released_by_drop),
            late: read(&counters.late),
            unconfirmed: self.shared.background().pending(),
        }
    }

    /// Ends the service of this manager and all its clones: no new requests, waiters get [`Error::Closed`](crate::Error::Closed), and releases that
    /// dropped guards left are sent. Guards that live stay renewed, and can be released, until they are dropped;
    /// nothing here waits for them.
    ///
    /// # Errors
    /// [`Unreleased`]: which locks are still held, and how many releases the server has not confirmed within the
    /// `server_timeout`.
    ///
    /// # Cancel safety
    /// It is closed from the first poll on; dropping the future only stops the waiting.
    pub async fn close(&self) -> Result<(), Unreleased> {
        self.shared.waitlists().close();
        let background = self.shared.background();
        let bound = self.shared.client().options.server_timeout;
        // What is left at the bound is in the answer.
        let drained = tokio::time::timeout(bound, background.drained()).await;
        let held: Vec<_> = background
            .held()
            .iter()
            .map(|hold| (Arc::clone(&hold.keys.name), hold.fence))
            .collect();
        // Once all was confirmed, the background task ends, and what is pending for a moment is that.
        let unconfirmed = if drained.is_ok() { 0 } else { background.pending() };
        background.wake_if_closing();
        if held.is_empty() && unconfirmed == 0 {
            Ok(())
        } else {
            Err(Unreleased::new(held, unconfirmed))
        }
    }

    /// Whether it was closed, or the runtime that it lived on is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.client().is_closed()
    }

    pub(crate) fn of(shared: Shared) -> LockManager {
        LockManager {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("id", &self.shared.client().id)
            .field("options", &self.shared.client().options)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// Counts of one client: how things stand, and what has happened since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Holds of guards that live.
    pub held: usize,
    /// Calls that wait for a lock.
    pub waiting: usize,
    /// Locks acquired.
    pub acquired: u64,
    /// Of those, how many were handed over by the holder before, without a call of this client's.
    pub handed_over: u64,
    /// Leases lost before their release.
    pub lost: u64,
    /// Calls that ended with [`Error::Timeout`](crate::Error::Timeout).
    pub timed_out: u64,
    /// Guards that were dropped, and not released.
    pub released_by_drop: u64,
    /// Calls that came to the server too late to be of use: 2 s after they were sent, or after their caller gave
    /// up. The server did nothing for them.
    pub late: u64,
    /// Releases of dropped guards, and waits that were given up, of which the server has not confirmed yet that
    /// nothing is left: how far it is behind.
    pub unconfirmed: usize,
}

/// What [`LockManager::close`](crate::LockManager::close) left behind: guards that still live (their locks stay
/// held until each is dropped or its lease ends), and releases that no server confirmed.
#[derive(Clone, Debug)]
pub struct Unreleased {
    held: Vec<(Arc<str>, Fence)>,
    unconfirmed: usize,
}

impl Unreleased {
    fn new(held: Vec<(Arc<str>, Fence)>, unconfirmed: usize) -> Unreleased {
        Unreleased { held, unconfirmed }
    }

    /// The locks that guards of this manager still hold: name and fencing token.
    pub fn held(&self) -> impl Iterator<Item = (&str, Fence)> {
        self.held.iter().map(|(name, fence)| (&**name, *fence))
    }

    /// How many releases of dropped guards and cancelled waits no server had confirmed. What they left is
    /// over, at the latest, when its lease is.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed
    }
}

impl fmt::Display for Unreleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "closed with {} locks still held", self.held.len())?;
        for (i, (name, fence)) in self.held().take(8).enumerate() {
            write!(f, "{} {name:?} (fence {fence})", if i == 0 { ":" } else { "," })?;
        }
        if self.held.len() > 8 {
            f.write_str(", …")?;
        }
        if self.unconfirmed > 0 {
            write!(f, "; {} releases unconfirmed", self.unconfirmed)?;
        }
        Ok(())
    }
}

impl std::error::Error for Unreleased {}
