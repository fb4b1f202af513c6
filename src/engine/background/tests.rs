//! Tests of what the background task learns from its renewals.

use std::task::{Context, Wake};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{advance, sleep};

use super::*;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::options::{LockOptions, ManagerOptions};
use crate::engine::pending_calls::{PendingCall, PendingCalls};
use crate::engine::shared::Shared;
use crate::engine::waitlist::WaitOutcome;
use crate::engine::waitlist::registry::LateListener;
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::{
    Acquire, Acquired, Answer, ConnectionId, Grant, Inspect, Mode, Push, Renewed, ServerId, Stamp,
};
use crate::servers::Store;
use crate::tests::scripted_store::{Fate, client, client_with};
use crate::time::deadline::LeaseTerms;
use crate::time::deadline_queue::GivesUp;
use crate::types::error::{Error, HoldEnd};
use crate::{LeaseState, LockManager, MemoryStore, Owner};

const LEASE: Duration = Duration::from_secs(30);

fn locks(store: &MemoryStore) -> LockManager {
    LockManager::builder().lease(LEASE).in_memory(store).unwrap()
}

/// Advances the clock as if the process were paused: no task runs meanwhile.
fn stand_still(time: Duration) {
    assert!(advance(time).now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn forgotten_lock_is_lost_at_the_next_renewal() {
    let store = MemoryStore::new();
    let locks = locks(&store);
    let guard = locks.lock("a").acquire().await.unwrap();
    store.flush();
    sleep(LEASE / 3 - Duration::from_secs(1)).await;
    assert!(guard.check().is_ok());
    sleep(Duration::from_secs(2)).await;
    assert!(matches!(guard.check(), Err(Error::Lost(lost)) if lost.reason == HoldEnd::Taken));
}

#[tokio::test(start_paused = true)]
async fn unanswered_renewal_leaves_the_hold_in_doubt() {
    let (locks, seen) = client(&MemoryStore::new(), &[]);
    let guard = locks.lock("a").acquire().await.unwrap();
    seen.swallow_renewals();
    sleep(LEASE / 3).await;
    assert_eq!(guard.lease().state, LeaseState::Held);
    sleep(LEASE / 4).await;
    assert_eq!(guard.lease().state, LeaseState::InDoubt);
}

#[tokio::test(start_paused = true)]
async fn many_holds_due_at_once_are_all_renewed() {
    let locks = locks(&MemoryStore::new());
    let mut guards = Vec::new();
    for n in 0..10 * BATCH {
        guards.push(locks.lock(format!("{n}")).acquire().await.unwrap());
    }
    sleep(2 * LEASE).await;
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
}

#[tokio::test(start_paused = true)]
async fn hold_released_as_its_renewal_is_due_leaves_nothing() {
    let locks = locks(&MemoryStore::new());
    let guard = locks.lock("a").acquire().await.unwrap();
    let background = locks.shared().background();
    let hold = Arc::clone(&background.held()[0]);
    guard.release().await.unwrap();
    assert!(background.look(hold).is_none());
    assert!(locked(&background.schedule).places.is_empty());
}

/// Race: A renewal runs, and its reply is lost.
#[tokio::test(start_paused = true)]
async fn lease_lost_here_does_not_go_on_at_the_server() {
    let store = MemoryStore::new();
    let client = || locks(&store);
    let (locks, others) = (client(), client());
    let guard = locks.lock("a").acquire().await.unwrap();

    // The process is paused until the lease is over. It had sent a renewal before, but nothing reads the
    // reply.
    let shared = locks.shared();
    let hold = &shared.background().held()[0];
    stand_still(LEASE - Duration::from_millis(1));
    let renewed = shared.client().store.call(hold.renewal()).now_or_never();
    assert!(matches!(
        renewed,
        Some(Ok(Answer {
            reply: Renewed::Until(_),
            ..
        }))
    ));
    stand_still(Duration::from_millis(2));

    assert_eq!(guard.lost().await, HoldEnd::Expired);
    let next = others.lock("a").acquire_timeout(LEASE / 10).await;
    assert!(next.is_ok(), "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn lease_found_expired_by_its_release_counts_as_lost() {
    let locks = locks(&MemoryStore::new());
    let guard = locks.lock("a").acquire().await.unwrap();
    stand_still(LEASE);
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    assert_eq!(locks.stats().lost_expired, 1);
}

/// Its guard was told that it is lost, so others may do the work again.
#[tokio::test(start_paused = true)]
async fn lock_whose_lease_was_found_expired_by_its_release_is_not_kept() {
    let locks = locks(&MemoryStore::new());
    let guard = locks.lock("a").at_least(2 * LEASE).acquire().await.unwrap();
    // The process is paused until just before the end of the lease, so the server still has the hold.
    stand_still(LEASE - Duration::from_millis(1));
    drop(guard);
    sleep(Duration::from_millis(10)).await;
    assert!(locks.lock("a").try_acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_ends_once_its_last_release_is_confirmed() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // The release takes a while.
    let (locks, _) = client(&MemoryStore::new(), &[Fate::ReplyLost]);
    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(locks.close().await.is_err(), "it holds a lock");
    assert!(tasks() > 0);
    guard.release().await.unwrap();
    sleep(LEASE).await;
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_under_way_counts_as_unconfirmed_when_its_client_is_closed() {
    let (locks, seen) = client(&MemoryStore::new(), &[]);
    seen.lose_replies_to_acquires(LEASE);
    let _tried = tokio::spawn(locks.lock("a").try_acquire());
    sleep(Duration::from_millis(1)).await;
    let unreleased = locks.close().await.unwrap_err();
    assert_eq!((unreleased.held.len(), unreleased.unconfirmed), (0, 1));
}

/// A poll of the request that this hold was granted to, sent while it was a waiter.
fn poll(hold: &Hold, pending: &Arc<PendingCall>) -> Acquire {
    Acquire {
        keys: Arc::clone(&hold.keys),
        request: hold.request.clone(),
        mode: Mode::Ask,
        lease: LEASE,
        not_after: Arc::<PendingCall>::clone(pending),
        ticket: None,
        floor: None,
    }
}

/// The poll made its request the holder again. It was answered before the process, which had been paused,
/// looks at its hold.
///
/// Race: A poll makes its request the holder again when its lease is over, and is answered before the client
/// notices.
#[tokio::test(start_paused = true)]
async fn poll_at_the_end_of_its_hold_leaves_nothing() {
    let locks = locks(&MemoryStore::new());
    let guard = locks.lock("a").acquire().await.unwrap();
    let shared = locks.shared();
    let hold = shared.background().held().remove(0);
    stand_still(LEASE);
    let pending = PendingCalls::begin(&hold.calls, &shared.client().clocks);
    let asked = shared.client().acquire(poll(&hold, &pending), &pending);
    let answer = asked.now_or_never();
    assert!(
        matches!(
            answer,
            Some(Ok(Answer {
                reply: Acquired::Granted { .. },
                ..
            }))
        ),
        "{answer:?}"
    );
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    shared.background().drained().await;
    let tried = locks.lock("a").try_acquire().await;
    assert!(tried.is_ok(), "a hold is left on the server");
}

/// The poll is written before the release, runs after it, and is answered before the release is.
///
/// Race: A poll is noted as sent, and runs after the release of its request.
#[tokio::test(start_paused = true)]
async fn poll_after_the_release_leaves_nothing() {
    let (locks, _) = client(&MemoryStore::new(), &[Fate::AnsweredLate]);
    let guard = locks.lock("a").acquire().await.unwrap();
    let shared = locks.shared();
    let hold = shared.background().held().remove(0);
    let pending = PendingCalls::begin(&hold.calls, &shared.client().clocks);
    let not_after = pending.written(ConnectionId::default()).unwrap();
    let call = Acquire {
        not_after: Arc::new(not_after),
        ..poll(&hold, &pending)
    };
    let release = tokio::spawn(guard.release());
    sleep(Duration::from_millis(500)).await;
    let answer = shared.client().acquire(call, &pending).await;
    assert!(
        matches!(answer.as_ref().unwrap().reply, Acquired::Granted { .. }),
        "{answer:?}"
    );
    release.await.unwrap().unwrap();
    shared.background().drained().await;
    let tried = locks.lock("a").try_acquire().await;
    assert!(tried.is_ok(), "a hold is left on the server");
}

/// The first acquire call was lost, so it could run late.
///
/// Race: The withdrawal of a request overtakes the release of its hold, which is repeated.
#[tokio::test(start_paused = true)]
async fn lock_is_kept_though_its_release_was_unanswered_and_a_call_of_its_request_too() {
    let options = ManagerOptions {
        server_timeout: Duration::from_secs(1),
        ..ManagerOptions::default()
    };
    let (locks, seen) = client_with(options, &MemoryStore::new(), &[]);
    seen.lose_calls(1);
    let at_least = LEASE / 2;
    let guard = locks.lock("a").at_least(at_least).acquire().await.unwrap();
    seen.lose_calls(u32::MAX);
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Unavailable(_))), "{released:?}");
    seen.lose_calls(0);
    sleep(at_least - Duration::from_secs(5)).await;
    assert_eq!(locks.shared().background().pending(), 0, "all is confirmed");
    let tried = locks.lock("a").try_acquire().await;
    assert!(matches!(tried, Err(Error::Busy { .. })), "the lock was not kept");
    assert_eq!(seen.withdrawn(), [1], "the first acquire call may run late");
}

/// The first acquire call was lost, so it could run late.
#[tokio::test(start_paused = true)]
async fn request_is_withdrawn_after_the_last_release_of_its_hold_was_unanswered_too() {
    let (locks, seen) = client(&MemoryStore::new(), &[]);
    seen.lose_calls(1);
    let guard = locks.lock("a").acquire().await.unwrap();
    seen.lose_calls(u32::MAX);
    drop(guard);
    sleep(2 * LEASE - Duration::from_secs(1)).await;
    assert!(seen.withdrawn().is_empty(), "the release goes on");
    sleep(Duration::from_secs(5)).await;
    assert!(!seen.withdrawn().is_empty());
    seen.lose_calls(0);
    sleep(LEASE).await;
    assert_eq!(locks.shared().background().pending(), 0);
}

/// The poll is still waiting to be written when the release is written.
#[tokio::test(start_paused = true)]
async fn release_stops_an_unwritten_poll() {
    let (locks, _) = client(&MemoryStore::new(), &[Fate::AnsweredLate]);
    let guard = locks.lock("a").acquire().await.unwrap();
    let shared = locks.shared();
    let hold = shared.background().held().remove(0);
    let pending = PendingCalls::begin(&hold.calls, &shared.client().clocks);
    let release = tokio::spawn(guard.release());
    sleep(Duration::from_millis(500)).await;
    let asked = shared.client().acquire(poll(&hold, &pending), &pending);
    assert!(matches!(asked.await, Err(Failure::GivenUp)));
    release.await.unwrap().unwrap();
    let tried = locks.lock("a").try_acquire().await;
    assert!(tried.is_ok(), "a hold is left on the server");
}

#[tokio::test(start_paused = true)]
async fn renewal_of_a_released_hold_counts_as_no_loss() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").acquire().await.unwrap();
    let shared = locks.shared();
    let hold = shared.background().held().remove(0);
    guard.release().await.unwrap();
    shared.background().renew(&hold, false).await.unwrap();
    let stats = locks.stats();
    assert_eq!((stats.lost_expired, stats.lost_taken), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn lost_guard_says_so_without_an_answer_from_the_server() {
    let (locks, seen) = client(&MemoryStore::new(), &[]);
    let guard = locks.lock("a").acquire().await.unwrap();
    // The process is paused until just before the end of the lease, so the server still has the hold.
    stand_still(LEASE - Duration::from_millis(1));
    assert!(guard.is_lost());
    seen.lose_calls(1);
    let renewed = guard.renew().now_or_never().unwrap();
    assert!(matches!(renewed, Err(Error::Lost(_))), "{renewed:?}");
}

#[tokio::test(start_paused = true)]
async fn closed_client_renews_its_holds() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(locks.close().await.is_err(), "it holds a lock");
    sleep(3 * guard.lease().length).await;
    assert!(guard.check().is_ok());
}

/// A future that is polled as soon as it is woken, within the call that wakes it.
struct AtOnce<F>(Mutex<Option<Pin<Box<F>>>>);

impl<F: Future<Output = ()> + Send + 'static> AtOnce<F> {
    fn begin(future: F) -> Arc<AtOnce<F>> {
        let begun = Arc::new(AtOnce(Mutex::new(Some(Box::pin(future)))));
        Arc::clone(&begun).wake();
        begun
    }

    fn has_ended(&self) -> bool {
        self.0.try_lock().is_ok_and(|future| future.is_none())
    }
}

impl<F: Future<Output = ()> + Send + 'static> Wake for AtOnce<F> {
    fn wake(self: Arc<Self>) {
        // The future is locked while it is being polled. In these tests it then continues anyway.
        let Ok(mut future) = self.0.try_lock() else { return };
        let waker = Arc::clone(&self).into();
        if let Some(going) = future.as_mut() {
            if going.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                *future = None;
            }
        }
    }
}

