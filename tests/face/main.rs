//! What users and operators see beside the locks: documents, spans and events.

// Helpers count as tests: whatever fails in one fails the test.
#![allow(clippy::unwrap_used)]

mod links;
mod races;
mod readme;
#[cfg(all(unix, feature = "redis"))]
mod secrets;
mod tracing;
