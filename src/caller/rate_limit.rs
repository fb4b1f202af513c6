//! The callers of this process that wait for turns of a rate limit.
//!
//! All callers for one rate are in one waitlist, first come, first served. While there are any, a task asks
//! the server for the turns of the first ones, and sleeps until it may ask again. A turn
//! is a moment from which on a call may begin. It is held by nobody, so there is nothing to renew, to release
//! or to wake others for.

use std::collections::BTreeMap;
use std::mem::{replace, take};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::engine::acquire::{bound, timed_out};
use crate::engine::client::Client;
use crate::engine::retry::answered_within;
use crate::protocol::keys::RateKeys;
use crate::protocol::{Failure, Rate, RateAsk, RateAsked, RateCaller};
use crate::sync::locked;
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;
use crate::types::error::{Error, Result};

/// How long before they begin turns are given out, besides two round trips. So the next ones are known when
/// the last one begins.
const WINDOW: Duration = Duration::from_millis(20);
const LONGEST_WINDOW: Duration = Duration::from_secs(1);
/// A caller that comes later than its turn by more than this, since its thread stood still, waits for another
/// one.
const LATE: Duration = Duration::from_secs(1);
/// The most callers for which the task asks at once.
const MOST_CALLERS: usize = 128;

/// The waitlists of one client.
#[derive(Debug)]
pub(crate) struct RateLimits {
    waitlists: DashMap<Key, Weak<RateWaitlist>>,
    /// The number of the next waitlist.
    next: AtomicU64,
}

/// The name of a rate limit, and how fast its turns come.
type Key = (Arc<str>, Rate);

/// The callers for one rate. When nobody uses it any more, it is forgotten.
#[derive(Debug)]
pub(crate) struct RateWaitlist {
    limits: Arc<RateLimits>,
    key: Key,
    client: Arc<Client>,
    keys: Arc<RateKeys>,
    /// The name by which the server knows it.
    id: Arc<str>,
    state: Mutex<State>,
    /// The first waiter may have its turn sooner than the task asks again.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The one that came first is the first.
    waiters: BTreeMap<Arrival, Waiter>,
    /// The number of the next waiter.
    next: u64,
    /// Whether the task runs.
    is_asking: bool,
    /// For how many turns at once the task waits before it asks again, or 0.
    awaited: u32,
    /// How long the server took to answer last.
    took: Duration,
    /// When it did so.
    answered: Option<LocalTime>,
    /// The calls fail since then, and the last one for this reason.
    failing: Option<(LocalTime, Failure)>,
}

/// When a waiter came, and its number.
type Arrival = (LocalTime, u64);

#[derive(Debug)]
struct Waiter {
    cost: u32,
    turn: oneshot::Sender<Result<Turn>>,
}

#[derive(Debug)]
struct Turn {
    begins: Instant,
    /// It does not count any more from then on.
    late_from: LocalTime,
}

/// A place in the waitlist. Dropping it gives it up.
struct Waiting<'a> {
    waitlist: &'a RateWaitlist,
    arrival: Arrival,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.waitlist.state);
        state.waiters.remove(&self.arrival);
        self.waitlist.hasten(&mut state);
    }
}

impl RateLimits {
    pub(crate) fn new() -> RateLimits {
        RateLimits {
            waitlists: DashMap::new(),
            next: AtomicU64::new(0),
        }
    }

