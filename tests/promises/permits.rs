//! Semaphores and read/write locks: capacity, order, leases, and what is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fairlock::{Error, Fence, HoldEnd, Kind, LockGuard, LockManager, LockSet, RwLock, SemaphoreGuard};
use fairlock_testkit::eventually;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Backend, in_a_quorum, on_each_backend};
use crate::common::{Looked, is_busy};

on_each_backend! {
    a_semaphore_has_as_many_guards_as_its_capacity,
    a_guard_takes_all_of_its_permits_or_none,
    a_request_for_many_permits_is_not_overtaken,
    a_try_takes_permits_only_if_nobody_waits,
    each_caller_counts_by_the_capacity_that_it_gave,
    a_larger_capacity_does_not_wait_for_a_smaller_one,
    a_smaller_capacity_is_not_overtaken_for_good,
    one_release_lets_in_all_that_fit,
    a_crashed_or_lost_holder_gives_back_its_permits_alone,
    a_wait_for_permits_dropped_at_any_poll_leaves_nothing,
    at_least_limits_how_many_begin_within_a_time,
    names_of_several_kinds_share_nothing,
    readers_share_and_a_writer_is_alone,
    a_writer_waits_for_the_readers_before_it_alone,
    one_release_lets_in_all_readers_before_the_next_writer,
    a_writer_becomes_a_reader_without_letting_another_writer_in,
    a_writer_whose_lease_is_lost_becomes_no_reader,
    a_guard_gives_back_some_of_its_permits,
    a_slot_belongs_to_one_guard_until_its_hold_ends,
    status_and_list_show_all_holders,
    a_forced_release_ends_the_hold_with_that_fence_alone,
    a_forced_release_finds_each_of_many_holds,
    fences_of_permits_increase,
    sets_take_locks_of_all_kinds_in_one_order,
    what_a_semaphore_cannot_do_is_refused_before_anything_is_sent,
    random_callers_of_four_processes_keep_capacity_and_leave_nothing,
    readers_and_writers_of_four_processes_exclude_each_other,
}

in_a_quorum! {
    permits_are_refused_in_a_quorum,
}

const LONG: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(1500);

async fn in_time<G>(wait: JoinHandle<fairlock::Result<G>>) -> G {
    timeout(LONG, wait).await.expect("in time").unwrap().unwrap()
}

/// Waits until nothing is left of the lock.
async fn becomes_free(lock: &impl Looked) {
    eventually("free", LONG, async || {
        let status = lock.look().await.unwrap();
        (status.permits_in_use, status.readers, status.waiting) == (0, 0, 0) && status.holders.is_empty()
    })
    .await;
}

async fn a_semaphore_has_as_many_guards_as_its_capacity(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let [here, there] = [here, there].map(|locks| locks.semaphore("a", 3));
    let mut guards = Vec::new();
    for lock in [&here, &there, &here] {
        guards.push(timeout(SOON, lock.acquire()).await.expect("a permit").unwrap());
    }
    assert!(is_busy(&there).await);
    let next = tokio::spawn(there.acquire());
    backend.queued(&here, 1, 1).await;
    guards.remove(0).release().await.unwrap();
    guards.push(in_time(next).await);
    assert!(is_busy(&here).await);
    drop(guards);
    becomes_free(&here).await;
}

async fn a_guard_takes_all_of_its_permits_or_none(backend: Backend) {
    let locks = backend.client().await;
    let three = locks.semaphore("a", 5).permits(3);
    let guard = three.acquire().await.unwrap();
    assert_eq!(three.status().await.unwrap().permits_in_use, 3);
    assert!(is_busy(&three).await);
    let two = locks.semaphore("a", 5).permits(2).acquire().await.unwrap();
    assert!(is_busy(&locks.semaphore("a", 5)).await);
    drop((guard, two));
    becomes_free(&three).await;
    let all = locks.semaphore("a", 5).permits(5).acquire().await.unwrap();
    assert!(is_busy(&locks.semaphore("a", 5)).await);
    all.release().await.unwrap();
}

