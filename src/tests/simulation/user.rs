//! A task of a simulated client, which acquires, holds and releases locks in all ways.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::history::{End, Event, History, Op, Way};
use super::run::{key, whole};
use super::server::Server;
use crate::api::handle::Handle;
use crate::types::permits::{Gives, Permits};
use crate::{Error, LockGuard, LockManager, Owner, Result};

/// A lock counts as a semaphore of one permit.
const OF_A_LOCK: Permits = Permits {
    weight: 1,
    capacity: 1,
};

pub(super) struct User {
    pub(super) client: usize,
    pub(super) manager: LockManager,
    /// The names of the locks, and what each is.
    pub(super) locks: Vec<(String, Gives)>,
    /// Each call for permits draws the capacity.
    pub(super) capacities: bool,
    pub(super) owner: Option<Owner>,
    pub(super) force: bool,
    /// The number of turns of a hold, if the lock has no other settings.
    pub(super) turns: u32,
    pub(super) lease: Duration,
    pub(super) rng: Rng,
    pub(super) history: Arc<History>,
    pub(super) server: Arc<Server>,
}

/// What a task does with a lock, and for how long.
struct Work {
    lock: usize,
    span: Duration,
    end: End,
    renews: bool,
    downgrades: bool,
    /// Whether the task stops as soon as the guard reports its loss, as it should.
    stops_when_lost: bool,
}

impl User {
    pub(super) async fn run(mut self, calls: usize) {
        for _ in 0..calls {
            self.pause(40).await;
            if self.force && self.rng.u8(..8) == 0 {
                self.force().await;
            }
            let guard = self.acquire_one().await;
            if let Some((op, guard, work)) = guard {
                let nested = match self.owner_of(work.lock).is_some() && self.rng.bool() {
                    true => self.acquire(work.lock).await,
                    false => None,
                };
                self.work(op, guard, work).await;
                if let Some((op, guard, work)) = nested {
                    self.work(op, guard, work).await;
                }
            }
        }
    }

    async fn acquire_one(&mut self) -> Option<(Op, Arc<LockGuard>, Work)> {
        let lock = self.rng.usize(..self.locks.len());
        self.acquire(lock).await
    }

    async fn acquire(&mut self, lock: usize) -> Option<(Op, Arc<LockGuard>, Work)> {
        let (named, permits, is_plain) = self.lock(lock);
        let way = match self.rng.u8(..10) {
            0..=4 => Way::Acquire,
            5..=6 => Way::Within(self.ms(0..=1500)),
            7..=8 => Way::Cancelled(self.ms(0..=400)),
            _ => Way::Try,
        };
        let queues_locally = is_plain && self.turns > 1;
        let op = self
            .history
            .asked(self.client, lock, permits, way, queues_locally);
        let acquired: Option<Result<LockGuard>> = match way {
            Way::Acquire => Some(named.acquire(None).await),
            Way::Within(wait) => Some(named.acquire(Some(wait)).await),
            Way::Cancelled(after) => tokio::time::timeout(after, named.acquire(None)).await.ok(),
            Way::Try => Some(named.try_acquire().await),
        };
        match acquired {
            Some(Ok(guard)) => {
                let work = self.draw_work(lock, permits == Permits::WRITER);
                let real = self.left(lock, &guard).is_some();
                Some((op, self.history.acquired(op, lock, real, guard), work))
            }
            Some(Err(Error::Busy { .. })) => {
                self.history.record(Event::Busy { op });
                None
            }
            Some(Err(error)) => {
                self.history.record(Event::Failed { op, error });
                None
            }
            None => {
                self.history.record(Event::Cancelled { op });
                None
            }
        }
    }

    /// The owner for which this task acquires this lock. Only a plain lock can have one.
    fn owner_of(&self, lock: usize) -> Option<&Owner> {
        self.owner
            .as_ref()
            .filter(|_| self.locks[lock].1 == Gives::Itself)
    }

    /// How many permits the hold of a guard has on the server, if it is there.
    fn left(&self, lock: usize, guard: &LockGuard) -> Option<u32> {
        let (name, gives) = &self.locks[lock];
        self.server.held(&key(*gives, name), guard.fence())
    }

