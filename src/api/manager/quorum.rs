//! How a manager of a quorum is made: on several servers, or on several stores in memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "redis")]
use futures_util::stream::FuturesUnordered;

use super::connect::client_in_memory;
#[cfg(feature = "redis")]
use super::connect::store_options;
use super::{LockManager, LockManagerBuilder};
use crate::engine::options::{DEFAULT_LONGEST_LEASE, ManagerOptions};
use crate::engine::runtime::OwnThread;
#[cfg(feature = "redis")]
use crate::engine::shared::Shared;
#[cfg(feature = "redis")]
use crate::engine::waitlist::registry::LateListener;
#[cfg(feature = "redis")]
use crate::protocol::Answer;
use crate::protocol::ids::ClientId;
use crate::quorum::QuorumClient;
#[cfg(feature = "redis")]
use crate::servers::Store;
use crate::servers::memory::MemoryStore;
#[cfg(feature = "redis")]
use crate::servers::redis::{DistinctServers, Options, QuorumServer, server_of};
#[cfg(feature = "redis")]
use crate::time::server_time::CLOCKS_APART;
#[cfg(feature = "redis")]
use crate::types::error::Error;
use crate::types::error::{Invalid, Result};

/// How many servers a quorum may have.
const SERVERS: std::ops::RangeInclusive<usize> = 3..=9;

/// The servers of a quorum, of which a majority must grant a lock, and the settings that only a quorum has.
/// See [`LockManagerBuilder::connect_quorum`].
///
/// # Examples
/// ```no_run
/// # fn main() {}
/// # #[cfg(feature = "redis")]
/// # async fn example() -> fairlock::Result<()> {
/// use std::time::Duration;
/// use fairlock::{LockManager, Quorum};
///
/// let quorum = Quorum::of(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]);
/// let lease = Duration::from_secs(10);
/// // A server that was restarted counts again after 13 s.
/// let quorum = quorum.longest_lease(lease);
/// let locks = LockManager::builder().lease(lease).connect_quorum(quorum).await?;
/// # Ok(()) }
/// ```
#[doc(alias = "redlock")]
#[derive(Clone)]
#[must_use = "a quorum does nothing until it is connected"]
pub struct Quorum {
    servers: Servers,
    longest_lease: Duration,
    durable: bool,
}

#[derive(Clone)]
enum Servers {
    #[cfg(feature = "redis")]
    Redis(Vec<String>),
    Memory(Vec<MemoryStore>),
}

impl Quorum {
    /// The servers with these URLs: `redis://`, `rediss://` or `unix://`
    /// ([`LockManager::connect`]).
    #[cfg(feature = "redis")]
    pub fn of(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Quorum {
        urls.into_iter().collect()
    }

    /// These stores in memory, for tests of what happens between several processes.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{Error, LockManager, MemoryStore, Quorum};
    ///
    /// let quorum = Quorum::in_memory(&[MemoryStore::new(), MemoryStore::new(), MemoryStore::new()]);
    /// let here = LockManager::builder().connect_quorum(quorum.clone()).await?;
    /// let there = LockManager::builder().connect_quorum(quorum).await?;
    /// let guard = here.lock("a").acquire().await?;
    /// assert!(matches!(there.lock("a").try_acquire().await, Err(Error::Busy { .. })));
    /// # Ok(()) }
    /// ```
    pub fn in_memory<'a>(stores: impl IntoIterator<Item = &'a MemoryStore>) -> Quorum {
        Quorum::new(Servers::Memory(stores.into_iter().cloned().collect()))
    }

    #[cfg(feature = "diagnose")]
    pub(super) fn urls(&self) -> Result<Vec<String>> {
        match &self.servers {
            Servers::Redis(urls) => Ok(urls.clone()),
            Servers::Memory(_) => Err(Invalid::new("quorum: must be of servers, not in memory").into()),
        }
    }

    fn new(servers: Servers) -> Quorum {
        Quorum {
            servers,
            longest_lease: DEFAULT_LONGEST_LEASE,
            durable: false,
        }
    }

    /// Sets how long a lease may be (default 60 s; 100 ms to 1 day). A server that has started recently may
    /// have forgotten holds. It grants nothing until it has run for this long, 1 ‰ of it, and 2 s, in whole
    /// seconds.
    ///
    /// All clients of a quorum must have the same value, as with the
    /// [`prefix`](LockManagerBuilder::prefix). A client with a smaller one would let a server grant too early
    /// for the leases of the others. A shorter value brings servers back sooner;
    /// [`lease`](LockManagerBuilder::lease), 30 s by default, must not exceed it.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use std::time::Duration;
    /// use fairlock::{LockManager, MemoryStore, Quorum};
    ///
    /// let servers = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
    /// // A server that restarts takes part again after 13 s.
    /// let quorum = Quorum::in_memory(&servers).longest_lease(Duration::from_secs(10));
    /// let builder = LockManager::builder().lease(Duration::from_secs(10));
    /// let locks = builder.connect_quorum(quorum).await?;
    /// # Ok(()) }
    /// ```
    pub fn longest_lease(mut self, longest_lease: Duration) -> Quorum {
        self.longest_lease = longest_lease;
        self
    }

