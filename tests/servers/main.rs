//! The locks on real servers, with one file or folder for each kind of server, connection or fault.
//!
//! Most of these tests spend their time waiting. Each test that breaks something has servers of its own.

#![cfg(all(unix, feature = "redis"))]
// Helpers count as tests here: an error in a helper fails the test that calls it.
#![allow(clippy::unwrap_used)]

mod cluster;
mod connecting;
mod failover;
mod faults;
mod fsynced;
mod replicas;
mod security;
mod spreading;
