//! Locks inside this process: the same order, leases and fences, without a server.

mod labels;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::Written;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use crate::protocol::interface::{
    Answer, Call, ConnectionId, Connections, Failure, KeepAlive, Listener, Page, Position, ServerId, Stamp,
    StoreFuture,
};
use crate::protocol::keys::Keys;
use crate::protocol::operations::SetLabel;
use crate::protocol::rules::{BOUND, ByRules, Channels, Now, Rules, Run};
use crate::time::clock::{Clock, LocalTime};
use crate::time::clock_offset::Sample;
use crate::time::server_time::{ServerTime, millis};
use crate::types::fence::Fence;

/// A store for locks in memory, in the place of a server. Clones are the same store, and all managers that
/// are built on it share its locks.
///
/// Its time is Tokio's clock, so tests that pause the clock can let leases end.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// use fairlock::{Error, LockManager, MemoryStore};
///
/// // Two clients of one server, for a test.
/// let server = MemoryStore::new();
/// let here = LockManager::builder().in_memory(&server)?;
/// let there = LockManager::builder().in_memory(&server)?;
/// let guard = here.lock("a").acquire().await?;
/// assert!(matches!(there.lock("a").try_acquire().await, Err(Error::Busy { .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Shared>);

impl MemoryStore {
    /// Creates a store without locks. It needs no runtime.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Creates a client of this store. `listener` gets the messages of the channels to which the client
    /// subscribes.
    pub(crate) fn connect(&self, listener: Weak<dyn Listener>) -> Arc<Connection> {
        Arc::new(Connection(Arc::new(Client {
            store: self.0.clone(),
            listener,
            closed: AtomicBool::new(false),
        })))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("locks", &self.0.state().rules.locks.len())
            .finish_non_exhaustive()
    }
}

struct Shared {
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    rules: Rules,
    /// The time of the store's clock at the origin of `clock`. It is the real time, so that times and fences
    /// look as they do on a server.
    origin: Duration,
    /// The time of the last call, in µs, as in a ticket or a fence.
    last_us: u64,
    subscribers: HashMap<Arc<str>, Vec<Arc<Client>>>,
}

impl Default for Shared {
    fn default() -> Shared {
        let real = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Shared {
            clock: Clock::tokio(),
            state: Mutex::new(State {
                rules: Rules::new(BOUND),
                origin: Duration::from_millis(millis(real)),
                last_us: 0,
                subscribers: HashMap::new(),
            }),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The store's time at a local time.
    fn at(&self, local: LocalTime) -> Duration {
        self.origin + local.since(LocalTime::ZERO)
    }
}

/// The messages of one call, which are delivered after the store is unlocked.
struct Deliveries<'a> {
    subscribers: &'a HashMap<Arc<str>, Vec<Arc<Client>>>,
    messages: Vec<(Arc<dyn Listener>, String, String)>,
}

impl<'a> Deliveries<'a> {
    fn clients(&self, channel: &str) -> std::slice::Iter<'a, Arc<Client>> {
        self.subscribers
            .get(channel)
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
    }
}

impl Channels for Deliveries<'_> {
    fn subscribers(&self, channel: &str) -> usize {
        let is_counted = |client: &&Arc<Client>| client.listener.strong_count() > 0;
        self.clients(channel).filter(is_counted).count()
    }

    fn publish(&mut self, channel: &str, message: &str) -> bool {
        for client in self.clients(channel) {
            // The listener is kept until the store is unlocked. This may become the last reference to it, and
            // its drop may call the store.
            if let Some(listener) = client.listener.upgrade() {
                self.messages
                    .push((listener, channel.to_owned(), message.to_owned()));
            }
        }
        true
    }
}

struct Client {
    store: Arc<Shared>,
    listener: Weak<dyn Listener>,
    closed: AtomicBool,
}