/// A client whose background task has not been started yet, and a grant of the lock to it.
async fn granted_once(owner: Option<&Owner>) -> (Shared, Arc<Keys>, LeaseTerms, Grant) {
    let late_listener = Arc::new(LateListener::default());
    let listener = Arc::downgrade(&late_listener);
    let store = Store::Memory(MemoryStore::new().connect(listener));
    let first = store.time().await.unwrap();
    let shared = Shared::new(
        late_listener,
        ClientId::random(),
        store,
        ManagerOptions::default(),
        Some(&first),
        None,
    );
    let (client, keys) = (shared.client(), Arc::new(Keys::new("fairlock", "a").unwrap()));
    let terms = LockOptions::default().terms(&client.options).unwrap();
    let request = client.next_request(&terms, owner);
    let calls = PendingCalls::new(LEASE, GivesUp::Unknown, None);
    let pending = PendingCalls::begin(&calls, &client.clocks);
    let call = Acquire {
        keys: Arc::clone(&keys),
        request,
        mode: Mode::Ask,
        lease: LEASE,
        not_after: Arc::<PendingCall>::clone(&pending),
        ticket: None,
        floor: None,
    };
    let Acquired::Granted { grant, .. } = client.acquire(call, &pending).await.unwrap().reply else {
        panic!("it is free");
    };
    (shared, keys, terms, grant)
}

