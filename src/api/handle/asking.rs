//! How a lock is asked for: the span of a call, the way to its place, and how its end is counted.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::Handle;
use crate::api::guard::{Guard, LockGuard};
use crate::caller::local_queue::TenureParams;
use crate::engine::acquire::{Tried, timed_out};
use crate::engine::counters::{CountedCall, How, Outcome};
use crate::time::clock::LocalTime;
use crate::types::error::{Error, Result};

/// Waits for the lock, for this long at most.
pub(super) async fn acquire<G: Guard>(lock: Handle, wait: Option<Duration>) -> Result<G> {
    let began = lock.client().now();
    let span = tracing::debug_span!(
        "fairlock.acquire",
        lock.name = &*lock.name,
        lock.group = lock.group(),
        lock.fence = Empty,
        lock.votes = Empty,
        lock.local_handoff = Empty,
        lock.outcome = Empty,
        lock.wait_ms = Empty,
        error.type = Empty,
        otel.status_code = Empty
    );
    let mut ask = None;
    let acquired = {
        // Pinned here, since a future that is passed on is copied.
        let asking = pin!(acquire_held(&lock, began, wait, &mut ask));
        let asking = asking.instrument(span.clone());
        lock.client().runtime.serves(asking).await
    };
    let now = lock.client().now();
    let waited = now.since(began);
    if let Some(ask) = &mut ask {
        match &acquired {
            Ok(guard) => guard.begin(lock.place().counters(), ask.acquired(guard.how(), waited, now)),
            Err(error) => ask.failed(error),
        }
    }
    if !span.is_disabled() {
        span.record(
            "lock.wait_ms",
            u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        );
        record(&span, &acquired);
    }
    acquired.map(G::of).map_err(|error| error.of(&lock.name))
}

/// `ask` is set once the call asks for the lock.
async fn acquire_held<'a>(
    lock: &'a Handle,
    began: LocalTime,
    wait: Option<Duration>,
    ask: &mut Option<CountedCall<'a>>,
) -> Result<LockGuard> {
    // Beyond the end of time is no bound.
    let until = wait.and_then(|wait| Instant::now().checked_add(wait));
    if until.is_none_or(|until| until > Instant::now()) {
        let tenure = params(lock)?;
        let group = &tenure.hold.group;
        let counters = lock.place().counters();
        *ask = Some(match lock.options.is_led {
            true => counters.campaign(group),
            false => counters.wait(group, began),
        });
        // A tenure is no caller: those that wait for it are counted.
        let _permit = lock.place().count_caller()?;
        if tenure.has_turns() {
            // On the heap, so that those without it do not carry it along.
            let turn = Box::pin(lock.queues.acquire(&tenure, began, until));
            return Ok(LockGuard::of_turn(turn.await?));
        }
        return Ok(LockGuard::new(
            lock.queues.gate().acquire(&tenure.hold, until).await?,
        ));
    }
    // On the heap, so that those that wait do not carry it along.
    match Box::pin(attempt(lock, Outcome::Timeout)).await {
        Err(Error::Busy { ttl, .. }) => Err(timed_out(lock.client(), began, ttl)),
        tried => tried,
    }
}

/// Takes the lock if it is free and nobody waits for it.
pub(super) async fn try_acquire<G: Guard>(lock: Handle) -> Result<G> {
    let span = tracing::debug_span!(
        "fairlock.try_acquire",
        lock.name = &*lock.name,
        lock.group = lock.group(),
        lock.fence = Empty,
        lock.votes = Empty,
        lock.outcome = Empty,
        error.type = Empty,
        otel.status_code = Empty
    );
    let tried = {
        // Pinned here, since a future that is passed on is copied.
        let trying = pin!(attempt(&lock, Outcome::Busy));
        trying.instrument(span.clone()).await
    };
    if !span.is_disabled() {
        record(&span, &tried);
    }
    tried.map(G::of).map_err(|error| error.of(&lock.name))
}

/// Asks once. If the lock is busy, the call counts as ended in this way.
async fn attempt(lock: &Handle, if_busy: Outcome) -> Result<LockGuard> {
    let tenure = params(lock)?;
    let mut ask = lock.place().counters().attempt(&tenure.hold.group);
    let trying = pin!(async {
        if tenure.has_turns() {
            let tried = Box::pin(lock.queues.try_acquire(tenure)).await;
            held(tried?, LockGuard::of_turn)
        } else {
            let tried = lock.place().try_acquire(tenure.hold).await;
            held(tried?, LockGuard::new)
        }
    });
    let tried = lock.client().runtime.serves(trying).await;
    match &tried {
        Ok(guard) => {
            let now = lock.client().now();
            guard.begin(
                lock.place().counters(),
                ask.acquired(guard.how(), Duration::ZERO, now),
            );
        }
        Err(Error::Busy { .. }) => ask.end(if_busy),
        Err(error) => ask.failed(error),
    }
    tried
}

/// Records how a call has ended. That a lock is busy is no error of a call that only asks.
fn record(span: &Span, ended: &Result<LockGuard>) {
    let outcome = match ended {
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
        Err(Error::Busy { .. }) => "busy",
        Err(error) => {
            error.record(span);
            match error {
                Error::Timeout { .. } => "timeout",
                _ => "error",
            }
        }
    };
    span.record("lock.outcome", outcome);
}

/// The guard of what a try got.
fn held<T>(tried: Tried<T>, guard: impl FnOnce(T) -> LockGuard) -> Result<LockGuard> {
    match tried {
        Tried::Held(held) => Ok(guard(held)),
        Tried::Busy { ttl, ahead: waiting } => Err(Error::Busy {
            name: Arc::default(),
            ttl,
            waiting,
        }),
    }
}

/// What is asked for, and counted in the group of the lock.
fn params(lock: &Handle) -> Result<TenureParams> {
    let mut request = lock.request()?;
    let metrics = &lock.place().counters().metrics;
    request.hold.group = metrics.group(&lock.name, lock.options.group.as_ref());
    Ok(request)
}
