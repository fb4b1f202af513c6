//! Where a lock is: on one server, or on a majority of several.

use std::sync::Arc;

use crate::engine::client::Client;
use crate::engine::counters::Counters;
use crate::engine::shared::Shared;
use crate::error::Result;
use crate::quorum::Quorum;

/// The servers of a manager, and its clients there.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// One server, or a cluster, or a server in memory.
    One(Arc<Shared>),
    Quorum(Arc<Quorum>),
}

impl Place {
    /// A client of the place. All clients of a quorum have the same id and the same settings.
    pub(crate) fn client(&self) -> &Arc<Client> {
        match self {
            Place::One(shared) => shared.client(),
            Place::Quorum(quorum) => quorum.client(),
        }
    }

    pub(crate) fn clients(&self) -> Vec<Arc<Client>> {
        match self {
            Place::One(shared) => vec![Arc::clone(shared.client())],
            Place::Quorum(quorum) => {
                let clients = quorum.servers.iter().map(|server| server.client());
                clients.cloned().collect()
            }
        }
    }

    /// Starts the background tasks, on the runtime of the first call.
    pub(crate) fn start(&self) -> Result<()> {
        match self {
            Place::One(shared) => shared.start(),
            Place::Quorum(quorum) => quorum.start(),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        match self {
            Place::One(shared) => &shared.client().counters,
            Place::Quorum(quorum) => &quorum.counters,
        }
    }
}
