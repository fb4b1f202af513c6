//! The public interface as a user's program sees it: bounds of types and futures, `Debug`, and conversions.

// Some functions only have to compile.
#![allow(clippy::unwrap_used, dead_code)]

use std::collections::{BTreeSet, HashSet};
use std::error::Error as _;
use std::fmt::Debug;
use std::hash::Hash;
use std::num::NonZeroU64;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use fairlock::diagnose::{Finding, Subject, Verdict};
use fairlock::spin::SpinLock;
use fairlock::{
    Credentials, Error, Fence, HoldEnd, HoldToken, Holder, Invalid, Kind, Leadership, Lease, LeaseState,
    Listed, Lock, LockGuard, LockManager, LockManagerBuilder, LockSet, LockSetGuard, LockStream, Lost,
    MemoryStore, Owner, Quorum, RateLimit, RateStatus, ReadGuard, ReadLock, Result, RwLock, Semaphore,
    SemaphoreGuard, ServerError, Stats, Status, Tls, Unreleased, WriteGuard, WriteLock,
};
use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use crate::backend::{
    Backend, in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, with_local_handoffs,
};

on_each_backend! {
    many_locks_are_acquired_at_once,
    critical_sections_are_spawned,
    a_wait_keeps_its_place_in_a_select_loop,
    a_guard_lives_in_a_struct_and_moves_between_tasks,
    everything_can_be_printed,
}

with_local_handoffs! {
    many_locks_are_acquired_at_once,
    critical_sections_are_spawned,
    a_wait_keeps_its_place_in_a_select_loop,
    a_guard_lives_in_a_struct_and_moves_between_tasks,
    everything_can_be_printed,
}

in_a_quorum! {
    many_locks_are_acquired_at_once,
    critical_sections_are_spawned,
    a_wait_keeps_its_place_in_a_select_loop,
    a_guard_lives_in_a_struct_and_moves_between_tasks,
}

local_handoffs_in_a_quorum! {
    many_locks_are_acquired_at_once,
    critical_sections_are_spawned,
    a_wait_keeps_its_place_in_a_select_loop,
    a_guard_lives_in_a_struct_and_moves_between_tasks,
}

/// Types with these bounds can be moved to a static, another task or another thread.
fn everywhere<T: Debug + Send + Sync + Unpin + 'static>() {}
fn cheap<T: Clone>() {}
fn value<T: Copy + UnwindSafe + RefUnwindSafe>() {}
fn for_maps<T: Eq + Hash>() {}
fn error<T: std::error::Error + Clone + PartialEq + UnwindSafe + RefUnwindSafe>() {}
fn call<F: Future + Send + 'static>(future: F) -> F {
    future
}

/// `face::api` checks that each public type is here.
#[test]
fn types_have_the_bounds_that_users_rely_on() {
    everywhere::<Credentials>();
    everywhere::<Error>();
    everywhere::<Fence>();
    everywhere::<Finding>();
    everywhere::<HoldEnd>();
    everywhere::<HoldToken>();
    everywhere::<Holder>();
    everywhere::<Invalid>();
    everywhere::<Kind>();
    everywhere::<Leadership>();
    everywhere::<Lease>();
    everywhere::<LeaseState>();
    everywhere::<Listed>();
    everywhere::<Lock>();
    everywhere::<LockGuard>();
    everywhere::<LockManager>();
    everywhere::<LockManagerBuilder>();
    everywhere::<LockSet>();
    everywhere::<LockSetGuard>();
    everywhere::<LockStream<Status>>();
    everywhere::<Lost>();
    everywhere::<MemoryStore>();
    everywhere::<Owner>();
    everywhere::<Quorum>();
    everywhere::<RateLimit>();
    everywhere::<RateStatus>();
    everywhere::<ReadGuard>();
    everywhere::<ReadLock>();
    everywhere::<RwLock>();
    everywhere::<Semaphore>();
    everywhere::<SemaphoreGuard>();
    everywhere::<ServerError>();
    everywhere::<SpinLock>();
    everywhere::<Stats>();
    everywhere::<Status>();
    everywhere::<Subject>();
    everywhere::<Tls>();
    everywhere::<Unreleased>();
    everywhere::<Verdict>();
    everywhere::<WriteGuard>();
    everywhere::<WriteLock>();

    cheap::<Credentials>();
    cheap::<Error>();
    cheap::<Fence>();
    cheap::<Finding>();
    cheap::<HoldEnd>();
    cheap::<HoldToken>();
    cheap::<Holder>();
    cheap::<Invalid>();
    cheap::<Kind>();
    cheap::<Leadership>();
    cheap::<Lease>();
    cheap::<LeaseState>();
    cheap::<Listed>();
    cheap::<Lock>();
    cheap::<LockManager>();
    cheap::<LockManagerBuilder>();
    cheap::<LockSet>();
    cheap::<Lost>();
    cheap::<MemoryStore>();
    cheap::<Owner>();
    cheap::<Quorum>();
    cheap::<RateLimit>();
    cheap::<RateStatus>();
    cheap::<ReadLock>();
    cheap::<RwLock>();
    cheap::<Semaphore>();
    cheap::<ServerError>();
    cheap::<SpinLock>();
    cheap::<Stats>();
    cheap::<Status>();
    cheap::<Subject>();
    cheap::<Tls>();
    cheap::<Unreleased>();
    cheap::<Verdict>();
    cheap::<WriteLock>();

    for_maps::<Fence>();
    for_maps::<HoldEnd>();
    for_maps::<Kind>();
    for_maps::<LeaseState>();
    for_maps::<Owner>();
    value::<Fence>();
    value::<HoldEnd>();
    value::<Kind>();
    value::<LeaseState>();

    error::<Error>();
    error::<Invalid>();
    error::<Lost>();
    error::<ServerError>();
    error::<Unreleased>();
}

