//! One body, two tests: in memory and on a real server.
//!
//! ```ignore
//! on_each_backend! { a_release_wakes_the_waiter }
//!
//! async fn a_release_wakes_the_waiter(backend: Backend) {
//!     let (here, there) = (backend.client().await, backend.client().await);
//!     …
//! }
//! ```
//!
//! In memory time is paused, so leases end at once and to the millisecond; bodies measure with tokio's `Instant`
//! and sleep with tokio. `on_each_backend_in_parallel!` is for bodies that need real threads, and so real time.
//!
//! A body that hangs fails, by name: a test that never ends would end all others with it.

use std::time::Duration;

use fairlock::{Lock, LockManager, LockManagerBuilder, MemoryStore};
use fairlock_testkit::{Server, prefix};
use tokio::time::{Instant, sleep, timeout};

/// Where the locks of one test live: a store or a server, of which it has a prefix to itself.
#[derive(Debug)]
pub(crate) struct Backend {
    home: Home,
    prefix: String,
}

#[derive(Debug)]
enum Home {
    Memory(MemoryStore),
    Server(&'static Server),
}

impl Backend {
    pub(crate) fn in_memory() -> Backend {
        Backend {
            home: Home::Memory(MemoryStore::new()),
            prefix: prefix(),
        }
    }

    pub(crate) async fn on_a_server() -> Backend {
        Backend {
            home: Home::Server(Server::shared().await),
            prefix: prefix(),
        }
    }

    /// A client with all settings at their defaults.
    pub(crate) async fn client(&self) -> LockManager {
        self.client_with(|settings| settings).await
    }

    pub(crate) async fn client_with(
        &self,
        settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> LockManager {
        let builder = settings(LockManager::builder().prefix(&self.prefix));
        match &self.home {
            Home::Memory(store) => builder.in_memory(store),
            Home::Server(server) => builder.connect(&server.url()).await,
        }
        .expect("a client")
    }

    pub(crate) async fn clients(&self, count: usize) -> Vec<LockManager> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(self.client().await);
        }
        clients
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn server(&self) -> Option<&'static Server> {
        match self.home {
            Home::Memory(_) => None,
            Home::Server(server) => Some(server),
        }
    }

    /// By how much something may come later than it should: a loaded machine is slow, and a loaded server too.
    pub(crate) fn slack(&self) -> Duration {
        match self.home {
            Home::Memory(_) => Duration::from_millis(100),
            Home::Server(_) => Duration::from_secs(2),
        }
    }

    /// A short lease that a live client on a loaded machine still renews in time.
    pub(crate) fn short_lease(&self) -> Duration {
        Duration::from_millis(900)
    }

    /// Waits until `count` are queued for the lock, and the server sees so many clients' subscriptions to it: from
    /// then on nobody misses a turn.
    pub(crate) async fn queued(&self, lock: &Lock, count: u64, clients: usize) {
        let start = Instant::now();
        while lock.status().await.unwrap().waiting != count || self.subscriptions().await < clients {
            assert!(start.elapsed() < Duration::from_secs(20), "{count} in the queue");
            sleep(Duration::from_millis(2)).await;
        }
        if self.server().is_none() {
            // In memory a waiter subscribes in the next turn of its runtime.
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many channels of this test have a subscriber; in memory nobody can tell.
    pub(crate) async fn subscriptions(&self) -> usize {
        let Some(server) = self.server() else {
            return usize::MAX;
        };
        let pattern = format!("{}:unlock:*", self.prefix);
        let channels = server.command(&["PUBSUB", "CHANNELS", &pattern]).await;
        channels.array().len()
    }
}

/// Far more real time than any body takes, on however slow a machine.
const HANGS: Duration = Duration::from_secs(180);

/// Runs the body of a test in real time.
pub(crate) async fn to_its_end(body: impl Future<Output = ()>) {
    timeout(HANGS, body).await.expect("a test that does not hang");
}

/// Makes each of these functions a test in memory, with time paused, and one on a server.
macro_rules! on_each_backend {
    ($($body:ident),* $(,)?) => {
        mod in_memory {
            $(
                #[tokio::test(start_paused = true)]
                async fn $body() {
                    super::$body($crate::backend::Backend::in_memory()).await;
                }
            )*
        }

        mod on_a_server {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $body() {
                    let backend = $crate::backend::Backend::on_a_server().await;
                    $crate::backend::to_its_end(super::$body(backend)).await;
                }
            )*
        }
    };
}

/// The same with real threads and real time, in memory too.
macro_rules! on_each_backend_in_parallel {
    ($($body:ident),* $(,)?) => {
        mod in_parallel {
            $(
                mod $body {
                    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                    async fn in_memory() {
                        let backend = $crate::backend::Backend::in_memory();
                        $crate::backend::to_its_end(super::super::$body(backend)).await;
                    }

                    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                    async fn on_a_server() {
                        let backend = $crate::backend::Backend::on_a_server().await;
                        $crate::backend::to_its_end(super::super::$body(backend)).await;
                    }
                }
            )*
        }
    };
}

pub(crate) use {on_each_backend, on_each_backend_in_parallel};