    /// Returns the lock for one call, what it takes of it, and whether it is a lock with the settings of its
    /// client alone.
    fn lock(&mut self, lock: usize) -> (Handle, Permits, bool) {
        let (mut set, permits) = self.side(lock);
        let is_for_an_owner = self.owner_of(lock).is_some();
        let options = &mut set.options;
        match self.rng.u8(..8) {
            0 => {
                options.lease = Some(self.ms(100..=2000));
                options.fixed = true;
            }
            1 => options.max_hold = Some(self.ms(100..=4000)),
            2 => options.lease = Some(self.ms(100..=6000)),
            3 if !is_for_an_owner => options.at_least = Some(self.ms(1..=3000)),
            _ if !is_for_an_owner => return (set, permits, self.locks[lock].1 == Gives::Itself),
            _ => {}
        }
        set.owner = self.owner_of(lock).cloned();
        (set, permits, false)
    }

    /// Draws how many permits a call asks for, or which side of a read/write lock.
    fn side(&mut self, lock: usize) -> (Handle, Permits) {
        let (name, gives) = &self.locks[lock];
        match *gives {
            Gives::Itself => (self.manager.handle(*gives, name), OF_A_LOCK),
            Gives::Permits(usual) => {
                let capacity = usual.capacity + if self.capacities { self.rng.u32(..3) } else { 0 };
                let weight = match self.rng.u8(..4) {
                    0 => capacity,
                    1 => self.rng.u32(1..=capacity),
                    _ => 1,
                };
                let permits = Permits { weight, capacity };
                (self.manager.handle(Gives::Permits(permits), name), permits)
            }
            Gives::Shared(_) => {
                let permits = match self.rng.u8(..3) {
                    0 => Permits::WRITER,
                    _ => Permits::READER,
                };
                (self.manager.handle(Gives::Shared(permits), name), permits)
            }
        }
    }

    fn draw_work(&mut self, lock: usize, is_writer: bool) -> Work {
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap();
        Work {
            lock,
            span: match self.rng.u8(..10) {
                0..=2 => Duration::ZERO,
                3..=7 => self.ms(1..=100),
                _ => self.ms(1..=3 * lease_ms),
            },
            end: match self.rng.u8(..20) {
                0..=11 => End::Release,
                12..=14 => End::ReleaseCancelled(self.ms(0..=20)),
                _ => End::Drop,
            },
            renews: self.rng.u8(..8) == 0,
            stops_when_lost: self.rng.u8(..4) > 0,
            downgrades: is_writer && self.rng.bool(),
        }
    }

    async fn work(&mut self, op: Op, guard: Arc<LockGuard>, work: Work) {
        if work.renews {
            // The end of the hold shows whether the lease was lost.
            let _ = guard.renew().await;
        }
        if work.downgrades {
            self.pause(50).await;
            self.history.record(Event::Downgrades { op });
            let result = guard.shrink(Permits::READER.weight).await;
            let left = self.left(work.lock, &guard);
            self.history.record(Event::Downgraded { op, result, left });
        }
        if work.stops_when_lost {
            let _ = tokio::time::timeout(work.span, guard.lost()).await;
        } else {
            tokio::time::sleep(work.span).await;
        }
        let believed = !guard.is_lost();
        let Some(guard) = Arc::into_inner(guard) else {
            unreachable!("the history keeps no guard alive");
        };
        let end = work.end;
        self.history.record(Event::Ended { op, end, believed });
        match end {
            End::Release => {
                let result = guard.release().await;
                self.history.record(Event::Released { op, result });
            }
            End::ReleaseCancelled(after) => {
                if let Ok(result) = tokio::time::timeout(after, guard.release()).await {
                    self.history.record(Event::Released { op, result });
                }
            }
            End::Drop => drop(guard),
        }
    }

    /// Releases a lock by force.
    async fn force(&mut self) {
        let lock = self.rng.usize(..self.locks.len());
        let op = (self.history).asked(self.client, lock, OF_A_LOCK, Way::Try, false);
        let (name, gives) = &self.locks[lock];
        let lock = whole(&self.manager, *gives, name);
        let forced: Result<Option<_>, Error> = async {
            let Some(holder) = lock.status().await?.holder else {
                return Ok(None);
            };
            Ok(Some((holder.fence, lock.force_release(holder.fence).await?)))
        }
        .await;
        self.history.record(match forced {
            Ok(Some((fence, taken))) => Event::Forced { op, fence, taken },
            Ok(None) => Event::Busy { op },
            Err(error) => Event::Failed { op, error },
        });
    }

    async fn pause(&mut self, longest_ms: u64) {
        let span = self.ms(0..=longest_ms);
        tokio::time::sleep(span).await;
    }

    fn ms(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
    }
}