/// No call borrows anything, so each can be spawned. This function is never run.
fn futures_can_be_spawned(locks: &LockManager, lock: &Lock, guard: LockGuard, fence: Fence) {
    drop(call(lock.acquire()));
    drop(call(lock.acquire_timeout(Duration::ZERO)));
    drop(call(lock.try_acquire()));
    drop(call(lock.status()));
    drop(call(lock.force_release(fence)));
    drop(call(lock.with(async |_| tokio::task::yield_now().await)));
    drop(call(lock.with_timeout(Duration::ZERO, async |_| {
        tokio::task::yield_now().await
    })));
    drop(call(guard.lost()));
    drop(call({
        let locks = locks.clone();
        async move {
            locks.ping().await?;
            guard.renew().await?;
            guard.run(tokio::task::yield_now()).await?;
            guard.release().await?;
            locks.close().await.map_err(|_| Error::Closed)
        }
    }));
    let leadership = locks.leadership("a");
    drop(call(leadership.campaign()));
    drop(call(leadership.leader()));
    let mut watch = lock.watch(Duration::ZERO);
    drop(call(async move { watch.next().await }));
    drop(call(leadership.run(async |term| term.lost().await)));
    drop(call(leadership.run_until(tokio::task::yield_now(), |term| {
        term.run(tokio::task::yield_now())
    })));
    drop(call(async move {
        // What the work borrows from its task does not keep that from being spawned.
        let (name, mut terms) = (String::from("a"), 0);
        leadership.run(async |_| name.len()).await?;
        leadership
            .run(|term| {
                terms += 1;
                term.lost()
            })
            .await?;
        let lead = leadership.campaign().await?;
        lead.run(tokio::task::yield_now()).await?;
        lead.renew().await?;
        lead.release().await
    }));
    drop(call(LockManager::connect("redis://127.0.0.1")));
}

