//! A store in memory, of which a test says beforehand what becomes of the releases.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;

use super::{
    Acquire, Acquired, Call, Failure, Inspect, Inspected, Release, Released, Renew, Renewed, SpinAcquire,
    SpinAcquired, SpinRelease, SpinReleased, Store,
};
use crate::client::locked;
use crate::clock::Clock;
use crate::error::ServerError;
use crate::key::ClientId;
use crate::options::ManagerOptions;
use crate::rooms::Relay;
use crate::service::Service;
use crate::{LockManager, MemoryStore};

/// What becomes of a release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Refused,
    /// It is executed, and its reply is lost.
    Unheard,
    /// It is said to have stopped half-way.
    CutShort,
    /// It is executed, and its reply comes a second later.
    HeardLate,
}

#[derive(Debug)]
pub(crate) struct Scripted {
    store: Arc<dyn Store>,
    /// Of the next releases; all others are as ever.
    fates: Mutex<VecDeque<Fate>>,
    releases: AtomicUsize,
}

/// A client of `store`, and what it sees of it.
pub(crate) fn client(store: &MemoryStore, fates: &[Fate]) -> (LockManager, Arc<Scripted>) {
    let relay = Arc::new(Relay::default());
    let listener = Arc::downgrade(&relay);
    let scripted = Arc::new(Scripted {
        store: store.connect(listener),
        fates: Mutex::new(fates.iter().copied().collect()),
        releases: AtomicUsize::new(0),
    });
    let first = scripted.time().now_or_never().unwrap().unwrap();
    let seen: Arc<dyn Store> = Arc::<Scripted>::clone(&scripted);
    let options = ManagerOptions::default();
    let service = Service::new(relay, ClientId::random(), seen, options, &first);
    service.start();
    (LockManager::of(service), scripted)
}

impl Scripted {
    /// How many releases came.
    pub(crate) fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }
}

impl Store for Scripted {
    fn acquire(&self, call: Acquire) -> Call<Acquired> {
        self.store.acquire(call)
    }

    fn release(&self, call: Release) -> Call<Released> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        let fate = locked(&self.fates).pop_front();
        let released = self.store.release(call);
        let error = || ServerError::new("as scripted");
        Box::pin(async move {
            match fate {
                None => released.await,
                Some(Fate::Refused) => Err(Failure::Refused(error())),
                Some(Fate::Unheard) => {
                    released.await?;
                    Err(Failure::Unknown(error()))
                }
                Some(Fate::CutShort) => {
                    let mut answer = released.await?;
                    answer.reply.more = true;
                    Ok(answer)
                }
                Some(Fate::HeardLate) => {
                    let answer = released.await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    answer
                }
            }
        })
    }

    fn renew(&self, call: Renew) -> Call<Renewed> {
        self.store.renew(call)
    }

    fn inspect(&self, call: Inspect) -> Call<Inspected> {
        self.store.inspect(call)
    }

    fn spin_acquire(&self, call: SpinAcquire) -> Call<SpinAcquired> {
        self.store.spin_acquire(call)
    }

    fn spin_release(&self, call: SpinRelease) -> Call<SpinReleased> {
        self.store.spin_release(call)
    }

    fn time(&self) -> Call<()> {
        self.store.time()
    }

    fn subscribe(&self, channel: Arc<str>) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        self.store.subscribe(channel)
    }

    fn unsubscribe(&self, channel: &str) {
        self.store.unsubscribe(channel);
    }

    fn unseen(&self, channel: &str) {
        self.store.unseen(channel);
    }

    fn clock(&self) -> Clock {
        self.store.clock()
    }

    fn close(&self) {
        self.store.close();
    }
}