/// Whether the server has a holder for the lock.
async fn is_held(shared: &Shared, keys: &Arc<Keys>, terms: &LeaseTerms) -> bool {
    let client = shared.client();
    let call = Inspect {
        keys: Arc::clone(keys),
        request: client.next_request(terms, None),
    };
    let answer = client.store.call(call).await.unwrap();
    !answer.reply.holders.is_empty()
}

/// Race: A client is closed while a waiter enters, is granted the lock, or releases it.
#[tokio::test(start_paused = true)]
async fn a_closed_client_does_not_end_between_the_end_of_its_last_guard_and_its_release() {
    let (shared, keys, terms, grant) = granted_once(None).await;
    let (client, background) = (shared.client(), shared.background());
    let deadline = client.now().after(LEASE);
    let calls = PendingCalls::new(LEASE, GivesUp::Unknown, None);
    let hold = Hold::new(Arc::clone(&keys), &grant, terms, calls, client.clock, deadline);
    let held = OwnedHold::new(hold, background);
    let task = AtOnce::begin(Arc::clone(background).run());
    shared.waitlists().close();
    assert!(!task.has_ended());
    // The background task checks whether it can end as soon as the hold has left its schedule.
    drop(held);
    assert!(
        !is_held(&shared, &keys, &terms).await,
        "the hold was not released"
    );
}