    /// The waitlist of this rate.
    pub(crate) fn waitlist(
        self: &Arc<Self>,
        client: &Arc<Client>,
        name: &Arc<str>,
        keys: &Arc<RateKeys>,
        rate: Rate,
    ) -> Arc<RateWaitlist> {
        let key = (Arc::clone(name), rate);
        let mut entry = self.waitlists.entry(key.clone()).or_default();
        if let Some(known) = entry.upgrade() {
            return known;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let made = Arc::new(RateWaitlist {
            limits: Arc::clone(self),
            key,
            id: format!("{}:{number}", client.id).into(),
            client: Arc::clone(client),
            keys: Arc::clone(keys),
            state: Mutex::default(),
            sooner: Notify::new(),
        });
        *entry = Arc::downgrade(&made);
        made
    }

    /// Ends all waits with this error.
    pub(crate) fn refuse_all(&self, error: &Error) {
        // The last one that uses a waitlist forgets it, which needs the map.
        let waitlists: Vec<_> = self
            .waitlists
            .iter()
            .filter_map(|known| known.upgrade())
            .collect();
        for waitlist in waitlists {
            waitlist.fail(error);
        }
    }
}

impl Drop for RateWaitlist {
    fn drop(&mut self) {
        // Another one may have been made in its place.
        let is_unused = |_: &Key, known: &mut Weak<RateWaitlist>| known.strong_count() == 0;
        self.limits.waitlists.remove_if_mut(&self.key, is_unused);
    }
}

impl RateWaitlist {
    /// Waits for a turn, and until it begins.
    pub(crate) async fn acquire(self: &Arc<Self>, cost: u32, until: Option<Instant>) -> Result<()> {
        let came = self.client.now();
        loop {
            let (_waiting, turn) = self.enter(came, cost);
            let turn = tokio::select! {
                biased;
                turn = turn => turn,
                () = bound(until, || self.why_unheard(came).is_some()) => {
                    let unheard = self.why_unheard(came).map(Error::from);
                    return Err(unheard.unwrap_or_else(|| timed_out(&self.client, came, Duration::ZERO)));
                }
            };
            let turn = turn.unwrap_or(Err(Error::Closed))?;
            sleep_until(turn.begins).await;
            if self.client.now() < turn.late_from {
                return Ok(());
            }
        }
    }

    /// Takes a turn that begins now, if nobody waits.
    pub(crate) async fn try_acquire(&self, cost: u32) -> Result<()> {
        let (client, limit) = (&self.client, self.client.options.attempt_timeout());
        let (waiting, failing) = {
            let state = locked(&self.state);
            let failing = state.failing.clone();
            let failing = failing.filter(|(since, _)| client.now().since(*since) >= limit);
            (state.waiters.len() as u64, failing)
        };
        let busy = |ttl, waiting| Error::Busy {
            name: Arc::default(),
            ttl,
            waiting,
        };
        if waiting > 0 {
            let failure = failing.map(|(_, failure)| failure.into());
            return Err(failure.unwrap_or_else(|| busy(Duration::ZERO, waiting)));
        }
        let ask = RateAsk {
            waits: false,
            ..self.ask(Duration::ZERO, vec![RateCaller { age: 0, cost }])
        };
        // A turn that an unknown attempt took is not used.
        let (answer, _) = answered_within(limit, client, || client.call(ask.clone())).await?;
        let RateAsked { waits, again, ahead } = answer.reply;
        match waits.is_empty() {
            true => Err(busy(again, ahead)),
            false => Ok(()),
        }
    }

    fn ask(&self, window: Duration, callers: Vec<RateCaller>) -> RateAsk {
        RateAsk {
            keys: Arc::clone(&self.keys),
            waitlist: Arc::clone(&self.id),
            waits: true,
            rate: self.key.1,
            window: micros(window),
            callers,
        }
    }

    /// A caller that has missed its turn comes before those that came later.
    fn enter(self: &Arc<Self>, came: LocalTime, cost: u32) -> (Waiting<'_>, oneshot::Receiver<Result<Turn>>) {
        let (sender, turn) = oneshot::channel();
        let (arrival, is_asking) = {
            let mut state = locked(&self.state);
            let arrival = (came, state.next);
            state.next += 1;
            state.waiters.insert(arrival, Waiter { cost, turn: sender });
            self.hasten(&mut state);
            (arrival, replace(&mut state.is_asking, true))
        };
        // A runtime that has ended drops the task here, and that ends the waits.
        if !is_asking {
            let asking = Asking {
                waitlist: Arc::clone(self),
                has_ended: false,
            };
            self.client.spawn(async move { asking.run().await });
        }
        let waitlist: &RateWaitlist = self;
        (Waiting { waitlist, arrival }, turn)
    }

    /// Has the task ask now if that for which it was told when to ask again has given up, and the first
    /// waiter needs fewer turns. If nobody waits any more, the turns may be those of another waitlist.
    fn hasten(&self, state: &mut State) {
        let first = state.waiters.first_key_value();
        let cost = first.map_or(1, |(_, first)| first.cost);
        if cost < state.awaited {
            state.awaited = cost;
            self.sooner.notify_one();
        }
    }

    /// Why the server has said nothing about the rate since a caller came, or `None` if it has.
    fn why_unheard(&self, came: LocalTime) -> Option<Failure> {
        let state = locked(&self.state);
        if state.answered.is_some_and(|at| at >= came) {
            return None;
        }
        let failure = state.failing.as_ref().map(|(_, failure)| failure.clone());
        drop(state);
        failure.or_else(|| self.client.store.why_unheard(&self.keys.rate, came))
    }

