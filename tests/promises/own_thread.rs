//! Managers with a thread of their own: nothing that the caller's threads do costs a lease, and any executor
//! can poll their calls.

use std::thread;
use std::time::Duration;

use fairlock::spin::SpinLock;
use fairlock::{Error, HoldEnd, LockManager, LockManagerBuilder};
use fairlock_testkit::{Process, eventually, role};
use futures_util::TryStreamExt;
use pollster::block_on;
use tokio::runtime::{Builder, Runtime};

use crate::backend::Backend;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);

/// Makes four tests of each of these functions: in memory and on a server, and in a quorum of either. They
/// run outside of any runtime.
macro_rules! outside_of_runtimes {
    ($($body:ident),* $(,)?) => {
        outside_of_runtimes! { in_memory: async { Backend::in_memory() }, $($body),* }
        outside_of_runtimes! { on_a_server: Backend::on_a_server(), $($body),* }
        outside_of_runtimes! { in_a_quorum_in_memory: async { Backend::quorum_in_memory() }, $($body),* }
        outside_of_runtimes! { in_a_quorum_of_servers: Backend::quorum_of_servers(), $($body),* }
    };
    ($place:ident: $backend:expr, $($body:ident),*) => {
        mod $place {
            use crate::backend::Backend;

            $(
                #[test]
                fn $body() {
                    let backend = super::runtime().block_on($backend);
                    super::$body(&backend.in_real_time());
                }
            )*
        }
    };
}

