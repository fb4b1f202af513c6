//! The subscriber connections of a simulated client, one [`SimSubscriber`] after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::connection::Ends;
use super::history::{Event, Fault};
use super::network::Stream;
use crate::protocol::{Connections, Failure, Listener, Push, ServerId};
use crate::servers::memory::Connection;
use crate::sync::locked;
use crate::types::error::ServerError;

/// The channels of a client, over all its subscriber connections.
pub(super) struct SimSubscribers {
    ends: Weak<Ends>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    channels: BTreeMap<Arc<str>, Channel>,
    current: Option<Open>,
    closed: bool,
}

/// A channel that the client subscribes to.
#[derive(Default)]
struct Channel {
    confirmed: bool,
    waiters: Vec<oneshot::Sender<()>>,
}

#[derive(Clone)]
struct Open {
    subscriber: Arc<SimSubscriber>,
    connection: Arc<Connection>,
}

/// One subscriber connection.
#[derive(Debug)]
struct SimSubscriber {
    ends: Weak<Ends>,
    commands: Stream,
    messages: Stream,
    cut: AtomicBool,
}

impl SimSubscribers {
    pub(super) fn new(ends: Weak<Ends>) -> SimSubscribers {
        SimSubscribers {
            ends,
            state: Mutex::default(),
        }
    }

    fn ends(&self) -> Arc<Ends> {
        self.ends.upgrade().expect("its owner is alive")
    }

    /// Opens a connection without subscriptions, unless the client is closed.
    pub(super) fn open(&self) {
        let ends = self.ends();
        let subscriber = Arc::new(SimSubscriber {
            ends: Weak::clone(&self.ends),
            commands: Stream::new(),
            messages: Stream::new(),
            cut: AtomicBool::new(false),
        });
        let listener: Weak<dyn Listener> = Arc::<SimSubscriber>::downgrade(&subscriber);
        let open = Open {
            connection: ends.server.store().connect(listener),
            subscriber,
        };
        let mut state = locked(&self.state);
        if state.closed {
            return;
        }
        state.current = Some(open);
    }

    /// Subscribes to all channels again after a cut, and then notifies the client. Without a command
    /// connection, the server of the calls is not known; then [`replace`](Self::replace) does this later.
    fn reopen(&self) {
        if locked(&self.state).current.is_some() || !self.ends().is_up() {
            return;
        }
        self.open();
        let channels: Vec<Arc<str>> = locked(&self.state).channels.keys().cloned().collect();
        let ends = self.ends();
        self.send(move |open, ends| {
            for channel in &channels {
                open.subscribe(channel);
            }
            open.subscriber.clone().answer(ends, move |ends| {
                for channel in &channels {
                    ends.subscribers.confirm(channel);
                }
                if let Some(listener) = ends.listener.upgrade() {
                    listener.reconnected(ServerId::default());
                }
            });
        });
        drop(ends);
    }

    pub(super) async fn subscribe(&self, channel: Arc<str>) -> Result<(), Failure> {
        let (waiter, confirmed) = oneshot::channel();
        {
            let mut state = locked(&self.state);
            if state.closed {
                return Err(Failure::Closed);
            }
            let wanted = state.channels.entry(Arc::clone(&channel)).or_default();
            if wanted.confirmed {
                return Ok(());
            }
            wanted.waiters.push(waiter);
        }
        self.send(move |open, ends| {
            open.subscribe(&channel);
            open.subscriber
                .clone()
                .answer(ends, move |ends| ends.subscribers.confirm(&channel));
        });
        match tokio::time::timeout(self.ends().attempt_timeout, confirmed).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) if locked(&self.state).closed => Err(Failure::Closed),
            _ => Err(Failure::Unknown(ServerError::new("no confirmation"))),
        }
    }

    pub(super) fn unsubscribe(&self, channel: &str) {
        if locked(&self.state).channels.remove(channel).is_some() {
            let channel = channel.to_owned();
            self.send(move |open, _| open.connection.unsubscribe(&channel));
        }
    }

    /// Runs a command on the server over the current connection, if that stays open for long enough.
    fn send(&self, command: impl FnOnce(&Open, &Arc<Ends>) + Send + 'static) {
        let Some(open) = locked(&self.state).current.clone() else {
            return;
        };
        let ends = self.ends();
        let arrival = open.subscriber.commands.arrival(ends.network.latency());
        let at = Arc::clone(&ends);
        ends.network.at(arrival, move || {
            if !open.subscriber.is_cut() {
                command(&open, &at);
            }
        });
    }

    fn confirm(&self, channel: &Arc<str>) {
        let waiters = match locked(&self.state).channels.get_mut(channel) {
            Some(wanted) => {
                wanted.confirmed = true;
                std::mem::take(&mut wanted.waiters)
            }
            None => Vec::new(),
        };
        for waiter in waiters {
            // The waiter may be gone.
            let _ = waiter.send(());
        }
    }

    /// Breaks the connection. If it is half open, the server believes it to be alive for a while. Returns
    /// when there will be a new connection, or `None` if there was none.
    pub(super) fn cut(&self, half_open: bool) -> Option<Duration> {
        let open = {
            let mut state = locked(&self.state);
            for channel in state.channels.values_mut() {
                channel.confirmed = false;
            }
            state.current.take()
        };
        let open = open?;
        open.subscriber.cut.store(true, Ordering::Relaxed);
        let ends = self.ends();
        let alive = if half_open {
            ends.network.ms(0..=10_000)
        } else {
            Duration::ZERO
        };
        ends.network.after(alive, move || open.connection.close());
        let back = ends.network.ms(0..=4000);
        let at = Arc::clone(&ends);
        ends.network.after(back, move || {
            let process = Arc::clone(&at.process);
            process.deliver(move || at.subscribers.reopen());
        });
        Some(back)
    }

    /// Replaces the current connection.
    pub(super) fn replace(&self) {
        let open = {
            let mut state = locked(&self.state);
            for channel in state.channels.values_mut() {
                channel.confirmed = false;
            }
            state.current.take()
        };
        if let Some(open) = open {
            open.subscriber.cut.store(true, Ordering::Relaxed);
            open.connection.close();
        }
        self.reopen();
    }

    /// Moves the subscriptions of the current connection to a replica. The primary does not count them, so it
    /// publishes nothing to this client, and the client does not notice.
    pub(super) fn move_to_replica(&self) {
        if let Some(open) = &locked(&self.state).current {
            open.connection.close();
        }
    }

    /// Makes the server lose one subscription. The client does not notice.
    pub(super) fn lose_one(&self) {
        let state = locked(&self.state);
        let Some(open) = state.current.clone() else { return };
        let channel = state.channels.keys().next().cloned();
        drop(state);
        if let Some(channel) = channel {
            open.connection.unsubscribe(&channel);
        }
    }

    pub(super) fn close(&self) {
        let (open, channels) = {
            let mut state = locked(&self.state);
            state.closed = true;
            (state.current.take(), std::mem::take(&mut state.channels))
        };
        drop(channels);
        if let Some(open) = open {
            open.subscriber.cut.store(true, Ordering::Relaxed);
            open.connection.close();
        }
    }
}

