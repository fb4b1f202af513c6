//! The servers: Redis or Valkey, or memory in their place. The code above does not know Redis. The code here
//! does not wait for locks.

pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::ops::Deref;
use std::sync::Arc;
#[cfg(feature = "redis")]
use std::sync::Weak;
use std::time::Duration;

#[cfg(feature = "redis")]
use tokio::time::Instant;

use self::memory::Connection;
#[cfg(feature = "redis")]
use self::redis::{ClusterStore, RedisStore};
#[cfg(feature = "redis")]
use crate::protocol::{Answer, Failure, Listener, ServerId, label, script, script::PubSubMode};
use crate::protocol::{
    ByRules, Call, Confirmed, Connections, KeepAlive, OnAnswer, Renew, SetLabel, operations,
};
#[cfg(test)]
use crate::tests::double::{self, Double};
#[cfg(feature = "redis")]
use crate::time::backoff::Backoff;
#[cfg(feature = "redis")]
use crate::types::error::Error;

/// One server, or something that takes its place. Clones are the same store.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Memory(Arc<Connection>),
    #[cfg(feature = "redis")]
    Server(Arc<RedisStore>),
    #[cfg(feature = "redis")]
    Cluster(Arc<ClusterStore>),
    #[cfg(test)]
    Double(Arc<dyn Double>),
}

impl Store {
    pub(crate) fn call<O: ByRules>(&self, operation: O) -> Call<O::Reply> {
        match self {
            Store::Memory(connection) => connection.call(operation),
            #[cfg(feature = "redis")]
            Store::Server(server) => server.call(operation),
            #[cfg(feature = "redis")]
            Store::Cluster(cluster) => cluster.call(operation),
            #[cfg(test)]
            Store::Double(double) => double::call(&**double, operation),
        }
    }

    /// Renews a hold, and waits until as many replicas have the renewal as this store was made for. Waits for
    /// no longer than `within`. A store without servers reports that none has it.
    pub(crate) fn confirm(&self, call: Renew, within: Duration) -> Call<Confirmed> {
        let _ = within;
        match self {
            #[cfg(feature = "redis")]
            Store::Server(server) => server.confirm(call, within),
            #[cfg(feature = "redis")]
            Store::Cluster(cluster) => cluster.confirm(call, within),
            _ => operations::renew::unreplicated(self.call(call)),
        }
    }

    /// Returns a future that sets the label of a client now, and again each time after `every`. Each answer
    /// is passed on. In memory the label is set before this returns. The label need not outlive the future.
    #[cfg_attr(
        not(feature = "redis"),
        allow(unused_variables, clippy::needless_pass_by_value)
    )]
    pub(crate) fn keep_label(&self, call: SetLabel, every: Duration, heard: OnAnswer) -> KeepAlive {
        match self {
            Store::Memory(connection) => connection.keep_label(call),
            #[cfg(test)]
            Store::Double(double) => double.keep_label(call, every, heard),
            #[cfg(feature = "redis")]
            Store::Server(_) | Store::Cluster(_) => {
                let store = self.clone();
                operations::label::repeated(every, move || store.call(call.clone()), heard)
            }
        }
    }
}

#[cfg(feature = "redis")]
impl Store {
    /// Makes a client of the server or servers of the URL, which in a quorum names one server. It connects in
    /// the background, and calls wait for that. The client tries until the store is closed or dropped, or the
    /// runtime ends. Must be called within a runtime.
    pub(crate) fn open(
        url: &str,
        trust: redis::Trust<'_>,
        label: label::Label,
        options: redis::Options,
        quorum: Option<&Arc<redis::DistinctServers>>,
        listener: Weak<dyn Listener>,
    ) -> Result<Store, Error> {
        let connector = redis::connector(url, trust, label, options)?.among(quorum.cloned());
        if connector.is_for_a_cluster() {
            return Ok(Store::Cluster(ClusterStore::open(connector, options, listener)));
        }
        let place = (ServerId::default(), PubSubMode::Plain);
        let scripts = script::for_server(options.quorum.is_some());
        let server = RedisStore::open(connector, options, &listener, place, scripts);
        Ok(Store::Server(server))
    }

    /// Waits for the first answer. Tries until the deadline, unless the server refuses this client.
    pub(crate) async fn first_answer(&self, deadline: Instant) -> Result<Answer<()>, Error> {
        let mut backoff = Backoff::new();
        loop {
            let asked = async {
                let answer = self.time().await?;
                self.check().await?;
                Ok(answer)
            };
            match asked.await {
                Ok(answer) => return Ok(answer),
                Err(failure) => {
                    let is_final = matches!(failure, Failure::Refused(_) | Failure::Closed);
                    if is_final || Instant::now() >= deadline {
                        return Err(failure.into());
                    }
                    backoff.pause().await;
                }
            }
        }
    }
}

impl Deref for Store {
    type Target = dyn Connections;

    fn deref(&self) -> &(dyn Connections + 'static) {
        match self {
            Store::Memory(connection) => &**connection,
            #[cfg(feature = "redis")]
            Store::Server(server) => &**server,
            #[cfg(feature = "redis")]
            Store::Cluster(cluster) => &**cluster,
            #[cfg(test)]
            Store::Double(double) => &**double,
        }
    }
}
