//! Helpers for the tests of faults: managers with short settings, and checks of the data that a lock left on
//! its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use fairlock::{LockGuard, LockManager, LockManagerBuilder, Result};
use fairlock_testkit::{History, LockSummary, Role, Server, eventually};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::task::{JoinHandle, JoinSet};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The name of the lock in tests that need only one.
pub(crate) const NAME: &str = "a";
/// Everything that needs no timer happens within this time, also on a busy machine.
pub(crate) const SOON: Duration = Duration::from_millis(700);
/// After this time, an acquire that was sent has run or never will, and its request was withdrawn for the
/// last time.
pub(crate) const SETTLED: Duration = Duration::from_millis(2500);

const PREFIX: &str = "t";

/// The leases and claim windows outlast every test, so a grant in time is not due to one that ended. The
/// client polls by its timer only after `SOON`.
pub(crate) fn settings() -> LockManagerBuilder {
    LockManager::builder()
        .prefix(PREFIX)
        .lease(30 * SECOND)
        .claim_window(5 * SECOND)
        .server_timeout(5 * SECOND)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    settings().connect(url).await.expect("a server that answers")
}

/// In a process of its own: `count` users go on until the test says so. Says how often they had what they
/// use. The leases are renewed in time by a process that the others keep from running for a while.
pub(crate) async fn users_until_stopped<U>(
    mut role: Role,
    count: u64,
    user: impl Fn(LockManager, SmallRng, Arc<AtomicBool>) -> U,
) where
    U: Future<Output = u64> + Send + 'static,
{
    const LEASE: Duration = Duration::from_secs(5);

    let locks = settings().lease(LEASE).claim_window(LEASE);
    let locks = locks.connect(&role.arg("url")).await.unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..count {
        let rng = SmallRng::seed_from_u64(role.number("seed") << 8 | task);
        tasks.spawn(user(locks.clone(), rng, Arc::clone(&stopped)));
    }
    assert_eq!(role.heard().await, "stop");
    stopped.store(true, Ordering::Relaxed);
    let uses: u64 = tasks.join_all().await.into_iter().sum();
    role.say(&uses.to_string());
}

pub(crate) fn lock_key(name: &str) -> String {
    format!("{PREFIX}:{{{name}}}")
}

pub(crate) fn queue_key(name: &str) -> String {
    format!("{PREFIX}:queue:{{{name}}}")
}

/// The server's data of the lock.
pub(crate) async fn kept(server: &Server, name: &str) -> LockSummary {
    server.lock_summary(&lock_key(name)).await
}

/// The current time in ms. The server runs on this machine, so it has the same clock.
pub(crate) fn epoch_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.expect("a time after 1970").as_millis()).expect("a time")
}

pub(crate) async fn waiting(server: &Server, name: &str) -> i64 {
    server.command(&["ZCARD", &queue_key(name)]).await.int()
}

/// The first request in the queue.
pub(crate) async fn head(server: &Server, name: &str) -> String {
    let first = server.command(&["ZRANGE", &queue_key(name), "0", "0"]).await;
    first.array()[0].text().to_owned()
}

/// Waits until `count` requests are queued.
pub(crate) async fn queued(server: &Server, name: &str, count: i64) {
    let is_so = async || waiting(server, name).await == count;
    eventually(&format!("{count} queued for {name}"), 5 * SECOND, is_so).await;
}

/// Whether the lock is held.
pub(crate) async fn is_held(server: &Server, name: &str) -> bool {
    kept(server, name).await.until > epoch_ms()
}

/// Waits until the lock is free and its queue is empty. `within` is shorter than a lease.
pub(crate) async fn nothing_left(server: &Server, name: &str, within: Duration) {
    let is_so = async || !is_held(server, name).await && waiting(server, name).await == 0;
    eventually(&format!("nothing left of {name}"), within, is_so).await;
}

/// Acquires a lock, which must be free, for one lease.
pub(crate) async fn unrenewed(locks: &LockManager, name: &str, lease: Duration) -> LockGuard {
    let lock = locks.lock(name).lease(lease).auto_renew(false);
    lock.acquire().await.unwrap()
}

/// Starts to wait for a lock, and returns when the server has queued the request in the given place.
pub(crate) async fn in_line(
    server: &Server,
    locks: &LockManager,
    name: &str,
    place: i64,
) -> JoinHandle<Result<LockGuard>> {
    let waiter = tokio::spawn(locks.lock(name).acquire());
    queued(server, name, place).await;
    waiter
}

/// Returns the guard of a waiter whose turn comes within `limit`.
#[track_caller]
pub(crate) fn granted<G>(waiter: JoinHandle<Result<G>>, limit: Duration) -> impl Future<Output = G> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(limit, waiter).await {
            Ok(guard) => guard.expect("a task that lives").expect("a guard"),
            Err(_) => panic!("not granted within {limit:?}: {caller}"),
        }
    }
}

/// Acquires the lock, holds it for `hold`, and releases it. This is one entry in the history.
pub(crate) fn turn(
    locks: &LockManager,
    name: &str,
    history: &History,
    waiter: &str,
    hold: Duration,
) -> impl Future<Output = ()> + Send + use<> {
    let (lock, history, waiter) = (locks.lock(name), history.clone(), waiter.to_owned());
    async move {
        let entry = history.asks(waiter);
        let guard = lock.acquire().await.expect("a guard");
        entry.granted(guard.fence().get());
        tokio::time::sleep(hold).await;
        entry.released();
        guard.release().await.expect("a release");
    }
}

/// The ids of the subscribed connections, in the order in which they were made.
pub(crate) async fn subscribers(server: &Server) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    list.text()
        .lines()
        .filter_map(|line| line.strip_prefix("id=")?.split(' ').next().map(str::to_owned))
        .collect()
}

/// Waits until `count` connections have subscribed.
pub(crate) async fn subscribed(server: &Server, count: usize) {
    let is_so = async || subscribers(server).await.len() == count;
    eventually(&format!("{count} subscribers"), 5 * SECOND, is_so).await;
}
