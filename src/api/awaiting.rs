//! What is awaited is acquired: `locks.lock("report").await`.

use std::future::IntoFuture;

use futures_util::future::BoxFuture;

use crate::api::guard::LockGuard;
use crate::api::lock::Lock;
use crate::api::lock_set::{LockSet, LockSetGuard};
use crate::types::error::Result;

/// Awaiting a lock does the same as [`acquire`](Lock::acquire).
impl IntoFuture for Lock {
    type Output = Result<LockGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting a lock does the same as [`acquire`](Lock::acquire).
impl IntoFuture for &Lock {
    type Output = Result<LockGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting a set does the same as [`acquire`](LockSet::acquire).
impl IntoFuture for LockSet {
    type Output = Result<LockSetGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting a set does the same as [`acquire`](LockSet::acquire).
impl IntoFuture for &LockSet {
    type Output = Result<LockSetGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
