//! Retention: a tenure stays with its client after its last turn, for as long as nobody else wants the lock.
//!
//! A server tells the client of the holder when the first request is queued behind it. So a tenure is
//! retained only while that message would reach the client: the channel was subscribed to when the tenure
//! was asked for, and was not lost since; and only if nobody was queued when it was granted. It ends when
//! somebody wants the lock, here or elsewhere, and some time after the grant, in case the message is
//! lost.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::turns::Turns;
use super::{LocalQueue, TenureParams};
use crate::caller::place::Place;
use crate::engine::heard::Heard;
use crate::time::clock::LocalTime;
use crate::types::fence::Fence;

/// What a client hears of a lock, from before it asks for a tenure.
#[derive(Debug)]
pub(super) struct Ear {
    heard: watch::Receiver<Heard>,
    subscription: u64,
    retain: Duration,
}

impl Ear {
    /// `None` if the tenure is not to be retained, or the channel is not subscribed to yet.
    pub(super) fn of(place: &Place, tenure: &TenureParams) -> Option<Ear> {
        let retain = Duration::from_millis(tenure.retain_ms?.get().into());
        let heard = place.hear(&tenure.hold)?;
        let subscription = heard.borrow().subscription?;
        Some(Ear {
            heard,
            subscription,
            retain,
        })
    }
}

/// The retention of one tenure.
#[derive(Debug)]
pub(super) struct Retention {
    ear: Ear,
    /// The fence of its first turn.
    first: Fence,
    until: LocalTime,
    is_over: AtomicBool,
    /// The task that ends it ends with this.
    _keeper: oneshot::Sender<Infallible>,
}

impl Retention {
    pub(super) fn goes_on(&self, now: LocalTime) -> bool {
        !self.is_over.load(Ordering::Acquire) && now < self.until && self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        let Ear {
            heard, subscription, ..
        } = &self.ear;
        heard.borrow().is_quiet(*subscription, self.first)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// Begins a tenure with these turns, which is retained if the client has heard of the lock from before.
pub(super) fn begin(queue: &Arc<LocalQueue>, mut turns: Turns, ear: Option<Ear>) -> Arc<Turns> {
    let Some(ear) = ear else {
        return Arc::new(turns);
    };
    let (keeper, kept) = oneshot::channel();
    let (heard, subscription, first) = (ear.heard.clone(), ear.subscription, turns.first());
    let until = queue.client().now().after(ear.retain);
    turns.retain(Retention {
        ear,
        first,
        until,
        is_over: AtomicBool::new(false),
        _keeper: keeper,
    });
    let turns = Arc::new(turns);
    let keeper = Keeper {
        queue: Arc::clone(queue),
        turns: Arc::downgrade(&turns),
        until,
    };
    let is_quiet = move |heard: &Heard| heard.is_quiet(subscription, first);
    queue.client().spawn(keeper.run(heard, is_quiet, kept));
    turns
}

/// Ends a retention. If it is dropped midway, because the runtime ends, the retention ends too.
struct Keeper {
    queue: Arc<LocalQueue>,
    turns: Weak<Turns>,
    until: LocalTime,
}

impl Keeper {
    async fn run(
        self,
        mut heard: watch::Receiver<Heard>,
        is_quiet: impl Fn(&Heard) -> bool + Send,
        kept: oneshot::Receiver<Infallible>,
    ) {
        let clock = self.queue.client().clock;
        tokio::select! {
            biased;
            _ = kept => {}
            // Nothing is heard any more once the waitlist is gone.
            _ = heard.wait_for(|heard| !is_quiet(heard)) => {}
            () = clock.sleep_until(self.until) => {}
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.upgrade() {
            self.queue.end_retention(&turns);
        }
    }
}