async fn a_request_for_many_permits_is_not_overtaken(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (one, all) = (here.semaphore("a", 3), there.semaphore("a", 3).permits(3));
    let (first, second) = (one.acquire().await.unwrap(), one.acquire().await.unwrap());
    let all = tokio::spawn(all.acquire());
    backend.queued(&one, 1, 1).await;
    // A permit is free, and is kept for the one that waits for three.
    let mut later = tokio::spawn(one.acquire());
    backend.queued(&one, 2, 2).await;
    first.release().await.unwrap();
    assert!(is_busy(&one).await && (&mut later).now_or_never().is_none());
    second.release().await.unwrap();
    let all = in_time(all).await;
    assert!((&mut later).now_or_never().is_none());
    all.release().await.unwrap();
    in_time(later).await.release().await.unwrap();
}

async fn a_try_takes_permits_only_if_nobody_waits(backend: Backend) {
    let locks = backend.client().await;
    let two = locks.semaphore("a", 2);
    let held = two.acquire().await.unwrap();
    let both = tokio::spawn(two.clone().permits(2).acquire());
    backend.queued(&two, 1, 1).await;
    match two.try_acquire().await {
        Err(Error::Busy { waiting, .. }) => assert_eq!(waiting, 1),
        other => panic!("{other:?}"),
    }
    held.release().await.unwrap();
    in_time(both).await.release().await.unwrap();
}

async fn each_caller_counts_by_the_capacity_that_it_gave(backend: Backend) {
    let locks = backend.client().await;
    let (narrow, wide) = (locks.semaphore("a", 2), locks.semaphore("a", 4));
    let mut guards = vec![narrow.acquire().await.unwrap(), narrow.acquire().await.unwrap()];
    assert!(is_busy(&narrow).await);
    guards.push(timeout(SOON, wide.acquire()).await.unwrap().unwrap());
    guards.push(timeout(SOON, wide.acquire()).await.unwrap().unwrap());
    assert!(is_busy(&wide).await);
    assert_eq!(narrow.status().await.unwrap().permits_in_use, 4);
    for _ in 0..3 {
        assert!(is_busy(&narrow).await);
        guards.pop().unwrap().release().await.unwrap();
    }
    assert!(!is_busy(&narrow).await);
}

async fn a_larger_capacity_does_not_wait_for_a_smaller_one(backend: Backend) {
    let (old, new) = (backend.client().await, backend.client().await);
    let (narrow, wide) = (old.semaphore("a", 2), new.semaphore("a", 4));
    let held = [narrow.acquire().await.unwrap(), narrow.acquire().await.unwrap()];
    let waits = tokio::spawn(narrow.acquire());
    backend.queued(&narrow, 1, 1).await;
    let mut over = Vec::new();
    for _ in 0..2 {
        over.push(
            timeout(SOON, wide.acquire())
                .await
                .expect("two of four are free")
                .unwrap(),
        );
    }
    // The next one waits for a permit, and for no smaller capacity.
    let next = tokio::spawn(wide.acquire());
    backend.queued(&narrow, 2, 2).await;
    over.remove(0).release().await.unwrap();
    let next = timeout(SOON, next).await.expect("before it polls");
    over.push(next.unwrap().unwrap());
    assert_eq!(wide.status().await.unwrap().waiting, 1);
    drop((held, over));
    in_time(waits).await.release().await.unwrap();
    becomes_free(&wide).await;
}

