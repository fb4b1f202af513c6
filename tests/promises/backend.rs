//! Each test body runs in memory and on a real server, and most of them in quorums of three as well.
//!
//! ```ignore
//! on_each_backend! { a_release_wakes_the_waiter }
//! in_a_quorum! { a_release_wakes_the_waiter }
//!
//! async fn a_release_wakes_the_waiter(backend: Backend) {
//!     let (here, there) = (backend.client().await, backend.client().await);
//!     …
//! }
//! ```
//!
//! In memory the time is paused, so leases end at once and to the millisecond. The bodies measure time with
//! tokio's `Instant`, and sleep with tokio. `on_each_backend_in_parallel!` is for bodies that need real
//! threads, and therefore real time.
//!
//! A body that hangs fails under its own name. Otherwise a test that never ends would keep all others from
//! finishing.

use std::time::Duration;

use fairlock::{LockManager, LockManagerBuilder, MemoryStore, Quorum};
use fairlock_testkit::{Server, prefix};
use tokio::time::{Instant, sleep, timeout};

use crate::common::Looked;

/// Where the locks of one test live: a store, or a server on which the test has its own key prefix.
#[derive(Debug)]
pub(crate) struct Backend {
    home: Home,
    prefix: String,
    /// The number of turns of a tenure.
    local_handoffs: u32,
    /// Time also passes in memory.
    real_time: bool,
}

