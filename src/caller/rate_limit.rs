//! The callers of this process that wait for turns of a rate limit.
//!
//! All callers for one rate are in one waitlist, first come, first served. While there are any, a task asks
//! the server for the turns of the first ones, and sleeps until the server has told it to ask again. A turn
//! is a moment from which on a call may begin. It is held by nobody, so there is nothing to renew, to release
//! or to wake others for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::engine::acquire::timed_out;
use crate::engine::client::Client;
use crate::engine::retry::until_answered;
use crate::protocol;
use crate::protocol::keys::RateKeys;
use crate::protocol::{Rate, RateAsk, RateAsked, RateCaller};
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::types::error::{Error, Result};

/// Turns are given out so long before they begin, and for two round trips more. So the next ones are known
/// when the last one begins.
const WINDOW: Duration = Duration::from_millis(20);
const LONGEST_WINDOW: Duration = Duration::from_micros(protocol::LONGEST_WINDOW);
/// A caller that comes so much later than its turn, since its thread stood still, waits for another one.
const LATE: Duration = Duration::from_secs(1);
/// For so many callers at most the task asks at once.
const MOST_CALLERS: usize = 128;

/// The waitlists of one client.
#[derive(Debug)]
pub(crate) struct RateLimits {
    waitlists: DashMap<(Arc<str>, Rate), Weak<RateWaitlist>>,
    /// The number of the next waitlist.
    next: AtomicU64,
}

/// The callers for one rate.
#[derive(Debug)]
pub(crate) struct RateWaitlist {
    client: Arc<Client>,
    keys: Arc<RateKeys>,
    /// The name by which the server knows it.
    id: Arc<str>,
    rate: Rate,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The one that came first is the first.
    waiters: VecDeque<Waiter>,
    /// The number of the next waiter.
    next: u64,
    /// Whether the task runs.
    is_asking: bool,
    /// How long the server took to answer last.
    took: Duration,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    came: LocalTime,
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
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.waitlist.state);
        state.waiters.retain(|waiter| waiter.number != self.number);
    }
}

impl RateLimits {
    pub(crate) fn new() -> RateLimits {
        RateLimits {
            waitlists: DashMap::new(),
            next: AtomicU64::new(0),
        }
    }

    /// The waitlist of this rate. One that nobody uses any more is forgotten when the next one is made.
    pub(crate) fn waitlist(
        &self,
        client: &Arc<Client>,
        name: &Arc<str>,
        keys: &Arc<RateKeys>,
        rate: Rate,
    ) -> Arc<RateWaitlist> {
        let key = (Arc::clone(name), rate);
        if let Some(known) = self.waitlists.get(&key).and_then(|known| known.upgrade()) {
            return known;
        }
        self.waitlists.retain(|_, waitlist| waitlist.strong_count() > 0);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let made = Arc::new(RateWaitlist {
            id: format!("{}:{number}", client.id).into(),
            client: Arc::clone(client),
            keys: Arc::clone(keys),
            rate,
            state: Mutex::default(),
        });
        let mut entry = self.waitlists.entry(key).or_default();
        if let Some(known) = entry.upgrade() {
            return known;
        }
        *entry = Arc::downgrade(&made);
        made
    }

    /// Ends all waits with this error.
    pub(crate) fn refuse_all(&self, error: &Error) {
        for waitlist in &self.waitlists {
            if let Some(waitlist) = waitlist.upgrade() {
                waitlist.fail(error);
            }
        }
    }
}