/// The same for the other kinds, and for sets.
fn futures_of_all_kinds_can_be_spawned(permits: &Semaphore, lock: &RwLock, set: &LockSet, limit: &RateLimit) {
    macro_rules! all_ways {
        ($it:expr) => {
            drop(call($it.acquire()));
            drop(call($it.acquire_timeout(Duration::ZERO)));
            drop(call($it.try_acquire()));
            drop(call($it.with(async |_| tokio::task::yield_now().await)));
            drop(call($it.with_timeout(Duration::ZERO, async |_| {
                tokio::task::yield_now().await
            })));
            drop(call(std::future::IntoFuture::into_future($it.clone())));
        };
    }
    all_ways!(permits);
    all_ways!(lock.read());
    all_ways!(lock.write());
    all_ways!(set);
    drop(call(permits.status()));
    drop(call(lock.status()));
    drop(call(limit.acquire()));
    drop(call(limit.acquire_timeout(Duration::ZERO)));
    drop(call(limit.try_acquire()));
    drop(call(limit.status()));
    let (permits, lock, set) = (permits.clone(), lock.clone(), set.clone());
    drop(call(async move {
        let mut bulk = permits.permits(3).await?;
        bulk.shrink_to(1).await?;
        bulk.release().await?;
        let reading = lock.write().await?.downgrade().await?;
        reading.run(tokio::task::yield_now()).await?;
        reading.release().await?;
        let all = set.await?;
        all.run(tokio::task::yield_now()).await?;
        all.lost().await;
        all.release().await
    }));
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn charge(_fence: Fence) -> Result<(), AnyError> {
    Ok(())
}

struct Db;

impl Db {
    async fn save(&self, _order: u32, _fence: Fence) -> Result<(), AnyError> {
        Ok(())
    }
}

/// The example that `docs/guide.md` begins with.
#[tokio::test]
async fn the_first_example_works_as_it_is_written() -> Result<(), AnyError> {
    let server = fairlock_testkit::Server::start().await;
    let (db, order) = (Db, 42);
    let locks = LockManager::connect(&server.url()).await?;
    let lock = locks.lock("invoice:42");

    let guard = lock.acquire().await?;
    guard.run(charge(guard.fence())).await??;
    guard.release().await?;

    match lock.try_acquire().await {
        Ok(guard) => guard.release().await?,
        Err(Error::Busy { waiting, .. }) => println!("busy, and {waiting} wait"),
        Err(error) => return Err(error.into()),
    }

    lock.with(async |token| db.save(order, token.fence()).await)
        .await??;
    Ok(())
}

#[test]
fn a_manager_in_memory_is_made_outside_a_runtime() {
    let locks = LockManager::in_memory();
    let lock = locks.lock("a");
    assert!(!locks.is_closed());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let guard = lock.acquire().await.unwrap();
        assert!(matches!(lock.try_acquire().await, Err(Error::Busy { .. })));
        guard.release().await.unwrap();
    });
}

async fn many_locks_are_acquired_at_once(backend: Backend) {
    let locks = backend.client().await;
    let names = ["a", "b", "c"];
    let guards = try_join_all(names.map(|name| locks.lock(name).acquire()))
        .await
        .unwrap();
    assert_eq!(guards.iter().map(LockGuard::name).collect::<Vec<_>>(), names);
    assert_eq!(locks.stats().held, 3);

    let mut set = JoinSet::new();
    for name in names {
        set.spawn(locks.lock(name).acquire());
    }
    drop(guards);
    let mut acquired = BTreeSet::new();
    while let Some(guard) = set.join_next().await {
        acquired.insert(guard.unwrap().unwrap().name().to_owned());
    }
    assert_eq!(acquired.len(), 3);
}

async fn critical_sections_are_spawned(backend: Backend) {
    let locks = backend.client().await;
    let (names, within) = (["a", "a", "b"], Duration::from_secs(10));
    let mut set = JoinSet::new();
    for name in names {
        set.spawn(locks.lock(name).with(async move |_| name.to_owned()));
        set.spawn(
            locks
                .lock(name)
                .with_timeout(within, async move |_| name.to_owned()),
        );
    }
    let mut done = set
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>>>()
        .unwrap();
    done.sort();
    assert_eq!(done, ["a", "a", "a", "a", "b", "b"]);
    assert_eq!(locks.stats().held, 0);
}

async fn a_wait_keeps_its_place_in_a_select_loop(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let guard = there.lock("a").acquire().await.unwrap();
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let mut guard = Some(guard);
    let mut turns = 0;
    let mut wait = std::pin::pin!(here.lock("a").acquire());
    let mine = loop {
        tokio::select! {
            mine = &mut wait => break mine.unwrap(),
            _ = ticks.tick() => turns += 1,
        }
        if turns == 5 {
            drop(guard.take());
        }
    };
    assert!(turns >= 5);
    mine.release().await.unwrap();
}

struct Job {
    guard: LockGuard,
}

impl Job {
    async fn step(&self) -> Result<Fence> {
        self.guard.check()?;
        Ok(self.guard.fence())
    }
}

async fn a_guard_lives_in_a_struct_and_moves_between_tasks(backend: Backend) {
    let locks = backend.client().await;
    let job = Job {
        guard: locks.lock("a").acquire().await.unwrap(),
    };
    let fence = job.guard.fence();
    let job = tokio::spawn(async move {
        assert_eq!(job.step().await.unwrap(), fence);
        job
    });
    let job = std::sync::Arc::new(job.await.unwrap());
    let shared = std::sync::Arc::clone(&job);
    tokio::spawn(async move { shared.step().await })
        .await
        .unwrap()
        .unwrap();
    let Ok(job) = std::sync::Arc::try_unwrap(job).map(|job| job.guard.release()) else {
        panic!("another task has the guard");
    };
    job.await.unwrap();
}

