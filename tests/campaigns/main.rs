//! Tests that can go on for hours, in their short form; `scripts/campaign` runs the long one.

// Helpers count as tests: whatever fails in one fails the test.
#![allow(clippy::unwrap_used)]

mod mutants;
#[cfg(all(unix, feature = "redis"))]
mod soak;
