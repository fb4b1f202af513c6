//! What keeps a closed client from ending: whatever it has still to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Stays {
    count: AtomicUsize,
    none: Notify,
}

/// One of them, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Stay(Arc<Stays>);

impl Stays {
    pub(crate) fn begin(stays: &Arc<Stays>) -> Stay {
        stays.count.fetch_add(1, Ordering::AcqRel);
        Stay(Arc::clone(stays))
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until there is none.
    pub(crate) async fn none(&self) {
        loop {
            let none = self.none.notified();
            if self.count() == 0 {
                return;
            }
            none.await;
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
