//! The primary, and its replacement by another server.

use fred::types::config::Server;
use tokio::sync::watch;

/// A primary, and the number of the failover that made it the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Primary {
    pub(super) epoch: u64,
    pub(super) server: Server,
}

/// Tells a connection that its server is no longer the primary.
pub(super) struct Successor {
    former: Primary,
    latest: watch::Receiver<Option<Primary>>,
}

impl Successor {
    pub(super) fn new(former: Primary, latest: watch::Receiver<Option<Primary>>) -> Successor {
        Successor { former, latest }
    }

    /// Waits until there is a new primary, and returns it. May be cancelled and called again.
    pub(super) async fn appears(&mut self) -> Server {
        let former = &self.former;
        let replaces = |latest: &Option<Primary>| {
            latest
                .as_ref()
                .is_some_and(|latest| latest.epoch > former.epoch && latest.server != former.server)
        };
        let server = match self.latest.wait_for(replaces).await {
            Ok(latest) => latest.as_ref().map(|latest| latest.server.clone()),
            Err(_) => None,
        };
        match server {
            Some(server) => server,
            // No sentinel can report a primary any more.
            None => std::future::pending().await,
        }
    }
}
