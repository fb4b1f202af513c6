//! Retention: a tenure stays with its client after its last turn, for as long as nobody else wants the lock.
//!
//! A server tells the client of the holder when the first request is queued behind it. So a tenure is
//! retained only while that message would reach the client: the channel was subscribed to when the tenure
//! was asked for, and was not lost since; and only if nobody was queued when it was granted. It ends when
//! somebody wants the lock, here or elsewhere, and some time after the grant, in case the message is
//! lost.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::LocalQueue;
use super::turns::Turns;
use crate::engine::heard::Listening;
use crate::time::clock::LocalTime;
use crate::types::fence::Fence;

/// The retention of one tenure.
#[derive(Debug)]
pub(super) struct Retention {
    listening: Listening,
    until: LocalTime,
    is_over: AtomicBool,
    /// The task that ends it ends with this.
    _task: oneshot::Sender<Infallible>,
}

impl Retention {
    /// Whether the tenure whose first turn had this fence may stay here.
    pub(super) fn goes_on(&self, first: Fence, now: LocalTime) -> bool {
        !self.is_over.load(Ordering::Acquire) && now < self.until && self.listening.is_quiet(first)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// Begins a tenure with these turns, which is retained for so long after its grant at most.
pub(super) fn begin(
    queue: &Arc<LocalQueue>,
    mut turns: Turns,
    listening: Listening,
    retain_ms: NonZeroU32,
) -> Arc<Turns> {
    let (task, ended) = oneshot::channel();
    let retain = Duration::from_millis(retain_ms.get().into());
    let until = queue.client().now().after(retain);
    let (heard, first) = (listening.clone(), turns.first());
    turns.retain(Retention {
        listening,
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
    queue.client().spawn(task.run(heard, first, ended));
    turns
}

/// Ends a retention. If it is dropped midway, because the runtime ends, the retention ends too.
struct RetentionTask {
    queue: Arc<LocalQueue>,
    turns: Weak<Turns>,
    until: LocalTime,
}

impl RetentionTask {
    async fn run(self, heard: Listening, first: Fence, ended: oneshot::Receiver<Infallible>) {
        let clock = self.queue.client().clock;
        tokio::select! {
            biased;
            _ = ended => {}
            () = heard.until_wanted(first) => {}
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
