//! Helpers that the benches share.

pub mod analysis;
#[cfg(feature = "redis")]
pub mod bare;
pub mod info;
pub mod machine;
pub mod memory;
pub mod quantile;
pub mod wire;

/// A result, or an error to show to the user.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
