//! A server at the other end of a network: calls take time to it and back, and it may not answer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::engine::waitlist::registry::LateListener;
use crate::protocol::{Call, Connections, Failure, Listener, Page, Position, ServerId, StoreFuture};
use crate::servers::Store;
use crate::sync::locked;
use crate::tests::double::{AnyOperation, AnyReply, Double};
use crate::time::clock::Clock;
use crate::types::error::ServerError;

/// What becomes of the calls of one client to one server.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// A call takes this long to the server.
    Up(Duration),
    /// A call is executed at once, and the reply to it takes this long.
    Replies(Duration),
    /// The server works on a call for this long, on one after the other.
    Works(Duration),
    /// Nothing is executed, and nothing is answered.
    Hung,
    /// Nothing is executed, as the server says.
    Busy,
    /// There is no connection. Nothing is executed, and that is known at once.
    Down,
    /// There is no connection. Calls wait for the next one, and messages are lost.
    Cut,
    /// The server refuses this client.
    Refusing,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) server: Store,
    pub(super) state: Mutex<State>,
    /// When the server has worked on all calls so far.
    pub(super) done: Mutex<Instant>,
    /// Whether this client has a connection to the server, as it knows.
    pub(super) is_connected: watch::Sender<bool>,
    /// The subscriptions, which a new connection repeats.
    pub(super) channels: Mutex<BTreeSet<Arc<str>>>,
    pub(super) listener: Arc<LateListener>,
}

/// As long as a real connection waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Link {
    /// Changes what becomes of the calls from now on. A server that hangs has a connection for a while.
    pub(super) fn set(self: &Arc<Self>, state: State) {
        let before = std::mem::replace(&mut *locked(&self.state), state);
        if matches!(before, State::Cut) {
            self.connect_again();
        }
        match state {
            State::Down => drop(self.is_connected.send_replace(false)),
            State::Cut => {
                self.is_connected.send_replace(false);
                locked(&self.channels)
                    .iter()
                    .for_each(|channel| self.server.unsubscribe(channel));
            }
            State::Hung => {
                let link = Arc::clone(self);
                tokio::spawn(async move {
                    sleep(PATIENCE).await;
                    if matches!(*locked(&link.state), State::Hung) {
                        link.is_connected.send_replace(false);
                    }
                });
            }
            _ => drop(self.is_connected.send_replace(true)),
        }
    }

    fn connect_again(&self) {
        let server = ServerId::default();
        self.listener.replaced(server);
        for channel in &*locked(&self.channels) {
            let subscribed = self.server.subscribe(Arc::clone(channel));
            subscribed.now_or_never().unwrap().unwrap();
        }
        self.listener.reconnected(server);
    }

    fn carry<T: Send + 'static>(&self, call: Call<T>) -> Call<T> {
        let state = *locked(&self.state);
        let mut done = Instant::now();
        if let State::Works(time) = state {
            let mut last = locked(&self.done);
            done = done.max(*last) + time;
            *last = done;
        }
        let mut link = self.is_connected.subscribe();
        Box::pin(async move {
            match state {
                State::Up(way) => {
                    if !way.is_zero() {
                        sleep(way).await;
                    }
                    call.await
                }
                State::Replies(way) => {
                    let reply = call.await;
                    sleep(way).await;
                    reply
                }
                State::Works(_) => {
                    sleep_until(done).await;
                    call.await
                }
                State::Hung => {
                    sleep(PATIENCE).await;
                    Err(Failure::Unknown(ServerError::new("no answer")))
                }
                State::Cut => {
                    let connected = link.wait_for(|is_connected| *is_connected);
                    if timeout(PATIENCE, connected).await.is_err() {
                        return Err(Failure::NotExecuted(ServerError::new("no connection")));
                    }
                    call.await
                }
                State::Busy => Err(Failure::NotExecuted(ServerError::new("BUSY"))),
                State::Refusing => Err(Failure::Refused(ServerError::new("NOPERM"))),
                State::Down => Err(Failure::NotExecuted(ServerError::new("connection refused"))),
            }
        })
    }
}

impl Double for Link {
    fn call(&self, operation: AnyOperation) -> Call<AnyReply> {
        self.carry(self.server.call(operation))
    }
}

impl Connections for Link {
    fn list(&self, prefix: &str, from: Position) -> StoreFuture<Page> {
        self.server.list(prefix, from)
    }

    fn time(&self) -> Call<()> {
        self.carry(self.server.time())
    }

    fn subscribe(&self, channel: Arc<str>) -> StoreFuture<()> {
        locked(&self.channels).insert(Arc::clone(&channel));
        let mut link = self.is_connected.subscribe();
        let subscribed = self.server.subscribe(channel);
        Box::pin(async move {
            // Without senders, the client is gone.
            let _ = link.wait_for(|is_connected| *is_connected).await;
            subscribed.await
        })
    }

    fn unsubscribe(&self, channel: &str) {
        locked(&self.channels).remove(channel);
        self.server.unsubscribe(channel);
    }

    fn clock(&self) -> Clock {
        self.server.clock()
    }

    fn close(&self) {
        self.server.close();
    }
}
