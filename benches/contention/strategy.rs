//! The strategies to take a lock: those of this program behind one pair of calls, and those of the peers.

use std::sync::Arc;
use std::time::Duration;

use fairlock::spin::SpinLock;
use fairlock::{
    Lock, LockGuard, LockManager, LockManagerBuilder, Quorum, ReadLock, Result as LockResult, Semaphore,
    WriteLock,
};
use fairlock_benches::Outcome;

use crate::condition::Condition;
use crate::peer::{Kind, PEERS, Peer};
use crate::publish::{LEASE, Publish, Token};
use crate::topology::Topology;
use crate::workload::{Side, Workload};

/// How long one call of the spin lock tries before the waiter calls it again.
const SPIN_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Strategy {
    /// Waiters queue on the server, and the lock is handed to the next one.
    Fairlock,
    /// The same, and the waiters of a process hand the lock on among themselves first.
    Local,
    /// The same as `Fairlock`, by managers with threads of their own.
    OwnThread,
    /// The lock is deleted and a message is sent; every waiter tries again.
    Publish,
    /// Every waiter tries again, after 1, 2, 4 … 128 ms.
    Spin,
    /// The strategy of a peer's program.
    Peer(&'static Peer),
}

/// The strategies of this program.
const OURS: [Strategy; 5] = [
    Strategy::Fairlock,
    Strategy::Local,
    Strategy::OwnThread,
    Strategy::Publish,
    Strategy::Spin,
];

impl Strategy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Strategy::Fairlock => "fairlock",
            Strategy::Local => "local",
            Strategy::OwnThread => "own-thread",
            Strategy::Publish => "publish",
            Strategy::Spin => "spin",
            Strategy::Peer(peer) => peer.name,
        }
    }

    /// Reads a name on the command line.
    pub(crate) fn parse(name: &str) -> Result<Strategy, String> {
        let peers = PEERS.iter().map(Strategy::Peer);
        let all: Vec<Strategy> = OURS.into_iter().chain(peers).collect();
        let found = all.iter().find(|strategy| strategy.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|strategy| strategy.name()).collect();
            format!("the strategies are {}", names.join(", "))
        })
    }

    /// The kind of server that keeps its locks.
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Strategy::Peer(peer) => peer.kind,
            _ => Kind::Redis,
        }
    }

    /// Publish-then-compete is written for one server, as the idea is, and so is the spin lock. A peer whose
    /// server is no Redis runs beside a quorum, on one server.
    pub(crate) fn runs_on(self, topology: Topology) -> bool {
        match (self, topology) {
            (Strategy::Fairlock | Strategy::Local | Strategy::OwnThread, _) | (_, Topology::Standalone) => {
                true
            }
            (Strategy::Spin, _) => topology != Topology::Quorum,
            (Strategy::Peer(peer), Topology::Quorum) => peer.in_quorum || !peer.kind.is_redis(),
            (Strategy::Publish | Strategy::Peer(_), _) => false,
        }
    }

    /// Whether it has what the waiters share.
    pub(crate) fn takes(self, kind: Workload) -> bool {
        match self {
            Strategy::Fairlock | Strategy::OwnThread => true,
            Strategy::Peer(peer) => peer.takes.contains(&kind),
            _ => kind == Workload::Lock,
        }
    }

    /// Whether it means something with this many waiters.
    pub(crate) const fn runs_with(self, waiters: u32) -> bool {
        !matches!(self, Strategy::Peer(Peer { alone: true, .. })) || waiters == 1
    }

    /// A single server has none beside it that may fail.
    pub(crate) fn runs_under(self, condition: Condition) -> bool {
        self.kind().is_redis() || !condition.needs_quorum()
    }

    /// The strategy with that name. Any unknown name means fairlock, because harnesses may call this program
    /// as they like.
    pub(crate) fn named(name: &str) -> Strategy {
        OURS.into_iter()
            .find(|strategy| strategy.name() == name)
            .unwrap_or(Strategy::Fairlock)
    }

    /// Connects this process once for all of its waiters. Several URLs are those of a quorum. The name is
    /// that of the lock, if the waiters share one. `local_handoffs` is for `Local` alone.
    pub(crate) async fn connect(self, url: &str, name: &str, local_handoffs: u32) -> Outcome<Connected> {
        Ok(match self {
            Strategy::Fairlock => Connected::Fairlock(fairlock(url, LockManager::builder()).await?),
            Strategy::Local => {
                let builder = LockManager::builder().local_handoffs(local_handoffs);
                Connected::Fairlock(fairlock(url, builder).await?)
            }
            Strategy::OwnThread => {
                Connected::Fairlock(fairlock(url, LockManager::builder().own_thread()).await?)
            }
            Strategy::Publish => Connected::Publish(Publish::connect(url, name).await?),
            Strategy::Spin => Connected::Spin(LockManager::connect(url).await?),
            Strategy::Peer(peer) => return Err(format!("{} runs in a program of its own", peer.name).into()),
        })
    }
}

