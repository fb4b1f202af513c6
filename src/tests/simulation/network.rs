//! The network between clients and server, where messages arrive later or not at all. One task delivers all
//! of them by their times of arrival. Messages with the same time arrive in the order of sending.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::history::{Fault, History};
use super::timing::{LONGEST_DELAY, LONGEST_MOMENT};
use crate::sync::locked;

type Event = Box<dyn FnOnce() + Send>;

pub(super) struct Network {
    pub(super) history: Arc<History>,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    rng: Rng,
    message_faults: MessageFaults,
    latency_us: u64,
    queue: BTreeMap<(Instant, u64), Event>,
    sent: u64,
}

/// How often each fault of [`Fault::OF_MESSAGES`] happens, in 1,000 messages.
pub(super) type MessageFaults = BTreeMap<Fault, u16>;

impl Network {
    /// `latency` is the longest time that a message takes without a fault.
    pub(super) fn new(
        history: Arc<History>,
        rng: Rng,
        latency: Duration,
        message_faults: MessageFaults,
    ) -> Arc<Network> {
        let state = State {
            rng,
            message_faults,
            latency_us: u64::try_from(latency.as_micros()).unwrap(),
            queue: BTreeMap::new(),
            sent: 0,
        };
        Arc::new(Network {
            history,
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    /// Delivers messages until the task is aborted.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let next = locked(&self.state).queue.keys().next().map(|(due, _)| *due);
            match next {
                Some(due) if due <= Instant::now() => {
                    let (_, event) = locked(&self.state).queue.pop_first().unwrap();
                    event();
                }
                Some(due) => tokio::select! {
                    biased;
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    pub(super) fn at(&self, due: Instant, event: impl FnOnce() + Send + 'static) {
        let mut state = locked(&self.state);
        state.sent += 1;
        let sent = state.sent;
        let is_next = state.queue.keys().next().is_none_or(|(next, _)| due < *next);
        state.queue.insert((due, sent), Box::new(event));
        if is_next {
            self.changed.notify_one();
        }
    }

    pub(super) fn after(&self, delay: Duration, event: impl FnOnce() + Send + 'static) {
        self.at(Instant::now() + delay, event);
    }

    /// Draws how long a message takes.
    pub(super) fn latency(&self) -> Duration {
        let mut state = locked(&self.state);
        let longest = state.latency_us;
        Duration::from_micros(state.rng.u64(longest / 4..=longest))
    }

    pub(super) fn ms(&self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(locked(&self.state).rng.u64(range))
    }

    pub(super) fn one_in(&self, n: u32) -> bool {
        locked(&self.state).rng.u32(..n) == 0
    }

    /// Draws whether this fault happens to a message of this client now, and records it if so.
    pub(super) fn strikes(&self, fault: Fault, client: usize) -> bool {
        let strikes = {
            let mut state = locked(&self.state);
            let rate = state.message_faults.get(&fault).copied();
            rate.is_some_and(|rate| state.rng.u16(..1000) < rate)
        };
        if strikes {
            let lasts = match fault {
                Fault::SlowCall | Fault::SlowReply => LONGEST_DELAY,
                Fault::SlowTask => LONGEST_MOMENT,
                _ => Duration::ZERO,
            };
            self.history.fault(fault, Some(client), lasts);
        }
        strikes
    }

    /// Ends all faults of messages.
    pub(super) fn calm(&self) {
        locked(&self.state).message_faults.clear();
    }

    /// Drops the messages in flight, and the references by which they keep this network alive.
    pub(super) fn end(&self) {
        let queue = std::mem::take(&mut locked(&self.state).queue);
        drop(queue);
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

/// The times of arrival on one connection, where no message overtakes an earlier one.
#[derive(Debug)]
pub(super) struct Stream(Mutex<Instant>);

impl Stream {
    pub(super) fn new() -> Stream {
        Stream(Mutex::new(Instant::now()))
    }

    /// Returns when a message arrives that is sent now and takes `delay` by itself.
    pub(super) fn arrival(&self, delay: Duration) -> Instant {
        let mut last = locked(&self.0);
        *last = (*last).max(Instant::now() + delay);
        *last
    }
}