impl RateWaitlist {
    /// Waits for a turn, and until it begins.
    pub(crate) async fn acquire(self: &Arc<Self>, cost: u32, until: Option<Instant>) -> Result<()> {
        let came = self.client.now();
        loop {
            let (_waiting, turn) = self.enter(came, cost);
            let turn = match until {
                Some(until) => match timeout_at(until, turn).await {
                    Ok(turn) => turn,
                    Err(_) => return Err(timed_out(&self.client, came, Duration::ZERO)),
                },
                None => turn.await,
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
        let waiting = locked(&self.state).waiters.len() as u64;
        let busy = |ttl, waiting| Error::Busy {
            name: Arc::default(),
            ttl,
            waiting,
        };
        if waiting > 0 {
            return Err(busy(Duration::ZERO, waiting));
        }
        let ask = RateAsk {
            waits: false,
            ..self.ask(Duration::ZERO, vec![RateCaller { age: 0, cost }])
        };
        let RateAsked { waits, again, ahead } = self.client.call(ask).await?.reply;
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
            rate: self.rate,
            window: micros(window),
            callers,
        }
    }

    /// A caller that has missed its turn comes before those that came later.
    fn enter(self: &Arc<Self>, came: LocalTime, cost: u32) -> (Waiting<'_>, oneshot::Receiver<Result<Turn>>) {
        let (sender, turn) = oneshot::channel();
        let mut state = locked(&self.state);
        let number = state.next;
        state.next += 1;
        let place = state.waiters.partition_point(|waiter| waiter.came <= came);
        let waiter = Waiter {
            number,
            came,
            cost,
            turn: sender,
        };
        state.waiters.insert(place, waiter);
        if !state.is_asking {
            state.is_asking = true;
            let asking = Asking(Arc::clone(self));
            self.client.spawn(async move { asking.run().await });
        }
        let waitlist: &RateWaitlist = self;
        (Waiting { waitlist, number }, turn)
    }

    fn fail(&self, error: &Error) {
        for waiter in locked(&self.state).waiters.drain(..) {
            let _ = waiter.turn.send(Err(error.clone()));
        }
    }
}

/// The task that asks. If its runtime ends, the waits end too.
struct Asking(Arc<RateWaitlist>);

impl Asking {
    async fn run(self) {
        let waitlist = &*self.0;
        let mut is_queued = false;
        loop {
            let (numbers, callers): (Vec<_>, Vec<_>) = {
                let mut state = locked(&waitlist.state);
                if state.waiters.is_empty() && !is_queued {
                    state.is_asking = false;
                    return;
                }
                let first = state.waiters.iter().take(MOST_CALLERS);
                first
                    .map(|waiter| (waiter.number, (waiter.came, waiter.cost)))
                    .unzip()
            };
            match self.turns(&numbers, &callers).await {
                Ok(again) => {
                    is_queued = again.is_some();
                    if let Some(again) = again {
                        sleep(again).await;
                    }
                }
                // Nobody waits: it only leaves the queue, where it is passed over anyway.
                Err(_) if callers.is_empty() => is_queued = false,
                Err(error) => {
                    waitlist.fail(&error);
                    is_queued = false;
                }
            }
        }
    }

    /// Asks for the turns of these callers, and passes them on. Returns when to ask again for those that are
    /// left of them.
    async fn turns(&self, numbers: &[u64], callers: &[(LocalTime, u32)]) -> Result<Option<Duration>> {
        let (waitlist, client) = (&*self.0, &self.0.client);
        let window = (WINDOW + 2 * locked(&waitlist.state).took).min(LONGEST_WINDOW);
        let mut sent = client.now();
        let ask = || {
            sent = client.now();
            let age = |came: LocalTime| micros(sent.since(came));
            let callers = callers.iter();
            let callers = callers.map(|(came, cost)| RateCaller {
                age: age(*came),
                cost: *cost,
            });
            client.call(waitlist.ask(window, callers.collect()))
        };
        let (answer, _) = until_answered(client, ask).await?;
        let (now, began) = (client.now(), Instant::now());
        let RateAsked { waits, again, .. } = answer.reply;
        let mut state = locked(&waitlist.state);
        state.took = now.since(sent);
        for (number, wait) in numbers.iter().zip(&waits) {
            let place = state.waiters.iter().position(|waiter| waiter.number == *number);
            if let Some(waiter) = place.and_then(|place| state.waiters.remove(place)) {
                let turn = Turn {
                    begins: began + *wait,
                    late_from: sent.after(*wait + window + LATE),
                };
                // A caller that has just given up leaves its turn unused.
                let _ = waiter.turn.send(Ok(turn));
            }
        }
        Ok((waits.len() < numbers.len()).then_some(again))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        // Unless it has ended by itself.
        if state.is_asking && !state.waiters.is_empty() {
            state.is_asking = false;
            for waiter in state.waiters.drain(..) {
                let _ = waiter.turn.send(Err(Error::Closed));
            }
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
