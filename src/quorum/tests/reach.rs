//! Callers that reach too few servers, while the others need every vote because a server is down.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::link::State;
use super::{MS, NEAR, Process, SECOND, Servers, acquire, acquire_with};
use crate::types::error::Error;

/// Two processes over three servers, of which the first is down.
fn with_a_server_down(servers: &Servers) -> [Process; 2] {
    [1, 2].map(|number| {
        let process = servers.process(number);
        process.set(0, State::Down);
        process
    })
}

/// Race: A caller that is cut off from a majority gets the vote of a server, and others need it
#[tokio::test(start_paused = true)]
async fn caller_that_reaches_no_majority_keeps_no_vote_from_others() {
    for (cut_off, within) in [
        (State::Down, 100 * MS),
        (State::Refusing, 100 * MS),
        (State::Hung, 3 * SECOND),
    ] {
        let servers = Servers::new(3);
        let [process, other] = with_a_server_down(&servers);
        process.set(1, cut_off);
        for _ in 0..3 {
            let failing = tokio::spawn(acquire(Arc::clone(&process.quorum)));
            sleep(MS).await;
            let began = Instant::now();
            let held = other.acquire().await;
            let waited = began.elapsed();
            assert!(waited < within, "{cut_off:?}: {waited:?}");
            held.release().await.unwrap();
            let error = failing.await.unwrap().unwrap_err();
            assert!(
                matches!(error, Error::NoQuorum { answering: 1, .. } | Error::Refused(_)),
                "{cut_off:?}: {error}"
            );
        }
        sleep(SECOND).await;
        assert_eq!(servers.left().await, 0);
    }
}

/// It hears of that by its next poll, which waits for a connection. The next caller is served then.
#[tokio::test(start_paused = true)]
async fn waiter_that_reaches_no_majority_gives_its_place_to_others_once_a_call_fails() {
    for (earlier, within) in [(Duration::ZERO, 7 * SECOND), (7 * SECOND, 100 * MS)] {
        let servers = Servers::new(3);
        let [process, other] = with_a_server_down(&servers);
        let held = other.acquire().await;
        let waits = process.waits();
        sleep(MS).await;
        let next = other.waits();
        sleep(MS).await;
        process.set(1, State::Cut);
        sleep(earlier).await;
        held.release().await.unwrap();
        let next = timeout(within, next)
            .await
            .expect("the vote is given up")
            .unwrap();
        process.set(1, NEAR);
        sleep(SECOND).await;
        next.release().await.unwrap();
        let held = timeout(SECOND, waits).await.expect("it is back").unwrap();
        held.release().await.unwrap();
    }
}

/// It reaches two servers of five. One gives it a vote, and the other one is taken.
#[tokio::test(start_paused = true)]
async fn caller_that_reaches_no_majority_has_no_place_in_a_queue() {
    let servers = Servers::new(5);
    let taken = servers.held_alone(2).await;
    let process = servers.process(1);
    for server in [0, 3, 4] {
        process.set(server, State::Down);
    }
    let waits = process.waits();
    sleep(100 * MS).await;
    assert_eq!(servers.left().await, 1);
    taken.release().await.unwrap();
    process.set(0, NEAR);
    let held = timeout(2 * SECOND, waits).await.expect("a majority").unwrap();
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn caller_that_reaches_a_majority_again_is_served_in_order() {
    let servers = Servers::new(3);
    let [process, other] = with_a_server_down(&servers);
    process.set(1, State::Down);
    let early = process.waits();
    sleep(MS).await;
    let held = other.acquire().await;
    let late = other.waits();
    sleep(MS).await;
    process.set(1, NEAR);
    sleep(2 * SECOND).await;
    held.release().await.unwrap();
    let next = timeout(100 * MS, early).await.expect("it came before").unwrap();
    assert!(!late.is_finished());
    next.release().await.unwrap();
    late.await.unwrap().release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}

/// A caller that gave its vote up has no call of its own at that server which would end in time.
#[tokio::test(start_paused = true)]
async fn bounded_wait_of_a_caller_that_reaches_no_majority_ends_in_time() {
    let servers = Servers::new(3);
    let [process, other] = with_a_server_down(&servers);
    process.set(1, State::Down);
    let quorum = Arc::clone(&process.quorum);
    let began = Instant::now();
    let bounded = tokio::spawn(async move { acquire_with(&quorum, Some(began + 2 * SECOND)).await });
    sleep(MS).await;
    let held = other.acquire().await;
    let error = bounded.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoQuorum { answering: 1, .. }), "{error}");
    assert!(began.elapsed() < 2 * SECOND + 100 * MS, "{:?}", began.elapsed());
    held.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}

/// Race: The connection of a client comes and goes, while others need every vote
#[tokio::test(start_paused = true)]
async fn client_whose_connection_comes_and_goes_stops_nobody() {
    let servers = Servers::new(3);
    let processes = with_a_server_down(&servers);
    let end = Instant::now() + 60 * SECOND;
    let mut tasks = JoinSet::new();
    for (n, process) in (0..40).map(|n| (n, &processes[n % 2])) {
        let quorum = Arc::clone(&process.quorum);
        let patience = if n % 4 == 0 { 200 * MS } else { 60 * SECOND };
        tasks.spawn(async move {
            let (mut holds, mut longest) = (0, Duration::ZERO);
            while Instant::now() < end {
                let began = Instant::now();
                if let Ok(held) = acquire_with(&quorum, Some(began + patience)).await {
                    holds += 1;
                    sleep(MS).await;
                    held.release().await.unwrap_or_default();
                }
                longest = longest.max(began.elapsed());
            }
            (n % 2, holds, longest)
        });
    }
    let flapping = Arc::clone(&processes[0].links[1]);
    let comes_and_goes = tokio::spawn(async move {
        loop {
            sleep(300 * MS).await;
            flapping.set(State::Cut);
            sleep(700 * MS).await;
            flapping.set(NEAR);
        }
    });
    let (mut holds, mut longest) = ([0; 2], [Duration::ZERO; 2]);
    while let Some(task) = tasks.join_next().await {
        let (process, held, waited) = task.unwrap();
        holds[process] += held;
        longest[process] = longest[process].max(waited);
    }
    comes_and_goes.abort();
    // The others wait until the client can release its hold.
    let waited = longest[0].max(longest[1]);
    assert!(waited < 3 * SECOND, "{waited:?}");
    assert!(holds[0] > 1_000 && holds[1] > 1_000, "{holds:?}");
}