/// Race: A client is closed while a waiter enters, is granted the lock, or releases it.
#[tokio::test(start_paused = true)]
async fn client_closed_as_its_waiter_is_granted_the_lock_keeps_the_hold() {
    let owner = Owner::new();
    let (shared, keys, terms, grant) = granted_once(Some(&owner)).await;
    let (client, background) = (shared.client(), shared.background());
    let channel = keys.channel_of(&client.id);
    let join = |request: &RequestId| {
        shared
            .waitlists()
            .enter(&keys, &channel, |waitlist| waitlist.take_in(request, terms, None))
    };
    let (waitlist, mut waiter) = join(&grant.request);
    let _other = join(&client.next_request(&terms, Some(&owner)));
    let task = AtOnce::begin(Arc::clone(background).run());
    // This runs as soon as the waiter has left its waitlist, and the owner's other request is due to ask.
    let (waitlists, called) = (Arc::clone(shared.waitlists()), Arc::clone(&waitlist));
    let _closing = AtOnce::begin(async move {
        called.call.notified().await;
        // As dropping the last clone of a manager does.
        waitlists.close();
        waitlists.background().wake_if_closing();
    });
    assert!(!client.is_closed());
    let now = client.clocks.server_time(ServerId::default()).unwrap();
    let push = Push::Granted(vec![Grant {
        deadline: now.after(grant.request.claim_window()),
        pushed: true,
        slot: None,
        ..grant
    }]);
    waitlist.pushed(ServerId::default(), &push.write());
    assert!(client.is_closed());

    let Ok(WaitOutcome::Done(Ok(held))) = waiter.outcome.try_recv() else {
        panic!("the waiter was not granted the lock");
    };
    assert!(!task.has_ended());
    drop(held);
    assert!(
        !is_held(&shared, &keys, &terms).await,
        "the hold was not released"
    );
}
