//! The channels that a client listens to at one server, over a sequence of connections.
//!
//! A channel is subscribed by a command of its own, so the server's answer concerns it alone. On a new
//! connection, the subscriptions are sent before any call. So whatever a call finds on the server, the
//! messages about it reach this client.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::connection::{Line, Messages};
use super::failure;
use crate::protocol::interface::{Failure, Listener, ServerId};
use crate::sync::locked;
use crate::types::error::ServerError;

/// How long a refusal is remembered. Requests within this time get the same refusal, and the server is not
/// asked.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// The pause before a server is asked again that was busy when the subscriptions were repeated.
const PAUSE: Duration = Duration::from_millis(100);

type Waiter = oneshot::Sender<Result<(), Failure>>;

pub(super) struct Channels {
    server: ServerId,
    /// The server's address, for people.
    address: String,
    /// The channels belong to a shard of a cluster.
    is_sharded: bool,
    listener: Weak<dyn Listener>,
    state: Mutex<State>,
    this: Weak<Channels>,
}

#[derive(Default)]
struct State {
    /// The present connection.
    line: Option<Line>,
    channels: HashMap<Arc<str>, Channel>,
    /// How many subscriptions were asked for so far.
    asked: u64,
    /// The channels that the server refused recently, with the time and the failure.
    refused: HashMap<Arc<str>, (Instant, Failure)>,
    /// How many channels of an earlier connection are not confirmed on this one. `None` once the listener
    /// knows that all are.
    missing: Option<usize>,
    is_closed: bool,
}

#[derive(Default)]
struct Channel {
    /// The number of the last subscription that was asked for on the present connection. An answer to an
    /// earlier one says nothing: the channel may have been given up in between.
    asked: Option<u64>,
    is_confirmed: bool,
    /// It was subscribed on an earlier connection.
    is_missing: bool,
    waiters: Vec<Waiter>,
}

impl State {
    /// The channel whose last subscription has this number.
    fn answered(&mut self, name: &str, number: u64) -> Option<&mut Channel> {
        let channel = self.channels.get_mut(name)?;
        (channel.asked == Some(number)).then_some(channel)
    }
}

impl Channels {
    pub(super) fn new(
        server: ServerId,
        address: &str,
        is_sharded: bool,
        listener: Weak<dyn Listener>,
    ) -> Arc<Channels> {
        Arc::new_cyclic(|this| Channels {
            server,
            address: address.to_owned(),
            is_sharded,
            listener,
            state: Mutex::default(),
            this: Weak::clone(this),
        })
    }

    /// Subscribes to a channel, unless it is. The receiver is told when the server has confirmed it.
    pub(super) fn subscribe(
        &self,
        name: &Arc<str>,
    ) -> Result<oneshot::Receiver<Result<(), Failure>>, Failure> {
        let (waiter, confirmed) = oneshot::channel();
        let mut state = locked(&self.state);
        if state.is_closed {
            return Err(Failure::Closed);
        }
        if let Some((at, failure)) = state.refused.get(name) {
            if at.elapsed() < REFUSED_FOR {
                return Err(failure.clone());
            }
        }
        let is_new = !state.channels.contains_key(name);
        let channel = state.channels.entry(Arc::clone(name)).or_default();
        if channel.is_confirmed {
            // The receiver is here.
            let _ = waiter.send(Ok(()));
            return Ok(confirmed);
        }
        channel.waiters.retain(|waiter| !waiter.is_closed());
        channel.waiters.push(waiter);
        if is_new {
            self.send(&mut state, name);
        }
        Ok(confirmed)
    }

