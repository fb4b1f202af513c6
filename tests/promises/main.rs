//! What the locks promise, in memory and on a server: one file for each promise.

#![cfg(all(unix, feature = "redis"))]
// Helpers count as tests: whatever fails in one fails the test.
#![allow(clippy::unwrap_used)]

mod backend;
mod bounds;
mod cancellation;
mod exclusion;
mod fairness;
mod lease;
mod reentrance;
mod settings;
mod spin;
mod waiting;
mod work;
