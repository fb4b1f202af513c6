//! An in-memory store for which a test decides in advance what becomes of calls and subscriptions.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;

use crate::engine::options::ManagerOptions;
use crate::engine::shared::Shared;
use crate::engine::waitlist::registry::LateListener;
use crate::protocol::ids::ClientId;
use crate::protocol::{
    Acquire, Call, ConnectionId, Connections, Failure, GetLabel, Inspect, KeepAlive, Look, OnAnswer,
    Operation, Page, Position, Release, Released, Renew, SetLabel, StoreFuture, Withdraw, Withdrawn,
};
use crate::servers::Store;
use crate::sync::locked;
use crate::tests::double::{AnyOperation, AnyReply, Double};
use crate::time::clock::Clock;
use crate::types::error::ServerError;
use crate::{LockManager, MemoryStore};

/// What becomes of a release or a withdrawal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Refused,
    /// The server cannot be reached.
    NotExecuted,
    /// The server executes it, and its reply is lost.
    ReplyLost,
    /// The reply says that it stopped at its bound.
    Incomplete,
    /// The server executes it, and its reply comes a second later.
    AnsweredLate,
}

#[derive(Debug)]
pub(crate) struct Scripted {
    store: Store,
    /// The fates of the next releases and withdrawals. All later ones work as usual.
    fates: Mutex<VecDeque<Fate>>,
    /// How many requests each withdrawal removed.
    withdrawn: Mutex<Vec<usize>>,
    acquires: AtomicUsize,
    releases: AtomicUsize,
    /// Whether renewals go unanswered.
    swallows_renewals: AtomicBool,
    /// Whether subscriptions go unanswered.
    swallows_subscriptions: AtomicBool,
    /// If acquires are executed and go unanswered: after which time their callers notice that.
    unheard_acquires: Mutex<Option<Duration>>,
    /// How long the answers about locks and about labels take.
    answers_after: Mutex<[Duration; 2]>,
    /// How many labels were asked for.
    labels: AtomicUsize,
    subscriptions: AtomicUsize,
    /// The number of subscriptions that were ended.
    ended: AtomicUsize,
    lossy: Arc<Lossy>,
}

/// How many of the next calls and subscriptions are lost. They do not reach the server, and the client gets
/// no answer.
#[derive(Debug, Default)]
struct Lossy {
    calls: AtomicU32,
    subscriptions: AtomicU32,
}

/// Fails, and counts down, while messages are to be lost.
fn pass(lossy: &AtomicU32) -> Result<(), Failure> {
    let lost = lossy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    match lost {
        Ok(_) => Err(Failure::Unknown(ServerError::new("lost"))),
        Err(_) => Ok(()),
    }
}

/// The same call, whose answer takes this long.
fn late<T: Send + 'static>(after: Duration, call: Call<T>) -> Call<T> {
    Box::pin(async move {
        let answer = call.await;
        tokio::time::sleep(after).await;
        answer
    })
}

/// Returns a client of `store`, and the scripted store through which the client uses it.
pub(crate) fn client(store: &MemoryStore, fates: &[Fate]) -> (LockManager, Arc<Scripted>) {
    client_with(ManagerOptions::default(), store, fates)
}

pub(crate) fn client_with(
    options: ManagerOptions,
    store: &MemoryStore,
    fates: &[Fate],
) -> (LockManager, Arc<Scripted>) {
    let late_listener = Arc::new(LateListener::default());
    let listener = Arc::downgrade(&late_listener);
    let scripted = Arc::new(Scripted {
        store: Store::Memory(store.connect(listener)),
        fates: Mutex::new(fates.iter().copied().collect()),
        withdrawn: Mutex::default(),
        acquires: AtomicUsize::new(0),
        releases: AtomicUsize::new(0),
        swallows_renewals: AtomicBool::new(false),
        swallows_subscriptions: AtomicBool::new(false),
        unheard_acquires: Mutex::new(None),
        answers_after: Mutex::default(),
        labels: AtomicUsize::new(0),
        subscriptions: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
        lossy: Arc::default(),
    });
    let first = scripted.time().now_or_never().unwrap().unwrap();
    let seen = Store::Double(Arc::<Scripted>::clone(&scripted));
    let shared = Shared::new(
        late_listener,
        ClientId::random(),
        seen,
        options,
        Some(&first),
        None,
    );
    shared.start();
    (LockManager::of(shared), scripted)
}

impl Scripted {
    pub(crate) fn swallow_renewals(&self) {
        self.swallows_renewals.store(true, Ordering::SeqCst);
    }

    pub(crate) fn swallow_subscriptions(&self) {
        self.swallows_subscriptions.store(true, Ordering::SeqCst);
    }

    /// Loses the replies to acquires. Each acquire fails after this time.
    pub(crate) fn lose_replies_to_acquires(&self, noticed_after: Duration) {
        *locked(&self.unheard_acquires) = Some(noticed_after);
    }

    /// From now on, the answers about locks take `lock`, and those about labels take `label`.
    pub(crate) fn answer_after(&self, lock: Duration, label: Duration) {
        *locked(&self.answers_after) = [lock, label];
    }

    /// Returns how many labels were asked for.
    pub(crate) fn labels(&self) -> usize {
        self.labels.load(Ordering::SeqCst)
    }

