//! The settings of a manager.

use std::time::Duration;

use crate::engine::options::ManagerOptions;
#[cfg(feature = "redis")]
use crate::types::credentials::{Credentials, CredentialsProvider};
#[cfg(feature = "redis")]
use crate::types::tls::Tls;

/// The settings of a [`LockManager`](crate::LockManager). A value outside its range is refused when the
/// manager is created.
///
/// # Examples
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
    pub(super) options: ManagerOptions,
    /// A label that is yet to be checked.
    pub(super) label: Option<String>,
    pub(super) own_thread: bool,
    #[cfg(feature = "redis")]
    pub(super) tls: Option<Tls>,
    #[cfg(feature = "redis")]
    pub(super) credentials: Option<CredentialsProvider>,
}

impl LockManagerBuilder {
    /// Sets the start of the names of all keys and channels (default `fairlock`; no braces). Applications
    /// that share a server and a prefix share their locks.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// let server = MemoryStore::new();
    /// let shop = LockManager::builder().prefix("shop").in_memory(&server)?;
    /// let blog = LockManager::builder().prefix("blog").in_memory(&server)?;
    /// let both = (shop.lock("cron").acquire().await?, blog.lock("cron").acquire().await?);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "namespace")]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// Sets for how long the server keeps a hold without a renewal (default 30 s; 100 ms to 1 day, in a
    /// quorum to the [`longest_lease`](crate::Quorum::longest_lease)).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use std::time::Duration;
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// // The lock of a process that dies is free again after about 10 s.
    /// let builder = LockManager::builder().lease(Duration::from_secs(10));
    /// # builder.in_memory(&MemoryStore::new())?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ttl")]
    #[doc(alias = "watchdog")]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets for how long a lock that was handed to a waiter stays with it before the first renewal (default 5
    /// s, or the lease if that is shorter; 100 ms to the lease). A waiter that died unnoticed holds up the
    /// others for this long.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use std::time::Duration;
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// // Waiters are often killed: don't wait long for one that cannot answer.
    /// let builder = LockManager::builder().claim_window(Duration::from_secs(1));
    /// # builder.in_memory(&MemoryStore::new())?;
    /// # Ok(()) }
    /// ```
    pub fn claim_window(mut self, claim_window: Duration) -> Self {
        self.options.claim_window = Some(claim_window);
        self
    }

    /// Sets for how long calls go on while no server answers (default 10 s; 100 ms to 1 day). After that they
    /// end with [`Error::Unavailable`](crate::Error::Unavailable), in a quorum with
    /// [`Error::NoQuorum`](crate::Error::NoQuorum). Some end sooner, and most a few seconds later: [how soon
    /// calls end](crate::guide::operations#how-soon-calls-end).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use std::time::Duration;
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// // A web request should fail early rather than hang.
    /// let builder = LockManager::builder().server_timeout(Duration::from_secs(2));
    /// # builder.in_memory(&MemoryStore::new())?;
    /// # Ok(()) }
    /// ```
    pub fn server_timeout(mut self, server_timeout: Duration) -> Self {
        self.options.server_timeout = server_timeout;
        self
    }

