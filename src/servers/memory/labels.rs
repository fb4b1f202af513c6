//! The labels of the clients of a store in memory.

use std::future::pending;
use std::sync::Arc;

use super::Shared;
use crate::protocol::interface::KeepAlive;
use crate::protocol::operations::SetLabel;

/// Keeps a label until the future is dropped. Nothing has to be repeated for that.
pub(super) fn keep(store: &Arc<Shared>, call: SetLabel) -> KeepAlive {
    store.state().rules.labels.insert(call.key.clone(), call.label);
    let kept = Kept {
        store: Arc::clone(store),
        key: call.key,
    };
    Box::pin(async move {
        let _kept = kept;
        pending().await
    })
}

/// A label in the store. Dropping this removes it.
struct Kept {
    store: Arc<Shared>,
    key: String,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.store.state().rules.labels.remove(&self.key);
    }
}