    /// Asks for the turns of these callers, and passes them on. Returns when to ask again for those that are
    /// left of them.
    async fn turns(&self, callers: &[(Arrival, u32)]) -> Result<Option<Duration>, Failure> {
        let client = &self.client;
        let window = (WINDOW + 2 * locked(&self.state).took).min(LONGEST_WINDOW);
        let sent = client.now();
        let ages = callers.iter().map(|((came, _), cost)| RateCaller {
            age: micros(sent.since(*came)),
            cost: *cost,
        });
        let answer = client.call(self.ask(window, ages.collect())).await;
        let (now, began) = (client.now(), Instant::now());
        let answer = answer.inspect_err(|failure| {
            let failing = &mut locked(&self.state).failing;
            let since = failing.as_ref().map_or(sent, |(since, _)| *since);
            *failing = Some((since, failure.clone()));
        })?;
        let RateAsked { waits, again, .. } = answer.reply;
        let mut served = Vec::with_capacity(waits.len());
        let left = callers.get(waits.len());
        {
            let mut state = locked(&self.state);
            state.took = now.since(sent);
            (state.answered, state.failing) = (Some(now), None);
            for ((arrival, _), wait) in callers.iter().zip(&waits) {
                served.extend(state.waiters.remove(arrival).map(|waiter| (waiter, *wait)));
            }
            state.awaited = left.map_or(0, |(_, cost)| *cost);
            self.hasten(&mut state);
        }
        for (waiter, wait) in served {
            let turn = Turn {
                begins: began + wait,
                late_from: sent.after(wait + window + LATE),
            };
            // A caller that has just given up leaves its turn unused.
            let _ = waiter.turn.send(Ok(turn));
        }
        Ok(left.map(|_| again))
    }

    /// Ends the waits that no server has answered for the `server_timeout`.
    fn give_up(&self, failure: Failure) {
        let (now, limit) = (self.client.now(), self.client.options.server_timeout);
        let mut ended = Vec::new();
        {
            let mut state = locked(&self.state);
            let is_over = |since: LocalTime| now.since(since) >= limit;
            if state.failing.as_ref().is_some_and(|(since, _)| is_over(*since)) {
                while let Some(first) = state.waiters.first_entry().filter(|first| is_over(first.key().0)) {
                    ended.push(first.remove());
                }
            }
        }
        let error = Error::from(failure);
        for waiter in ended {
            let _ = waiter.turn.send(Err(error.clone()));
        }
    }

