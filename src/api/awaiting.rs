//! What is awaited is acquired: `locks.lock("report").await`.

use std::future::IntoFuture;

use futures_util::future::BoxFuture;

use crate::api::guard::{LockGuard, ReadGuard, SemaphoreGuard, WriteGuard};
use crate::api::lock::Lock;
use crate::api::lock_set::{LockSet, LockSetGuard};
use crate::api::rw_lock::{ReadLock, WriteLock};
use crate::api::semaphore::Semaphore;
use crate::types::error::Result;

/// Awaiting it does the same as [`acquire`](Lock::acquire).
impl IntoFuture for Lock {
    type Output = Result<LockGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](Semaphore::acquire).
impl IntoFuture for Semaphore {
    type Output = Result<SemaphoreGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](ReadLock::acquire).
impl IntoFuture for ReadLock {
    type Output = Result<ReadGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](WriteLock::acquire).
impl IntoFuture for WriteLock {
    type Output = Result<WriteGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](LockSet::acquire).
impl IntoFuture for LockSet {
    type Output = Result<LockSetGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](Lock::acquire).
impl IntoFuture for &Lock {
    type Output = Result<LockGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](Semaphore::acquire).
impl IntoFuture for &Semaphore {
    type Output = Result<SemaphoreGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](ReadLock::acquire).
impl IntoFuture for &ReadLock {
    type Output = Result<ReadGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](WriteLock::acquire).
impl IntoFuture for &WriteLock {
    type Output = Result<WriteGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Awaiting it does the same as [`acquire`](LockSet::acquire).
impl IntoFuture for &LockSet {
    type Output = Result<LockSetGuard>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