impl Open {
    fn subscribe(&self, channel: &Arc<str>) {
        // This can fail only on a closed connection, on which no caller waits.
        let _ = self.connection.subscribe(Arc::clone(channel)).now_or_never();
    }
}

impl SimSubscriber {
    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Delivers something to the client, in the order of this connection.
    fn answer(self: Arc<Self>, ends: &Arc<Ends>, tell: impl FnOnce(&Arc<Ends>) + Send + 'static) {
        let arrival = self.messages.arrival(ends.network.latency());
        let at = Arc::clone(ends);
        ends.network.at(arrival, move || self.deliver(&at, tell));
    }

    fn deliver(self: Arc<Self>, ends: &Arc<Ends>, tell: impl FnOnce(&Arc<Ends>) + Send + 'static) {
        let at = Arc::clone(ends);
        ends.process.deliver(move || {
            if !self.is_cut() {
                tell(&at);
            }
        });
    }

    fn push(self: Arc<Self>, ends: &Arc<Ends>, channel: String, message: String) {
        self.answer(ends, move |ends| {
            if let Some(listener) = ends.listener.upgrade() {
                listener.pushed(ServerId::default(), &channel, &message);
            }
        });
    }
}

/// The server's side of the connection, which sends messages to the client.
impl Listener for SimSubscriber {
    fn pushed(&self, _: ServerId, channel: &str, message: &str) {
        let Some(ends) = self.ends.upgrade() else { return };
        let Some(subscriber) = ends.subscribers.current(self) else {
            return;
        };
        let network = &ends.network;
        if let (Some(Push::Granted(grants)), Some((key, _))) =
            (Push::parse(message), channel.rsplit_once(':'))
        {
            for grant in grants {
                network.history.record(Event::Pushed {
                    key: key.replacen(":unlock", "", 1).trim_end_matches(':').to_owned(),
                    grant,
                });
            }
        }
        if network.strikes(Fault::LostPush, ends.client) {
            return;
        }
        let (channel, message) = (channel.to_owned(), message.to_owned());
        let double = network.strikes(Fault::DoublePush, ends.client);
        let slow = network.strikes(Fault::SlowPush, ends.client);
        if double || slow {
            let (at, subscriber) = (Arc::clone(&ends), Arc::clone(&subscriber));
            let (channel, message) = (channel.clone(), message.clone());
            network.after(network.ms(5..=6000), move || {
                subscriber.push(&at, channel, message)
            });
        }
        if !slow {
            subscriber.push(&ends, channel, message);
        }
    }

    fn replaced(&self, _: ServerId) {}

    fn reconnected(&self, _: ServerId) {}
}

impl SimSubscribers {
    /// Returns the current connection, if it is this one.
    fn current(&self, subscriber: &SimSubscriber) -> Option<Arc<SimSubscriber>> {
        let state = locked(&self.state);
        let current = &state.current.as_ref()?.subscriber;
        std::ptr::eq(Arc::as_ptr(current), subscriber).then(|| Arc::clone(current))
    }
}

impl fmt::Debug for SimSubscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimSubscribers").finish_non_exhaustive()
    }
}
