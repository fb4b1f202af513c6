//! The crates and their settings, behind one pair of calls.

use std::time::Duration;

use rdlock::RdLockConnectionManager;
use rdlock::lock::BasicLock;
use redis::aio::MultiplexedConnection;

use crate::Outcome;
use crate::plain::Plain;
use crate::polling::{Permit, Polling};

/// The lease of the libraries that take one.
const LEASE: Duration = Duration::from_secs(30);

/// A waiter goes on until it has the lock.
const UNTIL_HELD: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Peer {
    /// The library's own pauses: at random up to 200 ms
    Rslock,
    /// At random up to 10 ms
    RslockTuned,
    /// Tries again when the server reports that the key is gone; there is nothing to tune
    Rdlock,
    /// A semaphore of this program
    Polling,
    /// Two plain commands
    SetDelifeq,
}

impl Peer {
    /// Name and version of the crate.
    pub(crate) fn version(self) -> String {
        let name = match self {
            Peer::Rslock | Peer::RslockTuned => "rslock",
            Peer::Rdlock => "rdlock",
            // The rest of it is in this program.
            Peer::Polling | Peer::SetDelifeq => "redis",
        };
        let entry = format!("name = \"{name}\"\nversion = \"");
        let version = include_str!("../Cargo.lock")
            .rsplit_once(&entry) // of two versions, the later one is ours
            .and_then(|(_, rest)| rest.split('"').next());
        format!("{name} {}", version.unwrap_or("of unknown version"))
    }

    /// Connects this process.
    pub(crate) async fn connect(self, url: &str) -> Outcome<Library> {
        Ok(match self {
            Peer::Rslock => Library::Rslock(rslock_manager(url, Duration::from_millis(200))),
            Peer::RslockTuned => Library::Rslock(rslock_manager(url, Duration::from_millis(10))),
            Peer::Polling => Library::Polling(Polling::connect(url).await?),
            Peer::SetDelifeq => Library::Plain(
                redis::Client::open(url)?
                    .get_multiplexed_async_connection()
                    .await?,
            ),
            Peer::Rdlock => Library::Rdlock(
                RdLockConnectionManager::new(url)
                    .await
                    .map_err(|e| format!("rdlock does not connect: {e:?}"))?,
            ),
        })
    }
}

/// The URLs are separated by commas. With more than one, a lock is held on a majority of the servers.
fn rslock_manager(urls: &str, pause: Duration) -> rslock::LockManager {
    let mut manager = rslock::LockManager::new(urls.split(',').collect());
    manager.set_retry(UNTIL_HELD, pause);
    manager
}

/// A library that is connected.
pub(crate) enum Library {
    Rslock(rslock::LockManager),
    Rdlock(RdLockConnectionManager),
    Polling(Polling),
    Plain(MultiplexedConnection),
}

impl Library {
    /// The lock for one more waiter. Only a semaphore has a capacity.
    pub(crate) fn lock(&self, name: &str, capacity: u32) -> Lock {
        match self {
            Library::Rslock(manager) => Lock::Rslock(manager.clone(), name.to_owned(), None),
            Library::Polling(polling) => Lock::Polling(polling.permit(name, capacity)),
            Library::Plain(connection) => Lock::Plain(Plain {
                connection: connection.clone(),
                name: name.to_owned(),
                token: String::new(),
            }),
            Library::Rdlock(manager) => Lock::Rdlock(manager.new_basic_lock(name, LEASE.as_secs())),
        }
    }
}

pub(crate) enum Lock {
    Rslock(rslock::LockManager, String, Option<rslock::Lock>),
    Rdlock(BasicLock),
    Polling(Permit),
    Plain(Plain),
}

impl Lock {
    /// Waits until this waiter holds the lock. After an error it is called again.
    pub(crate) async fn acquire(&mut self) -> Outcome<()> {
        match self {
            Lock::Rslock(manager, name, held) => {
                *held = Some(manager.acquire_no_guard(name.as_bytes(), LEASE).await?);
            }
            Lock::Polling(permit) => permit.acquire(LEASE).await?,
            Lock::Plain(lock) => lock.acquire(LEASE).await?,
            Lock::Rdlock(lock) => lock.lock().await.map_err(|e| format!("{e:?}"))?,
        }
        Ok(())
    }

    pub(crate) async fn release(&mut self) -> Outcome<()> {
        match self {
            Lock::Rslock(_, _, held) => {
                if let Some(lock) = held.take() {
                    lock.release().await;
                }
            }
            Lock::Polling(permit) => permit.release().await?,
            Lock::Plain(lock) => lock.release().await?,
            Lock::Rdlock(lock) => lock.release().await.map_err(|e| format!("{e:?}"))?,
        }
        Ok(())
    }
}
