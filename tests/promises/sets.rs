//! Several locks that are acquired together.

use std::time::Duration;

use fairlock::{Error, HoldEnd, HoldToken, Lock, LockManager, LockSet, Owner};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{
    Backend, in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, with_local_handoffs,
};
use crate::common::lost;

const LONG: Duration = Duration::from_secs(20);

on_each_backend! {
    a_set_holds_all_of_its_locks_and_gives_all_back,
    fences_are_told_in_the_order_of_the_names,
    sets_that_name_the_same_locks_in_any_order_never_wait_in_a_circle,
    a_set_that_waits_is_dropped_with_all_that_it_has,
    one_bound_counts_for_all_locks_of_a_set,
    a_try_gives_back_what_it_has_at_the_first_busy_lock,
    a_lock_that_is_lost_while_the_next_is_awaited_ends_the_call,
    a_loss_of_one_lock_ends_the_work_of_all,
    work_with_a_set_returns_its_result_and_releases_all,
    the_release_of_a_set_tells_of_a_loss_and_frees_the_others,
    a_set_takes_locks_with_settings_of_their_own,
    a_set_that_is_not_acquired_keeps_no_lock_taken,
    at_least_begins_when_all_locks_of_a_set_are_held,
    wrong_sets_are_refused_before_anything_is_sent,
}

in_a_quorum! {
    a_set_holds_all_of_its_locks_and_gives_all_back,
    sets_that_name_the_same_locks_in_any_order_never_wait_in_a_circle,
    a_set_that_waits_is_dropped_with_all_that_it_has,
    one_bound_counts_for_all_locks_of_a_set,
    a_try_gives_back_what_it_has_at_the_first_busy_lock,
    a_lock_that_is_lost_while_the_next_is_awaited_ends_the_call,
}

with_local_handoffs! {
    a_set_holds_all_of_its_locks_and_gives_all_back,
    sets_that_name_the_same_locks_in_any_order_never_wait_in_a_circle,
    a_set_that_waits_is_dropped_with_all_that_it_has,
    work_with_a_set_returns_its_result_and_releases_all,
}

local_handoffs_in_a_quorum! {
    sets_that_name_the_same_locks_in_any_order_never_wait_in_a_circle,
}

async fn is_free(lock: &Lock) -> bool {
    let status = lock.status().await.unwrap();
    status.holder.is_none() && status.waiting == 0
}

