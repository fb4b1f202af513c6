//! All waitlists of a client, by channel. Pushes and reconnects arrive here.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dashmap::DashMap;

use crate::engine::background::Background;
use crate::engine::client::Client;
use crate::engine::heard::Listening;
use crate::engine::waitlist::Waitlist;
use crate::engine::waitlist::driver::drive;
use crate::protocol::keys::Keys;
use crate::protocol::{Failure, Listener, ServerId};
use crate::time::clock::LocalTime;
use crate::time::server_time::Ticket;
use crate::types::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Waitlists {
    client: Arc<Client>,
    background: Arc<Background>,
    waitlists: DashMap<Arc<str>, Arc<Waitlist>>,
    waiting: AtomicUsize,
}

impl Waitlists {
    pub(in crate::engine) fn new(client: Arc<Client>, background: Arc<Background>) -> Waitlists {
        Waitlists {
            client,
            background,
            waitlists: DashMap::new(),
            waiting: AtomicUsize::new(0),
        }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(in crate::engine) fn background(&self) -> &Arc<Background> {
        &self.background
    }

    pub(crate) fn len(&self) -> usize {
        self.waitlists.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a caller against `max_waiters` for as long as the permit lives.
    pub(crate) fn count_caller(self: &Arc<Self>) -> Result<Permit> {
        let max_waiters = self.client.options.max_waiters;
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= max_waiters {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::QueueFull {
                name: Arc::default(),
                max_waiters,
            });
        }
        Ok(Permit(Arc::clone(self)))
    }

    /// Enters the waitlist of a lock, and creates it if needed. `join` runs before the waitlist can be
    /// removed.
    pub(in crate::engine) fn enter<T>(
        &self,
        keys: &Arc<Keys>,
        channel: &Arc<str>,
        join: impl FnOnce(&Waitlist) -> T,
    ) -> (Arc<Waitlist>, T) {
        let make = || {
            Waitlist::new(
                Arc::clone(keys),
                Arc::clone(channel),
                Arc::clone(&self.client),
                Arc::clone(&self.background),
            )
        };
        let waitlist = self.waitlists.entry(Arc::clone(channel)).or_insert_with(make);
        let joined = join(&waitlist);
        (Arc::clone(&waitlist), joined)
    }

    /// Listens to the channel of a lock. If it is not subscribed to, this subscribes, and returns `None`.
    pub(crate) fn listen(self: &Arc<Self>, keys: &Arc<Keys>, channel: &Arc<str>) -> Option<Listening> {
        let (waitlist, needs_driver) = self.enter(keys, channel, Waitlist::stay);
        let listening = waitlist.heard.listen();
        if needs_driver {
            self.client.spawn(drive(Arc::clone(self), waitlist));
        }
        listening
    }

    /// A place in the queue of a lock, for a request that arrives now and asks later. `None` while no server
    /// has reported its time: then the server gives the place.
    pub(crate) fn next_ticket(&self, keys: &Arc<Keys>, channel: &Arc<str>) -> Option<Ticket> {
        let (waitlist, ticket) = self.enter(keys, channel, Waitlist::next_ticket);
        self.discard(&waitlist);
        ticket
    }

    /// Removes a waitlist that has no driver, unless it has a waiter.
    pub(in crate::engine) fn discard(&self, waitlist: &Waitlist) {
        if waitlist.is_idle() {
            self.waitlists
                .remove_if(&waitlist.channel, |_, waitlist| waitlist.is_idle());
        }
    }

    /// Removes a waitlist whose driver leaves, unless a request has entered it. The subscription ends while
    /// no new waitlist can be created for the channel, so it ends before the next one begins.
    pub(super) fn remove(&self, waitlist: &Waitlist) -> bool {
        let leaves = |_: &Arc<str>, waitlist: &Arc<Waitlist>| {
            let leaves = waitlist.is_empty();
            if leaves {
                self.client.store.unsubscribe(&waitlist.channel);
                waitlist.heard.lost();
            }
            leaves
        };
        self.waitlists.remove_if(&waitlist.channel, leaves).is_some()
    }

    fn of_channel(&self, channel: &str) -> Option<Arc<Waitlist>> {
        Some(Arc::clone(&*self.waitlists.get(channel)?))
    }

    /// The time until the lock of a channel is expected to be free next.
    pub(crate) fn free_in(&self, channel: &str) -> Duration {
        let waitlist = self.of_channel(channel);
        waitlist.map_or(Duration::ZERO, |waitlist| waitlist.free_in())
    }

    /// Whether the last call that asked for the lock failed.
    pub(crate) fn is_failing(&self, channel: &str) -> bool {
        self.of_channel(channel)
            .is_some_and(|waitlist| waitlist.is_failing())
    }

    /// Why the server of a lock has said nothing about it since this time, or `None` if it has, also if it is
    /// known to be busy with other calls.
    pub(crate) fn why_unheard(&self, keys: &Keys, channel: &str, since: LocalTime) -> Option<Failure> {
        match self.of_channel(channel) {
            Some(waitlist) => waitlist.why_unheard(None, since),
            None => self.client.store.why_unheard(&keys.lock, since),
        }
    }

    /// Ends all waits. The drivers leave.
    pub(crate) fn close(&self) {
        let _running = self.background.keep_running();
        self.client.set_closed();
        for waitlist in self.all() {
            waitlist.fail_all(&Error::Closed);
        }
    }

    /// All waitlists, in the order of their channels, so that nothing depends on the order of the map.
    fn all(&self) -> Vec<Arc<Waitlist>> {
        let mut waitlists: Vec<_> = self
            .waitlists
            .iter()
            .map(|waitlist| Arc::clone(&waitlist))
            .collect();
        waitlists.sort_unstable_by(|a, b| a.channel.cmp(&b.channel));
        waitlists
    }
}

impl Listener for Waitlists {
    fn reopened(&self, connection: &'static str, server: &str) {
        self.client.counters.reconnected(connection, server);
    }

