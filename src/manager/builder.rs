//! The settings of a manager, and how it is made.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::LockManager;
#[cfg(feature = "redis")]
use crate::engine::client::runtime;
use crate::engine::shared::Shared;
use crate::engine::waitlist::registry::LateListener;
use crate::error::{Invalid, Result};
use crate::options::ManagerOptions;
use crate::store::Durability;
use crate::store::Store;
use crate::store::ids::ClientId;
use crate::store::memory::MemoryStore;
#[cfg(feature = "redis")]
use crate::tls::Tls;

/// Settings of a [`LockManager`]. Spans out of their range are refused when it is made.
///
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// use std::time::Duration;
/// use fairlock::{LockManager, MemoryStore};
///
/// let locks = LockManager::builder()
///     .prefix("shop")
///     .lease(Duration::from_secs(10))
///     .max_waiters(1_000)
///     .in_memory(&MemoryStore::new())?;               // or .connect("redis://127.0.0.1:6379").await?
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "settings do nothing until they are connected"]
pub struct LockManagerBuilder {
    options: ManagerOptions,
    #[cfg(feature = "redis")]
    tls: Option<Tls>,
}

impl LockManagerBuilder {
    /// What the names of all keys and channels begin with (default `fairlock`; no braces). Applications that share a server
    /// and a prefix share their locks.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// How long the server keeps a hold without a renewal (default 30 s; 100 ms to 1 day).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// How long a lock that was handed to a waiter waits for its first renewal (default 5 s, or the lease if that is
    /// shorter; 100 ms to the lease). So long a waiter that died unseen holds up the others.
    pub fn claim_window(mut self, claim_window: Duration) -> Self {
        self.options.claim_window = Some(claim_window);
        self
    }

