//! A hold that somebody owns: whoever lets go of it releases it.
//!
//! It is what travels from a waiting room to its waiter. A waiter that is gone drops it unread, and the lock goes on
//! to the next at once.

use std::sync::Arc;

use crate::engine::background::Keeper;
use crate::engine::counters::count;
use crate::engine::hold::Hold;
use crate::error::{Error, LostReason};

#[derive(Debug)]
pub(crate) struct Held {
    hold: Arc<Hold>,
    keeper: Arc<Keeper>,
    /// Dropping it leaves nothing to do.
    settled: bool,
}

impl Held {
    pub(crate) fn new(hold: Hold, keeper: &Arc<Keeper>) -> Held {
        let hold = Arc::new(hold);
        keeper.watch(&hold);
        Held {
            hold,
            keeper: Arc::clone(keeper),
            settled: false,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// Releases it, and returns once that is certain. Dropped midway, or out of luck, it leaves the rest to the keeper.
    pub(crate) async fn release(self) -> Result<(), Error> {
        // A closed client ends with its last hold: not before this one's release. Declared before `held`, so that
        // what `held` leaves to the keeper, dropped midway, is known before this is gone.
        let _running = self.keeper.keep_running();
        let mut held = self;
        let lost = held.finish();
        let give_up = held.keeper.patience_until();
        let released = held.keeper.release(&held.hold, give_up).await;
        held.settled = !matches!(released, Err(Error::Unavailable(_)));
        match (lost, released) {
            // The server knows whether somebody else has had the lock since.
            (Some(LostReason::Expired), Err(Error::Lost(lost))) => Err(lost.into()),
            (Some(reason), _) => Err(held.hold.lost_by(reason).into()),
            (None, released) => released,
        }
    }

    /// Lets it run out: no release, and no renewal but the one that a grant by another's call lacks to its whole lease.
    pub(crate) fn forget(mut self) {
        // A closed client keeps running until the keeper knows of the claim.
        let _running = self.keeper.keep_running();
        if self.finish().is_none() {
            self.keeper.let_run_out(&self.hold);
        }
        self.settled = true;
    }

    /// Ends the renewals. Returns why the lease was over already, if it was.
    fn finish(&self) -> Option<LostReason> {
        if let Err(lost) = self.hold.check() {
            // Found here before the keeper's task came to it.
            self.keeper.lose(&self.hold, lost.reason());
        }
        let before = self.hold.end(LostReason::Released);
        self.keeper.leave(&self.hold);
        before
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        // As above.
        let _running = self.keeper.keep_running();
        if self.finish().is_none() {
            count(&self.keeper.counters().released_by_drop);
        }
        self.keeper.release_later(Arc::clone(&self.hold));
    }
}
