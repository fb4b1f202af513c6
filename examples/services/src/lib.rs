//! What the programs share: where the locks live, a job that is done once, and when to stop.

use std::time::Duration;

use fairlock::{Error, LockManager};

/// Connects to the server that the environment variable `REDIS_URL` names. Without it the locks are in
/// memory, and exclude only the tasks of this process.
pub async fn locks() -> fairlock::Result<LockManager> {
    match std::env::var("REDIS_URL") {
        Ok(url) => LockManager::connect(&url).await,
        Err(_) => Ok(LockManager::in_memory()),
    }
}

/// Does the work, unless another instance does it, or has done it within the last `kept`. The work is stopped
/// if the lease is lost, so that no other instance does it at the same time.
pub async fn once(
    locks: &LockManager,
    name: &str,
    kept: Duration,
    work: impl Future<Output = ()>,
) -> fairlock::Result<()> {
    match locks.lock(name).at_least(kept).try_acquire().await {
        Ok(guard) => {
            guard.run(work).await?;
            guard.release().await
        }
        Err(Error::Busy { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Ends when the process is asked to end: by Ctrl-C, or by SIGTERM, which container platforms send.
pub async fn shutdown() {
    let ctrl_c = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => tokio::select! {
                _ = ctrl_c => {}
                _ = terminate.recv() => {}
            },
            Err(_) => drop(ctrl_c.await),
        }
    }
    #[cfg(not(unix))]
    drop(ctrl_c.await);
}