    /// Says that no server forgets anything over a restart. Then a server that comes back grants locks at
    /// once.
    ///
    /// That is true with `appendonly yes` and `appendfsync always`, on disks that keep what they have synced.
    /// **If it is not true, two clients can hold a lock after a restart.** It is also of use in tests, whose
    /// servers have just been started and have nothing to forget.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{LockManager, MemoryStore, Quorum};
    ///
    /// let servers = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
    /// let quorum = Quorum::in_memory(&servers).durable();
    /// let locks = LockManager::builder().connect_quorum(quorum).await?;
    /// # Ok(()) }
    /// ```
    pub fn durable(mut self) -> Quorum {
        self.durable = true;
        self
    }
}

/// The same as [`Quorum::of`].
#[cfg(feature = "redis")]
impl<U: AsRef<str>> FromIterator<U> for Quorum {
    fn from_iter<I: IntoIterator<Item = U>>(urls: I) -> Quorum {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned());
        Quorum::new(Servers::Redis(urls.collect()))
    }
}

impl fmt::Debug for Quorum {
    /// Without the URLs, which may have passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("longest_lease", &self.longest_lease)
            .field("durable", &self.durable)
            .finish_non_exhaustive()
    }
}

impl LockManagerBuilder {
    /// Connects to a quorum: 3, 5, 7 or 9 independent servers. A lock is held while a majority of them have
    /// granted it, so it outlives the loss of any minority.
    ///
    /// The servers must not be replicas of each other: a failover forgets, and that is what a quorum is for.
    /// So the URLs are those of plain servers. They are Redis from 7.0 on, or Valkey. All clients name the
    /// same ones, in any order, with the same [`prefix`](Self::prefix) and the same
    /// [`longest_lease`](Quorum::longest_lease).
    ///
    /// Everything works as with one server, except:
    /// - A server that has started recently grants nothing, unless the servers are
    ///   [`durable`](Quorum::durable). So **new servers grant no lock in their first minute**.
    /// - Where one server gives [`Error::Unavailable`](crate::Error::Unavailable), a quorum gives
    ///   [`Error::NoQuorum`](crate::Error::NoQuorum).
    /// - A lock has no [`owner`](crate::Lock::owner): it is not re-entrant.
    /// - [`replicas`](Self::replicas), [`SpinLock`](crate::spin::SpinLock) and [more](crate::guide::quorum)
    ///   are refused.
    ///
    /// The call returns when a majority of the servers are connected. It waits for the others only for as
    /// long as that has taken, plus 10 ms; they follow by themselves.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid) for a wrong number of URLs, for two that mean the same
    ///   server, for a URL of another kind, and for a setting out of its range.
    /// - [`Error::NoQuorum`](crate::Error::NoQuorum) if no majority answered within the
    ///   [`server_timeout`](Self::server_timeout).
    /// - [`Error::Refused`](crate::Error::Refused) if the servers that do not refuse this user are too
    ///   few for a majority, or if two URLs lead to one server.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connections.
    ///
    /// # Examples
    /// ```no_run
    /// # fn main() {}
    /// # #[cfg(feature = "redis")]
    /// # async fn example() -> fairlock::Result<()> {
    /// use fairlock::{LockManager, Quorum};
    ///
    /// let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let locks = LockManager::builder().connect_quorum(Quorum::of(urls)).await?;
    /// let guard = locks.lock("invoice:42").acquire().await?; // held on two of the three at least
    /// # Ok(()) }
    /// ```
    #[doc(alias = "redlock")]
    pub async fn connect_quorum(self, quorum: Quorum) -> Result<LockManager> {
        match &quorum.servers {
            #[cfg(feature = "redis")]
            Servers::Redis(urls) => {
                let (urls, wanted) = (urls.clone(), self.own_thread);
                OwnThread::run_if(wanted, |thread| self.quorum_on(thread, quorum, urls)).await
            }
            Servers::Memory(stores) => self.quorum_in_memory(&quorum, stores),
        }
    }

    #[cfg(feature = "redis")]
    async fn quorum_on(
        self,
        thread: Option<OwnThread>,
        quorum: Quorum,
        urls: Vec<String>,
    ) -> Result<LockManager> {
        use crate::servers::redis;

        let (tls, credentials) = (self.tls.clone(), self.credentials.clone());
        let (settings, options) = self.of_quorum(&quorum, &urls)?;
        let trust = redis::Trust {
            tls: tls.as_ref(),
            credentials: credentials.as_ref(),
        };
        let distinct = Arc::<DistinctServers>::default();
        let mut stores = Vec::new();
        for url in &urls {
            let late_listener = Arc::new(LateListener::default());
            let listener = Arc::downgrade(&late_listener);
            let label = settings.label.clone();
            let store = Store::open(url, trust, label, options, Some(&distinct), listener)?;
            stores.push((late_listener, store));
        }
        let times = first_times(&settings, &stores).await;
        // The others may be a majority, but one that cannot lose a server.
        if let Some(doubled) = distinct.doubled() {
            return Err(Error::Refused(doubled));
        }
        let times = times?;
        let id = ClientId::random();
        let shareds = stores
            .into_iter()
            .zip(&times)
            .map(|((late_listener, store), time)| {
                let (id, settings, thread) = (id.clone(), settings.clone(), thread.clone());
                let first = time.as_ref();
                Arc::new(Shared::new(late_listener, id, store, settings, first, thread))
            });
        let quorum = QuorumClient::new(shareds.collect());
        quorum.start();
        Ok(LockManager::of(quorum))
    }

