//! Counts outstanding items, and waits until there are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    count: AtomicUsize,
    none: Notify,
}

/// One outstanding item. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Token(Arc<Outstanding>);

impl Outstanding {
    pub(crate) fn begin(of: &Arc<Outstanding>) -> Token {
        of.count.fetch_add(1, Ordering::AcqRel);
        Token(Arc::clone(of))
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until nothing is outstanding.
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

impl Drop for Token {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
