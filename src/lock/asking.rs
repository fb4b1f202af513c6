//! How a lock is asked for: the span of a call, the way to its place, and how its end is counted.

use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument;
use tracing::field::Empty;

use super::Lock;
use crate::engine::acquire::Tried;
use crate::engine::counters::{Ask, How, Outcome};
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::status::{Busy, TryAcquire};
use crate::time::clock::LocalTime;

/// Until when to wait.
#[derive(Clone, Copy)]
pub(super) enum Bound {
    None,
    Within(Duration),
    Until(Instant),
}

impl Lock {
    pub(super) async fn acquire_within(self, bound: Bound) -> Result<LockGuard> {
        let began = self.client().now();
        let span = tracing::debug_span!(
            "fairlock.acquire",
            lock.name = &*self.name,
            lock.fence = Empty,
            lock.votes = Empty,
            lock.local_handoff = Empty,
            lock.outcome = Empty,
            wait_ms = Empty
        );
        let mut ask = None;
        let acquired = {
            // Pinned here, since a future that is passed on is copied.
            let asking = pin!(self.acquire_held(began, bound, &mut ask));
            let asking = asking.instrument(span.clone());
            self.client().runtime.serves(asking).await
        };
        let now = self.client().now();
        let waited = now.since(began);
        if let Some(ask) = &mut ask {
            match &acquired {
                Ok(guard) => guard.begin(self.place().counters(), ask.acquired(guard.how(), waited, now)),
                Err(error) => ask.failed(error),
            }
        }
        let outcome = match &acquired {
            Ok(guard) => {
                span.record("lock.fence", guard.fence().get());
                if let Some(votes) = guard.votes() {
                    span.record("lock.votes", votes);
                }
                if guard.how() == How::LocalHandoff {
                    span.record("lock.local_handoff", true);
                }
                "acquired"
            }
            Err(Error::Timeout { .. }) => "timeout",
            Err(_) => "error",
        };
        let wait_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        span.record("lock.outcome", outcome).record("wait_ms", wait_ms);
        let slow_acquire = self.client().options.slow_acquire;
        if slow_acquire.is_some_and(|slow| waited >= slow && !self.options.is_led) {
            tracing::warn!(
                lock.name = &*self.name,
                lock.outcome = outcome,
                wait_ms,
                "slow acquire"
            );
        }
        acquired
    }

    /// `ask` is set once the call asks for the lock.
    async fn acquire_held<'a>(
        &'a self,
        began: LocalTime,
        bound: Bound,
        ask: &mut Option<Ask<'a>>,
    ) -> Result<LockGuard> {
        let until = match bound {
            Bound::None => None,
            // Beyond the end of time is no bound.
            Bound::Within(wait) => Instant::now().checked_add(wait),
            Bound::Until(deadline) => Some(deadline),
        };
        if until.is_none_or(|until| until > Instant::now()) {
            let params = self.params()?;
            let counters = self.place().counters();
            *ask = Some(match self.options.is_led {
                true => counters.campaign(&params.group),
                false => counters.wait(&params.group, began),
            });
            // A tenure is no caller: those that wait for it are counted.
            let _permit = self.place().count_caller()?;
            if params.turns > 1 {
                // On the heap, so that those without it do not carry it along.
                let turn = Box::pin(self.queues.acquire(&params, began, until));
                return Ok(LockGuard::of_turn(turn.await?));
            }
            return Ok(LockGuard::new(self.queues.gate().acquire(&params, until).await?));
        }
        // On the heap, so that those that wait do not carry it along.
        match Box::pin(self.clone().attempt(Outcome::Timeout)).await? {
            TryAcquire::Acquired(guard) => Ok(guard),
            TryAcquire::Busy(busy) => Err(Error::Timeout {
                waited: self.client().now().since(began),
                retry_after: busy.retry_after(),
            }),
        }
    }

    /// Asks once. If the lock is busy, the call counts as ended in this way.
    pub(super) async fn attempt(self, if_busy: Outcome) -> Result<TryAcquire> {
        let params = self.params()?;
        let mut ask = self.place().counters().attempt(&params.group);
        let trying = pin!(async {
            if params.turns > 1 {
                let tried = Box::pin(self.queues.try_acquire(params)).await;
                tried.map(|tried| found(tried, LockGuard::of_turn))
            } else {
                let tried = self.place().try_acquire(params).await;
                tried.map(|tried| found(tried, LockGuard::new))
            }
        });
        let tried = self.client().runtime.serves(trying).await;
        match &tried {
            Ok(TryAcquire::Acquired(guard)) => {
                let now = self.client().now();
                guard.begin(
                    self.place().counters(),
                    ask.acquired(guard.how(), Duration::ZERO, now),
                );
            }
            Ok(TryAcquire::Busy(_)) => ask.end(if_busy),
            Err(error) => ask.failed(error),
        }
        tried
    }
}

/// What a try found, with the guard of what it got.
fn found<T>(tried: Tried<T>, guard: impl FnOnce(T) -> LockGuard) -> TryAcquire {
    match tried {
        Tried::Held(held) => TryAcquire::Acquired(guard(held)),
        Tried::Busy { ttl, ahead } => TryAcquire::Busy(Busy::of(ttl, ahead)),
    }
}
