//! What the programs share: where the locks live, and when to stop.

use fairlock::LockManager;

/// Connects to the server that the environment variable `REDIS_URL` names. Without it the locks are in
/// memory, and exclude only the tasks of this process.
pub async fn locks() -> fairlock::Result<LockManager> {
    match std::env::var("REDIS_URL") {
        Ok(url) => LockManager::connect(&url).await,
        Err(_) => Ok(LockManager::in_memory()),
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