    /// The settings of a client of these servers, and its options for each of them.
    #[cfg(feature = "redis")]
    pub(super) fn of_quorum(self, quorum: &Quorum, urls: &[String]) -> Result<(ManagerOptions, Options)> {
        check_count("servers", urls.len())?;
        let settings = self.checked_for(quorum)?;
        let mut servers = Vec::new();
        for url in urls {
            let server = server_of(url)?;
            if servers.contains(&server) {
                return Err(Invalid::new(format!("server {server}: must be named only once")).into());
            }
            servers.push(server);
        }
        let options = Options {
            quorum: Some(QuorumServer {
                longest_lease: quorum.longest_lease,
                durable: quorum.durable,
            }),
            ..store_options(&settings)
        };
        Ok((settings, options))
    }

    fn quorum_in_memory(self, quorum: &Quorum, stores: &[MemoryStore]) -> Result<LockManager> {
        check_count("stores", stores.len())?;
        let own_thread = self.own_thread;
        let settings = self.checked_for(quorum)?;
        let thread = OwnThread::start_if(own_thread)?;
        let id = ClientId::random();
        let client = |store| client_in_memory(id.clone(), settings.clone(), store, thread.clone());
        let shareds = stores.iter().map(|store| Arc::new(client(store)));
        Ok(LockManager::of(QuorumClient::new(shareds.collect())))
    }

    fn checked_for(mut self, quorum: &Quorum) -> Result<ManagerOptions> {
        if self.options.replicas > 0 {
            return Err(
                Invalid::new("replicas: must not be set in a quorum, whose servers are independent").into(),
            );
        }
        self.options.longest_lease = Some(quorum.longest_lease);
        self.checked()
    }
}

fn check_count(of: &str, count: usize) -> Result<(), Invalid> {
    if SERVERS.contains(&count) && count % 2 == 1 {
        return Ok(());
    }
    // An even number adds a server that can fail, and no failure that can be outlived.
    Err(Invalid::new(format!(
        "{count} {of}: a quorum must have 3, 5, 7 or 9"
    )))
}

/// The times of the servers, soon after a majority have answered. Those that are late have none. The clock of
/// one of a bare majority can be wrong, and then nothing tells which one.
#[cfg(feature = "redis")]
async fn first_times(
    settings: &ManagerOptions,
    stores: &[(Arc<LateListener>, Store)],
) -> Result<Vec<Option<Answer<()>>>> {
    use tokio::time::Instant;

    use crate::quorum::{majority_of, next_until, no_majority, stragglers_until};

    let began = Instant::now();
    let deadline = began + settings.server_timeout;
    let mut asked: FuturesUnordered<_> = (stores.iter().enumerate())
        .map(async |(server, (_, store))| (server, store.first_answer(deadline).await))
        .collect();
    let mut times: Vec<_> = stores.iter().map(|_| None).collect();
    let mut errors = Vec::new();
    let majority = majority_of(stores.len());
    let mut answering = 0;
    let mut until = None;
    while let Some((server, answer)) = next_until(&mut asked, until).await {
        match answer {
            Ok(answer) => {
                answering += 1;
                times[server] = Some(answer);
            }
            Err(error) => errors.push(error),
        }
        if answering >= majority {
            until.get_or_insert_with(|| stragglers_until(began));
        }
        if errors.len() > stores.len() - majority {
            break;
        }
    }
    if answering < majority {
        return Err(no_majority(stores.len(), answering, &errors));
    }
    warn_of_clocks(times.iter().flatten());
    Ok(times)
}

/// Fences increase over a loss of memory, and waiters keep their order, as far as the clocks agree.
#[cfg(feature = "redis")]
fn warn_of_clocks<'a>(times: impl Iterator<Item = &'a Answer<()>> + Clone) {
    let last = times.clone().map(|answer| answer.at.received).max();
    // What each clock showed when the last answer was received.
    let clocks = times.filter_map(|answer| Some(answer.at.now.after(last?.since(answer.at.received)).ms()));
    let (mut least, mut most) = (u64::MAX, 0);
    for ms in clocks {
        (least, most) = (least.min(ms), most.max(ms));
    }
    let apart = Duration::from_millis(most.saturating_sub(least));
    if apart > CLOCKS_APART {
        tracing::warn!(
            ?apart,
            "the clocks of the servers differ; fences and the order of waiters follow them"
        );
    }
}
