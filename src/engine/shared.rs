//! One client at work: what all clones of a manager, its locks and their calls share.

use std::sync::Arc;

use crate::engine::background::Keeper;
use crate::engine::client::{Client, runtime};
use crate::engine::waitlist::registry::{Relay, Rooms};
use crate::error::Result;
use crate::options::ManagerOptions;
use crate::store::ids::ClientId;
use crate::store::{Answer, Store};

/// What all clones of a manager, its locks and their calls share. When the last of them is gone, the client
/// is closed; guards that live keep their keeper.
#[derive(Debug)]
pub(crate) struct Service {
    rooms: Arc<Rooms>,
    /// Leads the store's messages to the rooms, for as long as they are wanted.
    _relay: Arc<Relay>,
}

impl Service {
    pub(crate) fn new(
        relay: Arc<Relay>,
        id: ClientId,
        store: Arc<dyn Store>,
        options: ManagerOptions,
        first: &Answer<()>,
    ) -> Service {
        let client = Arc::new(Client::new(id, store, options, first));
        let keeper = Arc::new(Keeper::new(Arc::clone(&client)));
        let rooms = Arc::new(Rooms::new(client, keeper));
        relay.lead_to(&rooms);
        Service { rooms, _relay: relay }
    }

    pub(crate) fn rooms(&self) -> &Arc<Rooms> {
        &self.rooms
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.rooms.client()
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        self.rooms.keeper()
    }

    /// Starts the keeper, on the runtime of the first call. Each call comes by here, and each needs a
    /// runtime.
    pub(crate) fn start(&self) -> Result<()> {
        let runtime = runtime()?;
        if self.client().is_settled() || !self.client().settle_on(runtime) {
            return Ok(());
        }
        let running = Running(Arc::clone(&self.rooms));
        self.client().spawn(async move {
            Arc::clone(running.0.keeper()).run().await;
            drop(running);
        });
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.rooms.close();
        self.keeper().wake_if_closing();
        if !self.client().is_settled() {
            self.client().store.close();
        }
    }
}

/// The keeper's task, or what is left when its runtime is gone: then everybody who waits is told.
struct Running(Arc<Rooms>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.close();
        self.0.client().store.close();
    }
}
