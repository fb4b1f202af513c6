//! The values that users name.

#[cfg(feature = "redis")]
pub(crate) mod credentials;
#[cfg(feature = "diagnose")]
pub(crate) mod diagnosis;
pub(crate) mod error;
pub(crate) mod fence;
pub(crate) mod lease;
pub(crate) mod owner;
pub(crate) mod permits;
pub(crate) mod status;
#[cfg(feature = "redis")]
// What nothing reads that was built without TLS.
#[cfg_attr(not(any(feature = "rustls", feature = "native-tls")), allow(dead_code))]
pub(crate) mod tls;
