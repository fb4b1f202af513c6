//! Metrics, for the recorder that the application installs for the crate `metrics`. Only
//! [`counters`](super::counters), the client's calls and its waitlists use this. Without the feature
//! `metrics`, everything here is empty, and compiles to nothing.

#[cfg(not(feature = "metrics"))]
mod nothing;
#[cfg(feature = "metrics")]
mod recorded;
#[cfg(test)]
#[cfg(feature = "metrics")]
mod tests;

#[cfg(not(feature = "metrics"))]
pub(crate) use self::nothing::{Group, Metrics, Pending, Timer};
#[cfg(feature = "metrics")]
pub(crate) use self::recorded::{Group, Metrics, Pending, Timer};
