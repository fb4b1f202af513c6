//! Callers that reach too few servers, while the others need every vote because a server is down.

use std::sync::Arc;

use tokio::time::{Instant, sleep, timeout};

use super::link::State;
use super::{MS, NEAR, Process, SECOND, Servers, acquire, acquire_with};
use crate::error::Error;

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
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(began.elapsed() < 2 * SECOND + 100 * MS, "{:?}", began.elapsed());
    held.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}
