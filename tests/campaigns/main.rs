//! Tests that can run for hours, in their short form. `scripts/campaign` runs the long form.

// Helpers count as tests here: an error in a helper fails the test that calls it.
#![allow(clippy::unwrap_used)]

#[cfg(all(unix, feature = "redis"))]
mod contention;
#[cfg(all(unix, feature = "redis", feature = "metrics"))]
mod metrics;
mod mutants;
#[cfg(all(unix, feature = "redis"))]
mod quorum;
#[cfg(all(unix, feature = "redis"))]
mod soak;
