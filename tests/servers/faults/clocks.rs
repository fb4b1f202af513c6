//! Servers whose clock was set back, so that their earlier data is ahead of their clock. Most tests write
//! such data by hand, because a test cannot set the clock of the machine.

use fairlock_testkit::{LockSummary, Server};

use super::parts;
use super::scene::{
    NAME, SECOND, SETTLED, SOON, connect, epoch_ms, granted, head, in_line, kept, lock_key, nothing_left,
    queue_key, settings, subscribed,
};

const HOUR_MS: u64 = 3_600_000;

/// Replaces the summary of the lock by another one.
async fn write(server: &Server, summary: &LockSummary) {
    let summary = summary.to_string();
    server.command(&["HSET", &lock_key(NAME), "hold", &summary]).await;
}

/// Race: The server's clock is set back.
#[tokio::test]
async fn dead_holder_with_a_deadline_an_hour_ahead_costs_only_its_lease() {
    let server = Server::start().await;
    let locks = settings()
        .claim_window(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let mut holder = parts::client(&server, "2000", "1000");
    holder.tell("acquire 1");
    parts::fence(&mut holder).await;
    holder.kill();
    let mut summary = kept(&server, NAME).await;
    summary.until = epoch_ms() + HOUR_MS;
    write(&server, &summary).await;
    let next = locks.lock(NAME).acquire_timeout(5 * SECOND).await.unwrap();
    next.release().await.unwrap();
}

/// Race: The server's clock is set back.
#[tokio::test]
async fn a_fence_that_is_an_hour_ahead_is_followed_by_larger_ones() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    let mut last = (epoch_ms() + HOUR_MS) * 1_000;
    let mut summary = kept(&server, NAME).await;
    summary.fence = last;
    write(&server, &summary).await;
    for _ in 0..3 {
        let guard = locks.lock(NAME).acquire().await.unwrap();
        assert_eq!(guard.fence().get(), last + 1);
        assert_eq!(kept(&server, NAME).await.fence, last + 1);
        guard.release().await.unwrap();
        last += 1;
    }
}

/// Race: The server's clock is set back.
#[tokio::test]
async fn waiter_with_a_ticket_an_hour_ahead_is_served_in_its_turn() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let early = in_line(&server, &locks, NAME, 1).await;
    subscribed(&server, 1).await;
    let request = head(&server, NAME).await;
    let ahead = ((epoch_ms() + HOUR_MS) * 1_000).to_string();
    server
        .command(&["ZADD", &queue_key(NAME), &ahead, &request])
        .await;
    // Newcomers are served first for as long as the clock was set back, and no longer.
    let newcomer = in_line(&server, &locks, NAME, 2).await;
    guard.release().await.unwrap();
    let guard = granted(newcomer, SOON).await;
    assert!(!early.is_finished());
    guard.release().await.unwrap();
    granted(early, SOON).await.release().await.unwrap();
    nothing_left(&server, NAME, SETTLED).await;
}

/// The time from now to a day in January 2001, in seconds. It is negative.
fn before_september_2001() -> i64 {
    978_307_200 - i64::try_from(epoch_ms() / 1000).unwrap()
}

/// Race: The server's clock was never set, or falls back to before its epoch.
#[tokio::test]
async fn server_with_an_unset_clock_is_refused_and_left_unchanged() {
    let server = Server::builder().clock(before_september_2001()).start().await;
    let locks = connect(&server.url()).await;
    let lock = locks.lock(NAME);
    let refused = [
        lock.acquire().await.map(drop),
        lock.try_acquire().await.map(drop),
        lock.acquire_timeout(SECOND).await.map(drop),
        lock.status().await.map(drop),
        fairlock::spin::SpinLock::new(&locks, NAME)
            .try_lock(SECOND, SECOND)
            .await
            .map(drop),
    ];
    for result in refused {
        let Err(fairlock::Error::Refused(error)) = result else {
            panic!("{result:?}");
        };
        assert!(error.to_string().contains("clock"), "{error}");
        assert!(error.to_string().contains("2001"), "{error}");
    }
    assert_eq!(server.keys("").await, Vec::<String>::new());
}

/// Race: The server's clock was never set, or falls back to before its epoch.
#[tokio::test]
async fn clock_set_back_before_its_epoch_lets_no_client_take_a_held_lock() {
    let server = Server::builder().clock(0).start().await;
    let locks = settings()
        .lease(2 * SECOND)
        .claim_window(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let fence = guard.fence();
    server.set_clock(before_september_2001()).await;
    let second = locks.lock(NAME).try_acquire().await;
    assert!(matches!(second, Err(fairlock::Error::Refused(_))), "{second:?}");
    // Its renewals are refused too, so the holder is told in time and with the right reason.
    let lost = tokio::time::timeout(3 * SECOND, guard.lost()).await.unwrap();
    assert_eq!(lost, fairlock::HoldEnd::Expired);
    drop(guard);
    server.set_clock(0).await;
    let guard = locks.lock(NAME).acquire_timeout(5 * SECOND).await.unwrap();
    assert!(guard.fence() > fence);
    guard.release().await.unwrap();
}

/// Race: The server's clock is set back during a hold with a maximum hold time.
#[tokio::test]
async fn max_hold_ends_a_hold_though_the_servers_clock_is_set_back() {
    let server = Server::builder().clock(0).start().await;
    let locks = settings()
        .lease(SECOND)
        .claim_window(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let max_hold = 3 * SECOND;
    let guard = locks.lock(NAME).max_hold(max_hold).acquire().await.unwrap();
    let began = std::time::Instant::now();
    tokio::time::sleep(SECOND).await;
    server.set_clock(-3600).await;
    let lost = tokio::time::timeout(2 * max_hold, guard.lost()).await.unwrap();
    assert_eq!(lost, fairlock::HoldEnd::MaxHold);
    assert!(began.elapsed() <= max_hold, "{:?}", began.elapsed());
    // The hold has ended on the server too.
    let next = locks.lock(NAME).acquire_timeout(SECOND / 2).await.unwrap();
    next.release().await.unwrap();
}