    /// Counts a grant only once this many replicas have it (default 0: at once).
    ///
    /// That makes it rarer that a failover forgets a holder and grants the lock again. It does not exclude
    /// it, since a replica without the grant may be the one that is promoted.
    ///
    /// Every acquire then ends with a renewal and a `WAIT`, on a connection of their own. It waits for the
    /// replicas for 2 s, for the [`server_timeout`](Self::server_timeout), or for half of the rest of the
    /// claim window or lease, whichever is shortest. The client waits for the reply for half as long again.
    /// This comes on top of the bound of [`acquire_timeout`](crate::Lock::acquire_timeout). If fewer replicas
    /// have the grant by then, the lock is given back, and the call ends with
    /// [`Error::NotReplicated`](crate::Error::NotReplicated).
    ///
    /// Renewals and releases do not wait for replicas. The server's user needs the right to `WAIT`. In memory
    /// and in a quorum, more than 0 is refused.
    ///
    /// # Examples
    /// ```no_run
    /// # fn main() {}
    /// # #[cfg(feature = "redis")]
    /// # async fn example() -> fairlock::Result<()> {
    /// use fairlock::LockManager;
    ///
    /// let locks = LockManager::builder().replicas(1).connect("redis://127.0.0.1:6379").await?;
    /// let guard = locks.lock("invoice:42").acquire().await?; // one replica knows the holder
    /// # Ok(()) }
    /// ```
    #[doc(alias = "WAIT")]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.options.replicas = replicas;
        self
    }

    /// Limits how many calls may wait at one time, over all locks of this client (default 100,000; at least
    /// 1; `None`: no limit). Further calls fail with [`Error::QueueFull`](crate::Error::QueueFull).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// // Shed load rather than queue it.
    /// let locks = LockManager::builder().max_waiters(500).in_memory(&MemoryStore::new())?;
    /// let unbounded = LockManager::builder().max_waiters(None).in_memory(&MemoryStore::new())?;
    /// # Ok(()) }
    /// ```
    pub fn max_waiters(mut self, max_waiters: impl Into<Option<usize>>) -> Self {
        self.options.max_waiters = max_waiters.into().unwrap_or(usize::MAX);
        self
    }

    /// Sets how many guards of this process may have the lock one after the other, in one tenure, before it
    /// is handed to the next process (default 1: off; 1 to 1,000).
    /// [`Lock::local_handoffs`](crate::Lock::local_handoffs) says what that means.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// // Many tasks of each process want the same few locks, and hold them for a moment.
    /// let builder = LockManager::builder().local_handoffs(64);
    /// # builder.in_memory(&MemoryStore::new())?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "cohort")]
    pub fn local_handoffs(mut self, turns: u32) -> Self {
        self.options.local_handoffs = turns;
        self
    }

    /// Lets locks stay with this client after their last guards, while nobody else wants them, for so long
    /// after their grants at most (1 ms to a third of the lease; off by default).
    /// [`Lock::retain`](crate::Lock::retain) says what that means. Locks that cannot be retained are not.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use std::time::Duration;
    ///
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// let builder = LockManager::builder().retain(Duration::from_millis(20));
    /// # builder.in_memory(&MemoryStore::new())?;
    /// # Ok(()) }
    /// ```
    pub fn retain(mut self, retain: Duration) -> Self {
        self.options.retain = Some(retain);
        self
    }

    /// Sets the name of this client for people (default: the host's name and the process id, as `web-7:4711`;
    /// 1 to 64 bytes of printable ASCII without spaces).
    ///
    /// [`Holder::label`](crate::Holder::label) shows it for the locks that the client holds, and the server's
    /// `CLIENT LIST` shows it as the name of the client's connections. Everybody who may use the locks can
    /// read it. Two clients may have the same label, and no lock depends on it.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// let locks = LockManager::builder().label("billing-web-7").in_memory(&MemoryStore::new())?;
    /// let _guard = locks.lock("invoice:42").acquire().await?;
    /// let holder = locks.lock("invoice:42").status().await?.holder;
    /// assert_eq!(holder.unwrap().label.as_deref(), Some("billing-web-7"));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "client_name")]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the certificates that a `rediss://` connection trusts, and those that it shows to the server. By
    /// default it trusts the system's certificate authorities, and shows no certificate. With a URL without
    /// TLS it is refused.
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use fairlock::{LockManager, Tls};
    ///
    /// let tls = Tls::new().ca_certificates(std::fs::read("ca.pem")?);
    /// let locks = LockManager::builder().tls(tls).connect("rediss://redis.internal:6379").await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets a function that returns the credentials of each connection, for passwords and tokens that change
    /// while the client is connected. It gets the address of the server, such as `redis.internal:6379`.
    ///
    /// It is asked each time a connection is opened. If the credentials have a
    /// [lifetime](Credentials::lifetime), it is asked again when about two thirds of that have passed, and
    /// the open connections authenticate in place, by `AUTH`. No call fails, no message is lost, and no
    /// waiter misses its turn.
    ///
    /// The function has half of the [`server_timeout`](Self::server_timeout) for its answer. If it fails,
    /// hangs or panics, or if the server calls its password wrong, it is asked again after 10, 20, 40 …
    /// 1,000 ms. Open connections stay as they are meanwhile. Its error text is part of errors and log lines,
    /// so it must not contain a secret. It may be asked for several connections at the same time; if an
    /// answer is expensive, let it keep the answer for a while. It runs on the runtime of the connections, so
    /// it must not block.
    ///
    /// The URL must have neither user nor password. Sentinels keep those of the URL (`sentinelUsername`,
    /// `sentinelPassword`), since every question to one is a new connection. Locks in memory ignore it.
    ///
    /// # Errors
    /// [`connect`](Self::connect) fails with [`Error::Unavailable`](crate::Error::Unavailable), which names
    /// the provider's error, if there was no connection within the [`server_timeout`](Self::server_timeout).
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use std::time::Duration;
    /// use fairlock::{Credentials, LockManager};
    ///
    /// async fn from_file(_server: String) -> std::io::Result<Credentials> {
    ///     let token = tokio::fs::read_to_string("/run/secrets/redis-token").await?;
    ///     Ok(Credentials::new("locks", token.trim()).lifetime(Duration::from_secs(600)))
    /// }
    ///
    /// let locks = LockManager::builder().credentials(from_file).connect("rediss://redis.internal").await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "password")]
    #[doc(alias = "auth")]
    #[doc(alias = "credential_provider")]
    #[doc(alias = "token")]
    #[cfg(feature = "redis")]
    pub fn credentials<P, C, E>(mut self, provider: P) -> Self
    where
        P: Fn(String) -> C + Send + Sync + 'static,
        C: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.credentials = Some(CredentialsProvider::new(provider));
        self
    }

    /// Gives the manager a thread of its own, named `fairlock`, for its connections and its renewals. So no
    /// lease is lost because other threads block. Without it, leases are renewed on the runtime that
    /// connected, in memory on that of the first call.
    ///
    /// Calls need no Tokio runtime then: any executor can poll them, and so can `block_on` on a plain thread.
    /// Work that is given to [`with`](crate::Lock::with) or [`run`](crate::LockGuard::run) stays in the task
    /// of its caller, on the caller's runtime. A function for [`credentials`](Self::credentials) runs on the
    /// thread, and must not block it.
    ///
    /// Grants come from one thread to another, which costs throughput where many wait. The thread ends when
    /// the manager is closed or its last clone is dropped, and no guard is left.
    ///
    /// # Examples
    /// A manager for all threads of a program, in no runtime at all:
    /// ```
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// let locks = LockManager::builder().own_thread().in_memory(&MemoryStore::new())?;
    /// let guard = pollster::block_on(locks.lock("invoice:42").acquire())?;
    /// // ... work that blocks ...
    /// pollster::block_on(guard.release())?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    #[doc(alias = "blocking")]
    #[doc(alias = "block_on")]
    pub fn own_thread(mut self) -> Self {
        self.own_thread = true;
        self
    }
}
