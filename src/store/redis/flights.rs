//! How many calls are in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct Flights {
    count: AtomicUsize,
    landed: Notify,
}

/// A call in flight, until this is dropped.
#[derive(Debug)]
pub(super) struct Flight(Arc<Flights>);

impl Flights {
    pub(super) fn begin(self: &Arc<Flights>) -> Flight {
        self.count.fetch_add(1, Ordering::Relaxed);
        Flight(Arc::clone(self))
    }

    /// Waits until there are none.
    pub(super) async fn none(&self) {
        loop {
            let landed = self.landed.notified();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            landed.await;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.landed.notify_waiters();
        }
    }
}
