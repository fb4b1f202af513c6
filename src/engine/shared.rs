//! The running state of one client.

use std::sync::Arc;

use crate::engine::background::Background;
use crate::engine::client::Client;
use crate::engine::options::ManagerOptions;
use crate::engine::runtime::OwnThread;
use crate::engine::waitlist::registry::{LateListener, Waitlists};
use crate::protocol::Answer;
use crate::protocol::ids::ClientId;
use crate::servers::Store;
use crate::types::fence::Fence;

/// The state that all clones of a manager, its locks and their calls share. Dropping the last of them closes
/// the client. Guards that are still alive keep the background task running.
#[derive(Debug)]
pub(crate) struct Shared {
    waitlists: Arc<Waitlists>,
    /// Passes the store's messages to the waitlists, and lives as long as they are wanted.
    _relay: Arc<LateListener>,
}

impl Shared {
    pub(crate) fn new(
        late_listener: Arc<LateListener>,
        id: ClientId,
        store: Store,
        options: ManagerOptions,
        first: Option<&Answer<()>>,
        thread: Option<OwnThread>,
    ) -> Shared {
        let client = Arc::new(Client::new(id, store, options, first, thread));
        let background = Arc::new(Background::new(Arc::clone(&client)));
        let waitlists = Arc::new(Waitlists::new(client, background));
        late_listener.lead_to(&waitlists);
        Shared {
            waitlists,
            _relay: late_listener,
        }
    }

    pub(crate) fn waitlists(&self) -> &Arc<Waitlists> {
        &self.waitlists
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.waitlists.client()
    }

    pub(crate) fn background(&self) -> &Arc<Background> {
        self.waitlists.background()
    }

    /// The holds whose guards live.
    pub(crate) fn held(&self) -> Vec<(Arc<str>, Fence)> {
        let held = self.background().held();
        held.iter()
            .map(|hold| (Arc::clone(&hold.keys.name), hold.last_fence()))
            .collect()
    }

    /// Closes the client, and ends all waits.
    pub(crate) fn end_waits(&self) {
        self.waitlists.close();
        // The caller may go no further.
        self.background().wake_if_closing();
    }

    /// Waits for the releases that dropped guards left, once the client is closed. Returns how many of them
    /// the server has not confirmed in time.
    pub(crate) async fn drained(&self) -> usize {
        let background = self.background();
        let is_drained = self.client().within_server_timeout(background.drained()).await;
        // Once all was confirmed, the background task ends, and what is pending for a moment is that.
        let unconfirmed = if is_drained { 0 } else { background.pending() };
        background.wake_if_closing();
        unconfirmed
    }

    /// Starts the background task at the first call. Every call goes through here.
    pub(crate) fn start(&self) {
        let runtime = &self.client().runtime;
        if !runtime.start() {
            return;
        }
        let running = Running {
            waitlists: Arc::clone(&self.waitlists),
            _thread: runtime.take_thread(),
        };
        // Made now, since a store that can set the label without a call has it before the first grant then.
        let label_kept = self.client().keep_label();
        self.client().spawn(async move {
            tokio::select! {
                biased;
                () = Arc::clone(running.waitlists.background()).run() => drop(running),
                never = label_kept => match never {},
            }
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end_waits();
        if !self.client().runtime.is_started() {
            self.client().store.close();
        }
    }
}

/// Owned by the background task. When that task ends, or is dropped with its runtime, every waiter is told.
/// The timers of the runtime last until all its tasks are dropped.
struct Running {
    waitlists: Arc<Waitlists>,
    /// Ends once no client needs it any more.
    _thread: Option<OwnThread>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.waitlists.close();
        self.waitlists.background().end();
        self.waitlists.client().store.close();
        self.waitlists.client().runtime.ends();
    }
}