async fn a_smaller_capacity_is_not_overtaken_for_good(backend: Backend) {
    let (old, new) = (backend.client().await, backend.client().await);
    let (narrow, wide) = (old.semaphore("a", 1), new.semaphore("a", 3));
    let held = narrow.acquire().await.unwrap();
    let first = tokio::spawn(narrow.acquire());
    backend.queued(&narrow, 1, 1).await;
    for _ in 0..3 {
        let over = timeout(SOON, wide.acquire())
            .await
            .expect("two of three are free");
        over.unwrap().release().await.unwrap();
    }
    // Three permits were granted over the first. Now all wait behind it.
    let mut next = tokio::spawn(wide.acquire());
    backend.queued(&narrow, 2, 2).await;
    assert!(is_busy(&wide).await && (&mut next).now_or_never().is_none());
    held.release().await.unwrap();
    let first = in_time(first).await;
    in_time(next).await.release().await.unwrap();
    first.release().await.unwrap();
    becomes_free(&wide).await;
}

async fn one_release_lets_in_all_that_fit(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let all = here.semaphore("a", 4).permits(4).acquire().await.unwrap();
    let waits: Vec<_> = [&here, &there, &here, &there]
        .map(|locks| tokio::spawn(locks.semaphore("a", 4).acquire()))
        .into();
    backend.queued(&here.semaphore("a", 4), 4, 2).await;
    all.release().await.unwrap();
    let guards = timeout(SOON, join_all(waits)).await.expect("all of them");
    let guards: Vec<_> = guards.into_iter().map(|guard| guard.unwrap().unwrap()).collect();
    let mut fences: Vec<_> = guards.iter().map(|guard| guard.fence()).collect();
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), 4, "each has a fence of its own");
}

async fn a_crashed_or_lost_holder_gives_back_its_permits_alone(backend: Backend) {
    let locks = backend.client().await;
    let lease = backend.short_lease();
    let two = locks.semaphore("a", 2);
    let lasting = two.acquire().await.unwrap();
    // Nothing renews this one, as if its process was dead.
    let dead = two
        .clone()
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    let began = Instant::now();
    let next = timeout(LONG, two.acquire()).await.unwrap().unwrap();
    let waited = began.elapsed();
    assert!(
        waited + Duration::from_millis(100) >= lease && waited < lease + backend.slack(),
        "{waited:?}"
    );
    assert_eq!(dead.lost().await, HoldEnd::Expired);
    lasting.renew().await.unwrap();
    next.release().await.unwrap();
    lasting.release().await.unwrap();
}

async fn a_wait_for_permits_dropped_at_any_poll_leaves_nothing(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (two, other) = (here.semaphore("a", 2), there.semaphore("a", 2));
    for last in 1..12 {
        for weight in [1, 2] {
            let held = other.acquire().await.unwrap();
            let wait = two.clone().permits(weight).acquire();
            let mut wait = Box::pin(wait);
            for _ in 0..last {
                if (&mut wait).now_or_never().is_some() {
                    break;
                }
                sleep(Duration::from_millis(2)).await;
            }
            drop(wait);
            held.release().await.unwrap();
            let all = timeout(SOON, other.clone().permits(2).acquire()).await;
            all.expect("nothing is left").unwrap().release().await.unwrap();
        }
    }
    becomes_free(&two).await;
}

/// A semaphore whose permits stay taken for a while is a rate limit, and it is fair.
async fn at_least_limits_how_many_begin_within_a_time(backend: Backend) {
    const LIMIT: u32 = 3;
    let window = Duration::from_millis(400);
    let clients = backend.clients(2).await;
    let mut set = JoinSet::new();
    for n in 0..12 {
        let limited = clients[n % 2].semaphore("rate", LIMIT).at_least(window);
        set.spawn(limited.with(async |_token| Instant::now()));
        sleep(Duration::from_millis(1)).await;
    }
    let mut began: Vec<_> = set.join_all().await.into_iter().map(Result::unwrap).collect();
    began.sort();
    // The server counts from the grant, of which the caller hears a moment later.
    let heard = Duration::from_millis(150);
    for several in began.windows(LIMIT as usize + 1) {
        let within = several[LIMIT as usize] - several[0];
        assert!(within + heard >= window, "{within:?}");
    }
    let took = began[11] - began[0];
    assert!(took < 3 * window + backend.slack(), "{took:?}");
}

