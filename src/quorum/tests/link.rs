//! A server at the other end of a network: calls take time to it and back, and it may not answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::error::ServerError;
use crate::store::label::Label;
use crate::store::{
    Acquire, Acquired, Call, Failure, GetLabel, Inspect, Inspected, Look, Looked, Page, Position, Release,
    Released, Renew, Renewed, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased, Store, Withdraw,
    Withdrawn,
};
use crate::sync::locked;
use crate::time::clock::Clock;

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
    /// Nothing is executed. That is known at once.
    Down,
    /// The server refuses this client.
    Refusing,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) server: Arc<dyn Store>,
    pub(super) state: Mutex<State>,
    /// When the server has worked on all calls so far.
    pub(super) done: Mutex<Instant>,
}

impl Link {
    fn carry<T: Send + 'static>(&self, call: Call<T>) -> Call<T> {
        let state = *locked(&self.state);
        let mut done = Instant::now();
        if let State::Works(time) = state {
            let mut last = locked(&self.done);
            done = done.max(*last) + time;
            *last = done;
        }
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
                    // As long as a real connection waits for an answer.
                    sleep(Duration::from_secs(2)).await;
                    Err(Failure::Unknown(ServerError::new("no answer")))
                }
                State::Refusing => Err(Failure::Refused(ServerError::new("NOPERM"))),
                State::Down => Err(Failure::NotExecuted(ServerError::new("connection refused"))),
            }
        })
    }
}

impl Store for Link {
    fn acquire(&self, call: Acquire) -> Call<Acquired> {
        self.carry(self.server.acquire(call))
    }

    fn release(&self, call: Release) -> Call<Released> {
        self.carry(self.server.release(call))
    }

    fn withdraw(&self, call: Withdraw) -> Call<Withdrawn> {
        self.carry(self.server.withdraw(call))
    }

    fn renew(&self, call: Renew) -> Call<Renewed> {
        self.carry(self.server.renew(call))
    }

    fn look(&self, call: Look) -> Call<Looked> {
        self.carry(self.server.look(call))
    }

    fn inspect(&self, call: Inspect) -> Call<Inspected> {
        self.carry(self.server.inspect(call))
    }

    fn spin_acquire(&self, call: SpinAcquire) -> Call<SpinAcquired> {
        self.carry(self.server.spin_acquire(call))
    }

    fn spin_release(&self, call: SpinRelease) -> Call<SpinReleased> {
        self.carry(self.server.spin_release(call))
    }

    fn label_of(&self, call: GetLabel) -> Call<Option<Label>> {
        self.carry(self.server.label_of(call))
    }

    fn list(
        &self,
        prefix: &str,
        from: Position,
    ) -> Pin<Box<dyn Future<Output = Result<Page, Failure>> + Send>> {
        self.server.list(prefix, from)
    }

    fn time(&self) -> Call<()> {
        self.carry(self.server.time())
    }

    fn subscribe(&self, channel: Arc<str>) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        self.server.subscribe(channel)
    }

    fn unsubscribe(&self, channel: &str) {
        self.server.unsubscribe(channel);
    }

    fn unseen(&self, channel: &str) {
        self.server.unseen(channel);
    }

    fn clock(&self) -> Clock {
        self.server.clock()
    }

    fn close(&self) {
        self.server.close();
    }
}
