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
pub(super) struct Listening {
    heard: watch::Receiver<Heard>,
    subscription: u64,
    retain: Duration,
}

impl Listening {
    /// `None` if the tenure is not to be retained, or the channel is not subscribed to yet.
    pub(super) fn of(place: &Place, tenure: &TenureParams) -> Option<Listening> {
        let retain = Duration::from_millis(tenure.retain_ms?.get().into());
        let heard = place.hear(&tenure.hold)?;
        let subscription = heard.borrow().subscription?;
        Some(Listening {
            heard,
            subscription,
            retain,
        })
    }
}

/// The retention of one tenure.
#[derive(Debug)]
pub(super) struct Retention {
    listening: Listening,
    /// The fence of its first turn.
    first: Fence,
    until: LocalTime,
    is_over: AtomicBool,
    /// The task that ends it ends with this.
    _task: oneshot::Sender<Infallible>,
}

impl Retention {
    pub(super) fn goes_on(&self, now: LocalTime) -> bool {
        !self.is_over.load(Ordering::Acquire) && now < self.until && self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        let Listening {
            heard, subscription, ..
        } = &self.listening;
        heard.borrow().is_quiet(*subscription, self.first)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// Begins a tenure with these turns, which is retained if the client has heard of the lock from before.
pub(super) fn begin(queue: &Arc<LocalQueue>, mut turns: Turns, listening: Option<Listening>) -> Arc<Turns> {
    let Some(listening) = listening else {
        return Arc::new(turns);
    };
    let (task, ended) = oneshot::channel();
    let (heard, subscription, first) = (listening.heard.clone(), listening.subscription, turns.first());
    let until = queue.client().now().after(listening.retain);
    turns.retain(Retention {
        listening,
        first,
        until,
        is_over: AtomicBool::new(false),
        _task: task,
    });
    let turns = Arc::new(turns);
    let task = RetentionTask {
        queue: Arc::clone(queue),
        turns: Arc::downgrade(&turns),
        until,
    };
    let is_quiet = move |heard: &Heard| heard.is_quiet(subscription, first);
    queue.client().spawn(task.run(heard, is_quiet, ended));
    turns
}

/// Ends a retention. If it is dropped midway, because the runtime ends, the retention ends too.
struct RetentionTask {
    queue: Arc<LocalQueue>,
    turns: Weak<Turns>,
    until: LocalTime,
}

impl RetentionTask {
    async fn run(
        self,
        mut heard: watch::Receiver<Heard>,
        is_quiet: impl Fn(&Heard) -> bool + Send,
        ended: oneshot::Receiver<Infallible>,
    ) {
        let clock = self.queue.client().clock;
        tokio::select! {
            biased;
            _ = ended => {}
            // Nothing is heard any more once the waitlist is gone.
            _ = heard.wait_for(|heard| !is_quiet(heard)) => {}
            () = clock.sleep_until(self.until) => {}
        }
    }
}

impl Drop for RetentionTask {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.upgrade() {
            self.queue.end_retention(&turns);
        }
    }
}
