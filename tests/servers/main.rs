//! How the locks get along with real servers: one file or folder for each kind of server, connection or fault.
//!
//! Most of these tests wait most of the time, and each that breaks something has servers of its own.

#![cfg(all(unix, feature = "redis"))]
// Helpers count as tests: whatever fails in one fails the test.
#![allow(clippy::unwrap_used)]

mod cluster;
mod connecting;
mod failover;
mod faults;
mod fsynced;
mod replicas;
mod security;
mod spreading;
