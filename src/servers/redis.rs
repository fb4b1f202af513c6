//! Locks on a Redis or Valkey server, or on a cluster.
//!
//! Only the modules below this one use fred.

mod address;
mod call;
mod channels;
mod cluster;
mod commands;
mod connection;
mod connector;
mod credentials;
#[cfg(feature = "diagnose")]
mod diagnosis;
mod dial;
pub(crate) mod failure;
mod fred_connection;
mod greeting;
mod names;
mod options;
mod outage;
pub(crate) mod pipeline;
mod primary;
mod replication;
pub(crate) mod resp;
mod role;
pub(crate) mod script_set;
mod sentinel;
mod server;
mod server_info;
mod slot;
mod socket;
mod supervisor;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod tls;

use self::address::Address;
pub(crate) use self::cluster::ClusterStore;
pub(crate) use self::connector::Connector;
use self::credentials::Login;
#[cfg(feature = "diagnose")]
pub(crate) use self::diagnosis::Examination;
pub(crate) use self::options::Options;
pub(crate) use self::options::QuorumServer;
pub(crate) use self::role::DistinctServers;
pub(crate) use self::server::RedisStore;
use crate::protocol::label::Label;
use crate::types::credentials::CredentialsProvider;
use crate::types::error::Invalid;
use crate::types::tls::Tls;

/// How a client and its servers come to trust each other.
#[derive(Clone, Copy, Default)]
pub(crate) struct Trust<'a> {
    pub(crate) tls: Option<&'a Tls>,
    /// Where the credentials come from, if not from the URL.
    pub(crate) credentials: Option<&'a CredentialsProvider>,
}

pub(super) fn connector(
    url: &str,
    trust: Trust<'_>,
    label: Label,
    options: Options,
) -> Result<Connector, Invalid> {
    // Half of the time, so that the caller hears of a provider that hangs.
    let login = trust.credentials.map(|provider| Login {
        provider: provider.clone(),
        patience: options.server_timeout / 2,
    });
    let connector = Connector::new(url, trust.tls, options.attempt_timeout)?;
    Ok(connector.with_login(login)?.labelled(label))
}

/// The host and port, or the path, of the one server that the URL of a quorum's server names. Two such URLs
/// with one result lead to one server. `Invalid` if the URL names sentinels or a cluster.
pub(crate) fn server_of(url: &str) -> Result<String, Invalid> {
    Ok(Address::parse_independent(url)?.identity())
}
