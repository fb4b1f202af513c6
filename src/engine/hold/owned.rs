//! A hold with an owner in this process. It is released when the owner drops it.
//!
//! A waitlist sends its waiter an `OwnedHold`. If the waiter is gone, the hold is dropped unread, and the
//! lock goes to the next request at once.

use std::sync::Arc;

use crate::engine::background::{Background, IfUnanswered};
use crate::engine::counters::{GuardEnd, Holding};
use crate::engine::hold::Hold;
use crate::engine::retry::until_answered;
use crate::protocol::{ReleaseOutcome, Released, Shrink};
use crate::time::clock::LocalTime;
use crate::types::error::{Error, HoldEnd};

#[derive(Debug)]
pub(crate) struct OwnedHold {
    hold: Arc<Hold>,
    background: Arc<Background>,
    /// If set, dropping the hold has no further effect.
    settled: bool,
}

impl OwnedHold {
    pub(in crate::engine) fn new(hold: Hold, background: &Arc<Background>) -> OwnedHold {
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

    /// Gives back all but `permits`, and returns when the server has confirmed it.
    pub(crate) async fn shrink(&self, permits: u32) -> Result<(), Error> {
        let (client, hold) = (self.background.client(), &self.hold);
        loop {
            hold.check()?;
            let call = || {
                client.call(Shrink {
                    keys: Arc::clone(&hold.keys),
                    request: hold.request.clone(),
                    fence: hold.fence(),
                    permits,
                })
            };
            let (answer, _) = until_answered(client, call).await?;
            match answer.reply {
                Released { more: true, .. } => {}
                Released {
                    outcome: ReleaseOutcome::Released | ReleaseOutcome::OneFewer,
                    ..
                } => return Ok(()),
                Released { .. } => self.background.lose(hold, HoldEnd::Taken),
            }
        }
    }

    /// Releases the hold, and returns when the server has confirmed it. If this is dropped midway, or the
    /// server does not answer in time, a task does the rest.
    pub(crate) async fn release(self) -> Result<(), Error> {
        // A closed client ends with its last hold, but must not end before this release. Declared before
        // `held`: if this is dropped midway, the background then knows of the outgoing message of `held`
        // before this token is gone.
        let _running = self.background.keep_running();
        let mut held = self;
        let now = held.background.now();
        let (lost, holding) = held.finish(now);
        let mut over = holding.map(|holding| holding.over(held.background.counters(), now));
        let give_up = held.background.give_up_at();
        let released = held
            .background
            .release(&held.hold, give_up, IfUnanswered::ReleaseAgain)
            .await;
        if let Some(over) = &mut over {
            over.released(&released);
        }
        drop(over);
        held.settled = !matches!(released, Err(Error::Unavailable(_)));
        match lost {
            Some(reason) => Err(held.hold.lost_by(reason).into()),
            None => released,
        }
    }

    /// Ends the renewals. Returns why the hold was already over, if it was, and otherwise what its guard
    /// held.
    fn finish(&self, now: LocalTime) -> (Option<HoldEnd>, Option<Holding>) {
        if let Err(lost) = self.hold.check_at(|| now) {
            // The end of the lease was noticed here before the background task noticed it.
            self.background.lose(&self.hold, lost.reason);
        }
        let ended = self.hold.end(HoldEnd::Released);
        self.background.leave(&self.hold);
        ended
    }
}

impl Drop for OwnedHold {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        // As in `release`.
        let _running = self.background.keep_running();
        let now = self.background.now();
        let (_, holding) = self.finish(now);
        if let Some(holding) = holding {
            holding.over(self.background.counters(), now).end = GuardEnd::Dropped;
        }
        self.background.release_unheard(Arc::clone(&self.hold));
    }
}
