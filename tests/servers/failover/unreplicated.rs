//! A holder whose grant has reached no replica. The new primary does not know it after the failover, and
//! grants the lock again while the first holder still believes that it holds it. Only the fence stops the
//! first holder's write.

use std::time::{Duration, Instant};

use fairlock::{LockGuard, LockManager};
use fairlock_testkit::resource::Resource;

use super::campaign::{Held, Log};

/// The name of the lock.
const NAME: &str = "b";
pub(crate) const NUMBER: usize = 1;
/// The lease is so long that the next client has the lock before the first holder renews and learns of its
/// loss.
const LEASE: Duration = Duration::from_secs(60);

pub(crate) struct Unreplicated {
    locks: LockManager,
    others: LockManager,
    resource: Resource,
}

pub(crate) struct UnreplicatedHold {
    guard: LockGuard,
    from: Instant,
    number: u64,
}

impl Unreplicated {
    pub(crate) fn new(locks: LockManager, others: LockManager, resource: Resource) -> Unreplicated {
        Unreplicated {
            locks,
            others,
            resource,
        }
    }

    /// Takes the lock, which must be free. Call this while the primary's writes do not reach its replicas.
    pub(crate) async fn acquire(&mut self) -> UnreplicatedHold {
        let guard = self.locks.lock(NAME).lease(LEASE).acquire().await.unwrap();
        let from = Instant::now();
        let number = self.resource.read(NUMBER, guard.fence().get()).await;
        UnreplicatedHold {
            guard,
            from,
            number: number.expect("the largest fence so far"),
        }
    }

    /// Makes another client take the lock under the new primary. Then both write, the first holder first.
    pub(crate) async fn grant_again(&mut self, first: UnreplicatedHold, log: &Log) {
        let guard = self.others.lock(NAME).acquire().await.unwrap();
        let (from, fence) = (Instant::now(), guard.fence().get());
        let number = self.resource.read(NUMBER, fence).await;
        let believes = !first.guard.is_lost();
        let stale = first.guard.fence().get();
        self.resource.write(NUMBER, stale, first.number + 1).await;
        let number = number.expect("the largest fence so far");
        self.resource.write(NUMBER, fence, number + 1).await;
        let to = Instant::now();
        guard.release().await.unwrap();
        log.unreplicated(Held {
            from: first.from,
            to: if believes { to } else { first.from },
            fence: stale,
        });
        log.unreplicated(Held { from, to, fence });
    }
}