    fn pushed(&self, from: ServerId, channel: &str, message: &str) {
        if let Some(waitlist) = self.of_channel(channel) {
            waitlist.pushed(from, message);
        }
    }

    fn lost(&self, server: ServerId) {
        for waitlist in self.all() {
            if self.client.store.server_of(&waitlist.keys) == server {
                waitlist.heard.lost();
            }
        }
    }

    fn left(&self, _: ServerId, channel: &str) {
        if let Some(waitlist) = self.of_channel(channel) {
            waitlist.heard.lost();
        }
    }

    fn replaced(&self, server: ServerId) {
        self.client.clocks.forget(server);
    }

    fn reconnected(&self, server: ServerId) {
        self.replaced(server);
        for waitlist in self.all() {
            if self.client.store.server_of(&waitlist.keys) == server {
                waitlist.heard.repeated();
                waitlist.ask_all();
            }
        }
    }
}

/// Counts one waiting caller while it lives.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Waitlists>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes the place of the waitlists while their store connects.
#[derive(Debug, Default)]
pub(crate) struct LateListener(OnceLock<Weak<Waitlists>>);

impl LateListener {
    pub(in crate::engine) fn lead_to(&self, waitlists: &Arc<Waitlists>) {
        // The cell is set only once, by the code that created it.
        let _ = self.0.set(Arc::downgrade(waitlists));
    }

    fn waitlists(&self) -> Option<Arc<Waitlists>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

impl Listener for LateListener {
    fn reopened(&self, connection: &'static str, server: &str) {
        if let Some(waitlists) = self.waitlists() {
            waitlists.reopened(connection, server);
        }
    }

    fn pushed(&self, from: ServerId, channel: &str, message: &str) {
        if let Some(waitlists) = self.waitlists() {
            waitlists.pushed(from, channel, message);
        }
    }

    fn lost(&self, server: ServerId) {
        if let Some(waitlists) = self.waitlists() {
            waitlists.lost(server);
        }
    }

    fn left(&self, server: ServerId, channel: &str) {
        if let Some(waitlists) = self.waitlists() {
            waitlists.left(server, channel);
        }
    }

    fn replaced(&self, server: ServerId) {
        if let Some(waitlists) = self.waitlists() {
            waitlists.replaced(server);
        }
    }

    fn reconnected(&self, server: ServerId) {
        if let Some(waitlists) = self.waitlists() {
            waitlists.reconnected(server);
        }
    }
}
