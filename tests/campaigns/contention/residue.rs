//! What is left on a server after all clients have closed.

use std::time::{Duration, Instant, SystemTime};

use fairlock_testkit::Server;
use tokio::time::sleep;

use super::{Load, key, lock_name};

/// After this time all calls have run or never will, the last withdrawals have run, and the leases of killed
/// processes have expired.
const SETTLED: Duration = Duration::from_secs(6);

/// Acquires all locks once, on a server or in a quorum. Returns those that cannot be acquired.
pub(crate) async fn in_the_way(load: &Load, urls: &[String]) -> Vec<String> {
    let mut left = Vec::new();
    let locks = load.connect(urls).await.expect("servers at rest");
    for lock in 0..load.locks {
        // This request is served after those of dead clients are skipped and their leases have expired.
        match locks.lock(lock_name(lock)).acquire_timeout(SETTLED).await {
            Ok(guard) => guard.release().await.expect("a release at rest"),
            Err(error) => left.push(format!("lock {lock} cannot be acquired: {error}")),
        }
    }
    locks.close().await.expect("a closed client");
    left
}

/// What is left on a server. Only keys with a TTL may be left.
pub(crate) async fn on(server: &Server, load: &Load) -> Vec<String> {
    let mut left = in_the_way(load, &[server.url()]).await;
    for lock in 0..load.locks {
        if waiting(server, lock).await > 0 || is_held(server, lock).await {
            left.push(format!(
                "lock {lock} is still held or queued for, though all clients are closed"
            ));
        }
    }
    left.extend(of_clients(server).await);
    left
}

/// The connections and subscriptions that do not end, and the keys without a TTL.
async fn of_clients(server: &Server) -> Vec<String> {
    let mut left = Vec::new();
    let started = Instant::now();
    loop {
        // One of them is this connection.
        let connections = server.info("clients").await["connected_clients"].clone();
        let channels = server.command(&["PUBSUB", "CHANNELS"]).await.texts();
        if connections == "1" && channels.is_empty() {
            break;
        }
        if started.elapsed() > SETTLED {
            left.push(format!("{connections} connections and {channels:?} were left"));
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    for key in server.keys("").await {
        if server.command(&["PTTL", &key]).await.int() == -1 {
            left.push(format!("{key} would stay forever"));
        }
    }
    left
}

async fn waiting(server: &Server, lock: usize) -> i64 {
    server.command(&["ZCARD", &key("queue:", lock)]).await.int()
}

async fn is_held(server: &Server, lock: usize) -> bool {
    let summary = server.lock_summary(&key("", lock)).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // The server runs on this machine, so both have the same clock.
    u128::from(summary.until) > now.expect("a time").as_millis()
}