/// Waits until nobody holds these locks, and nobody waits for them.
async fn become_free(locks: &LockManager, names: &[&str]) {
    let began = Instant::now();
    for name in names {
        while !is_free(&locks.lock(name)).await {
            assert!(began.elapsed() < LONG, "{name} is left behind");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn a_set_holds_all_of_its_locks_and_gives_all_back(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for ends_by_drop in [false, true] {
        let guard = here.all(["b", "c", "a"]).acquire().await.unwrap();
        for name in ["a", "b", "c"] {
            assert_eq!(guard.get(name).unwrap().name(), name);
            let busy = there.lock(name).try_acquire().await;
            assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
        }
        assert!(guard.get("d").is_none());
        guard.check().unwrap();
        if ends_by_drop {
            drop(guard);
            become_free(&there, &["a", "b", "c"]).await;
        } else {
            guard.release().await.unwrap();
        }
        let again = there.all(["a", "b", "c"]).try_acquire().await.unwrap();
        again.release().await.unwrap();
    }
}

async fn fences_are_told_in_the_order_of_the_names(backend: Backend) {
    let locks = backend.client().await;
    let guard = locks.all(["b", "a", "b"]).acquire().await.unwrap();
    let of = |name| guard.get(name).unwrap().fence();
    assert_eq!(guard.fences(), [of("b"), of("a"), of("b")]);
    let told = guard.fences();
    guard.release().await.unwrap();
    let next = locks
        .all(["b", "a", "b"])
        .with(async |tokens| tokens)
        .await
        .unwrap();
    assert_eq!(
        next.iter().map(HoldToken::name).collect::<Vec<_>>(),
        ["b", "a", "b"]
    );
    assert!(
        told.iter().zip(&next).all(|(told, next)| *told < next.fence()),
        "{told:?} {next:?}"
    );
}

async fn sets_that_name_the_same_locks_in_any_order_never_wait_in_a_circle(backend: Backend) {
    let clients = [backend.client().await, backend.client().await];
    let tasks = (0..6).map(|n| {
        let names = [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]][n % 3];
        let set = clients[n % 2].all(names);
        tokio::spawn(async move {
            for _ in 0..4 {
                let guard = set.acquire().await.unwrap();
                tokio::task::yield_now().await;
                guard.check().unwrap();
                guard.release().await.unwrap();
            }
        })
    });
    for done in timeout(3 * LONG, join_all(tasks)).await.expect("no circle") {
        done.unwrap();
    }
}

/// Cancellation at each of its steps: before and after each grant.
async fn a_set_that_waits_is_dropped_with_all_that_it_has(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for waits_for in ["a", "b", "c"] {
        let held = there.lock(waits_for).acquire().await.unwrap();
        let mut waiting = Box::pin(here.all(["a", "b", "c"]).acquire());
        let began = Instant::now();
        while there.lock(waits_for).status().await.unwrap().waiting == 0 {
            assert!(began.elapsed() < LONG, "it never waits for {waits_for}");
            assert!((&mut waiting).now_or_never().is_none());
            sleep(Duration::from_millis(5)).await;
        }
        drop(waiting);
        held.release().await.unwrap();
        become_free(&there, &["a", "b", "c"]).await;
    }
    for polls in 0..30 {
        let mut acquiring = Box::pin(here.all(["a", "b"]).acquire());
        for _ in 0..polls {
            if let Some(guard) = (&mut acquiring).now_or_never() {
                guard.unwrap().release().await.unwrap();
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquiring);
        become_free(&there, &["a", "b"]).await;
    }
}

async fn one_bound_counts_for_all_locks_of_a_set(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let first = there.lock("a").acquire().await.unwrap();
    let _second = there.lock("b").acquire().await.unwrap();
    let bound = Duration::from_millis(400);
    tokio::spawn(async move {
        sleep(bound / 2).await;
        first.release().await.unwrap();
    });
    let began = Instant::now();
    let late = here.all(["a", "b"]).acquire_timeout(bound).await;
    let Err(Error::Timeout {
        name, waited, ttl, ..
    }) = late
    else {
        panic!("{late:?}");
    };
    assert_eq!(&*name, "b");
    let elapsed = began.elapsed();
    assert!(bound <= waited && waited <= elapsed, "{waited:?} of {elapsed:?}");
    assert!(elapsed < bound + backend.slack(), "{elapsed:?}");
    assert!(ttl > Duration::ZERO, "b can be held for longer");
    become_free(&there, &["a"]).await;
    let at_once = here.all(["a", "b"]).acquire_timeout(Duration::ZERO).await;
    assert!(matches!(at_once, Err(Error::Timeout { .. })), "{at_once:?}");
    let for_ever = here.all(["c", "d"]).acquire_timeout(Duration::MAX).await;
    for_ever.unwrap().release().await.unwrap();
}

async fn a_try_gives_back_what_it_has_at_the_first_busy_lock(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let held = there.lock("b").acquire().await.unwrap();
    let busy = here.all(["c", "b", "a"]).try_acquire().await;
    assert!(
        matches!(&busy, Err(Error::Busy { name, waiting: 0, .. }) if &**name == "b"),
        "{busy:?}"
    );
    become_free(&there, &["a", "c"]).await;
    held.release().await.unwrap();
    let guard = here.all(["c", "b", "a"]).try_acquire().await.unwrap();
    guard.release().await.unwrap();
}

async fn a_lock_that_is_lost_while_the_next_is_awaited_ends_the_call(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let held = there.lock("b").acquire().await.unwrap();
    let short = backend.short_lease();
    let set = LockSet::of([here.lock("a").lease(short), here.lock("b"), here.lock("c")]);
    let waiting = tokio::spawn(set.acquire());
    backend.queued(&there.lock("b"), 1, 0).await;
    let fence = there.lock("a").status().await.unwrap().holder.unwrap().fence;
    assert!(there.lock("a").force_release(fence).await.unwrap());
    let ended = timeout(LONG, waiting).await.expect("told").unwrap();
    let Err(Error::Lost(lost)) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!((&*lost.name, lost.reason), ("a", HoldEnd::Taken));
    held.release().await.unwrap();
    become_free(&there, &["a", "b", "c"]).await;
}

async fn a_loss_of_one_lock_ends_the_work_of_all(backend: Backend) {
    let locks = backend.client().await;
    let short = locks.lock("b").lease(backend.short_lease()).auto_renew(false);
    let set = LockSet::of([locks.lock("a"), short]);
    let guard = set.acquire().await.unwrap();
    let watcher = guard.lost();
    let ended = guard.run(std::future::pending::<()>()).await;
    assert_eq!(&*lost(ended).name, "b");
    assert_eq!(watcher.await, HoldEnd::Expired);
    assert!(guard.is_lost());
    assert_eq!(&*lost(guard.check()).name, "b");
    guard.get("a").unwrap().check().unwrap();
    drop(guard);
    let stopped = set.with(async |_| std::future::pending::<()>().await).await;
    assert!(matches!(stopped, Err(Error::Lost(_))), "{stopped:?}");
    become_free(&locks, &["a", "b"]).await;
}

async fn work_with_a_set_returns_its_result_and_releases_all(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let set = here.all(["a", "b"]);
    assert_eq!(set.with(async |tokens| tokens.len()).await.unwrap(), 2);
    become_free(&there, &["a", "b"]).await;
    let failed = set.with(async |_| Err::<(), _>("no ink")).await;
    assert_eq!(failed.unwrap(), Err("no ink"));
    become_free(&there, &["a", "b"]).await;
    let _held = there.lock("b").acquire().await.unwrap();
    let late = set.with_timeout(Duration::from_millis(50), async |_| panic!("no work without all"));
    assert!(matches!(late.await, Err(Error::Timeout { .. })));
    become_free(&there, &["a"]).await;
}

async fn the_release_of_a_set_tells_of_a_loss_and_frees_the_others(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = here.all(["a", "b", "c"]).acquire().await.unwrap();
    let taken = guard.get("b").unwrap().fence();
    assert!(there.lock("b").force_release(taken).await.unwrap());
    let released = guard.release().await;
    assert!(
        matches!(&released, Err(Error::Lost(lost)) if &*lost.name == "b"),
        "{released:?}"
    );
    assert!(is_free(&there.lock("a")).await && is_free(&there.lock("c")).await);
}

async fn a_set_takes_locks_with_settings_of_their_own(backend: Backend) {
    let locks = backend.client().await;
    let owner = Owner::new();
    let mine = locks.lock("a").owner(&owner);
    let outer = mine.acquire().await.unwrap();
    let short = Duration::from_secs(7);
    let set = LockSet::of([locks.lock("b").lease(short), mine]);
    let guard = set.try_acquire().await.unwrap();
    assert_eq!(guard.get("a").unwrap().fence(), outer.fence());
    assert_eq!(guard.get("b").unwrap().lease().length, short);
    guard.release().await.unwrap();
    outer.check().unwrap();
}

const HOUR: Duration = Duration::from_secs(3600);

/// No work has begun before the caller has all of the locks.
async fn a_set_that_is_not_acquired_keeps_no_lock_taken(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let held = there.lock("c").acquire().await.unwrap();
    let set = LockSet::of(["a", "b", "c"].map(|name| here.lock(name).at_least(HOUR)));
    let busy = set.try_acquire().await;
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    become_free(&there, &["a", "b"]).await;
    let late = set.acquire_timeout(Duration::from_millis(50)).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    become_free(&there, &["a", "b"]).await;
    let waiting = tokio::spawn(set.acquire());
    backend.queued(&there.lock("c"), 1, 0).await;
    waiting.abort();
    become_free(&there, &["a", "b"]).await;
    let waiting = tokio::spawn(set.acquire());
    backend.queued(&there.lock("c"), 1, 0).await;
    let fence = there.lock("b").status().await.unwrap().holder.unwrap().fence;
    assert!(there.lock("b").force_release(fence).await.unwrap());
    let lost = timeout(LONG, waiting).await.expect("told").unwrap();
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    become_free(&there, &["a", "b"]).await;
    held.release().await.unwrap();
    set.acquire().await.unwrap().release().await.unwrap();
    for name in ["a", "b", "c"] {
        let holder = there.lock(name).status().await.unwrap().holder;
        assert!(holder.is_some_and(|holder| holder.kept), "{name}");
    }
}

async fn at_least_begins_when_all_locks_of_a_set_are_held(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let held = there.lock("b").acquire().await.unwrap();
    let at_least = Duration::from_millis(500);
    let set = LockSet::of(["a", "b"].map(|name| here.lock(name).at_least(at_least)));
    let waiting = tokio::spawn(set.acquire());
    backend.queued(&there.lock("b"), 1, 0).await;
    // The first lock is held for all of its time by then.
    sleep(at_least).await;
    let began = Instant::now();
    held.release().await.unwrap();
    let guard = timeout(LONG, waiting).await.expect("all are free");
    guard.unwrap().unwrap().release().await.unwrap();
    let _next = there.lock("a").acquire().await.unwrap();
    let took = began.elapsed() + Duration::from_millis(2);
    assert!(took >= at_least, "{took:?}");
}

async fn wrong_sets_are_refused_before_anything_is_sent(backend: Backend) {
    let (locks, others) = (backend.client().await, backend.client().await);
    let none: [&str; 0] = [];
    let wrong = [
        (locks.all(none), "at least one"),
        (locks.all(["a", ""]), "name"),
        (LockSet::of([locks.lock("a"), others.lock("b")]), "one manager"),
        (
            LockSet::of([locks.lock("a"), locks.lock("a").lease(Duration::from_secs(3))]),
            "different settings",
        ),
        (
            LockSet::of([locks.lock("a"), locks.lock("b").lease(Duration::ZERO)]),
            "lease",
        ),
    ];
    for (set, why) in wrong {
        for refused in [
            set.acquire().await,
            set.try_acquire().await,
            set.acquire_timeout(Duration::ZERO).await,
        ] {
            let Err(Error::Invalid(invalid)) = refused else {
                panic!("{set:?}: {refused:?}");
            };
            assert!(invalid.to_string().contains(why), "{invalid}");
        }
    }
    assert_eq!(locks.stats().acquired, 0, "nothing was asked for");
    let twice = LockSet::of([locks.lock("a"), locks.lock("a")]);
    twice.acquire().await.unwrap().release().await.unwrap();
}
