//! Helpers that the tests and the benches share: real servers, a network that fails on command, processes
//! that can be killed, and histories of holds.
//!
//! Nothing here uses fairlock itself, so that a fault of the crate cannot hide in its own tests.

#![cfg(unix)]
// An error in a helper fails the test that uses it.
#![allow(clippy::unwrap_used)]

mod authority;
mod blocking;
mod client;
mod clock;
mod cluster;
mod history;
mod lock_summary;
mod names;
mod postgres;
mod process;
mod proxy;
pub mod resource;
mod resp;
mod scraped;
mod sentinels;
mod server;
mod server_process;
mod signal;
#[cfg(test)]
mod tests;

pub use authority::Authority;
pub use blocking::BlockingClient;
pub use client::Client;
pub use cluster::{Cluster, NODE_TIMEOUT};
pub use history::{Entry, History, Hold, now_ns};
pub use lock_summary::LockSummary;
pub use names::{TempDir, free_port, name, prefix};
pub use postgres::Postgres;
pub use process::{Process, Role, role};
pub use proxy::Proxy;
pub use resp::Resp;
pub use scraped::sum_of;
pub use sentinels::{SERVICE, Sentinels, Setup};
pub use server::{Server, ServerBuilder};
pub use server_process::ServerProcess;

use std::time::Duration;

use tokio::time::Instant;

/// Waits until `check` returns true, and fails the test after `limit` of tokio's time.
pub async fn eventually(what: &str, limit: Duration, mut check: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !check().await {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
