//! Servers that lose their scripts, some of their data, or everything.

use std::fmt;
use std::time::{Duration, Instant};

use fairlock::{Error, HoldEnd, LockManager};
use fairlock_testkit::{History, Server};
use futures_util::future::join_all;

use super::scene::{
    NAME, SECOND, SOON, connect, granted, in_line, is_held, lock_key, nothing_left, queued, settings,
    subscribed, turn,
};

const SHORT: Duration = Duration::from_secs(3);
/// A call keeps its place over more reloads of the scripts than this. With more flushes it would fail, and
/// its next attempt would compete with the other calls.
const FLUSHES: usize = 5;

/// A manager whose holds are renewed about every second, and whose waitlists poll about every second.
async fn with_short_lease(server: &Server) -> LockManager {
    let settings = settings().lease(SHORT).claim_window(SECOND);
    settings.connect(&server.url()).await.unwrap()
}

/// Race: The scripts are flushed.
#[tokio::test]
async fn flushed_scripts_change_no_order() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    server.command(&["SCRIPT", "FLUSH"]).await;
    let history = History::default();
    let turns = (0..100).map(|n| {
        let turn = turn(&locks, NAME, &history, &n.to_string(), Duration::ZERO);
        tokio::spawn(turn)
    });
    let all = join_all(turns.collect::<Vec<_>>());
    let flushes = async {
        for _ in 0..FLUSHES {
            server.command(&["SCRIPT", "FLUSH"]).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        queued(&server, NAME, 100).await;
        guard.release().await.unwrap();
        for _ in 0..FLUSHES {
            server.command(&["SCRIPT", "FLUSH"]).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    let (done, ()) = tokio::join!(all, flushes);
    done.into_iter().for_each(|done| done.expect("a turn"));
    history.assert_no_overlap();
    history.assert_order(0..100);
    nothing_left(&server, NAME, SOON).await;
}

/// Race: Keys are flushed, deleted or renamed by hand.
#[tokio::test]
async fn a_holder_is_told_of_a_flush_at_its_next_renewal_and_waiters_acquire() {
    let server = Server::start().await;
    let (locks, others) = (with_short_lease(&server).await, with_short_lease(&server).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=3 {
        waiters.push(in_line(&server, &others, NAME, place).await);
    }
    subscribed(&server, 1).await;
    server.command(&["FLUSHALL"]).await;
    let started = Instant::now();
    let lost = guard.lost().await;
    assert!(started.elapsed() < SHORT, "{:?}", started.elapsed());
    assert_eq!(lost, HoldEnd::Taken);

    let mut last_fence = guard.fence();
    for waiter in waiters {
        let guard = granted(waiter, 4 * SECOND).await;
        assert!(guard.fence() > last_fence);
        last_fence = guard.fence();
        guard.release().await.unwrap();
    }
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
}

/// Race: Keys are flushed, deleted or renamed by hand.
#[tokio::test]
async fn a_holder_is_told_that_its_key_was_renamed_and_waiters_acquire() {
    let server = Server::start().await;
    let (locks, others) = (with_short_lease(&server).await, with_short_lease(&server).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiter = in_line(&server, &others, NAME, 1).await;
    server.command(&["RENAME", &lock_key(NAME), &lock_key("b")]).await;
    assert_eq!(guard.lost().await, HoldEnd::Taken);
    let next = granted(waiter, 4 * SECOND).await;
    assert!(next.fence() > guard.fence());
    // Under the other name the hold lasts for the rest of its lease. No client would renew it.
    let other = others.lock("b").acquire_timeout(4 * SECOND).await.unwrap();
    assert!(other.fence() > guard.fence());
    other.release().await.unwrap();
    next.release().await.unwrap();
}

/// Race: The queue is lost.
#[tokio::test]
async fn waiters_survive_the_loss_of_all_data_on_the_server() {
    let server = Server::start().await;
    let (locks, others) = (with_short_lease(&server).await, connect(&server.url()).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let before = guard.fence();
    let history = History::default();
    let mut waiters = Vec::new();
    for n in 1..=50 {
        let turn = turn(&others, NAME, &history, &n.to_string(), Duration::ZERO);
        waiters.push(tokio::spawn(turn));
        queued(&server, NAME, n).await;
    }
    // The client has read the replies to all requests. One whose reply is lost has no ticket to bring back.
    others.lock(NAME).status().await.unwrap();
    server.kill();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart().await;
    let lost = guard.lost();
    for waiter in waiters {
        tokio::time::timeout(4 * SECOND, waiter)
            .await
            .expect("in time")
            .expect("a turn");
    }
    lost.await;
    history.assert_no_overlap();
    history.assert_order(1..=50);
    history.assert_fences_increase();
    assert!(history.grants()[0].fence > Some(before.get()));
}

/// Race: The queue is lost.
#[tokio::test]
async fn server_with_appendfsync_always_loses_neither_holder_nor_queue() {
    let settings = Server::builder().config("appendonly", "yes");
    let server = settings.config("appendfsync", "always").start().await;
    let (locks, others) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let first = in_line(&server, &others, NAME, 1).await;
    let second = in_line(&server, &others, NAME, 2).await;
    server.kill();
    server.restart().await;
    assert!(is_held(&server, NAME).await);
    queued(&server, NAME, 2).await;
    subscribed(&server, 1).await;
    guard.renew().await.unwrap();
    assert!(!first.is_finished());
    let fence = guard.fence();
    guard.release().await.unwrap();
    let guard = granted(first, SOON).await;
    assert!(guard.fence() > fence);
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    granted(second, SOON).await.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_down_makes_calls_unavailable_after_the_bound() {
    let server = Server::start().await;
    let settings = settings().server_timeout(SECOND);
    let locks = settings.clone().connect(&server.url()).await.unwrap();
    let held = locks.lock("held").acquire().await.unwrap();
    server.stop();
    let lock = locks.lock(NAME);
    let url = server.url();
    // A wait with a bound of its own ends at that bound.
    let timeout = async {
        let error = lock
            .acquire_timeout(Duration::from_millis(300))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    };
    tokio::join!(
        unavailable("acquire", lock.acquire()),
        unavailable("try_acquire", lock.try_acquire()),
        unavailable("status", lock.status()),
        unavailable("release", held.release()),
        unavailable("connect", settings.connect(&url)),
        timeout,
    );
}

/// The call ends with `Unavailable`, after some attempts and without a hang.
async fn unavailable<T: fmt::Debug>(what: &str, call: impl Future<Output = Result<T, Error>>) {
    let started = Instant::now();
    let result = tokio::time::timeout(4 * SECOND, call).await.expect("no hang");
    assert!(matches!(result, Err(Error::Unavailable(_))), "{what}: {result:?}");
    assert!(started.elapsed() >= SECOND / 2, "{what}: {:?}", started.elapsed());
}

#[tokio::test]
async fn a_server_that_comes_back_within_the_wait_grants() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    server.stop();
    let url = server.url();
    let (guard, late, ()) = tokio::join!(locks.lock(NAME).acquire(), connect(&url), async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        server.restart().await;
    });
    guard.unwrap().release().await.unwrap();
    late.lock(NAME).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn waiters_of_a_server_that_stays_down_are_told_so() {
    let server = Server::start().await;
    let settings = settings().server_timeout(SECOND).claim_window(SECOND);
    let locks = settings.connect(&server.url()).await.unwrap();
    let _held = locks.lock(NAME).acquire().await.unwrap();
    let waiter = in_line(&server, &locks, NAME, 1).await;
    server.kill();
    let told = tokio::time::timeout(4 * SECOND, waiter).await.expect("no hang");
    assert!(matches!(told.unwrap(), Err(Error::Unavailable(_))));
}
