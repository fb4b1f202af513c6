//! The manager: one client of a server or of a quorum, from which locks come.

mod builder;
mod connect;
#[cfg(feature = "diagnose")]
pub(crate) mod diagnose;
mod list;
mod quorum;
mod stats;

use std::fmt;
use std::sync::Arc;

pub use self::builder::LockManagerBuilder;
pub use self::quorum::Quorum;
pub use self::stats::Stats;
use crate::api::handle::Handle;
use crate::api::lock::Lock;
use crate::caller::gate::Gate;
use crate::caller::local_queue::LocalQueues;
use crate::caller::place::Place;
use crate::caller::rate_limit::RateLimits;
use crate::engine::options::ManagerOptions;
use crate::servers::memory::MemoryStore;
use crate::types::error::{Error, Result, Unreleased};
use crate::types::permits::Gives;

/// One client of a Redis or Valkey server, of a [quorum](Quorum) of them, or of an
/// in-memory store, from which locks are made.
///
/// A manager is cheap to clone, and a process needs only one. It has one connection, for its calls and its
/// messages. It has a second one if it waits for [replicas](LockManagerBuilder::replicas). In a cluster it
/// has these to each master that it deals with, and in a quorum one to each server.
///
/// A background task (in a quorum one for each server) renews leases, releases the locks of dropped guards,
/// and sets the client's [label](LockManagerBuilder::label). It lives on the runtime that connected. Once
/// that runtime is gone, every call fails with [`Error::Closed`](crate::Error::Closed).
///
/// # Panics
/// Calls of a manager, of its locks and of their guards panic if they are polled outside of a Tokio runtime,
/// as Tokio's timers do. They need none if the manager has a thread of its own
/// ([`own_thread`](LockManagerBuilder::own_thread)). Dropping a guard or a call works anywhere, and
/// [`close`](Self::close) waits for nothing outside of a runtime.
///
/// Don't use one manager across a `fork`, nor in two copies of a virtual machine's snapshot: both would have
/// the same ids.
///
/// # Examples
/// ```
/// # async fn charge(fence: fairlock::Fence) {}
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// use fairlock::{Error, LockManager};
///
/// let locks = LockManager::in_memory();        // or LockManager::connect("redis://127.0.0.1:6379").await?
/// let lock = locks.lock("invoice:42");         // a name and options: no I/O
///
/// let guard = lock.acquire().await?;           // first come, first served
/// guard.run(charge(guard.fence())).await?;     // stopped with Err(Lost) if the lease is lost
/// guard.release().await?;                      // certain; a dropped guard is released in the background
///
/// match lock.try_acquire().await {             // never waits, never overtakes
///     Ok(guard) => guard.release().await?,
///     Err(Error::Busy { waiting, .. }) => println!("busy, and {waiting} wait"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockManager {
    queues: Arc<LocalQueues>,
    rate_limits: Arc<RateLimits>,
}

impl LockManager {
    /// Connects to the server at this URL, with all settings at their defaults.
    ///
    /// - `redis://[user:password@]host[:6379][/database]`: one server.
    /// - `rediss://…`: the same by TLS. It needs the feature `rustls` or `native-tls`; see
    ///   [`tls`](LockManagerBuilder::tls).
    /// - `redis-cluster://[user:password@]host[:6379][/database][?node=host:port&node=…]`: the cluster that
    ///   these servers belong to. By TLS it is `rediss-cluster://`.
    /// - `redis-sentinel://[user:password@]host[:26379][/database]?node=…&sentinelServiceName=name`: the
    ///   primary that these sentinels know by that name, also after a failover. Each further sentinel is a
    ///   `node=host:port`. User and password are those of the server; those of the sentinels are
    ///   `&sentinelUsername=…&sentinelPassword=…`. By TLS it is `rediss-sentinel://`.
    /// - `unix://[user:password@localhost]/path[?db=database]`: one server by a Unix socket; also
    ///   `redis+unix://`.
    ///
    /// Each `redis` may be `valkey`. User, password and path may contain `%`-escapes; `#` must be `%23`.
    ///
    /// In a cluster each lock lives on the master that has its hash slot. A call is sent on if the slot has
    /// moved. While a replica takes over, a call is repeated, like any call without an answer.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid) if this is no valid URL.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the server did not answer within the
    ///   [`server_timeout`](LockManagerBuilder::server_timeout) (10 s by default), or was a replica for all
    ///   of this time.
    /// - [`Error::Refused`](crate::Error::Refused) if the server refuses this user, if one of the two refuses
    ///   the other's certificate, or if the server is something else than the URL says, such as a node of a
    ///   cluster.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connections.
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::LockManager;
    ///
    /// let locks = LockManager::connect("redis://127.0.0.1:6379").await?;
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub async fn connect(url: &str) -> Result<LockManager> {
        LockManager::builder().connect(url).await
    }

    /// Makes a manager that connects in the background, with all settings at their defaults.
    /// [`LockManagerBuilder::connect_lazy`] says what that means.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if this is no valid URL.
    ///
    /// # Panics
    /// Panics outside of a Tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::LockManager;
    ///
    /// let locks = LockManager::connect_lazy("redis://127.0.0.1:6379")?; // the server may be away
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn connect_lazy(url: &str) -> Result<LockManager> {
        LockManager::builder().connect_lazy(url)
    }

