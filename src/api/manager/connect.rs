//! How a manager is made: on a server or in memory.

use std::sync::Arc;

use futures_util::FutureExt;
#[cfg(feature = "redis")]
use tokio::time::Instant;

use super::{LockManager, LockManagerBuilder};
use crate::engine::options::ManagerOptions;
#[cfg(feature = "redis")]
use crate::engine::options::PING_EVERY;
use crate::engine::runtime::OwnThread;
use crate::engine::shared::Shared;
use crate::engine::waitlist::registry::LateListener;
#[cfg(feature = "redis")]
use crate::protocol::Answer;
use crate::protocol::ids::ClientId;
use crate::protocol::label::Label;
use crate::servers::Store;
use crate::servers::memory::MemoryStore;
#[cfg(feature = "redis")]
use crate::servers::redis::Options;
use crate::types::error::{Invalid, Result};

impl LockManagerBuilder {
    /// Connects to the server at this URL. [`LockManager::connect`] lists the kinds of URL.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) also for a setting out of its range, and otherwise as for
    /// [`LockManager::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the connections.
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::LockManager;
    ///
    /// let locks = LockManager::builder().prefix("shop").connect("redis://127.0.0.1:6379").await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub async fn connect(self, url: &str) -> Result<LockManager> {
        let url = url.to_owned();
        let wanted = self.own_thread;
        OwnThread::run_if(wanted, |thread| self.connect_on(thread, url)).await
    }

    /// Makes a manager that connects in the background, without waiting for it: for a service that starts
    /// even while its server is away. [`LockManager::connect`] lists the kinds of URL.
    ///
    /// Calls wait for the connection as they do after a lost one. While there is none, they end with
    /// [`Error::Unavailable`](crate::Error::Unavailable) after the [`server_timeout`](Self::server_timeout).
    /// What [`connect`](Self::connect) would be refused for, calls are refused for.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a URL that is not valid, and for a setting out of its
    /// range.
    ///
    /// # Panics
    /// Panics outside of a Tokio runtime, unless the manager has a thread of its own
    /// ([`own_thread`](Self::own_thread)).
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::LockManager;
    ///
    /// let locks = LockManager::builder().connect_lazy("redis://127.0.0.1:6379")?;
    /// // ... and later, in a request:
    /// let guard = locks.lock("invoice:42").acquire().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn connect_lazy(self, url: &str) -> Result<LockManager> {
        let thread = OwnThread::start_if(self.own_thread)?;
        let _runtime = OwnThread::enter(thread.as_ref());
        Ok(self.open(url)?.started(None, thread))
    }

    #[cfg(feature = "redis")]
    async fn connect_on(self, thread: Option<OwnThread>, url: String) -> Result<LockManager> {
        let opened = self.open(&url)?;
        let deadline = Instant::now() + opened.settings.server_timeout;
        let first = opened.store.first_answer(deadline).await?;
        Ok(opened.started(Some(&first), thread))
    }

    #[cfg(feature = "redis")]
    fn open(self, url: &str) -> Result<Opened> {
        use crate::servers::redis;

        let (tls, credentials) = (self.tls.clone(), self.credentials.clone());
        let settings = self.checked()?;
        let late_listener = Arc::new(LateListener::default());
        let listener = Arc::downgrade(&late_listener);
        let trust = redis::Trust {
            tls: tls.as_ref(),
            credentials: credentials.as_ref(),
        };
        let (label, options) = (settings.label.clone(), store_options(&settings));
        let store = Store::open(url, trust, label, options, None, listener)?;
        Ok(Opened {
            store,
            late_listener,
            settings,
        })
    }

    /// Creates a client of an in-memory store, which other managers may share. See also
    /// [`LockManager::in_memory`].
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a setting out of its range, and for
    /// [`replicas`](Self::replicas).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{Error, LockManager, MemoryStore};
    ///
    /// // Two clients of one server, for a test.
    /// let server = MemoryStore::new();
    /// let here = LockManager::builder().in_memory(&server)?;
    /// let there = LockManager::builder().in_memory(&server)?;
    /// let guard = here.lock("a").acquire().await?;
    /// assert!(matches!(there.lock("a").try_acquire().await, Err(Error::Busy { .. })));
    /// # Ok(()) }
    /// ```
    pub fn in_memory(self, store: &MemoryStore) -> Result<LockManager> {
        let own_thread = self.own_thread;
        let options = self.checked()?;
        if options.replicas > 0 {
            return Err(Invalid::new(format!(
                "replicas {}: must be 0, since locks in memory have none",
                options.replicas
            ))
            .into());
        }
        let thread = OwnThread::start_if(own_thread)?;
        Ok(LockManager::of(client_in_memory(
            ClientId::random(),
            options,
            store,
            thread,
        )))
    }

    pub(super) fn checked(self) -> Result<ManagerOptions> {
        self.options.check()?;
        let label = self.label.map(|label| Label::new(&label)).transpose()?;
        Ok(ManagerOptions {
            label: label.unwrap_or(self.options.label),
            ..self.options
        })
    }
}

/// A store that connects in the background, who will listen to it, and the settings of its client.
#[cfg(feature = "redis")]
struct Opened {
    store: Store,
    late_listener: Arc<LateListener>,
    settings: ManagerOptions,
}

#[cfg(feature = "redis")]
impl Opened {
    /// Starts the client of the store. `first` is an answer of its server, if there is one already.
    fn started(self, first: Option<&Answer<()>>, thread: Option<OwnThread>) -> LockManager {
        let Opened {
            store,
            late_listener,
            settings,
        } = self;
        let shared = Shared::new(late_listener, ClientId::random(), store, settings, first, thread);
        shared.start();
        LockManager::of(shared)
    }
}

pub(super) fn in_memory(options: ManagerOptions, store: &MemoryStore) -> LockManager {
    LockManager::of(client_in_memory(ClientId::random(), options, store, None))
}

pub(super) fn client_in_memory(
    id: ClientId,
    options: ManagerOptions,
    store: &MemoryStore,
    thread: Option<OwnThread>,
) -> Shared {
    let late_listener = Arc::new(LateListener::default());
    let listener = Arc::downgrade(&late_listener);
    let store = Store::Memory(store.connect(listener));
    let time = store.time().now_or_never();
    let first = time.and_then(std::result::Result::ok);
    let first = first.unwrap_or_else(|| unreachable!("the in-memory store answers at once"));
    Shared::new(late_listener, id, store, options, Some(&first), thread)
}

/// The options of a client of one server.
#[cfg(feature = "redis")]
pub(super) fn store_options(settings: &ManagerOptions) -> Options {
    Options {
        attempt_timeout: settings.attempt_timeout(),
        server_timeout: settings.server_timeout,
        ping_every: PING_EVERY,
        replicas: settings.replicas,
        quorum: None,
    }
}
