//! What threads share.

pub(crate) mod outstanding;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic of another thread leaves no half-done state behind these locks: nothing panics while one is held.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
