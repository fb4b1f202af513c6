//! Metrics, for the recorder that the application installs for the crate `metrics`. Only
//! [`counters`](super::counters) and the client's calls use this. Without the feature `metrics`, everything
//! here is empty, and compiles to nothing.

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

/// What a call asks of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub(crate) enum Operation {
    Acquire,
    Release,
    Withdraw,
    Renew,
    Confirm,
    Inspect,
}
