//! Quorums of real servers: what a minority that fails costs, what a server that lost its memory may do, and
//! what users see of it.

mod faults;
mod restarts;
mod seen;
mod settings;

#[cfg(feature = "metrics")]
use std::sync::OnceLock;
use std::time::Duration;

use fairlock::{LockManager, LockManagerBuilder, Quorum};
use fairlock_testkit::{Server, eventually};
#[cfg(feature = "metrics")]
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Calls that wait for a server that does not answer take 2 s. Whatever takes less has not waited.
const AT_ONCE: Duration = Duration::from_millis(1500);

async fn servers<const N: usize>() -> [Server; N] {
    let mut servers = Vec::new();
    for _ in 0..N {
        servers.push(Server::start().await);
    }
    servers.try_into().expect("as many as were started")
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

/// A client of servers that have just been started, and have nothing to forget.
async fn client(servers: &[Server]) -> LockManager {
    client_with(servers, |settings| settings).await
}

async fn client_with(
    servers: &[Server],
    settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
) -> LockManager {
    let builder = settings(LockManager::builder());
    let quorum = Quorum::of(urls(servers)).durable();
    builder.connect_quorum(quorum).await.unwrap()
}

/// Waits until so many requests are queued for the lock `a` at every server.
async fn queued_everywhere(servers: &[Server], count: i64) {
    eventually("queued everywhere", LIMIT, async || {
        for server in servers {
            if server.command(&["ZCARD", "fairlock:queue:{a}"]).await.int() != count {
                return false;
            }
        }
        true
    })
    .await;
}

/// How many requests hold a lock or wait for one, over all servers.
async fn left(servers: &[Server]) -> Vec<String> {
    let mut left = Vec::new();
    for server in servers {
        for key in server.keys("fairlock:queue:").await {
            left.push(key);
        }
        for key in server.keys("fairlock:{").await {
            if server.lock_summary(&key).await.is_held() {
                left.push(key);
            }
        }
    }
    left
}

/// How many votes for locks of this group were corrected in this way, by all clients. Only what is first used
/// after the first call counts, so each test that counts calls this before.
#[cfg(feature = "metrics")]
fn corrected(group: &str, correction: &str) -> f64 {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    let recorder = RECORDER.get_or_init(|| PrometheusBuilder::new().install_recorder().unwrap());
    let labels = [("group", group), ("correction", correction)];
    fairlock_testkit::sum_of(&recorder.render(), "fairlock_votes_corrected_total", &labels)
}
