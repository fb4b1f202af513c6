//! The state that all parts of one client share: its id, store, runtime and counters.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::counters::Counters;
use crate::engine::options::{LABEL_EVERY, ManagerOptions};
use crate::engine::pending_calls::PendingCall;
use crate::engine::runtime::{ClientRuntime, OwnThread};
use crate::engine::server_clocks::ServerClocks;
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::label_key;
use crate::protocol::{
    Acquire, Acquired, Answer, ByRules, Call, CallKind, Confirmed, Failure, KeepAlive, Renew, SetLabel,
};
use crate::servers::Store;
use crate::time::clock::{Clock, LocalTime};
use crate::time::deadline::{LeaseTerms, NOT_AFTER};
use crate::types::error::{Error, ServerError};
use crate::types::owner::Owner;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) options: ManagerOptions,
    pub(crate) counters: Counters,
    pub(crate) clocks: Arc<ServerClocks>,
    requests: AtomicU64,
    pub(crate) runtime: ClientRuntime,
    closed: AtomicBool,
}

impl Client {
    pub(super) fn new(
        id: ClientId,
        store: Store,
        options: ManagerOptions,
        first: Option<&Answer<()>>,
        thread: Option<OwnThread>,
    ) -> Client {
        let clock = store.clock();
        Client {
            id,
            clock,
            clocks: Arc::new(ServerClocks::new(clock, first)),
            store,
            options,
            counters: Counters::new(clock),
            requests: AtomicU64::new(0),
            runtime: ClientRuntime::new(thread),
            closed: AtomicBool::new(false),
        }
    }