async fn fairlock(url: &str, builder: LockManagerBuilder) -> fairlock::Result<LockManager> {
    if url.contains(',') {
        // New servers of a quorum grant nothing in their first minute, unless they count as durable.
        let quorum = Quorum::of(url.split(',')).durable();
        builder.connect_quorum(quorum).await
    } else {
        builder.connect(url).await
    }
}

/// A process that is connected to the server.
#[derive(Debug)]
pub(crate) enum Connected {
    Fairlock(LockManager),
    Publish(Arc<Publish>),
    Spin(LockManager),
}

impl Connected {
    /// A waiter of this process, for the lock with this name. (A publisher has only the lock that it was
    /// connected for, and the spin lock has no sides.)
    pub(crate) fn taker(&self, name: &str, side: Side, capacity: u32) -> Taker {
        match self {
            Connected::Fairlock(locks) => {
                let lock = match side {
                    Side::Lock => AnyLock::Lock(locks.lock(name)),
                    Side::Permit => AnyLock::Permit(locks.semaphore(name, capacity)),
                    Side::Read => AnyLock::Read(locks.rw_lock(name).read()),
                    Side::Write => AnyLock::Write(locks.rw_lock(name).write()),
                };
                Taker::Fairlock(lock, None)
            }
            Connected::Publish(lock) => Taker::Publish(lock.clone(), None),
            Connected::Spin(locks) => Taker::Spin(SpinLock::new(locks, name)),
        }
    }
}

/// What a waiter takes.
#[derive(Debug)]
pub(crate) enum AnyLock {
    Lock(Lock),
    Permit(Semaphore),
    Read(ReadLock),
    Write(WriteLock),
}

impl AnyLock {
    async fn acquire(&self) -> LockResult<LockGuard> {
        match self {
            AnyLock::Lock(lock) => lock.acquire().await,
            AnyLock::Permit(semaphore) => semaphore.acquire().await.map(LockGuard::from),
            AnyLock::Read(lock) => lock.acquire().await.map(LockGuard::from),
            AnyLock::Write(lock) => lock.acquire().await.map(LockGuard::from),
        }
    }
}

/// One waiter, with the lock while it holds it.
#[derive(Debug)]
pub(crate) enum Taker {
    Fairlock(AnyLock, Option<LockGuard>),
    Publish(Arc<Publish>, Option<Token>),
    Spin(SpinLock),
}

impl Taker {
    /// Waits until this waiter has the lock. Returns the fence of its grant, if the lock has one.
    pub(crate) async fn acquire(&mut self) -> Outcome<Option<u64>> {
        match self {
            Taker::Fairlock(lock, held) => {
                let guard = held.insert(lock.acquire().await?);
                return Ok(Some(guard.fence().get()));
            }
            Taker::Publish(lock, held) => *held = Some(lock.acquire().await?),
            Taker::Spin(lock) => while !lock.try_lock(SPIN_WAIT, LEASE).await? {},
        }
        Ok(None)
    }

    /// Releases the lock.
    pub(crate) async fn release(&mut self) -> Outcome<()> {
        match self {
            Taker::Fairlock(_, held) => {
                if let Some(guard) = held.take() {
                    guard.release().await?;
                }
            }
            Taker::Publish(lock, held) => {
                if let Some(token) = held.take() {
                    lock.release(token).await?;
                }
            }
            Taker::Spin(lock) => lock.unlock().await?,
        }
        Ok(())
    }
}
