//! Overload: callers give up because there are more than can be served, while the server or the network
//! fails. Once these work again, callers are served again, and nothing has piled up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fairlock::{Lock, LockManager};
use fairlock_testkit::{Proxy, Server, eventually};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::scene::{SECOND, connect, nothing_left};

const TASKS: usize = 200;
/// The largest number of calls that a client has in flight.
const IN_FLIGHT: usize = 1024;
const NAMES: [&str; 4] = ["0", "1", "2", "3"];

/// How a caller gives up.
#[derive(Clone, Copy)]
enum Way {
    Bound,
    Drop,
}

/// Tasks that acquire a lock again and again, and give up after their patience.
struct Load {
    locks: LockManager,
    acquired: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    /// The largest number of unconfirmed withdrawals and releases at any time.
    unconfirmed: usize,
}

impl Load {
    fn start(locks: &LockManager, patience: Duration) -> Load {
        let mut load = Load {
            locks: locks.clone(),
            acquired: Arc::default(),
            is_over: Arc::default(),
            tasks: JoinSet::new(),
            unconfirmed: 0,
        };
        for task in 0..TASKS {
            let lock = locks.lock(NAMES[task % NAMES.len()]);
            let way = if task % 2 == 0 { Way::Bound } else { Way::Drop };
            let (acquired, is_over) = (Arc::clone(&load.acquired), Arc::clone(&load.is_over));
            load.tasks.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if take(&lock, way, patience).await {
                        acquired.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        load
    }

    /// Returns how many acquires succeed in `time`.
    async fn acquires_in(&mut self, time: Duration) -> u64 {
        let before = self.acquired.load(Ordering::Relaxed);
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep(Duration::from_millis(10)).await;
            self.unconfirmed = self.unconfirmed.max(self.locks.stats().unconfirmed);
        }
        self.acquired.load(Ordering::Relaxed) - before
    }

    /// Waits until acquires succeed at nearly the earlier rate. The margin is wide because other tests use
    /// the machine too.
    async fn recovers(&mut self, before: u64) {
        let end = Instant::now() + 10 * SECOND;
        while 3 * self.acquires_in(SECOND / 2).await < before {
            assert!(Instant::now() < end, "the rate does not recover");
        }
    }

    /// Ends the load, and checks that nothing is left on the server and nothing had piled up.
    async fn end(mut self, server: &Server) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task.unwrap();
        }
        timeout(3 * SECOND, self.locks.close())
            .await
            .expect("a close that takes almost no time")
            .unwrap();
        for name in NAMES {
            nothing_left(server, name, SECOND).await;
        }
        // The calls in flight, and for each task a withdrawal and a release of this turn and of the previous
        // turn.
        let bound = IN_FLIGHT + 4 * TASKS;
        assert!(self.unconfirmed <= bound, "{} unconfirmed", self.unconfirmed);
    }
}

async fn take(lock: &Lock, way: Way, patience: Duration) -> bool {
    let acquired = match way {
        Way::Bound => lock.acquire_timeout(patience).await.ok(),
        Way::Drop => timeout(patience, lock.acquire()).await.ok().and_then(Result::ok),
    };
    match acquired {
        Some(guard) => guard.release().await.is_ok(),
        None => false,
    }
}

/// Race: Callers give up before their turn, and their leftovers keep the server from serving others.
#[tokio::test]
async fn stopped_server_serves_as_many_callers_afterwards_as_before() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let mut load = Load::start(&locks, Duration::from_millis(100));
    let before = load.acquires_in(SECOND).await / 2;
    server.pause();
    load.acquires_in(2 * SECOND).await;
    server.resume();
    load.recovers(before).await;
    load.end(&server).await;
}

/// Race: Callers give up before their turn, and their leftovers keep the server from serving others.
#[tokio::test]
async fn callers_are_served_though_the_answers_take_most_of_their_patience() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let mut load = Load::start(&locks, Duration::from_millis(100));
    load.acquires_in(SECOND).await;
    // A call takes 50 ms, and a hand-over takes another 50 ms.
    proxy.delay(Duration::from_millis(25));
    load.acquires_in(SECOND).await;
    assert!(
        load.acquires_in(2 * SECOND).await >= 10,
        "hardly any caller is served"
    );
    proxy.delay(Duration::ZERO);
    load.end(&server).await;
}

/// Race: A network delivers abandoned calls late, and all at once.
#[tokio::test]
async fn late_burst_of_calls_does_not_lower_the_rate_afterwards() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let mut load = Load::start(&locks, Duration::from_millis(100));
    let before = load.acquires_in(SECOND).await / 2;
    proxy.freeze_open();
    load.acquires_in(3 * SECOND).await;
    proxy.thaw();
    load.recovers(before).await;
    load.end(&server).await;
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test]
async fn a_bystander_is_served_at_once_while_others_give_up() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let mut load = Load::start(&locks, Duration::from_millis(20));
    load.acquires_in(SECOND).await;
    let bystander = locks.lock("bystander");
    for _ in 0..50 {
        let guard = bystander.acquire_timeout(5 * SECOND).await.unwrap();
        guard.release().await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    load.end(&server).await;
    let none_queued = async || server.keys("fairlock:queue").await.is_empty();
    eventually("no queue is left", SECOND, none_queued).await;
}
