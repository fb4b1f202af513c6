//! The locks in a real cluster of six servers: three masters with a replica each.

#![cfg(all(unix, feature = "redis"))]
// Helpers count as tests: whatever fails in one fails the test.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod failover;
mod migration;
mod rights;
mod routing;
mod scene;