    /// How long this client counts as alive after it was last heard of (default 15 s; at least 1 s, at most 1 day).
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.options.heartbeat = heartbeat;
        self
    }

    /// When no server has answered for so long, calls end with [`Error::Unavailable`](crate::Error::Unavailable) (default 10 s; at least 100 ms, at
    /// most 1 day).
    pub fn server_timeout(mut self, server_timeout: Duration) -> Self {
        self.options.server_timeout = server_timeout;
        self
    }

    /// Counts a grant only once so many replicas have it (default 0: at once). That makes it rarer that a failover
    /// forgets a holder and grants the lock again; it does not exclude it, since a replica without the grant may be the
    /// one that is promoted.
    ///
    /// Every acquire then ends with a renewal and a `WAIT`, on a connection of their own. It waits for the replicas for
    /// 2 s at most, or for the [`server_timeout`](Self::server_timeout) or half of what is left of the claim window or lease,
    /// whichever is shortest; this comes on top of the bound of [`acquire_timeout`](crate::Lock::acquire_timeout). If
    /// fewer have it by then, the lock is given back, and the call ends with
    /// [`Error::NotReplicated`](crate::Error::NotReplicated).
    ///
    /// Renewals and releases are not waited for. The server's user needs the right to `WAIT`. In memory there are no replicas.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.options.durability.replicas = replicas;
        self
    }

    /// Counts a grant only once the primary has it on disk, and as many [`replicas`](Self::replicas) as are set have it on
    /// theirs (default `false`: memory will do). So a server that comes back from its append-only file after a loss of
    /// power knows the holder and its fence.
    ///
    /// It is what [`replicas`](Self::replicas) is, with `WAITAOF` in place of `WAIT`: the same connection and the same bounds of
    /// time. [`Error::NotReplicated`](crate::Error::NotReplicated) counts the primary too, so `replicas(1).fsynced(true)` wants 2.
    /// Like there, renewals and releases are not waited for, and a failover to a replica that was not among those may
    /// forget the grant.
    ///
    /// The pace is that of the disks. With `appendfsync everysec` an acquire takes up to a second, while the lock is held.
    /// With `always` it takes as long as a sync; a single server then does the same unasked, and only replicas add to it.
    /// With `no` nothing is ever confirmed.
    ///
    /// **With `everysec` some servers confirm what they have not synced**, Valkey 8.1 and 9.1 among them: there only `always`
    /// lets a grant outlive a loss of power.
    ///
    /// It takes Redis 7.2 or Valkey, `appendonly yes` on the primary and on the replicas, and the user's right to `WAITAOF`. A
    /// primary that lacks one of these is [`Error::Refused`](crate::Error::Refused) in words that say what to change: by
    /// `connect`, or in a cluster by the first acquire, of which nothing is left. A replica without a file never confirms. In
    /// memory there is no disk.
    pub fn fsynced(mut self, fsynced: bool) -> Self {
        self.options.durability.fsynced = fsynced;
        self
    }

    /// Over how many connections the locks are spread, by their names (default 1; 1 to 64). All calls for one lock take the
    /// same one, in their order. Each comes with a second one, for the messages of its locks; in a cluster there are so
    /// many to each master.
    ///
    /// One connection carries what one core can send. More are worth their while when a client works on many locks at once,
    /// and there are cores to serve them. In memory there are none.
    pub fn connections(mut self, connections: usize) -> Self {
        self.options.connections = connections;
        self
    }

    /// How many may wait at one time, over all locks (default 100,000; `None`: no bound).
    pub fn max_waiters(mut self, max_waiters: impl Into<Option<usize>>) -> Self {
        self.options.max_waiters = max_waiters.into().unwrap_or(usize::MAX);
        self
    }

    /// Warns (`tracing`) of every acquire that took so long or longer (default: `None`, off).
    pub fn slow_acquire(mut self, slow_acquire: impl Into<Option<Duration>>) -> Self {
        self.options.slow_acquire = slow_acquire.into();
        self
    }

    /// What a `rediss://` connection trusts, and what it shows of itself (default: it trusts the system's certificate
    /// authorities, and shows nothing).
    #[cfg(feature = "redis")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects to the server at this URL: see [`LockManager::connect`].
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a setting out of its range too; else as for [`LockManager::connect`].
    ///
    /// # Cancel safety
    /// Dropping it ends the connections.
    #[cfg(feature = "redis")]
    pub async fn connect(self, url: &str) -> Result<LockManager> {
        use crate::store::redis;
        use crate::store::redis::Options;

        self.options.check()?;
        runtime()?;
        let late_listener = Arc::new(LateListener::default());
        let listener = Arc::downgrade(&late_listener);
        let options = Options {
            attempt_timeout: self.options.attempt_timeout(),
            server_timeout: self.options.server_timeout,
            heartbeat: self.options.heartbeat,
            connections: self.options.connections,
            durability: self.options.durability,
        };
        let store = redis::connect(url, self.tls.as_ref(), options, listener).await?;
        let first = store.time().await?;
        let shared = Shared::new(late_listener, ClientId::random(), store, self.options, &first);
        shared.start()?;
        Ok(LockManager::of(shared))
    }

    /// A client of an in-memory store, which others may share: see [`LockManager::in_memory`].
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a setting out of its range, for [`replicas`](Self::replicas) and for
    /// [`fsynced`](Self::fsynced).
    pub fn in_memory(self, store: &MemoryStore) -> Result<LockManager> {
        self.options.check()?;
        let Durability { replicas, fsynced } = self.options.durability;
        if replicas > 0 {
            return Err(Invalid::new(format!(
                "replicas {replicas}: must be 0, since locks in memory have none"
            ))
            .into());
        }
        if fsynced {
            return Err(Invalid::new("fsynced: must be false, since locks in memory are on no disk").into());
        }
        Ok(self.build(store))
    }

    pub(super) fn build(self, store: &MemoryStore) -> LockManager {
        let late_listener = Arc::new(LateListener::default());
        let listener = Arc::downgrade(&late_listener);
        let store = store.connect(listener);
        let time = store.time().now_or_never();
        let first = time.and_then(std::result::Result::ok);
        let first = first.unwrap_or_else(|| unreachable!("the in-memory store answers at once"));
        LockManager::of(Shared::new(
            late_listener,
            ClientId::random(),
            store,
            self.options,
            &first,
        ))
    }
}