    /// Creates a manager for locks inside this process. They have the same order, leases and fences as those
    /// on a server. Use it for a service that runs only once, for examples, and for tests. Time is Tokio's
    /// clock, so a paused test can let leases end.
    ///
    /// This works outside a runtime too. The background task lives on the runtime that polls the first call.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{Error, LockManager};
    ///
    /// let locks = LockManager::in_memory();
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// assert!(matches!(locks.lock("invoice:42").try_acquire().await, Err(Error::Busy { .. })));
    /// # Ok(()) }
    /// ```
    pub fn in_memory() -> LockManager {
        connect::in_memory(ManagerOptions::default(), &MemoryStore::new())
    }

    /// Returns a builder, for settings other than the defaults.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use std::time::Duration;
    /// use fairlock::{LockManager, MemoryStore};
    ///
    /// let builder = LockManager::builder().prefix("shop").lease(Duration::from_secs(10));
    /// let locks = builder.in_memory(&MemoryStore::new())?; // or .connect("redis://127.0.0.1:6379").await?
    /// # Ok(()) }
    /// ```
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder::default()
    }

    /// Returns the lock of this name. It does no I/O.
    ///
    /// A name has 1 to 512 bytes and no braces, except for one hash tag at the start, as in `{user:7}:cart`.
    /// In a cluster such a tag puts the lock beside other keys with that tag. A name that is not allowed
    /// makes the first call fail with [`Error::Invalid`](crate::Error::Invalid).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let invoice = locks.lock(format!("invoice:{}", 42));
    /// let cart = locks.lock("{user:7}:cart");
    /// let both = (invoice.acquire().await?, cart.acquire().await?);
    /// # Ok(()) }
    /// ```
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock(self.handle(Gives::Itself, name.as_ref()))
    }

    pub(crate) fn handle(&self, gives: Gives, name: &str) -> Handle {
        Handle::new(&self.queues, gives, name)
    }

    /// Makes one round trip to the server, for health checks. In a quorum it asks all servers, and returns
    /// when a majority have answered, even if they have started recently and grant nothing yet.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) (in a quorum
    /// [`Error::NoQuorum`](crate::Error::NoQuorum)), [`Error::Refused`](crate::Error::Refused) or
    /// [`Error::Closed`](crate::Error::Closed).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let status = match locks.ping().await {
    ///     Ok(()) => 200,
    ///     Err(_) => 503,
    /// };
    /// # assert_eq!(status, 200);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "health")]
    pub async fn ping(&self) -> Result<()> {
        self.place().client().check_open()?;
        self.place().start();
        match self.place() {
            Place::One(shared) => shared.client().store.time().await.map(drop).map_err(Error::from),
            Place::Quorum(quorum) => quorum.ping().await,
        }
    }

    /// Returns the counts of this client. It does no I/O. In a quorum most of them count the callers'
    /// requests and holds, and some are sums over the servers: [`Stats`] says which.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// let stats = locks.stats();
    /// println!("{} held, {} waiting, {} acquired so far", stats.held, stats.waiting, stats.acquired);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "metrics")]
    pub fn stats(&self) -> Stats {
        Stats::of(self.place())
    }

    /// Ends the service of this manager and all its clones.
    ///
    /// New requests and waiters get [`Error::Closed`](crate::Error::Closed). Releases that dropped guards
    /// left are sent. Guards that live stay renewed, and can be released, until they are dropped. This call
    /// does not wait for them. Outside of a Tokio runtime it waits for nothing.
    ///
    /// # Errors
    /// [`Unreleased`] if locks are still held, or if the server has not confirmed all releases within the
    /// [`server_timeout`](LockManagerBuilder::server_timeout), or in a quorum a majority of the servers. It
    /// lists these locks and counts these releases. Calls of `release` and `try_acquire` that are still under
    /// way then count too. In a quorum, votes that a slower server has not taken back by the end of the
    /// process stay there until their leases end.
    ///
    /// # Cancel safety
    /// The manager is closed from the first poll on. Dropping the future only stops the waiting.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// drop(locks.lock("invoice:42").acquire().await?);
    /// // On shutdown: wait until the server has the releases of dropped guards.
    /// if let Err(unreleased) = locks.close().await {
    ///     eprintln!("{unreleased}");
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "shutdown")]
    pub async fn close(&self) -> Result<(), Unreleased> {
        self.place().end_waits();
        self.queues.give_back();
        self.queues.gate().refuse_all(&Error::Closed);
        self.rate_limits.refuse_all(&Error::Closed);
        let unconfirmed = self.place().drained().await;
        let held = self.place().held();
        if held.is_empty() && unconfirmed == 0 {
            Ok(())
        } else {
            Err(Unreleased { held, unconfirmed })
        }
    }

    /// Returns whether the manager was closed, or the runtime that it lived on is gone.
    pub fn is_closed(&self) -> bool {
        self.place().client().is_closed()
    }

    pub(crate) fn of(place: impl Into<Place>) -> LockManager {
        LockManager {
            queues: Arc::new(LocalQueues::new(Gate::new(place.into()))),
            rate_limits: Arc::new(RateLimits::new()),
        }
    }

    #[cfg(test)]
    pub(crate) fn queues(&self) -> &Arc<LocalQueues> {
        &self.queues
    }

    pub(crate) fn rate_limits(&self) -> &Arc<RateLimits> {
        &self.rate_limits
    }

    pub(crate) fn place(&self) -> &Place {
        self.queues.place()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<crate::engine::shared::Shared> {
        match self.place() {
            Place::One(shared) => shared,
            Place::Quorum(_) => panic!("a quorum has several clients"),
        }
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("id", &self.place().client().id)
            .field("options", &self.place().client().options)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
