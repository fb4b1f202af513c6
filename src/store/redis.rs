//! Locks on a Redis or Valkey server, or on a cluster.
//!
//! Only the modules below this one use fred.

mod address;
mod call;
mod cluster;
mod commands;
mod connection;
mod connector;
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

use self::cluster::ClusterStore;
use self::connector::Connector;
pub(crate) use self::options::Options;
use self::server::RedisStore;
use crate::error::Error;
use crate::store::label::Label;
use crate::store::{Listener, Store};
use crate::tls::Tls;

/// Connects to the server or servers of the URL (see [`Address`](address::Address)). The store stays
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
