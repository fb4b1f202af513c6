//! Queues in which some of the waiters die or are stopped.

use std::time::{Duration, Instant};

use fairlock::LockManager;
use fairlock_testkit::{Process, Proxy, Server, eventually};

use super::parts;
use super::scene::{
    NAME, SECOND, SOON, connect, granted, in_line, kept, queued, settings, subscribed, subscribers, waiting,
};

const CLAIM: Duration = Duration::from_millis(1000);

/// Starts a client in its own process, with `requests` requests in the queue behind `before` others.
async fn queued_part(server: &Server, requests: i64, before: i64) -> Process {
    let mut part = parts::client(server, "30000", "1000");
    part.tell(&format!("acquire {requests}"));
    queued(server, NAME, before + requests).await;
    part
}

/// Kills the process, and returns when the server has seen that its connections are closed.
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

/// Race: A waiter dies in the queue.
#[tokio::test]
async fn killed_process_at_the_head_of_the_queue_delays_no_other() {
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

/// Race: The first waiter is dead when a lock is kept taken for a while.
#[tokio::test]
async fn lock_that_is_free_by_time_goes_to_the_next_waiter_though_the_first_is_dead() {
    let server = Server::start().await;
    // The clients poll after 5 s.
    let locks = settings().claim_window(30 * SECOND);
    let locks = locks.connect(&server.url()).await.unwrap();
    let guard = locks.lock(NAME).at_least(SECOND).acquire().await.unwrap();
    let mut dead = queued_part(&server, 100, 0).await;
    let waiter = in_line(&server, &locks, NAME, 101).await;
    subscribed(&server, 2).await;
    kill(&server, &mut dead).await;
    guard.release().await.unwrap();
    granted(waiter, 4 * SECOND).await.release().await.unwrap();
    assert_eq!(waiting(&server, NAME).await, 0);
}

/// Race: A waiter dies in the queue.
#[tokio::test]
async fn process_killed_in_the_middle_of_the_queue_lets_no_waiter_overtake() {
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

/// Race: A monitor that subscribes to everything makes dead clients look alive.
#[tokio::test]
async fn dead_process_delays_no_other_despite_a_monitor_of_all_channels() {
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
    granted(waiter, SOON).await.release().await.unwrap();
    assert_eq!(waiting(&server, NAME).await, 0);
}

/// Race: A waiter is frozen, and looks alive.
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
    let pushed_fence = kept(&server, NAME).await.fence;
    let guard = granted(before, 2 * CLAIM).await;
    assert!(started.elapsed() >= CLAIM, "{:?}", started.elapsed());

    // A newcomer queues while the process is stopped, and is behind it when it comes back.
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

/// Race: A grant is read when its lease is over, or nearly over.
#[tokio::test]
async fn grant_that_is_read_too_late_is_withdrawn_and_comes_again() {
    let server = Server::start().await;
    let locks = manager(&server).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut frozen = queued_part(&server, 1, 0).await;
    subscribed(&server, 1).await;
    frozen.stop();
    guard.release().await.unwrap();
    let pushed_fence = kept(&server, NAME).await.fence;
    // A tenth of its claim window is left, and no other request waits.
    tokio::time::sleep(CLAIM * 9 / 10).await;
    frozen.cont();
    assert!(parts::fence(&mut frozen).await > pushed_fence);
    frozen.tell("check");
    frozen.expect("held").await;
    frozen.tell("release");
    frozen.expect("released").await;
}

/// Race: A lock is released between a failed try and the subscription.
#[tokio::test]
async fn a_lock_released_between_the_failed_try_and_the_subscription_is_not_missed() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (locks, slow) = (connect(&server.url()).await, connect(&proxy.url()).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    // The request takes effect at once, but its client learns of it only after the release.
    proxy.delay_down(Duration::from_millis(200));
    let waiter = in_line(&server, &slow, NAME, 1).await;
    assert_eq!(subscribers(&server).await.len(), 0);
    guard.release().await.unwrap();
    assert_eq!(subscribers(&server).await.len(), 0);
    proxy.heal();
    granted(waiter, SOON).await.release().await.unwrap();
}

/// Race: The server drops a subscriber that reads too slowly.
#[tokio::test]
async fn a_subscriber_that_the_server_drops_for_reading_too_slowly_comes_back_to_its_place() {
    let server = Server::builder()
        .config("client-output-buffer-limit", "pubsub 65536 0 0")
        .start()
        .await;
    let locks = connect(&server.url()).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut slow = parts::client(&server, "30000", "5000");
    slow.tell("acquire 1");
    queued(&server, NAME, 1).await;
    subscribed(&server, 1).await;
    let channel = server.command(&["PUBSUB", "CHANNELS"]).await.texts().remove(0);
    let waiter = in_line(&server, &locks, NAME, 2).await;
    subscribed(&server, 2).await;
    slow.stop();
    // Pushes for an unknown request, which have no effect when they are read.
    let stranger = format!("{:032x}:0000001000:1:", 7);
    let push = format!("1 1 1 {stranger} {}", "x".repeat(65_536));
    let is_dropped = async || {
        server.command(&["PUBLISH", &channel, &push]).await;
        subscribers(&server).await.len() == 1
    };
    eventually("the server drops the connection", 5 * SECOND, is_dropped).await;

    guard.release().await.unwrap();
    let guard = granted(waiter, SOON).await;
    let newcomer = in_line(&server, &locks, NAME, 1).await;
    slow.cont();
    queued(&server, NAME, 2).await;
    subscribed(&server, 2).await;
    guard.release().await.unwrap();
    parts::fence(&mut slow).await;
    assert!(!newcomer.is_finished());
    slow.tell("release");
    slow.expect("released").await;
    granted(newcomer, SOON).await.release().await.unwrap();
}

/// Race: A thawed client's newest request hides that its earlier ones were removed.
#[tokio::test]
async fn all_requests_of_a_client_that_was_noted_absent_return_to_their_places() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let locks = connect(&server.url()).await;
    let settings = settings().claim_window(SECOND);
    let away = settings.connect(&proxy.url()).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=3 {
        waiters.push(in_line(&server, &away, NAME, place).await);
    }
    subscribed(&server, 1).await;
    // The subscription stays, but the client does not claim its grant.
    proxy.freeze();
    guard.release().await.unwrap();
    let guard = locks.lock(NAME).acquire_timeout(4 * SECOND).await.unwrap();
    assert_eq!(waiting(&server, NAME).await, 0);
    let newcomer = in_line(&server, &locks, NAME, 1).await;
    // Another request of the same client is queued first, so the client is present again.
    let last = tokio::spawn(away.lock(NAME).acquire());
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.thaw();
    queued(&server, NAME, 5).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        let guard = granted(waiter, SOON).await;
        assert!(!newcomer.is_finished() && !last.is_finished());
        guard.release().await.unwrap();
    }
    let guard = granted(newcomer, SOON).await;
    assert!(!last.is_finished());
    guard.release().await.unwrap();
    granted(last, SOON).await.release().await.unwrap();
}

