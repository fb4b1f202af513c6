//! What the keeper finds out when it renews.

use futures_util::FutureExt;
use tokio::time::{advance, sleep};

use super::*;
use crate::store::scripted::{Fate, client};
use crate::store::{Acquire, Acquired, Mode};
use crate::{LockManager, MemoryStore};

const LEASE: Duration = Duration::from_secs(30);

fn locks(store: &MemoryStore) -> LockManager {
    LockManager::builder().lease(LEASE).in_memory(store).unwrap()
}

/// The process stands still: nobody looks at anything meanwhile.
fn stand_still(time: Duration) {
    assert!(advance(time).now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_the_server_forgot_is_lost_at_the_next_renewal() {
    let store = MemoryStore::new();
    let locks = locks(&store);
    let guard = locks.lock("a").acquire().await.unwrap();
    store.flush();
    sleep(LEASE / 3 - Duration::from_secs(1)).await;
    assert!(guard.check().is_ok());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(guard.check().unwrap_err().reason(), LostReason::Taken);
}

#[tokio::test(start_paused = true)]
async fn all_of_many_holds_that_are_due_at_once_are_renewed() {
    let locks = locks(&MemoryStore::new());
    let mut guards = Vec::new();
    for n in 0..10 * BATCH {
        guards.push(locks.lock(format!("{n}")).acquire().await.unwrap());
    }
    sleep(2 * LEASE).await;
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_released_as_its_renewal_is_due_leaves_nothing() {
    let locks = locks(&MemoryStore::new());
    let guard = locks.lock("a").acquire().await.unwrap();
    let keeper = locks.service().keeper();
    let hold = Arc::clone(&keeper.held()[0]);
    guard.release().await.unwrap();
    assert!(keeper.look(hold).is_none());
    assert!(locked(&keeper.schedule).places.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_here_does_not_go_on_at_the_server() {
    let store = MemoryStore::new();
    let client = || locks(&store);
    let (locks, others) = (client(), client());
    let guard = locks.lock("a").acquire().await.unwrap();

    // The process stands still until its lease is over, but for a renewal that it had sent: nobody hears its answer.
    let service = locks.service();
    let hold = &service.keeper().held()[0];
    stand_still(LEASE - Duration::from_millis(1));
    let renewed = service.client().store.renew(hold.renewal()).now_or_never();
    assert!(matches!(
        renewed,
        Some(Ok(Answer {
            reply: Renewed::Until(_),
            ..
        }))
    ));
    stand_still(Duration::from_millis(2));

    assert_eq!(guard.lost().await.reason(), LostReason::Expired);
    let next = others.lock("a").acquire_timeout(LEASE / 10).await;
    assert!(next.is_ok(), "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_only_its_release_finds_over_is_one_lost() {
    let locks = locks(&MemoryStore::new());
    let guard = locks.lock("a").acquire().await.unwrap();
    stand_still(LEASE);
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    assert_eq!(locks.stats().lost, 1);
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_ends_once_its_last_release_is_confirmed() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // The release takes a while.
    let (locks, _) = client(&MemoryStore::new(), &[Fate::Unheard]);
    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(locks.close().await.is_err(), "it holds a lock");
    assert!(tasks() > 0);
    guard.release().await.unwrap();
    sleep(LEASE).await;
    assert_eq!(tasks(), 0);
}

/// Withdraws a request, of which this is to become; returns how often that was tried.
async fn withdrawn(fate: Fate) -> usize {
    let (locks, seen) = client(&MemoryStore::new(), &[fate]);
    let request = Request::new(&locks.service().client().id, LEASE, 1, None);
    let keys = Arc::new(Keys::new("fairlock", "a").unwrap());
    let keeper = locks.service().keeper();
    keeper.out(&keys, &request, true, &Arc::default());
    keeper.drained().await;
    seen.releases()
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_the_server_refuses_is_not_repeated() {
    assert_eq!(withdrawn(Fate::Refused).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_was_cut_short_is_repeated() {
    assert_eq!(withdrawn(Fate::CutShort).await, 2);
}

/// What the waiter that this hold was granted to had asked before.
fn question(hold: &Hold, not_after: ServerTime) -> Acquire {
    Acquire {
        keys: Arc::clone(&hold.keys),
        request: hold.request.clone(),
        mode: Mode::Open,
        lease: LEASE,
        not_after,
        ticket: None,
        heartbeat: LEASE,
    }
}

/// It made its request the holder anew, and was answered before the process, which stood still, looks at its hold.
#[tokio::test(start_paused = true)]
async fn a_question_that_runs_as_its_hold_is_over_leaves_nothing_though_it_is_answered_before_the_release() {
    let locks = locks(&MemoryStore::new());
    let guard = locks.lock("a").acquire().await.unwrap();
    let service = locks.service();
    let hold = service.keeper().held().remove(0);
    stand_still(LEASE);
    let not_after = service.client().not_after(&hold.keys);
    let asked = service.client().acquire(question(&hold, not_after));
    let answer = asked.now_or_never();
    assert!(
        matches!(
            answer,
            Some(Ok(Answer {
                reply: Acquired::Granted(_),
                ..
            }))
        ),
        "{answer:?}"
    );
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    service.keeper().drained().await;
    let tried = locks.lock("a").try_acquire().await.unwrap();
    assert!(tried.acquired().is_some(), "nobody knows of that hold");
}

/// It is taken down as sent before the release, runs after it, and is answered before it is.
#[tokio::test(start_paused = true)]
async fn a_question_that_runs_after_the_release_leaves_nothing_though_it_is_answered_first() {
    let (locks, _) = client(&MemoryStore::new(), &[Fate::HeardLate]);
    let guard = locks.lock("a").acquire().await.unwrap();
    let service = locks.service();
    let hold = service.keeper().held().remove(0);
    let not_after = service.client().not_after(&hold.keys);
    hold.trail.sent(not_after);
    let release = tokio::spawn(guard.release());
    sleep(Duration::from_millis(500)).await;
    let answer = service.client().acquire(question(&hold, not_after)).await;
    assert!(
        matches!(answer.as_ref().unwrap().reply, Acquired::Granted(_)),
        "{answer:?}"
    );
    hold.trail.answered(&answer);
    release.await.unwrap().unwrap();
    service.keeper().drained().await;
    let tried = locks.lock("a").try_acquire().await.unwrap();
    assert!(tried.acquired().is_some(), "nobody knows of that hold");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_its_hold_released_counts_as_no_loss() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").acquire().await.unwrap();
    let service = locks.service();
    let hold = service.keeper().held().remove(0);
    guard.release().await.unwrap();
    service.keeper().renew(&hold).await.unwrap();
    assert_eq!(locks.stats().lost, 0);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_lost_says_so_though_no_server_answers() {
    let store = MemoryStore::new();
    let locks = locks(&store);
    let guard = locks.lock("a").acquire().await.unwrap();
    // The process stands still until nearly the end: the server has the hold still.
    stand_still(LEASE - Duration::from_millis(1));
    assert!(guard.is_lost());
    store.lose_calls(1);
    let renewed = guard.renew().now_or_never().unwrap();
    assert!(matches!(renewed, Err(Error::Lost(_))), "{renewed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_renews_what_it_holds() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(locks.close().await.is_err(), "it holds a lock");
    sleep(3 * guard.lease().length()).await;
    assert!(guard.check().is_ok());
}
