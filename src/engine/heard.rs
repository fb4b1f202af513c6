//! What a client hears of a lock that it may retain: whether messages reach it, and which hold somebody
//! wants.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::sync::locked;
use crate::types::fence::Fence;

/// What the waitlist of the lock has heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The subscriptions so far, with those that were repeated on another connection.
    subscriptions: u64,
    /// Messages reach this client.
    is_subscribed: bool,
    /// The last hold that somebody wanted, by its fence.
    wanted: Option<Fence>,
    /// Somebody has listened.
    is_used: bool,
}

impl Heard {
    /// Messages reach this client from now on. Those of before may have been lost.
    pub(super) fn subscribed(&self) {
        self.change(|state| {
            state.subscriptions += 1;
            state.is_subscribed = true;
        });
    }

    /// The subscription was repeated on another connection, if there was one.
    pub(super) fn repeated(&self) {
        self.change(|state| {
            state.is_subscribed |= state.subscriptions > 0;
            state.subscriptions += u64::from(state.is_subscribed);
        });
    }

    /// Messages do not reach this client any more.
    pub(super) fn lost(&self) {
        self.change(|state| state.is_subscribed = false);
    }

    /// Somebody wants the hold with this fence.
    pub(super) fn wanted(&self, fence: Fence) {
        self.change(|state| state.wanted = state.wanted.max(Some(fence)));
    }

    /// Whether the channel is subscribed to though nobody waits.
    pub(super) fn is_used(&self) -> bool {
        locked(&self.state).is_used
    }

    /// Listens from now on, if there is a subscription. If not, there will be one.
    pub(super) fn listen(self: &Arc<Self>) -> Option<Listening> {
        let mut state = locked(&self.state);
        state.is_used = true;
        state.is_subscribed.then(|| Listening {
            heard: Arc::clone(self),
            subscription: state.subscriptions,
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut locked(&self.state));
        self.changed.notify_waiters();
    }
}

/// One subscription to the channel of a lock, without a break.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    heard: Arc<Heard>,
    subscription: u64,
}

impl Listening {
    /// Whether nobody has wanted the hold with this fence so far, and this subscription would have told. A
    /// message about a later hold shows that an earlier one is wanted no less.
    pub(crate) fn is_quiet(&self, fence: Fence) -> bool {
        let state = locked(&self.heard.state);
        let is_unbroken = state.is_subscribed && state.subscriptions == self.subscription;
        is_unbroken && state.wanted.is_none_or(|wanted| wanted < fence)
    }

    /// Waits until somebody wants the hold with this fence, or may want it unheard.
    pub(crate) async fn until_wanted(&self, fence: Fence) {
        loop {
            let changed = self.heard.changed.notified();
            if !self.is_quiet(fence) {
                return;
            }
            changed.await;
        }
    }
}
