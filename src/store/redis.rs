//! Locks on a Redis or Valkey server, or on a cluster.
//!
//! Only the modules below this one use fred.

mod address;
mod call;
mod cluster;
mod commands;
mod connection;
mod connector;
mod diagnosis;
mod failure;
mod options;
mod pair;
mod primary;
mod replication;
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
pub(crate) use self::diagnosis::Examination;
pub(crate) use self::options::Options;
pub(crate) use self::options::QuorumServer;
use self::script::PubSubMode;
use self::server::RedisStore;
use crate::error::{Error, Invalid};
use crate::store::label::Label;
use crate::store::{Listener, ServerId, Store};
use crate::tls::Tls;

/// Connects to the server or servers of the URL (see [`Address`]). The store stays
/// connected until it is closed or dropped, or the runtime ends.
pub(crate) async fn connect(
    url: &str,
    tls: Option<&Tls>,
    label: Label,
    options: Options,
    listener: Weak<dyn Listener>,
) -> Result<Arc<dyn Store>, Error> {
    let connector = Connector::new(url, tls, options.attempt_timeout)?.labelled(label);
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
    tls: Option<&Tls>,
    label: Label,
    options: Options,
    listener: &Weak<dyn Listener>,
) -> Result<Arc<dyn Store>, Error> {
    server_of(url)?;
    let connector = Connector::new(url, tls, options.attempt_timeout)?.labelled(label);
    let place = (ServerId::default(), PubSubMode::Plain);
    Ok(RedisStore::opening(connector, options, listener, place))
}

/// The host and port, or the path, of the one server that the URL of a quorum's server names. Two such URLs
/// with one result lead to one server. `Invalid` if the URL names sentinels or a cluster.
pub(crate) fn server_of(url: &str) -> Result<String, Invalid> {
    Ok(Address::parse_independent(url)?.identity())
}
