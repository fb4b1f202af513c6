//! What becomes of a queue when some of those in it die or stand still.

use std::time::{Duration, Instant};

use fairlock::LockManager;

use super::parts;
use super::scene::{
    NAME, SECOND, SOON, connect, granted, in_line, number, queued, settings, subscribed, subscribers, waiting,
};
use super::support::{Process, Server, eventually};

const CLAIM: Duration = Duration::from_millis(1000);

/// A client in a process of its own, with so many requests in the queue, behind `before` others.
async fn queued_part(server: &Server, requests: i64, before: i64) -> Process {
    let mut part = parts::client(server, "30000", "1000");
    part.tell(&format!("acquire {requests}"));
    queued(server, NAME, before + requests).await;
    part
}

/// Kills it, and returns when the server has seen that its connections are closed.
async fn kill(server: &Server, part: &mut Process) {
    let before = subscribers(server).await.len();
    part.kill();
    let is_seen = async || subscribers(server).await.len() < before;
    eventually("the server sees that a client is gone", SECOND, is_seen).await;
}

async fn manager(server: &Server) -> LockManager {
    settings()
        .claim_window(CLAIM)
        .connect(&server.url())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_killed_process_at_the_head_of_the_queue_holds_up_nobody() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut dead = queued_part(&server, 100, 0).await;
    let waiter = in_line(&server, &locks, NAME, 101).await;
    subscribed(&server, 2).await;
    kill(&server, &mut dead).await;
    guard.release().await.unwrap();
    granted(waiter, SOON).await.release().await.unwrap();
    assert_eq!(waiting(&server, NAME).await, 0);
}

#[tokio::test]
async fn a_process_killed_in_the_middle_of_the_queue_puts_nobody_forward() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let first = in_line(&server, &locks, NAME, 1).await;
    let mut dead = queued_part(&server, 10, 1).await;
    let last = in_line(&server, &locks, NAME, 12).await;
    subscribed(&server, 2).await;
    kill(&server, &mut dead).await;
    guard.release().await.unwrap();
    let guard = granted(first, SOON).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!last.is_finished());
    guard.release().await.unwrap();
    granted(last, SOON).await.release().await.unwrap();
}

#[tokio::test]
async fn a_dead_process_that_a_monitor_makes_look_alive_costs_one_claim_window() {
    let server = Server::start().await;
    let mut monitor = server.client().await;
    monitor.command(&["PSUBSCRIBE", "*"]).await.unwrap();
    let locks = manager(&server).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut dead = queued_part(&server, 20, 0).await;
    let waiter = in_line(&server, &locks, NAME, 21).await;
    subscribed(&server, 3).await;
    kill(&server, &mut dead).await;
    guard.release().await.unwrap();
    granted(waiter, 2 * CLAIM).await.release().await.unwrap();
    assert_eq!(waiting(&server, NAME).await, 0);
}

#[tokio::test]
async fn a_frozen_process_costs_the_others_one_claim_window_and_comes_back_to_its_place() {
    let server = Server::start().await;
    let locks = manager(&server).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut frozen = queued_part(&server, 20, 0).await;
    let before = in_line(&server, &locks, NAME, 21).await;
    subscribed(&server, 2).await;
    frozen.stop();
    let started = Instant::now();
    guard.release().await.unwrap();
    let pushed_fence = number(&server, NAME, "fence").await;
    let guard = granted(before, 2 * CLAIM).await;
    assert!(started.elapsed() >= CLAIM, "{:?}", started.elapsed());

    // A newcomer while it is away, and behind it when it is back.
    let newcomer = in_line(&server, &locks, NAME, 1).await;
    frozen.cont();
    queued(&server, NAME, 21).await;
    assert_eq!(frozen.line_within(Duration::from_millis(100)).await, None);
    guard.release().await.unwrap();
    for turn in 0..20 {
        assert!(parts::fence(&mut frozen).await > pushed_fence);
        assert!(!newcomer.is_finished(), "after {turn} turns");
        frozen.tell("release");
        frozen.expect("released").await;
    }
    granted(newcomer, SOON).await.release().await.unwrap();
}

#[tokio::test]
async fn a_grant_that_is_read_too_late_is_given_back_and_comes_again() {
    let server = Server::start().await;
    let locks = manager(&server).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut frozen = queued_part(&server, 1, 0).await;
    subscribed(&server, 1).await;
    frozen.stop();
    guard.release().await.unwrap();
    let pushed_fence = number(&server, NAME, "fence").await;
    // It has a tenth of its claim window left, and nobody else waits.
    tokio::time::sleep(CLAIM * 9 / 10).await;
    frozen.cont();
    assert!(parts::fence(&mut frozen).await > pushed_fence);
    frozen.tell("look");
    frozen.expect("held").await;
    frozen.tell("release");
    frozen.expect("released").await;
}