/// Counts how often the server runs each command that scripts use, for one hand-over with `behind` requests
/// behind it.
async fn cost_of_a_hand_over(behind: i64) -> Vec<(String, u64)> {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiters: Vec<_> = (0..=behind)
        .map(|_| tokio::spawn(locks.lock(NAME).acquire()))
        .collect();
    queued(&server, NAME, behind + 1).await;
    subscribed(&server, 1).await;
    // Time for the poll that follows the subscription.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = server.calls().await;
    guard.release().await.unwrap();
    let after = server.calls().await;
    drop(waiters);
    let mut costs: Vec<_> = after
        .into_iter()
        .filter(|(command, _)| !["info", "ping"].contains(&command.as_str()))
        .map(|(command, calls)| {
            let had = before.get(&command).copied().unwrap_or(0);
            (command, calls - had)
        })
        .filter(|(_, calls)| *calls > 0)
        .collect();
    costs.sort();
    costs
}

/// Race: A hand-over costs more when more requests wait.
#[tokio::test]
async fn a_hand_over_costs_the_server_no_more_with_a_thousand_behind_it() {
    let (few, many) = tokio::join!(cost_of_a_hand_over(3), cost_of_a_hand_over(1_000));
    assert_eq!(few, many);
    assert!(few.contains(&("evalsha".to_owned(), 1)), "{few:?}");
}

/// Race: All waiters of a client poll at once, again and again.
#[tokio::test]
async fn all_waiters_of_a_client_share_one_poll() {
    let server = Server::start().await;
    // With this claim window the waitlist polls every 0.9 s.
    let settings = settings().claim_window(SECOND);
    let locks = settings.connect(&server.url()).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiters: Vec<_> = (0..300)
        .map(|_| tokio::spawn(locks.lock(NAME).acquire()))
        .collect();
    queued(&server, NAME, 300).await;
    subscribed(&server, 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = server.calls().await["evalsha"];
    tokio::time::sleep(2 * SECOND).await;
    let asked = server.calls().await["evalsha"] - before;
    assert!((1..=8).contains(&asked), "{asked}");
    drop((guard, waiters));
}