async fn names_of_several_kinds_share_nothing(backend: Backend) {
    let locks = backend.client().await;
    let guards: [LockGuard; 3] = [
        locks.lock("a").acquire().await.unwrap(),
        locks.semaphore("a", 1).acquire().await.unwrap().into(),
        timeout(SOON, locks.rw_lock("a").write().acquire())
            .await
            .unwrap()
            .unwrap()
            .into(),
    ];
    assert!(is_busy(&locks.lock("a")).await);
    assert!(is_busy(&locks.semaphore("a", 1)).await);
    assert!(is_busy(&locks.rw_lock("a").read()).await);
    // A wait that is given up is withdrawn from its own queue.
    let given_up = locks.semaphore("a", 1).acquire_timeout(Duration::from_millis(50));
    assert!(matches!(given_up.await, Err(Error::Timeout { .. })));
    let waits = tokio::spawn(locks.lock("a").acquire());
    backend.queued(&locks.lock("a"), 1, 1).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
    timeout(SOON, waits)
        .await
        .unwrap()
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn readers_share_and_a_writer_is_alone(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (here, there) = (here.rw_lock("a"), there.rw_lock("a"));
    assert_eq!(here.name(), "a");
    let readers = [&here, &there, &here].map(|lock| lock.read().acquire());
    let readers = timeout(SOON, join_all(readers)).await.unwrap();
    let readers: Vec<_> = readers.into_iter().map(Result::unwrap).collect();
    assert!(is_busy(&there.write()).await && !is_busy(&there.read()).await);
    for reader in readers {
        reader.release().await.unwrap();
    }
    let writer = there.write().acquire().await.unwrap();
    assert!(is_busy(&here.read()).await && is_busy(&here.write()).await);
    writer.release().await.unwrap();
    becomes_free(&here).await;
}

async fn a_writer_waits_for_the_readers_before_it_alone(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (here, there) = (here.rw_lock("a"), there.rw_lock("a"));
    let before = here.read().acquire().await.unwrap();
    let writer = tokio::spawn(there.write().acquire());
    backend.queued(&here, 1, 1).await;
    let mut later = tokio::spawn(here.read().acquire());
    backend.queued(&here, 2, 2).await;
    before.release().await.unwrap();
    let writer = timeout(SOON, writer).await.expect("its turn").unwrap().unwrap();
    assert!((&mut later).now_or_never().is_none());
    writer.release().await.unwrap();
    let later = timeout(SOON, later).await.expect("its turn").unwrap().unwrap();
    later.release().await.unwrap();
}

async fn one_release_lets_in_all_readers_before_the_next_writer(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (here, there) = (here.rw_lock("a"), there.rw_lock("a"));
    let first = here.write().acquire().await.unwrap();
    let mut waits = Vec::new();
    for (n, lock) in [&here, &there, &here].into_iter().enumerate() {
        waits.push(tokio::spawn(lock.read().acquire()));
        backend.queued(&here, n as u64 + 1, 1 + n.min(1)).await;
    }
    let mut writer = tokio::spawn(there.write().acquire());
    backend.queued(&here, 4, 2).await;
    let mut last = tokio::spawn(here.read().acquire());
    backend.queued(&here, 5, 2).await;
    first.release().await.unwrap();
    let readers = timeout(SOON, join_all(waits)).await.expect("three readers");
    assert!((&mut writer).now_or_never().is_none() && (&mut last).now_or_never().is_none());
    drop(readers);
    let writer = timeout(SOON, writer).await.expect("the writer").unwrap().unwrap();
    assert!((&mut last).now_or_never().is_none());
    drop(writer);
    timeout(SOON, last)
        .await
        .expect("the last reader")
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn a_writer_becomes_a_reader_without_letting_another_writer_in(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (here, there) = (here.rw_lock("a"), there.rw_lock("a"));
    let writing = here.write().acquire().await.unwrap();
    let fence = writing.fence();
    let reader = tokio::spawn(there.read().acquire());
    backend.queued(&here, 1, 1).await;
    let mut writer = tokio::spawn(there.write().acquire());
    backend.queued(&here, 2, 1).await;
    let status = here.status().await.unwrap();
    assert_eq!((status.readers, status.writer, status.waiting), (0, true, 2));
    assert!(status.holders[0].writes);
    let guard = writing.downgrade().await.unwrap();
    let reader = timeout(SOON, reader).await.expect("it shares").unwrap().unwrap();
    guard.renew().await.unwrap();
    assert_eq!(guard.fence(), fence);
    let status = here.status().await.unwrap();
    assert_eq!((status.readers, status.writer, status.waiting), (2, false, 1));
    assert!(!status.holders.iter().any(|holder| holder.writes));
    assert!((&mut writer).now_or_never().is_none());
    reader.release().await.unwrap();
    assert!((&mut writer).now_or_never().is_none());
    guard.release().await.unwrap();
    timeout(SOON, writer)
        .await
        .expect("its turn")
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn a_writer_whose_lease_is_lost_becomes_no_reader(backend: Backend) {
    let locks = backend.client().await;
    let lease = backend.short_lease();
    let short = locks.rw_lock("a").lease(lease).auto_renew(false);
    let lost = short.write().acquire().await.unwrap();
    sleep(2 * lease).await;
    assert!(matches!(lost.downgrade().await, Err(Error::Lost(_))));
}

async fn a_guard_gives_back_some_of_its_permits(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let mut bulk = here.semaphore("a", 5).permits(5).acquire().await.unwrap();
    let fence = bulk.fence();
    let waits = tokio::spawn(there.semaphore("a", 5).permits(3).acquire());
    backend.queued(&here.semaphore("a", 5), 1, 1).await;
    for (permits, why) in [
        (0, "permits 0: must be from 1 to those that the guard has, 5"),
        (6, "permits 6: must be from 1 to those that the guard has, 5"),
    ] {
        match bulk.shrink_to(permits).await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.to_string(), why),
            other => panic!("{other:?}"),
        }
    }
    bulk.shrink_to(5).await.unwrap(); // changes nothing
    bulk.shrink_to(2).await.unwrap();
    let three = timeout(SOON, waits)
        .await
        .expect("three are free")
        .unwrap()
        .unwrap();
    assert_eq!((bulk.permits(), three.permits(), bulk.fence()), (2, 3, fence));
    assert!(is_busy(&there.semaphore("a", 5)).await);
    bulk.renew().await.unwrap();
    bulk.release().await.unwrap();
    three.release().await.unwrap();
    becomes_free(&here.semaphore("a", 5)).await;
}

async fn a_slot_belongs_to_one_guard_until_its_hold_ends(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let [here, there] = [here, there].map(|locks| locks.semaphore("gpu", 3));
    let (zero, one) = (here.acquire().await.unwrap(), there.acquire().await.unwrap());
    let two = here.try_acquire().await.unwrap();
    assert_eq!([zero.slot(), one.slot(), two.slot()], [Some(0), Some(1), Some(2)]);
    // A waiter is handed the slot that was given back, under a larger fence.
    let (former, next) = (one.fence(), tokio::spawn(there.acquire()));
    backend.queued(&here, 1, 1).await;
    one.release().await.unwrap();
    let next = in_time(next).await;
    assert!(next.slot() == Some(1) && next.fence() > former);
    next.renew().await.unwrap();
    let holders = here.status().await.unwrap().holders;
    let shown = |guard: &SemaphoreGuard| {
        let holder = holders.iter().find(|holder| holder.fence == guard.fence());
        holder.expect("it holds").slot == guard.slot()
    };
    assert!([&zero, &next, &two].into_iter().all(shown), "{holders:?}");
    drop((zero, next, two));
    becomes_free(&here).await;
    let all = here.permits(3).acquire().await.unwrap();
    assert_eq!(all.slot(), None, "several permits have no slot");
    all.release().await.unwrap();
}

async fn status_and_list_show_all_holders(backend: Backend) {
    let named = |label: &'static str| backend.client_with(move |settings| settings.label(label));
    let (here, there) = (named("here").await, named("there").await);
    let two = here.semaphore("s", 10).permits(2).acquire().await.unwrap();
    let seven = there.semaphore("s", 8).permits(6).acquire().await.unwrap();
    let reader = here.rw_lock("r").read().acquire().await.unwrap();
    let lock = there.lock("l").acquire().await.unwrap();
    // A label is set in the background.
    eventually("both are shown", LONG, async || {
        let status = here.semaphore("s", 10).status().await.unwrap();
        let mut seen: Vec<_> = (status.holders.iter())
            .map(|holder| {
                (
                    holder.label.as_deref(),
                    holder.permits,
                    holder.capacity,
                    holder.fence,
                )
            })
            .collect();
        seen.sort_by_key(|holder| holder.3);
        assert_eq!(
            (status.permits_in_use, status.capacity, status.waiting),
            (8, Some(8), 0)
        );
        assert_eq!(status.holder.as_ref(), status.holders.first());
        seen == [
            (Some("here"), 2, Some(10), two.fence()),
            (Some("there"), 6, Some(8), seven.fence()),
        ]
    })
    .await;
    let mut listed = here.list_all("*").await.unwrap();
    listed.sort_by_key(|lock| lock.kind);
    let listed: Vec<_> = (listed.iter())
        .map(|lock| {
            (
                &*lock.name,
                lock.kind,
                (lock.status.permits_in_use, lock.status.readers),
                lock.status.holders.len(),
            )
        })
        .collect();
    let expected = [
        ("l", Kind::Lock, (0, 0), 1),
        ("s", Kind::Semaphore, (8, 0), 2),
        ("r", Kind::ReadWrite, (0, 1), 1),
    ];
    assert_eq!(listed, expected);
    drop((reader, lock));
}

async fn a_forced_release_ends_the_hold_with_that_fence_alone(backend: Backend) {
    let locks = backend.client().await;
    let two = locks.semaphore("a", 2);
    let (stuck, well) = (two.acquire().await.unwrap(), two.acquire().await.unwrap());
    assert!(two.force_release(stuck.fence()).await.unwrap());
    assert!(!two.force_release(stuck.fence()).await.unwrap());
    let next = timeout(SOON, two.acquire()).await.unwrap().unwrap();
    assert!(matches!(stuck.renew().await, Err(Error::Lost(lost)) if lost.reason == HoldEnd::Taken));
    well.renew().await.unwrap();
    next.release().await.unwrap();
    well.release().await.unwrap();
}

/// Each call searches a part of the holds.
async fn a_forced_release_finds_each_of_many_holds(backend: Backend) {
    const HOLDS: u32 = 400;
    let locks = backend.client().await;
    let many = locks.semaphore("a", HOLDS);
    let guards = join_all((0..HOLDS).map(|_| many.acquire())).await;
    let guards: Vec<_> = guards.into_iter().map(|guard| guard.unwrap()).collect();
    for stuck in guards.iter().step_by(57) {
        assert!(many.force_release(stuck.fence()).await.unwrap());
        assert!(!many.force_release(stuck.fence()).await.unwrap());
    }
    let left = many.status().await.unwrap().permits_in_use;
    assert_eq!(left, u64::from(HOLDS - HOLDS.div_ceil(57)));
    for (n, guard) in guards.into_iter().enumerate() {
        assert_eq!(guard.release().await.is_err(), n % 57 == 0);
    }
}

async fn fences_of_permits_increase(backend: Backend) {
    let clients = backend.clients(2).await;
    let mut last = Fence::try_from(1_u64).unwrap();
    let mut held = Vec::new();
    for n in 0..20 {
        let guard = clients[n % 2].semaphore("a", 5).acquire().await.unwrap();
        assert!(guard.fence() > last);
        last = guard.fence();
        held.push(guard);
        if held.len() == 5 {
            held.remove(n % 5).release().await.unwrap();
        }
    }
}

async fn sets_take_locks_of_all_kinds_in_one_order(backend: Backend) {
    let locks = backend.client().await;
    let given = |locks: &LockManager| {
        [
            LockSet::from(locks.rw_lock("a").read()),
            locks.semaphore("b", 3).permits(2).into(),
            locks.lock("c").into(),
            locks.semaphore("a", 3).into(),
        ]
    };
    // Locks come first, then semaphores, then read/write locks, each by name.
    let all_of_a = locks.semaphore("a", 3).permits(3).acquire().await.unwrap();
    let waits = tokio::spawn(LockSet::of(given(&locks)).acquire());
    backend.queued(&locks.semaphore("a", 3), 1, 1).await;
    assert!(is_busy(&locks.lock("c")).await);
    assert!(!is_busy(&locks.semaphore("b", 2).permits(2)).await);
    all_of_a.release().await.unwrap();
    let guard = timeout(SOON, waits).await.expect("its turn").unwrap().unwrap();
    let fences = guard.fences();
    assert_eq!(fences.len(), 4);
    assert_eq!(guard.get("b").unwrap().fence(), fences[1]);
    assert_eq!(
        guard.get("a").unwrap().fence(),
        fences[3],
        "the semaphore was acquired first"
    );
    guard.release().await.unwrap();
    let both_sides = LockSet::from(locks.rw_lock("a").read()).and(locks.rw_lock("a").write());
    assert!(matches!(both_sides.acquire().await, Err(Error::Invalid(_))));

    let mut set = JoinSet::new();
    for n in 0..24 {
        let mut given = given(&locks);
        given.rotate_left(n % 4);
        set.spawn(LockSet::of(given).with(async |_tokens| sleep(Duration::from_millis(1)).await));
    }
    for done in timeout(LONG, set.join_all()).await.expect("no circle") {
        done.unwrap();
    }
}

async fn what_a_semaphore_cannot_do_is_refused_before_anything_is_sent(backend: Backend) {
    let locks = backend.client().await;
    let cases = [
        (locks.semaphore("a", 0), "capacity 0: must be from 1 to 99999"),
        (
            locks.semaphore("a", 100_000),
            "capacity 100000: must be from 1 to 99999",
        ),
        (
            locks.semaphore("a", 3).permits(0),
            "permits 0: must be from 1 to the capacity, 3",
        ),
        (
            locks.semaphore("a", 3).permits(4),
            "permits 4: must be from 1 to the capacity, 3",
        ),
    ];
    for (lock, why) in cases {
        for refused in [
            lock.acquire().await.err(),
            lock.try_acquire().await.err(),
            lock.status().await.err(),
        ] {
            match refused {
                Some(Error::Invalid(invalid)) => assert_eq!(invalid.to_string(), why),
                other => panic!("{other:?} instead of {why}"),
            }
        }
    }
    let listed = locks.list_all("*").await.unwrap();
    assert!(listed.is_empty(), "{listed:?}");
}

async fn permits_are_refused_in_a_quorum(backend: Backend) {
    let locks = backend.client().await;
    for lock in [
        LockSet::from(locks.semaphore("a", 2)),
        locks.rw_lock("a").read().into(),
        locks.rw_lock("a").write().into(),
    ] {
        for refused in [lock.acquire().await.err(), lock.try_acquire().await.err()] {
            assert!(matches!(refused, Some(Error::Invalid(_))), "{refused:?}");
        }
    }
}

async fn random_callers_of_four_processes_keep_capacity_and_leave_nothing(backend: Backend) {
    const CAPACITY: u32 = 5;
    let clients = backend.clients(4).await;
    let in_use = Arc::new(AtomicU32::new(0));
    let slots: Arc<[AtomicU32; CAPACITY as usize]> = Arc::default();
    let mut set = JoinSet::new();
    for task in 0..24_u32 {
        let (locks, in_use) = (clients[task as usize % 4].clone(), Arc::clone(&in_use));
        let slots = Arc::clone(&slots);
        set.spawn(async move {
            for turn in 0..10 {
                let weight = 1 + (task * 7 + turn * 3) % CAPACITY;
                let lock = locks.semaphore("a", CAPACITY).permits(weight);
                let patience = Duration::from_millis(u64::from(task % 5) * 20 + 5);
                let acquired = match turn % 3 {
                    0 => lock.acquire().await,
                    1 => lock.acquire_timeout(patience).await,
                    _ => lock.try_acquire().await,
                };
                let guard = match acquired {
                    Ok(guard) => guard,
                    Err(Error::Busy { .. } | Error::Timeout { .. }) => continue,
                    Err(error) => panic!("{error}"),
                };
                let before = in_use.fetch_add(weight, Ordering::SeqCst);
                assert!(before + weight <= CAPACITY, "{before} and {weight}");
                let slot = guard.slot().map(|slot| &slots[slot as usize]);
                assert_eq!(slot.is_some(), weight == 1);
                let others = slot.map_or(0, |slot| slot.fetch_add(1, Ordering::SeqCst));
                assert_eq!(others, 0, "{:?} has another holder", guard.slot());
                sleep(Duration::from_millis(u64::from(turn % 4))).await;
                if let Some(slot) = slot {
                    slot.fetch_sub(1, Ordering::SeqCst);
                }
                in_use.fetch_sub(weight, Ordering::SeqCst);
                match turn % 2 {
                    0 => guard.release().await.unwrap(),
                    _ => drop(guard),
                }
            }
        });
    }
    timeout(3 * LONG, set.join_all())
        .await
        .expect("nobody waits for ever");
    becomes_free(&clients[0].semaphore("a", CAPACITY)).await;
}

async fn readers_and_writers_of_four_processes_exclude_each_other(backend: Backend) {
    const WRITES: u32 = 1000;
    let clients = backend.clients(4).await;
    // Each writer counts for `WRITES`, so a reader beside it would be seen.
    let inside = Arc::new(AtomicU32::new(0));
    let mut set = JoinSet::new();
    for task in 0..24_u32 {
        let lock: RwLock = clients[task as usize % 4].rw_lock("a");
        let inside = Arc::clone(&inside);
        set.spawn(async move {
            for turn in 0..10 {
                let writes = (task + turn) % 4 == 0;
                let span = Duration::from_millis(u64::from(turn % 3));
                if writes {
                    let writing = lock.write().acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(WRITES, Ordering::SeqCst), 0);
                    sleep(span).await;
                    inside.fetch_sub(WRITES, Ordering::SeqCst);
                    if turn % 2 == 0 {
                        inside.fetch_add(1, Ordering::SeqCst);
                        let reading = writing.downgrade().await.unwrap();
                        sleep(Duration::from_millis(1)).await;
                        assert!(inside.fetch_sub(1, Ordering::SeqCst) < WRITES, "a writer came in");
                        reading.release().await.unwrap();
                    } else {
                        writing.release().await.unwrap();
                    }
                } else {
                    let reading = lock.read().acquire().await.unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < WRITES, "beside a writer");
                    sleep(span).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    reading.release().await.unwrap();
                }
            }
        });
    }
    for done in timeout(3 * LONG, set.join_all())
        .await
        .expect("nobody waits for ever")
    {
        let () = done;
    }
    becomes_free(&clients[0].rw_lock("a")).await;
}