    fn fail(&self, error: &Error) {
        let waiters = {
            let mut state = locked(&self.state);
            state.failing = None;
            take(&mut state.waiters)
        };
        for waiter in waiters.into_values() {
            let _ = waiter.turn.send(Err(error.clone()));
        }
    }
}

/// The task that asks. If its runtime ends, the waits end too.
struct Asking {
    waitlist: Arc<RateWaitlist>,
    /// Nobody waited any more. The next caller starts another task.
    has_ended: bool,
}

impl Asking {
    async fn run(mut self) {
        let waitlist = Arc::clone(&self.waitlist);
        let mut backoff = Backoff::new();
        let mut is_queued = false;
        loop {
            // A caller may have come while the client was closed. The waitlist leaves the queue if that still
            // goes.
            if let Err(error) = waitlist.client.check_open() {
                waitlist.fail(&error);
            }
            let callers: Vec<(Arrival, u32)> = {
                let mut state = locked(&waitlist.state);
                if state.waiters.is_empty() && !is_queued {
                    (state.is_asking, state.failing) = (false, None);
                    self.has_ended = true;
                    return;
                }
                let first = state.waiters.iter().take(MOST_CALLERS);
                first.map(|(arrival, waiter)| (*arrival, waiter.cost)).collect()
            };
            match waitlist.turns(&callers).await {
                Ok(again) => {
                    backoff = Backoff::new();
                    is_queued = again.is_some();
                    if let Some(again) = again {
                        tokio::select! {
                            () = sleep(again) => {}
                            () = waitlist.sooner.notified() => {}
                        }
                    }
                }
                // Nobody waits: it only leaves the queue, where it is passed over anyway.
                Err(_) if callers.is_empty() => is_queued = false,
                Err(failure @ (Failure::Refused(_) | Failure::Closed)) => {
                    waitlist.fail(&failure.into());
                    is_queued = false;
                }
                Err(failure) => {
                    waitlist.give_up(failure);
                    backoff.pause().await;
                }
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.has_ended {
            locked(&self.waitlist.state).is_asking = false;
            self.waitlist.fail(&Error::Closed);
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::scripted_store::{self, Scripted};
    use crate::{LockManager, MemoryStore, RateLimit};

    /// The client has made no call yet, so it has no runtime to start tasks on.
    fn waitlist(locks: &LockManager) -> Arc<RateWaitlist> {
        let keys = Arc::new(RateKeys::new("fairlock", "a").unwrap());
        let rate = Rate {
            interval: 1000,
            burst: 1000,
        };
        let client = locks.place().client();
        locks.rate_limits().waitlist(client, &"a".into(), &keys, rate)
    }

    #[tokio::test]
    async fn a_task_that_has_ended_ends_no_wait_that_began_before_it_was_dropped() {
        let locks = LockManager::in_memory();
        locks.place().start();
        let waitlist = waitlist(&locks);
        let ended = Asking {
            waitlist: Arc::clone(&waitlist),
            has_ended: true,
        };
        let (_waiting, turn) = waitlist.enter(locks.place().client().now(), 1);
        drop(ended);
        assert!(turn.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_wait_whose_task_cannot_begin_ends() {
        let locks = LockManager::in_memory();
        let waitlist = waitlist(&locks);
        let (_waiting, turn) = waitlist.enter(locks.place().client().now(), 1);
        assert!(matches!(turn.await.unwrap(), Err(Error::Closed)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waitlist_that_nobody_uses_is_forgotten() {
        let locks = LockManager::in_memory();
        let limit = locks.rate_limit("a", 1, Duration::from_secs(60));
        let waitlists = &locks.rate_limits().waitlists;
        limit.try_acquire().await.unwrap();
        assert!(waitlists.is_empty());
        let bounded = limit.acquire_timeout(Duration::from_secs(1));
        let look = async { assert_eq!(waitlists.len(), 1) };
        assert!(futures_util::join!(bounded, look).0.is_err());
        // Its task leaves the queue when it would have asked again.
        sleep(Duration::from_secs(10)).await;
        assert!(waitlists.is_empty());
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// A client with a rate limit of one turn a minute, whose first turn is taken.
    async fn taken() -> (RateLimit, Arc<Scripted>) {
        let (locks, server) = scripted_store::client(&MemoryStore::new(), &[]);
        let limit = locks.rate_limit("a", 1, 60 * SECOND);
        limit.acquire().await.unwrap();
        (limit, server)
    }

    #[tokio::test(start_paused = true)]
    async fn each_caller_waits_for_the_server_timeout_while_no_server_answers() {
        let (limit, server) = taken().await;
        server.lose_calls(u32::MAX);
        let waits = [0, 5, 9, 30].map(|after| {
            let limit = limit.clone();
            tokio::spawn(async move {
                sleep(after * SECOND).await;
                let began = Instant::now();
                (limit.acquire().await, began.elapsed())
            })
        });
        for wait in waits {
            let (ended, took) = wait.await.unwrap();
            assert!(matches!(ended, Err(Error::Unavailable(_))), "{ended:?}");
            assert!(took >= 10 * SECOND && took <= 13 * SECOND, "{took:?}");
        }
        server.lose_calls(0);
        limit.acquire().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_bounded_wait_tells_an_outage_from_a_turn_that_is_far_off() {
        let (limit, server) = taken().await;
        let bounded = || limit.acquire_timeout(3 * SECOND);
        assert!(matches!(bounded().await, Err(Error::Timeout { .. })));
        let queued = tokio::spawn(limit.acquire_timeout(14 * SECOND));
        sleep(6 * SECOND).await;
        server.lose_calls(u32::MAX);
        sleep(5 * SECOND).await;
        assert!(matches!(limit.try_acquire().await, Err(Error::Unavailable(_))));
        assert!(matches!(bounded().await, Err(Error::Unavailable(_))));
        // The server knows that it waits.
        assert!(matches!(queued.await.unwrap(), Err(Error::Timeout { .. })));
        server.lose_calls(0);
        assert!(matches!(bounded().await, Err(Error::Timeout { .. })));
        assert!(matches!(limit.try_acquire().await, Err(Error::Busy { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_try_outlasts_a_call_that_is_lost() {
        let (limit, server) = taken().await;
        server.lose_calls(1);
        assert!(matches!(limit.try_acquire().await, Err(Error::Busy { .. })));
    }
}
