//! The requested channels and their states.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Instruction, REFUSED_FOR, Subscriber, Waiter};
use crate::protocol::interface::Failure;
use crate::types::error::ServerError;

/// A requested channel.
#[derive(Default)]
pub(super) struct Channel {
    pub(super) status: Status,
    pub(super) waiters: Vec<Waiter>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Status {
    /// Was never confirmed.
    #[default]
    Asked,
    Confirmed,
    /// Was confirmed on a connection that is lost.
    Former,
}

impl Subscriber {
    /// Marks confirmed channels as no longer confirmed, and returns them.
    pub(super) fn disown(&mut self) -> Vec<Arc<str>> {
        let mut former = Vec::new();
        for (name, channel) in &mut self.channels {
            if channel.status == Status::Confirmed {
                channel.status = Status::Former;
                former.push(Arc::clone(name));
            }
        }
        former
    }

    /// Takes in a request. If it ends a subscription, returns the channel.
    pub(super) fn take_in(&mut self, request: Instruction) -> Option<Arc<str>> {
        match request {
            Instruction::Subscribe(name, waiter) => {
                if let Some(failure) = self.refusal(&name) {
                    let _ = waiter.send(Err(failure));
                    return None;
                }
                let channel = self.channels.entry(name).or_insert_with_key(|name| {
                    self.asked.push(Arc::clone(name));
                    Channel::default()
                });
                if channel.status == Status::Confirmed {
                    let _ = waiter.send(Ok(()));
                } else {
                    channel.waiters.retain(|waiter| !waiter.is_closed());
                    channel.waiters.push(waiter);
                }
                None
            }
            Instruction::Unsubscribe(name) => self.give_up(&name).then_some(name),
            Instruction::Forget(name) => {
                self.give_up(&name);
                None
            }
            Instruction::Follow => {
                self.follows = true;
                None
            }
            Instruction::Unseen => {
                self.unseen = true;
                None
            }
        }
    }

    /// The recent refusal of the channel by the server, if any.
    pub(super) fn refusal(&self, name: &Arc<str>) -> Option<Failure> {
        let (at, failure) = self.refused.get(name)?;
        (at.elapsed() < REFUSED_FOR).then(|| failure.clone())
    }

    /// Gives up a channel that nothing needs any more. Returns whether it was confirmed.
    pub(super) fn give_up(&mut self, name: &Arc<str>) -> bool {
        let Some(channel) = self.channels.get_mut(name) else {
            return false;
        };
        let confirmed = channel.status == Status::Confirmed;
        if confirmed {
            self.channels.remove(name);
        } else {
            // The channel is removed when its turn comes.
            *channel = Channel::default();
        }
        confirmed
    }

    /// Whether a channel must still be subscribed. Removes the channel if it was never confirmed and has no
    /// waiters.
    pub(super) fn is_wanted(&mut self, name: &Arc<str>) -> bool {
        let Some(channel) = self.channels.get(name) else {
            return false;
        };
        let abandoned =
            channel.status == Status::Asked && channel.waiters.iter().all(oneshot::Sender::is_closed);
        if abandoned {
            self.channels.remove(name);
        }
        !abandoned && self.channels[name].status != Status::Confirmed
    }

    pub(super) fn confirm(&mut self, name: &Arc<str>) {
        if let Some(channel) = self.channels.get_mut(name) {
            channel.status = Status::Confirmed;
            for waiter in channel.waiters.drain(..) {
                let _ = waiter.send(Ok(()));
            }
        }
    }

    pub(super) fn refuse(&mut self, name: &Arc<str>, error: &ServerError) {
        let pattern = pattern_of(name);
        tracing::warn!(
            server = self.connector.server(),
            channel = &**name,
            %error,
            "the server refuses the subscription: its ACL must allow the channels {pattern} to this user"
        );
        let error = ServerError::new(format!(
            "{error} (SUBSCRIBE {name}: the user needs the channels {pattern})"
        ));
        let failure = Failure::Refused(error);
        if self.refused.len() == self.refused.capacity() {
            self.refused.retain(|_, (at, _)| at.elapsed() < REFUSED_FOR);
            // As many as are left now fit before the next scan.
            self.refused.reserve(self.refused.len() + 1);
        }
        self.refused
            .insert(Arc::clone(name), (Instant::now(), failure.clone()));
        self.end(name, &failure);
    }

    /// Removes a channel that must not be asked for until its slot is served. The next connection would end
    /// as this one did.
    pub(super) fn unserved(&mut self, name: &Arc<str>, failure: &Failure) {
        self.end(name, failure);
        if let Some(listener) = self.listener.upgrade() {
            listener.unserved(self.server, name);
        }
    }

    /// Removes a channel, and passes the failure to its waiters.
    pub(super) fn end(&mut self, name: &Arc<str>, failure: &Failure) {
        let channel = self.channels.remove(name);
        for waiter in channel.map(|channel| channel.waiters).unwrap_or_default() {
            let _ = waiter.send(Err(failure.clone()));
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