#[derive(Debug)]
enum Home {
    Memory(MemoryStore),
    Server(&'static Server),
    QuorumInMemory([MemoryStore; 3]),
    Quorum(&'static [Server; 3]),
}

impl Backend {
    pub(crate) fn in_memory() -> Backend {
        Backend::of(Home::Memory(MemoryStore::new()))
    }

    pub(crate) async fn on_a_server() -> Backend {
        Backend::of(Home::Server(Server::shared().await))
    }

    pub(crate) fn quorum_in_memory() -> Backend {
        let stores = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
        Backend::of(Home::QuorumInMemory(stores))
    }

    pub(crate) async fn quorum_of_servers() -> Backend {
        Backend::of(Home::Quorum(Server::shared_quorum().await))
    }

    fn of(home: Home) -> Backend {
        Backend {
            home,
            prefix: prefix(),
            local_handoffs: 1,
            real_time: false,
        }
    }

    /// The same place, for a test in memory whose time is not paused.
    pub(crate) fn in_real_time(self) -> Backend {
        Backend {
            real_time: true,
            ..self
        }
    }

    /// The same place, for clients with local hand-off.
    pub(crate) fn with_local_handoffs(self) -> Backend {
        Backend {
            local_handoffs: 64,
            ..self
        }
    }

    /// A client with default settings.
    pub(crate) async fn client(&self) -> LockManager {
        self.client_with(|settings| settings).await
    }

    pub(crate) async fn client_with(
        &self,
        settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> LockManager {
        let builder = LockManager::builder()
            .prefix(&self.prefix)
            .local_handoffs(self.local_handoffs);
        let longest_lease = Duration::from_secs(24 * 60 * 60);
        let builder = settings(builder);
        match &self.home {
            Home::Memory(store) => builder.in_memory(store),
            Home::Server(server) => builder.connect(&server.url()).await,
            Home::QuorumInMemory(stores) => {
                let quorum = Quorum::in_memory(stores).longest_lease(longest_lease);
                builder.connect_quorum(quorum).await
            }
            // The servers have just been started, and have nothing to forget.
            Home::Quorum(servers) => {
                let quorum = Quorum::of(servers.each_ref().map(Server::url)).durable();
                builder.connect_quorum(quorum.longest_lease(longest_lease)).await
            }
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

    pub(crate) fn is_a_quorum(&self) -> bool {
        matches!(self.home, Home::QuorumInMemory(_) | Home::Quorum(_))
    }

    /// How long a hold of this lease lasts before its first renewal. In a quorum it is a claim window: a
    /// client that dies with too few grants holds up nobody for longer.
    pub(crate) fn unrenewed(&self, lease: Duration) -> Duration {
        if self.is_a_quorum() {
            lease.min(Duration::from_secs(5))
        } else {
            lease
        }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.home, Home::Memory(_) | Home::QuorumInMemory(_))
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn server(&self) -> Option<&'static Server> {
        match self.home {
            Home::Server(server) => Some(server),
            _ => None,
        }
    }

    /// How much later than expected an event may come on a loaded machine or server.
    pub(crate) fn slack(&self) -> Duration {
        if self.is_in_memory() && !self.real_time {
            Duration::from_millis(100)
        } else {
            Duration::from_secs(2)
        }
    }

    /// A short lease that a live client on a loaded machine still renews in time.
    pub(crate) fn short_lease(&self) -> Duration {
        Duration::from_millis(900)
    }

    /// Waits until `count` requests are queued for the lock, and the server sees the subscriptions of
    /// `clients` clients. After that, no request misses its turn.
    pub(crate) async fn queued(&self, lock: &impl Looked, count: u64, clients: usize) {
        let start = Instant::now();
        while lock.look().await.unwrap().waiting != count || self.subscriptions().await < clients {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the queue never had {count} requests"
            );
            sleep(Duration::from_millis(2)).await;
        }
        if matches!(self.home, Home::Quorum(_)) {
            // What is asked for next has a later ticket, although the clients' estimates of the servers'
            // clocks differ, on a busy machine by several ms.
            sleep(Duration::from_millis(50)).await;
        }
        if self.is_in_memory() {
            // In memory, a waiter subscribes when the runtime polls it next.
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many channels of this test have a subscriber, on each server. In memory this is not known.
    pub(crate) async fn subscriptions(&self) -> usize {
        let servers: &[Server] = match self.home {
            Home::Memory(_) | Home::QuorumInMemory(_) => &[],
            Home::Server(server) => std::slice::from_ref(server),
            Home::Quorum(servers) => servers,
        };
        let pattern = format!("{}:unlock:*", self.prefix);
        let mut fewest = usize::MAX;
        for server in servers {
            let channels = server.command(&["PUBSUB", "CHANNELS", &pattern]).await;
            fewest = fewest.min(channels.array().len());
        }
        fewest
    }
}

/// No body takes this long, even on a slow machine.
const BODY_LIMIT: Duration = Duration::from_secs(180);

/// Runs the body of a test in real time, and fails the test if the body hangs.
pub(crate) async fn to_its_end(body: impl Future<Output = ()>) {
    timeout(BODY_LIMIT, body).await.expect("the test hangs");
}

/// Makes two tests of each of these functions, in modules of these names: one on a backend in memory with
/// paused time, and one on a backend of servers.
macro_rules! on_two_backends {
    ($in_memory:ident: $memory:expr, $on_servers:ident: $servers:expr, $($body:ident),*) => {
        mod $in_memory {
            use $crate::backend::Backend;

            $(
                #[tokio::test(start_paused = true)]
                async fn $body() {
                    super::$body($memory).await;
                }
            )*
        }

        mod $on_servers {
            use $crate::backend::{Backend, to_its_end};

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $body() {
                    let backend = $servers.await;
                    to_its_end(super::$body(backend)).await;
                }
            )*
        }
    };
}

/// Makes two tests of each of these functions: in memory, and on a server.
macro_rules! on_each_backend {
    ($($body:ident),* $(,)?) => {
        $crate::backend::on_two_backends! {
            in_memory: Backend::in_memory(),
            on_a_server: Backend::on_a_server(),
            $($body),*
        }
    };
}

/// Makes two tests more of each of these functions, with clients that have local hand-off.
macro_rules! with_local_handoffs {
    ($($body:ident),* $(,)?) => {
        $crate::backend::on_two_backends! {
            with_local_handoffs_in_memory: Backend::in_memory().with_local_handoffs(),
            with_local_handoffs_on_a_server: async { Backend::on_a_server().await.with_local_handoffs() },
            $($body),*
        }
    };
}

/// Makes two tests more of each of these functions: in a quorum in memory, and in one of servers.
macro_rules! in_a_quorum {
    ($($body:ident),* $(,)?) => {
        $crate::backend::on_two_backends! {
            in_a_quorum_in_memory: Backend::quorum_in_memory(),
            in_a_quorum_of_servers: Backend::quorum_of_servers(),
            $($body),*
        }
    };
}

/// Makes two tests more of each of these functions, in a quorum whose clients have local hand-off.
macro_rules! local_handoffs_in_a_quorum {
    ($($body:ident),* $(,)?) => {
        $crate::backend::on_two_backends! {
            local_handoffs_in_a_quorum_in_memory: Backend::quorum_in_memory().with_local_handoffs(),
            local_handoffs_in_a_quorum_of_servers: async {
                Backend::quorum_of_servers().await.with_local_handoffs()
            },
            $($body),*
        }
    };
}

/// Does the same as `on_each_backend!`, with real threads and real time, in memory too.
macro_rules! on_each_backend_in_parallel {
    ($($body:ident),* $(,)?) => {
        mod in_parallel {
            $(
                mod $body {
                    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                    async fn in_memory() {
                        let backend = $crate::backend::Backend::in_memory().in_real_time();
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

pub(crate) use {
    in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, on_each_backend_in_parallel, on_two_backends,
    with_local_handoffs,
};