impl Client {
    fn check(&self) -> Result<(), Failure> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Failure::Closed);
        }
        Ok(())
    }

    /// Runs a call. Does nothing if the floor is too far ahead.
    fn execute<T>(
        &self,
        floor: Option<Fence>,
        stamp: Option<&dyn Stamp>,
        work: impl FnOnce(&mut Rules, Run<'_>) -> T,
    ) -> Result<Answer<T>, Failure> {
        // The call is written and executed in one step.
        let not_after = match stamp {
            Some(stamp) => stamp.written(ConnectionId::default()).ok_or(Failure::GivenUp)?,
            None => ServerTime::MAX,
        };
        let store = &*self.store;
        let mut state = store.state();
        self.check()?;
        let sent = store.clock.now();
        let time = state.at(sent);
        // While tokio's clock is paused, all calls happen within one µs. Their tickets must still tell their
        // order.
        let us = u64::try_from(time.as_micros())
            .unwrap_or(u64::MAX)
            .max(state.last_us + 1);
        let now = Now { us, ms: millis(time) };
        if now.is_behind(floor) {
            return Err(Failure::clock_behind());
        }
        let State {
            rules,
            last_us,
            subscribers,
            ..
        } = &mut *state;
        *last_us = us;
        rules.sweep(now);
        let mut deliveries = Deliveries {
            subscribers,
            messages: Vec::new(),
        };
        let reply = work(
            rules,
            Run {
                now,
                not_after,
                channels: &mut deliveries,
            },
        );
        let messages = deliveries.messages;
        drop(state);
        for (listener, channel, message) in messages {
            listener.pushed(ServerId::default(), &channel, &message);
        }
        let at = Sample {
            sent,
            received: sent,
            now: ServerTime::from_ms(now.ms),
        };
        Ok(Answer {
            on: ConnectionId::default(),
            at,
            reply,
        })
    }

    /// Checks under the store's lock whether the client is closed. Closing takes that lock too, so no client
    /// subscribes afterwards.
    fn subscribe(self: &Arc<Client>, channel: &Arc<str>) -> Result<(), Failure> {
        let mut state = self.store.state();
        self.check()?;
        let clients = state.subscribers.entry(channel.clone()).or_default();
        if !clients.iter().any(|client| Arc::ptr_eq(client, self)) {
            clients.push(self.clone());
        }
        Ok(())
    }

    fn unsubscribe(self: &Arc<Client>, channel: &str) {
        let mut state = self.store.state();
        if let Some(clients) = state.subscribers.get_mut(channel) {
            clients.retain(|client| !Arc::ptr_eq(client, self));
            if clients.is_empty() {
                state.subscribers.remove(channel);
            }
        }
    }

    fn close(self: &Arc<Client>) {
        let mut state = self.store.state();
        if !self.closed.swap(true, Ordering::AcqRel) {
            state.subscribers.retain(|_, clients| {
                clients.retain(|client| !Arc::ptr_eq(client, self));
                !clients.is_empty()
            });
        }
    }
}

/// One client of a [`MemoryStore`]. Dropping it closes it.
pub(crate) struct Connection(Arc<Client>);

impl Connection {
    /// Does all work at the first poll of the call.
    pub(crate) fn call<O: ByRules>(&self, operation: O) -> Call<O::Reply> {
        let client = self.0.clone();
        Box::pin(async move {
            client.execute(operation.floor(), operation.stamp(), |rules, run| {
                operation.by_rules(rules, run)
            })
        })
    }

    /// Sets a label at once, and keeps it until the future is dropped.
    pub(crate) fn keep_label(&self, call: SetLabel) -> KeepAlive {
        labels::keep(&self.0.store, call)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("closed", &self.0.closed)
            .finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Connections for Connection {
    fn list(&self, prefix: &str, _: Position) -> StoreFuture<Page> {
        let (client, prefix) = (self.0.clone(), prefix.to_owned());
        Box::pin(async move {
            client.check()?;
            let state = client.store.state();
            let all = state.rules.locks.keys().chain(state.rules.permits.keys());
            let keys = all.filter(|key| Keys::of_lock_key(&prefix, key).is_some());
            Ok(Page {
                keys: keys.cloned().collect(),
                next: None,
            })
        })
    }

    fn time(&self) -> Call<()> {
        let client = self.0.clone();
        Box::pin(async move { client.execute(None, None, |_, _| ()) })
    }

    fn subscribe(&self, channel: Arc<str>) -> StoreFuture<()> {
        let client = self.0.clone();
        Box::pin(async move { client.subscribe(&channel) })
    }

    fn unsubscribe(&self, channel: &str) {
        self.0.unsubscribe(channel);
    }

    fn clock(&self) -> Clock {
        self.0.store.clock
    }

    fn close(&self) {
        self.0.close();
    }
}