    /// Loses the next `calls` calls.
    pub(crate) fn lose_calls(&self, calls: u32) {
        self.lossy.calls.store(calls, Ordering::SeqCst);
    }

    /// Loses the next `subscriptions` subscriptions.
    pub(crate) fn lose_subscriptions(&self, subscriptions: u32) {
        self.lossy.subscriptions.store(subscriptions, Ordering::SeqCst);
    }

    /// Returns the call, unless it is lost when it is sent.
    fn passed<T: Send + 'static>(&self, call: Call<T>) -> Call<T> {
        let lossy = Arc::clone(&self.lossy);
        Box::pin(async move {
            pass(&lossy.calls)?;
            call.await
        })
    }

    /// Returns how many subscriptions were requested, and how many were ended.
    pub(crate) fn subscriptions(&self) -> (usize, usize) {
        let [asked, ended] = [&self.subscriptions, &self.ended];
        (asked.load(Ordering::SeqCst), ended.load(Ordering::SeqCst))
    }

    /// Returns how many acquires were sent.
    pub(crate) fn acquires(&self) -> usize {
        self.acquires.load(Ordering::SeqCst)
    }

    /// Returns how many releases were sent.
    pub(crate) fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }

    /// Returns how many requests each withdrawal was for.
    pub(crate) fn withdrawn(&self) -> Vec<usize> {
        locked(&self.withdrawn).clone()
    }

    fn acquire(&self, operation: AnyOperation) -> Call<AnyReply> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        let (lossy, store) = (Arc::clone(&self.lossy), self.store.clone());
        let unheard = *locked(&self.unheard_acquires);
        Box::pin(async move {
            if let Err(lost) = pass(&lossy.calls) {
                // The pipeline wrote the call, although the server never got it.
                operation
                    .stamp()
                    .map(|stamp| stamp.written(ConnectionId::default()));
                return Err(lost);
            }
            let answer = store.call(operation).await;
            if let Some(noticed_after) = unheard {
                tokio::time::sleep(noticed_after).await;
                return Err(Failure::Unknown(ServerError::new("no reply in time")));
            }
            answer
        })
    }

    /// Applies the next fate to a release or a withdrawal.
    fn fated(&self, operation: AnyOperation) -> Call<AnyReply> {
        let call = self.passed(self.store.call(operation));
        let fate = locked(&self.fates).pop_front();
        let error = || ServerError::new("as scripted");
        Box::pin(async move {
            match fate {
                None => call.await,
                Some(Fate::Refused) => Err(Failure::Refused(error())),
                Some(Fate::NotExecuted) => Err(Failure::NotExecuted(error())),
                Some(Fate::ReplyLost) => {
                    call.await?;
                    Err(Failure::Unknown(error()))
                }
                Some(Fate::Incomplete) => {
                    let mut answer = call.await?;
                    if let Some(released) = answer.reply.get_mut::<Released>() {
                        released.more = true;
                    }
                    if let Some(withdrawn) = answer.reply.get_mut::<Withdrawn>() {
                        withdrawn.more = true;
                    }
                    Ok(answer)
                }
                Some(Fate::AnsweredLate) => {
                    let answer = call.await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    answer
                }
            }
        })
    }
}

impl Double for Scripted {
    fn call(&self, operation: AnyOperation) -> Call<AnyReply> {
        if operation.get::<Acquire>().is_some() {
            return self.acquire(operation);
        }
        if operation.get::<Release>().is_some() {
            self.releases.fetch_add(1, Ordering::SeqCst);
            return self.fated(operation);
        }
        if let Some(withdraw) = operation.get::<Withdraw>() {
            locked(&self.withdrawn).push(withdraw.requests.len());
            return self.fated(operation);
        }
        let renews = operation.get::<Renew>().is_some() || operation.get::<Look>().is_some();
        if renews && self.swallows_renewals.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let [lock, label] = *locked(&self.answers_after);
        if operation.get::<Inspect>().is_some() {
            return late(lock, self.passed(self.store.call(operation)));
        }
        if operation.get::<GetLabel>().is_some() {
            self.labels.fetch_add(1, Ordering::SeqCst);
            return late(label, self.passed(self.store.call(operation)));
        }
        self.passed(self.store.call(operation))
    }

    fn keep_label(&self, call: SetLabel, every: Duration, heard: OnAnswer) -> KeepAlive {
        self.store.keep_label(call, every, heard)
    }
}

impl Connections for Scripted {
    fn list(&self, prefix: &str, from: Position) -> StoreFuture<Page> {
        self.store.list(prefix, from)
    }

    fn time(&self) -> Call<()> {
        self.passed(self.store.time())
    }

    fn subscribe(&self, channel: Arc<str>) -> StoreFuture<()> {
        self.subscriptions.fetch_add(1, Ordering::SeqCst);
        match self.swallows_subscriptions.load(Ordering::SeqCst) {
            true => Box::pin(std::future::pending()),
            false => {
                let (lossy, subscribed) = (Arc::clone(&self.lossy), self.store.subscribe(channel));
                Box::pin(async move {
                    pass(&lossy.subscriptions)?;
                    subscribed.await
                })
            }
        }
    }

    fn unsubscribe(&self, channel: &str) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        self.store.unsubscribe(channel);
    }

    fn clock(&self) -> Clock {
        self.store.clock()
    }

    fn close(&self) {
        self.store.close();
    }
}
