//! What tests do with locks of any kind.

use fairlock::{Error, Lock, LockSet, Lost, Result, RwLock, Semaphore, Status};

/// Why a call ended whose lease was lost.
#[track_caller]
pub(crate) fn lost<T: std::fmt::Debug>(ended: Result<T>) -> Lost {
    match ended {
        Err(Error::Lost(lost)) => lost,
        other => panic!("{other:?}"),
    }
}

/// What has a status.
pub(crate) trait Looked {
    fn look(&self) -> impl Future<Output = Result<Status>> + Send;
}

impl Looked for Lock {
    fn look(&self) -> impl Future<Output = Result<Status>> + Send {
        self.status()
    }
}

impl Looked for Semaphore {
    fn look(&self) -> impl Future<Output = Result<Status>> + Send {
        self.status()
    }
}

impl Looked for RwLock {
    fn look(&self) -> impl Future<Output = Result<Status>> + Send {
        self.status()
    }
}

/// Whether somebody has the lock, or waits for it.
pub(crate) async fn is_busy(lock: &(impl Clone + Into<LockSet>)) -> bool {
    let set: LockSet = lock.clone().into();
    loop {
        match set.try_acquire().await {
            Ok(guard) => {
                guard.release().await.unwrap();
                return false;
            }
            Err(Error::Busy { .. }) => return true,
            // A try has little patience with a machine that stands still.
            Err(Error::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