outside_of_runtimes! {
    every_call_works_in_any_executor,
    a_wait_of_another_executor_is_served_and_bounded,
    a_guard_that_is_dropped_after_the_runtime_of_its_caller_is_released,
    one_manager_serves_one_runtime_after_the_other,
    a_release_that_blocks_the_only_thread_of_a_runtime_ends,
    work_that_blocks_every_thread_keeps_a_lock_that_was_handed_over,
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn own_thread(backend: &Backend) -> LockManager {
    own_thread_with(backend, |settings| settings)
}

fn own_thread_with(
    backend: &Backend,
    settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
) -> LockManager {
    block_on(backend.client_with(|builder| settings(builder.own_thread())))
}

fn every_call_works_in_any_executor(backend: &Backend) {
    let locks = own_thread(backend);
    let lock = locks.lock("a");
    block_on(async {
        let guard = lock.acquire().await.unwrap();
        assert!(matches!(lock.try_acquire().await, Err(Error::Busy { .. })));
        let busy = lock.acquire_timeout(SECOND / 20).await;
        assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
        assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
        guard.renew().await.unwrap();
        let holder = lock.status().await.unwrap().holder.unwrap();
        assert_eq!(holder.fence, guard.fence());
        let listed: Vec<_> = locks.list("*").try_collect().await.unwrap();
        assert_eq!(listed.len(), 1);
        guard.release().await.unwrap();
        assert_eq!(lock.with(async |_| 8).await.unwrap(), 8);

        let brief = lock
            .clone()
            .lease(SECOND / 5)
            .auto_renew(false)
            .acquire()
            .await
            .unwrap();
        assert_eq!(brief.lost().await, HoldEnd::Expired);
        let taken = locks.lock("taken").acquire().await.unwrap();
        assert!(locks.lock("taken").force_release(taken.fence()).await.unwrap());
        drop(taken);

        let leadership = locks.leadership("leader");
        let mut watch = locks.lock("leader").watch(SECOND / 10);
        assert!(watch.next().await.unwrap().unwrap().holder.is_none());
        let lead = leadership.campaign().await.unwrap();
        assert!(watch.next().await.unwrap().unwrap().holder.is_some());
        assert_eq!(lead.token().run(async { 9 }).await.unwrap(), 9);
        lead.release().await.unwrap();
        assert_eq!(leadership.run(async |_| 10).await.unwrap(), 10);

        if !backend.is_a_quorum() {
            let spin = SpinLock::new(&locks, "spin");
            assert!(spin.try_lock(Duration::ZERO, 30 * SECOND).await.unwrap());
            assert!(
                !SpinLock::new(&locks, "spin")
                    .try_lock(SECOND / 20, SECOND)
                    .await
                    .unwrap()
            );
            spin.unlock().await.unwrap();
        }
        locks.close().await.unwrap();
        assert!(matches!(lock.acquire().await, Err(Error::Closed)));
    });
}

fn a_wait_of_another_executor_is_served_and_bounded(backend: &Backend) {
    let (here, there) = (own_thread(backend), own_thread(backend));
    let guard = block_on(here.lock("a").acquire()).unwrap();
    let waiting = thread::spawn(move || block_on(there.lock("a").acquire()).unwrap().fence());
    block_on(async {
        while here.lock("a").status().await.unwrap().waiting < 1 {
            thread::sleep(SECOND / 100);
        }
    });
    let fence = guard.fence();
    block_on(guard.release()).unwrap();
    assert!(waiting.join().unwrap() > fence);
}

fn a_guard_that_is_dropped_after_the_runtime_of_its_caller_is_released(backend: &Backend) {
    let locks = own_thread(backend);
    let callers = runtime();
    let guard = callers.block_on(locks.lock("a").acquire()).unwrap();
    drop(callers);
    drop(guard);
    let free = block_on(locks.lock("a").acquire_timeout(LIMIT)).unwrap();
    drop(free);
}

fn one_manager_serves_one_runtime_after_the_other(backend: &Backend) {
    let locks = own_thread(backend);
    for _ in 0..3 {
        let callers = runtime();
        callers.block_on(async {
            let guard = locks.lock("a").acquire().await.unwrap();
            let waiting = tokio::spawn(locks.lock("a").acquire());
            tokio::time::sleep(SECOND / 20).await;
            guard.release().await.unwrap();
            waiting.await.unwrap().unwrap().release().await.unwrap();
        });
    }
}

/// With a runtime of the caller's, nobody would read the answer.
fn a_release_that_blocks_the_only_thread_of_a_runtime_ends(backend: &Backend) {
    let locks = own_thread(backend);
    runtime().block_on(async {
        let guard = locks.lock("a").acquire().await.unwrap();
        block_on(guard.release()).unwrap();
        drop(block_on(locks.lock("a").acquire()).unwrap());
    });
}

/// Race: Work blocks the threads that would renew its lease.
fn work_that_blocks_every_thread_keeps_a_lock_that_was_handed_over(backend: &Backend) {
    let settings = |builder: LockManagerBuilder| builder.lease(SECOND).claim_window(SECOND / 2);
    let (here, there) = (
        own_thread_with(backend, settings),
        own_thread_with(backend, settings),
    );
    runtime().block_on(async {
        let guard = here.lock("a").acquire().await.unwrap();
        let (lock, observed) = (there.lock("a"), here.lock("a"));
        let mut waiting = Box::pin(lock.acquire());
        tokio::select! {
            _ = &mut waiting => panic!("two holders"),
            () = backend.queued(&observed, 1, 1) => {}
        }
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap();
        thread::sleep(5 * SECOND / 2);
        guard.check().unwrap();
        assert!(matches!(
            here.lock("a").try_acquire().await,
            Err(Error::Busy { .. })
        ));
        guard.release().await.unwrap();
    });
}

/// How many threads of this process have the name.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "fairlock").count()
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "a role for other tests, run in its own process"]
fn process_that_counts_its_threads() {
    let Some(role) = role() else { return };
    // A thread names itself, and the system needs a moment to end it.
    let expect = |count: usize| {
        let counted = eventually("as many threads", LIMIT, async || threads() == count);
        runtime().block_on(counted);
    };
    let backend = runtime().block_on(Backend::on_a_server());
    let quorum = Backend::quorum_in_memory();
    for backend in [&backend, &Backend::in_memory(), &quorum] {
        let none = runtime().block_on(backend.client());
        assert_eq!(threads(), 0, "it is off by default");
        drop(none);

        let locks = own_thread(backend);
        expect(1);
        drop(block_on(locks.lock("a").acquire()).unwrap());
        block_on(locks.close()).unwrap();
        expect(0);

        let locks = own_thread(backend);
        let (lock, guard) = (locks.lock("a"), block_on(locks.lock("a").acquire()).unwrap());
        drop(locks);
        // A lock and a guard are left.
        drop(lock);
        thread::sleep(SECOND / 2);
        assert_eq!(threads(), 1, "the guard is renewed");
        drop(guard);
        expect(0);
    }
    role.say("done");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_thread_ends_with_close_or_with_the_last_clone_and_guard() {
    let mut process = Process::spawn("own_thread::process_that_counts_its_threads", &[]);
    assert_eq!(process.line().await, "done");
}
