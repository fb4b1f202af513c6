//! A hold that somebody owns: whoever lets go of it releases it.
//!
//! It is what travels from a waiting waitlist to its waiter. A waiter that is gone drops it unread, and the lock goes on
//! to the next at once.

use std::sync::Arc;

use crate::engine::background::Background;
use crate::engine::counters::count;
use crate::engine::hold::Hold;
use crate::error::{Error, LostReason};

#[derive(Debug)]
pub(crate) struct OwnedHold {
    hold: Arc<Hold>,
    background: Arc<Background>,
    /// Dropping it leaves nothing to do.
    settled: bool,
}

impl OwnedHold {
    pub(crate) fn new(hold: Hold, background: &Arc<Background>) -> OwnedHold {
        let hold = Arc::new(hold);
        background.watch(&hold);
        OwnedHold {
            hold,
            background: Arc::clone(background),
            settled: false,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn background(&self) -> &Arc<Background> {
        &self.background
    }

    /// Releases it, and returns once that is certain. Dropped midway, or out of luck, it leaves the rest to the background task.
    pub(crate) async fn release(self) -> Result<(), Error> {
        // A closed client ends with its last hold: not before this one's release. Declared before `held`, so that
        // what `held` leaves to the background task, dropped midway, is known before this is gone.
        let _running = self.background.keep_running();
        let mut held = self;
        let lost = held.finish();
        let give_up = held.background.patience_until();
        let released = held.background.release(&held.hold, give_up).await;
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
        // A closed client keeps running until the background task knows of the claim.
        let _running = self.background.keep_running();
        if self.finish().is_none() {
            self.background.let_run_out(&self.hold);
        }
        self.settled = true;
    }

    /// Ends the renewals. Returns why the lease was over already, if it was.
    fn finish(&self) -> Option<LostReason> {
        if let Err(lost) = self.hold.check() {
            // Found here before the background's task came to it.
            self.background.lose(&self.hold, lost.reason());
        }
        let before = self.hold.end(LostReason::Released);
        self.background.leave(&self.hold);
        before
    }
}

impl Drop for OwnedHold {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        // As above.
        let _running = self.background.keep_running();
        if self.finish().is_none() {
            count(&self.background.counters().released_by_drop);
        }
        self.background.release_later(Arc::clone(&self.hold));
    }
}
