//! What is left on a server after all clients have closed.

use std::time::{Duration, Instant, SystemTime};

use fairlock_testkit::Server;
use tokio::time::sleep;

use super::key;

/// After this time all calls have run or never will, the last withdrawals have run, and the leases of killed
/// processes have expired.
pub(crate) const SETTLED: Duration = Duration::from_secs(6);

/// The locks that are held or queued for.
pub(crate) async fn in_locks(server: &Server, locks: usize) -> Vec<String> {
    let mut left = Vec::new();
    for lock in 0..locks {
        if waiting(server, lock).await > 0 || is_held(server, lock).await {
            left.push(format!(
                "lock {lock} is still held or queued for, though all clients are closed"
            ));
        }
    }
    left
}

/// The connections and subscriptions that do not end, and the keys without a TTL.
pub(crate) async fn of_clients(server: &Server) -> Vec<String> {
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
