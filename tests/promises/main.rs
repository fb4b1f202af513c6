//! The promises of the locks, in memory and on a server, with one file for each promise.

#![cfg(all(unix, feature = "redis"))]
// Helpers count as tests here: an error in a helper fails the test that calls it.
#![allow(clippy::unwrap_used)]

mod backend;
mod bounds;
mod cancellation;
#[path = "../common/mod.rs"]
mod common;
mod exclusion;
mod fairness;
mod jobs;
mod leadership;
mod lease;
mod operator;
mod overload;
mod own_thread;
mod permits;
mod rate_limit;
mod reentrance;
mod sets;
mod settings;
mod spin;
mod waiting;
mod work;