async fn everything_can_be_printed(backend: Backend) {
    let locks = backend.client().await;
    let lock = locks.lock("invoice:42").owner(&Owner::named("me"));
    assert_eq!(lock.name(), "invoice:42");
    let guard = lock.acquire().await.unwrap();
    let status = lock.status().await.unwrap();
    let tried = locks.lock("invoice:42").try_acquire().await;
    let fence = guard.fence().to_string();
    for (text, expected) in [
        (format!("{locks:?}"), "LockManager"),
        (format!("{:?}", LockManager::builder()), "LockManagerBuilder"),
        (format!("{lock:?}"), "invoice:42"),
        (format!("{guard:?}"), "invoice:42"),
        (format!("{guard:?}"), fence.as_str()),
        (format!("{status:?}"), fence.as_str()),
        (format!("{tried:?}"), "Busy"),
        (format!("{:?}", guard.owner()), Owner::named("me").as_str()),
        (format!("{:?}", guard.lease()), "Held"),
        (format!("{:?}", locks.stats()), "held: 1"),
        (format!("{:?}", MemoryStore::new()), "MemoryStore"),
        (format!("{:?}", SpinLock::new(&locks, "b")), "SpinLock"),
    ] {
        assert!(text.contains(expected), "{text}");
    }

    let token = guard.token();
    drop(guard);
    let lost = crate::common::lost(token.check());
    let error = Error::from(lost.clone());
    assert_eq!(error.to_string(), lost.to_string());
    assert!(lost.to_string().contains("invoice:42"), "{lost}");
    assert!(
        error.source().is_none(),
        "a report of the chain would say it twice"
    );
    assert!(!error.is_transient());
    let invalid = locks.lock("").acquire().await.unwrap_err();
    assert!(format!("{invalid:?}").contains("Invalid"));
}

/// Closes a manager in a function of this crate's `Result`.
async fn closed(locks: &LockManager) -> Result<()> {
    locks.close().await?;
    Ok(())
}

#[tokio::test]
async fn what_a_closed_manager_left_is_an_error_like_others() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").acquire().await.unwrap();
    let Err(error) = closed(&locks).await else {
        panic!("a guard lives")
    };
    assert!(!error.is_transient());
    assert!(error.to_string().contains("\"a\""), "{error}");
    assert_eq!(error, Error::Unreleased(locks.close().await.unwrap_err()));
    guard.release().await.unwrap();
    assert_eq!(closed(&locks).await, Ok(()));
}

#[test]
fn fences_are_numbers_that_databases_know() {
    let fence = Fence::try_from(7_u64).unwrap();
    let later = Fence::try_from(8_u64).unwrap();
    assert!(later > fence);
    assert_eq!((u64::from(fence), i64::from(fence), fence.get()), (7, 7, 7));
    assert_eq!(fence.to_string(), "7");
    assert_eq!(format!("{fence:>3}"), "  7");
    assert_eq!(HashSet::from([fence, later, fence]).len(), 2);
    let largest = u64::try_from(i64::MAX).unwrap();
    assert_eq!(i64::from(Fence::try_from(largest).unwrap()), i64::MAX);
    assert_eq!(Fence::try_from(i64::from(fence)).unwrap(), fence);
    assert_eq!(fence.to_string().parse::<Fence>().unwrap(), fence);
    assert_eq!(NonZeroU64::from(fence).get(), 7);
    for text in ["", "0", "-7", "7.0", " 7", "9223372036854775808"] {
        let refused = text.parse::<Fence>().unwrap_err().to_string();
        assert!(refused.contains(&format!("{text:?}")), "{refused}");
    }
    for number in [0, -1, i64::MIN] {
        let refused = Fence::try_from(number).unwrap_err().to_string();
        assert!(refused.contains(&number.to_string()), "{refused}");
    }
    for number in [0, largest + 1, u64::MAX] {
        let refused = Fence::try_from(number).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
        assert!(refused.to_string().contains(&number.to_string()), "{refused}");
    }
}

#[cfg(feature = "serde")]
#[test]
fn a_fence_is_serialized_as_an_integer() {
    use serde::de::value::{Error as ValueError, U64Deserializer};
    use serde::{Deserialize, Serialize};

    struct Shown(Fence);
    impl std::fmt::Display for Shown {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.serialize(f)
        }
    }
    let read = |number: u64| Fence::deserialize(U64Deserializer::<ValueError>::new(number));
    let fence = read(7).unwrap();
    assert_eq!(fence, Fence::try_from(7_u64).unwrap());
    assert_eq!(Shown(fence).to_string(), "7");
    assert!(read(0).is_err() && read(u64::MAX).is_err());
}