    /// The number of the next request.
    pub(super) fn next_number(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_request(&self, terms: &LeaseTerms, owner: Option<&Owner>) -> RequestId {
        RequestId::new(&self.id, terms.claim_window(), self.next_number(), owner)
    }

    pub(crate) fn now(&self) -> LocalTime {
        self.clock.now()
    }

    /// Makes an acquire call. `pending` must also be the stamp of the call. A call that ran too late counts
    /// as failed.
    pub(super) async fn acquire(
        &self,
        call: Acquire,
        pending: &PendingCall,
    ) -> Result<Answer<Acquired>, Failure> {
        let timer = self.counters.metrics.timer(&self.clock);
        let answer = self.noted(self.store.call(call).await);
        pending.answered(&answer);
        let answer = match answer {
            Ok(Answer {
                reply: Acquired::ExpiredCall,
                at,
                ..
            }) => Err(if pending.is_late_for_its_caller(&at) {
                Failure::GivenUp
            } else {
                Failure::NotExecuted(ServerError::new(format!(
                    "the call came to the server more than {NOT_AFTER:?} after it was sent"
                )))
            }),
            answer => answer,
        };
        let over = answer.as_ref().map(|answer| answer.at.received);
        self.counters
            .metrics
            .called(&timer, CallKind::Acquire, &self.clock, over);
        answer
    }

    /// Makes a call, and learns the server's time from its reply.
    pub(crate) async fn call<O: ByRules>(&self, operation: O) -> Result<Answer<O::Reply>, Failure> {
        self.noted(self.timed(O::KIND, self.store.call(operation)).await)
    }

    /// Renews a hold, and waits until replicas have it. Its reply may be read long before this is over, so
    /// the clock offset is not taken from it.
    pub(super) async fn confirm(&self, call: Renew, within: Duration) -> Result<Answer<Confirmed>, Failure> {
        self.timed(CallKind::Confirm, self.store.confirm(call, within))
            .await
    }

    async fn timed<T>(&self, kind: CallKind, call: Call<T>) -> Result<Answer<T>, Failure> {
        let metrics = &self.counters.metrics;
        let timer = metrics.timer(&self.clock);
        let answer = call.await;
        let over = answer.as_ref().map(|answer| match kind {
            // The replicas confirm after the reply.
            CallKind::Confirm => self.now(),
            _ => answer.at.received,
        });
        metrics.called(&timer, kind, &self.clock, over);
        answer
    }

    fn noted<T>(&self, answer: Result<Answer<T>, Failure>) -> Result<Answer<T>, Failure> {
        if let Ok(answer) = &answer {
            self.clocks.record(answer.on.server, answer.at);
        }
        answer
    }

    /// Keeps the label of this client on its server, for as long as this is polled. The answers tell a client
    /// that makes no other calls the server's time.
    pub(super) fn keep_label(&self) -> KeepAlive {
        let call = SetLabel {
            key: label_key(&self.options.prefix, &self.id),
            client: self.id.clone(),
            label: self.options.label.clone(),
            kept: 3 * LABEL_EVERY,
        };
        let clocks = Arc::clone(&self.clocks);
        let heard = move |answer: Answer<()>| clocks.record(answer.on.server, answer.at);
        self.store.keep_label(call, LABEL_EVERY, Box::new(heard))
    }

    /// Starts a task on the client's runtime, whichever runtime the caller uses.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Waits for this, up to the `server_timeout`, and returns whether it came. Outside of a runtime nothing
    /// can be waited for.
    pub(crate) async fn within_server_timeout(&self, awaited: impl Future<Output = ()>) -> bool {
        if self.runtime.is_outside() {
            return false;
        }
        let patience = self.options.server_timeout;
        let awaited = pin!(async { tokio::time::timeout(patience, awaited).await.is_ok() });
        self.runtime.serves(awaited).await
    }

    /// Allows no new requests from now on.
    pub(super) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::MemoryStore;
    use crate::engine::options::LockOptions;
    use crate::engine::pending_calls::PendingCalls;
    use crate::protocol::keys::Keys;
    use crate::protocol::{Listener, Mode, ServerId};
    use crate::time::deadline::PRECISION;
    use crate::time::deadline_queue::GivesUp;
    use crate::time::server_time::ServerTime;

    #[derive(Debug)]
    struct NoListener;

    impl Listener for NoListener {
        fn pushed(&self, _: ServerId, _: &str, _: &str) {}
        fn replaced(&self, _: ServerId) {}
        fn reconnected(&self, _: ServerId) {}
    }

    fn client() -> Client {
        let listener: Arc<dyn Listener> = Arc::new(NoListener);
        let store = Store::Memory(MemoryStore::new().connect(Arc::downgrade(&listener)));
        let first = store.time().now_or_never().unwrap().unwrap();
        Client::new(
            ClientId::from_number(1),
            store,
            ManagerOptions::default(),
            Some(&first),
            None,
        )
    }

    /// The reply to a call that comes to its server too late, and whose caller gives up as told.
    async fn expired(client: &Client, gives_up: GivesUp) -> Result<Answer<Acquired>, Failure> {
        let lease = Duration::from_secs(1);
        let terms = LockOptions::default().terms(&client.options).unwrap();
        let pending = PendingCalls::begin(&PendingCalls::new(lease, gives_up, None), &client.clocks);
        let call = Acquire {
            keys: Arc::new(Keys::new("fairlock", "a").unwrap()),
            request: client.next_request(&terms, None),
            mode: Mode::Try,
            lease,
            not_after: Arc::new(ServerTime::from_ms(1)),
            ticket: None,
            floor: None,
        };
        client.acquire(call, &pending).await
    }

    /// As a failure, it is repeated with pauses, and not without end.
    #[tokio::test(start_paused = true)]
    async fn expired_call_fails() {
        let client = client();
        let answer = expired(&client, GivesUp::Unknown).await;
        assert!(matches!(answer, Err(Failure::NotExecuted(_))), "{answer:?}");
    }

    /// It does not show that the server is slow.
    #[tokio::test(start_paused = true)]
    async fn call_that_expires_after_its_caller_gave_up_is_no_failure_of_the_server() {
        let client = client();
        let answer = expired(&client, GivesUp::At(client.now())).await;
        assert!(matches!(answer, Err(Failure::GivenUp)), "{answer:?}");
        let later = client.now().after(PRECISION + Duration::from_millis(1));
        let answer = expired(&client, GivesUp::At(later)).await;
        assert!(matches!(answer, Err(Failure::NotExecuted(_))), "{answer:?}");
    }
}
