//! Locks on a Redis or Valkey server, or on a cluster.
//!
//! Only the modules below this one use fred.

mod address;
mod call;
mod cluster;
mod commands;
mod connection;
mod connector;
mod credentials;
mod diagnosis;
mod dial;
mod failure;
mod names;
mod options;
mod pair;
mod primary;
mod replication;
mod role;
pub(crate) mod script;
mod sentinel;
mod server;
mod server_info;
mod slot;
mod subscriber;
mod supervisor;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod tls;

use std::sync::{Arc, Weak};

use self::address::Address;
use self::cluster::ClusterStore;
use self::connector::Connector;
use self::credentials::Login;
pub(crate) use self::diagnosis::Examination;
pub(crate) use self::options::Options;
pub(crate) use self::options::QuorumServer;
pub(crate) use self::role::DistinctServers;
use self::script::PubSubMode;
use self::server::RedisStore;
use crate::credentials::CredentialsProvider;
use crate::error::{Error, Invalid};
use crate::store::label::Label;
use crate::store::{Listener, ServerId, Store};
use crate::tls::Tls;

/// Connects to the server or servers of the URL (see [`Address`]). The store stays
/// connected until it is closed or dropped, or the runtime ends.
pub(crate) async fn connect(
    url: &str,
    trust: Trust<'_>,
    label: Label,
    options: Options,
    listener: Weak<dyn Listener>,
) -> Result<Arc<dyn Store>, Error> {
    let connector = connector(url, trust, label, options)?;
    if connector.seeds().is_empty() {
        Ok(RedisStore::connect(connector, options, listener, &script::ALL).await?)
    } else {
        Ok(ClusterStore::connect(connector, options, listener).await?)
    }
}

/// Makes a client of one server of a quorum. Returns at once, and connects in the background; calls wait for
/// that. The client tries until the store is closed or dropped, or the runtime ends. Must be called within a
/// runtime.
pub(crate) fn open(
    url: &str,
    trust: Trust<'_>,
    label: Label,
    options: Options,
    quorum: &Arc<DistinctServers>,
    listener: &Weak<dyn Listener>,
) -> Result<Arc<dyn Store>, Error> {
    server_of(url)?;
    let connector = connector(url, trust, label, options)?.among(Some(Arc::clone(quorum)));
    let place = (ServerId::default(), PubSubMode::Plain);
    Ok(RedisStore::opening(connector, options, listener, place))
}

/// How a client and its servers come to trust each other.
#[derive(Clone, Copy, Default)]
pub(crate) struct Trust<'a> {
    pub(crate) tls: Option<&'a Tls>,
    /// Where the credentials come from, if not from the URL.
    pub(crate) credentials: Option<&'a CredentialsProvider>,
}

fn connector(url: &str, trust: Trust<'_>, label: Label, options: Options) -> Result<Connector, Invalid> {
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
