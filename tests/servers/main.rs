//! The locks on real servers. Each kind of server, connection or fault has its own file or folder.
//!
//! Most of these tests spend their time waiting. Each test that breaks something has its own servers.

// Examinations are among the tests. `scripts/test` turns all features on.
#![cfg(all(unix, feature = "diagnose"))]
// Helpers count as tests here: an error in a helper fails the test that calls it.
#![allow(clippy::unwrap_used)]

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod connecting;
mod credentials;
mod failover;
mod faults;
mod lazy;
mod quorum;
mod replicas;
mod security;
mod unfit;

/// How many holds of this client were lost.
fn lost(locks: &fairlock::LockManager) -> u64 {
    let stats = locks.stats();
    stats.lost_expired + stats.lost_taken + stats.lost_max_hold
}
