//! Waits and holds whose connections are killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlock_testkit::{History, Proxy, Server};
use futures_util::future::join_all;

use super::scene::{
    NAME, SECOND, SETTLED, SOON, connect, granted, in_line, nothing_left, queued, settings, subscribed,
    subscribers, turn,
};

/// Runs four clients with `waiters` waiters each, which take `turns` turns each, while `fault` is repeated.
async fn storm(
    server: &Server,
    waiters: usize,
    turns: usize,
    mut fault: impl AsyncFnMut(&Server),
) -> History {
    let history = History::default();
    let mut running = Vec::new();
    for client in 0..4 {
        let locks = connect(&server.url()).await;
        for waiter in 0..waiters {
            let (locks, history) = (locks.clone(), history.clone());
            running.push(tokio::spawn(async move {
                for _ in 0..turns {
                    let (waiter, hold) = (format!("{client}/{waiter}"), Duration::from_millis(1));
                    turn(&locks, NAME, &history, &waiter, hold).await;
                }
            }));
        }
    }
    let over = AtomicBool::new(false);
    let all = async {
        for done in join_all(running).await {
            done.expect("a waiter that got all its turns");
        }
        over.store(true, Ordering::SeqCst);
    };
    let faults = async {
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            if !over.load(Ordering::SeqCst) {
                fault(server).await;
            }
        }
    };
    tokio::join!(all, faults);
    history
}

/// Race: A message is lost while the client reconnects.
#[tokio::test]
async fn no_waiter_misses_the_lock_and_no_unknown_holder_remains_as_connections_are_killed() {
    let server = Server::start().await;
    let history = storm(&server, 10, 10, async |server| {
        server.kill_clients().await;
    })
    .await;
    assert_eq!(history.grants().len(), 400);
    history.assert_no_overlap();
    history.assert_fences_increase();
    let longest = history.grants().iter().filter_map(|hold| hold.wait()).max();
    // No waiter had to wait for a lease or a claim window to end.
    assert!(longest < Some(4 * SECOND), "{longest:?}");
    nothing_left(&server, NAME, SETTLED + SECOND).await;
}

/// Race: A message is lost while the client reconnects.
#[tokio::test]
async fn all_waiters_of_a_client_are_reachable_as_soon_as_it_subscribes_again() {
    let server = Server::start().await;
    let (holder, locks) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = holder.lock(NAME).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=5 {
        waiters.push(in_line(&server, &locks, NAME, place).await);
    }
    subscribed(&server, 1).await;
    // Their turn comes while they are unreachable, so they lose their places.
    server.kill_clients().await;
    guard.release().await.unwrap();
    for waiter in waiters {
        granted(waiter, SOON).await.release().await.unwrap();
    }
}

#[tokio::test]
async fn killed_subscriptions_of_one_client_change_nothing_for_another() {
    let server = Server::start().await;
    let (holder, disturbed, calm) = (
        connect(&server.url()).await,
        connect(&server.url()).await,
        connect(&server.url()).await,
    );
    let guard = holder.lock(NAME).acquire().await.unwrap();
    let history = History::default();
    let mut running = Vec::new();
    for place in 1..=40 {
        let (locks, of) = if place % 2 == 0 {
            (&calm, "calm")
        } else {
            (&disturbed, "disturbed")
        };
        let waiter = format!("{of} {place}");
        let turn = turn(locks, NAME, &history, &waiter, Duration::from_millis(10));
        running.push(tokio::spawn(turn));
        queued(&server, NAME, place).await;
    }
    subscribed(&server, 2).await;
    let mine = subscribers(&server).await;
    guard.release().await.unwrap();
    let all = join_all(running);
    let kills = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            for id in subscribers(&server).await {
                // The disturbed client subscribed first, and all later subscriptions are its replacements.
                if id != mine[1] {
                    server.command(&["CLIENT", "KILL", "ID", &id]).await;
                }
            }
        }
    };
    let started = Instant::now();
    let (done, ()) = tokio::join!(all, kills);
    done.into_iter().for_each(|done| done.expect("a turn"));
    assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
    history.assert_no_overlap();
    let order: Vec<_> = history
        .order()
        .into_iter()
        .filter(|waiter| waiter.starts_with("calm"))
        .collect();
    let expected: Vec<_> = (1..=20).map(|n| format!("calm {}", 2 * n)).collect();
    assert_eq!(order, expected);
}

#[tokio::test]
async fn a_client_that_reconnects_keeps_its_place() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (locks, away) = (connect(&server.url()).await, connect(&proxy.url()).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let first = in_line(&server, &away, NAME, 1).await;
    let second = in_line(&server, &locks, NAME, 2).await;
    let third = in_line(&server, &locks, NAME, 3).await;
    subscribed(&server, 2).await;

    proxy.refuse();
    proxy.cut();
    subscribed(&server, 1).await;
    guard.release().await.unwrap();
    let guard = granted(second, SOON).await;
    proxy.heal();
    subscribed(&server, 2).await;
    queued(&server, NAME, 2).await;
    guard.release().await.unwrap();
    // By a message, and not by the next poll.
    let guard = granted(first, 3 * SOON).await;
    assert!(!third.is_finished());
    guard.release().await.unwrap();
    granted(third, SOON).await.release().await.unwrap();
}

#[tokio::test]
async fn a_monitor_that_hears_everything_changes_nothing() {
    let server = Server::start().await;
    let mut monitor = server.client().await;
    monitor.command(&["PSUBSCRIBE", "*"]).await.unwrap();
    let started = Instant::now();
    let history = storm(&server, 4, 5, async |_| ()).await;
    history.assert_no_overlap();
    assert_eq!(history.grants().len(), 80);
    assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_hold_outlives_its_connections() {
    let server = Server::start().await;
    let locks = settings()
        .lease(3 * SECOND)
        .claim_window(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        server.kill_clients().await;
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(crate::lost(&locks), 0);
    assert!(locks.stats().reconnects >= 3, "{:?}", locks.stats());
    assert!(locks.stats().renewals >= 2, "{:?}", locks.stats());
}

#[tokio::test]
async fn waits_that_end_while_their_connections_are_killed_leave_nothing() {
    let server = Server::start().await;
    let history = History::default();
    let mut running = Vec::new();
    for client in 0..4 {
        let locks = connect(&server.url()).await;
        for waiter in 0..10_u64 {
            let (locks, history) = (locks.clone(), history.clone());
            running.push(tokio::spawn(async move {
                for round in 0..20 {
                    let entry = history.asks(format!("{client}/{waiter}"));
                    let patience = Duration::from_millis((waiter * 7 + round * 3) % 50);
                    // The future is dropped, so it does not end by its own bound.
                    let acquiring = locks.lock(NAME).acquire();
                    if let Ok(guard) = tokio::time::timeout(patience, acquiring).await {
                        let guard = guard.expect("a guard");
                        entry.granted(guard.fence().get());
                        tokio::task::yield_now().await;
                        entry.released();
                        drop(guard);
                    }
                }
            }));
        }
    }
    let kills = async {
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(25)).await;
            server.kill_clients().await;
        }
    };
    let (done, ()) = tokio::join!(join_all(running), kills);
    done.into_iter().for_each(|done| done.expect("all rounds"));
    assert!(!history.grants().is_empty());
    history.assert_no_overlap();
    history.assert_fences_increase();
    nothing_left(&server, NAME, SETTLED + SECOND).await;
}
