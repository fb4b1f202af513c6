//! The spin lock, which is the baseline of the benches. It gives mutual exclusion, but no order.

use std::time::Duration;

use fairlock::spin::SpinLock;
use fairlock::{Error, Owner};
use fairlock_testkit::History;
use futures_util::FutureExt;
use tokio::time::{Instant, timeout};

use crate::backend::{Backend, on_each_backend, on_each_backend_in_parallel};

on_each_backend! {
    a_spin_lock_is_held_until_it_is_unlocked,
    a_spin_lock_is_reentrant_for_its_owner,
    a_spin_lock_is_free_after_its_lease,
    spin_lock_does_not_exclude_a_fair_lock_of_the_same_name,
    a_bad_call_of_a_spin_lock_is_refused_before_anything_is_sent,
}

on_each_backend_in_parallel! {
    holds_of_spin_locks_do_not_overlap,
}

const LEASE: Duration = Duration::from_secs(10);

async fn a_spin_lock_is_held_until_it_is_unlocked(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (mine, yours) = (SpinLock::new(&here, "a"), SpinLock::new(&there, "a"));
    assert_eq!(mine.name(), "a");
    assert!(mine.try_lock(Duration::ZERO, LEASE).await.unwrap());
    assert!(!yours.try_lock(Duration::ZERO, LEASE).await.unwrap());
    let (start, wait) = (Instant::now(), Duration::from_millis(100));
    assert!(!yours.try_lock(wait, LEASE).await.unwrap());
    let took = start.elapsed();
    assert!(took >= wait && took < wait + backend.slack(), "{took:?}");
    assert!(matches!(yours.unlock().await, Err(Error::Lost(_))));
    assert!(!yours.try_lock(Duration::ZERO, LEASE).await.unwrap());
    mine.unlock().await.unwrap();
    assert!(yours.try_lock(Duration::ZERO, LEASE).await.unwrap());
    assert!(matches!(mine.unlock().await, Err(Error::Lost(_))));
    yours.unlock().await.unwrap();
    here.close().await.unwrap();
    let closed = mine.try_lock(Duration::ZERO, LEASE).await;
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
}

async fn a_spin_lock_is_reentrant_for_its_owner(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let mine = SpinLock::new(&here, "a");
    let same = SpinLock::new(&there, "a").owner(&Owner::named("one"));
    let mine = mine.owner(&Owner::named("one"));
    let other = SpinLock::new(&here, "a");
    assert!(mine.try_lock(Duration::ZERO, LEASE).await.unwrap());
    assert!(mine.clone().try_lock(Duration::ZERO, LEASE).await.unwrap());
    assert!(same.try_lock(Duration::ZERO, LEASE).await.unwrap());
    for _ in 0..3 {
        assert!(!other.try_lock(Duration::ZERO, LEASE).await.unwrap());
        mine.unlock().await.unwrap();
    }
    assert!(other.try_lock(Duration::ZERO, LEASE).await.unwrap());
}

async fn a_spin_lock_is_free_after_its_lease(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = Duration::from_millis(300);
    let mine = SpinLock::new(&here, "a");
    let start = Instant::now();
    assert!(mine.try_lock(Duration::ZERO, lease).await.unwrap());
    let yours = SpinLock::new(&there, "a");
    assert!(yours.try_lock(Duration::from_secs(20), LEASE).await.unwrap());
    let took = start.elapsed();
    assert!(took > lease / 2 && took < lease + backend.slack(), "{took:?}");
    assert!(matches!(mine.unlock().await, Err(Error::Lost(_))));
    yours.unlock().await.unwrap();
}

async fn spin_lock_does_not_exclude_a_fair_lock_of_the_same_name(backend: Backend) {
    let client = backend.client().await;
    let guard = client.lock("a").acquire().await.unwrap();
    let spin = SpinLock::new(&client, "a");
    assert!(spin.try_lock(Duration::ZERO, LEASE).await.unwrap());
    guard.release().await.unwrap();
    spin.unlock().await.unwrap();
}

async fn a_bad_call_of_a_spin_lock_is_refused_before_anything_is_sent(backend: Backend) {
    let client = backend.client().await;
    let lock = SpinLock::new(&client, "a");
    for lease in [Duration::ZERO, Duration::from_millis(99), Duration::MAX] {
        let refused = lock.try_lock(Duration::ZERO, lease).now_or_never();
        let refused = refused.expect("an answer at once");
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    let nameless = SpinLock::new(&client, "");
    let refused = nameless.try_lock(Duration::ZERO, LEASE).now_or_never();
    assert!(matches!(refused, Some(Err(Error::Invalid(_)))), "{refused:?}");
    let refused = nameless.unlock().now_or_never();
    assert!(matches!(refused, Some(Err(Error::Invalid(_)))), "{refused:?}");
}

async fn holds_of_spin_locks_do_not_overlap(backend: Backend) {
    let history = History::default();
    let mut tasks = tokio::task::JoinSet::new();
    for (number, client) in backend.clients(4).await.into_iter().enumerate() {
        let history = history.clone();
        tasks.spawn(async move {
            let lock = SpinLock::new(&client, "a");
            for _ in 0..10 {
                let entry = history.asks(number);
                assert!(lock.try_lock(Duration::from_secs(20), LEASE).await.unwrap());
                entry.granted(0);
                tokio::task::yield_now().await;
                entry.released();
                lock.unlock().await.unwrap();
            }
        });
    }
    let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    timeout(Duration::from_secs(30), all)
        .await
        .expect("all tasks finish");
    assert_eq!(history.grants().len(), 40);
    history.assert_no_overlap();
}
