//! What users and operators see beside the locks themselves: documents, spans and events.

// Helpers count as tests here: an error in a helper fails the test that calls it.
#![allow(clippy::unwrap_used)]

mod api;
mod links;
#[cfg(all(unix, feature = "redis", feature = "metrics"))]
mod metrics;
mod races;
mod readme;
#[cfg(all(unix, feature = "redis"))]
mod secrets;
mod tables;
mod tracing;
mod widths;

use std::path::Path;

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