    /// Asks for a subscription, if there is a connection.
    fn send(&self, state: &mut State, name: &Arc<str>) {
        let (Some(line), Some(channel)) = (&state.line, state.channels.get_mut(name)) else {
            return;
        };
        state.asked += 1;
        channel.asked = Some(state.asked);
        let command = if self.is_sharded {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        line.subscribe(command, name, state.asked);
    }

    /// Ends a subscription, without waiting for that.
    pub(super) fn unsubscribe(&self, name: &str) {
        let mut state = locked(&self.state);
        let Some(channel) = state.channels.remove(name) else {
            return;
        };
        if let Some(line) = &state.line {
            let command = if self.is_sharded {
                "SUNSUBSCRIBE"
            } else {
                "UNSUBSCRIBE"
            };
            line.unsubscribe(command, name);
        }
        self.is_there(state, &channel);
    }

    /// A channel that was missing is there again, or not wanted any more.
    fn is_there(&self, mut state: std::sync::MutexGuard<'_, State>, channel: &Channel) {
        if channel.is_missing {
            state.missing = state.missing.map(|missing| missing - 1);
        }
        let is_complete = state.line.is_some() && state.missing.take_if(|missing| *missing == 0).is_some();
        drop(state);
        if is_complete {
            if let Some(listener) = self.listener.upgrade() {
                listener.reconnected(self.server);
            }
        }
    }

    /// Subscribes to all channels on a new connection. If it replaces another one, the listener is told when
    /// all are confirmed.
    pub(super) fn open(&self, line: &Line, is_first: bool) {
        let mut state = locked(&self.state);
        let state = &mut *state;
        state.line = Some(line.clone());
        let names: Vec<_> = state.channels.keys().cloned().collect();
        for name in &names {
            self.send(state, name);
        }
        state.missing = (!is_first).then_some(names.len());
        for channel in state.channels.values_mut() {
            channel.is_missing = !is_first;
        }
    }

    /// Tells the listener now, if there was nothing to subscribe to. Called once calls use the connection.
    pub(super) fn opened(&self) {
        self.is_there(locked(&self.state), &Channel::default());
    }

    /// The connection is lost.
    pub(super) fn lost(&self) {
        let mut state = locked(&self.state);
        state.line = None;
        for channel in state.channels.values_mut() {
            (channel.is_confirmed, channel.asked) = (false, None);
        }
    }

    pub(super) fn close(&self) {
        let mut state = locked(&self.state);
        state.is_closed = true;
        state.line = None;
        let channels = std::mem::take(&mut state.channels);
        drop(state);
        for waiter in channels.into_values().flat_map(|channel| channel.waiters) {
            // The caller may be gone.
            let _ = waiter.send(Err(Failure::Closed));
        }
    }

    /// Asks once more for a channel that was subscribed on an earlier connection.
    fn ask_again(&self, name: &Arc<str>) {
        let (this, name) = (Weak::clone(&self.this), Arc::clone(name));
        tokio::spawn(async move {
            sleep(PAUSE).await;
            if let Some(this) = this.upgrade() {
                let mut state = locked(&this.state);
                if state
                    .channels
                    .get(&name)
                    .is_some_and(|channel| !channel.is_confirmed)
                {
                    this.send(&mut state, &name);
                }
            }
        });
    }

    fn refusal(&self, state: &mut State, name: &Arc<str>, error: &ServerError) -> Failure {
        let pattern = pattern_of(name);
        tracing::warn!(
            server = self.address,
            channel = &**name,
            %error,
            "the server refuses the subscription: its ACL must allow the channels {pattern} to this user"
        );
        let error = format!("{error} (SUBSCRIBE {name}: the user needs the channels {pattern})");
        let failure = Failure::Refused(ServerError::new(error));
        if state.refused.len() == state.refused.capacity() {
            state.refused.retain(|_, (at, _)| at.elapsed() < REFUSED_FOR);
            // As many as are left now fit before the next scan.
            state.refused.reserve(state.refused.len() + 1);
        }
        let refused = (Instant::now(), failure.clone());
        state.refused.insert(Arc::clone(name), refused);
        failure
    }
}

impl Messages for Channels {
    fn message(&self, channel: &str, text: &str) {
        if let Some(listener) = self.listener.upgrade() {
            listener.pushed(self.server, channel, text);
        }
    }

    fn subscribed(&self, name: &str, number: u64) {
        let mut state = locked(&self.state);
        let Some(channel) = state.answered(name, number) else {
            return;
        };
        let confirmed = Channel {
            is_confirmed: true,
            ..Channel::default()
        };
        let asked = std::mem::replace(channel, confirmed);
        self.is_there(state, &asked);
        for waiter in asked.waiters {
            // The caller may be gone.
            let _ = waiter.send(Ok(()));
        }
    }

    fn not_subscribed(&self, name: &Arc<str>, number: u64, said: &str) {
        let failure = failure::of_reply(said);
        let mut state = locked(&self.state);
        let Some(channel) = state.answered(name, number) else {
            return;
        };
        let is_unserved = failure::is_of_a_slot_unserved(&failure);
        let is_redirected = failure::is_redirection(&failure);
        if channel.is_missing && !is_unserved && !is_redirected && !matches!(failure, Failure::Refused(_)) {
            return self.ask_again(name);
        }
        let Some(channel) = state.channels.remove(name) else {
            return;
        };
        let failure = match failure {
            Failure::Refused(error) => self.refusal(&mut state, name, &error),
            failure => failure,
        };
        self.is_there(state, &channel);
        for waiter in channel.waiters {
            // The caller may be gone.
            let _ = waiter.send(Err(failure.clone()));
        }
        if is_unserved {
            if let Some(listener) = self.listener.upgrade() {
                listener.left(self.server, name);
            }
        }
    }

    fn unsubscribed(&self, name: &str) {
        let mut state = locked(&self.state);
        // A subscription that this client has ended is not there any more.
        if !state
            .channels
            .get(name)
            .is_some_and(|channel| channel.is_confirmed)
        {
            return;
        }
        state.channels.remove(name);
        drop(state);
        if let Some(listener) = self.listener.upgrade() {
            listener.left(self.server, name);
        }
    }

    fn not_unsubscribed(&self, said: &str) {
        // A server that has ended a subscription by itself refuses to end it again.
        if let Failure::Refused(error) = failure::of_reply(said) {
            // The subscription goes on until the connection ends, and its messages are ignored.
            tracing::warn!(server = self.address, %error, "the server refuses to end a subscription");
        }
    }
}

/// The pattern that an ACL must allow for this channel and for all channels with the same prefix.
fn pattern_of(channel: &str) -> String {
    match channel.split_once(":unlock:{") {
        Some((prefix, _)) => format!("&{prefix}:*"),
        None => format!("&{channel}"),
    }
}
