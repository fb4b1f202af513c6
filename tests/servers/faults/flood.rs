//! More calls than the network or the server can take at once, and callers that give up in the meantime.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fairlock::{LockGuard, LockManager};
use fairlock_testkit::{Proxy, Server, eventually};
use tokio::task::JoinSet;

use super::scene::{NAME, SECOND, connect, nothing_left, settings, waiting};

/// The largest number of calls that a client has in flight.
const IN_FLIGHT: u64 = 1024;

/// About five thousand calls a second get through, and a call does nothing if it runs two seconds after it
/// was written.
///
/// Race: Calls wait so long in the backlog behind a slow network that they are already late when they are
/// sent.
#[tokio::test]
async fn backlog_behind_a_far_network_is_sent_in_time() {
    const WAITERS: u16 = 20_000;
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (near, far) = (connect(&server.url()).await, connect(&proxy.url()).await);
    let guard = near.lock(NAME).acquire().await.unwrap();
    proxy.delay(SECOND / 10);
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        waiters.spawn(far.lock(NAME).acquire());
    }
    let free = tokio::spawn(far.lock("free").try_acquire());
    let all_queued = async || waiting(&server, NAME).await == i64::from(WAITERS);
    eventually("all waiters are queued", 30 * SECOND, all_queued).await;
    drop(free.await.unwrap().unwrap());
    waiters.abort_all();
    let none_queued = async || waiting(&server, NAME).await == 0;
    eventually("all waiters have left", 15 * SECOND, none_queued).await;
    drop(guard);
}

/// Race: Waits are given up while the server is away, and their withdrawals pile up.
#[tokio::test]
async fn waits_given_up_while_the_server_is_away_leave_it_no_work() {
    let server = Server::start().await;
    let locks = settings()
        .server_timeout(2 * SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    // Each lock has a waitlist already, as after some use.
    for name in ["0", "1", "2", "3"] {
        locks.lock(name).acquire().await.unwrap().release().await.unwrap();
    }
    let before = server.calls().await["evalsha"];
    server.pause();
    let mut given_up = 0;
    let mut waits = JoinSet::new();
    let began = tokio::time::Instant::now();
    // On a busy machine, so many take longer.
    while began.elapsed() < 5 * SECOND || given_up <= 3 * IN_FLIGHT {
        for name in ["0", "1", "2", "3"] {
            waits.spawn(locks.lock(name).acquire_timeout(Duration::from_millis(20)));
            given_up += 1;
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
    while let Some(wait) = waits.join_next().await {
        wait.unwrap().unwrap_err();
    }
    server.resume();
    let free = async || locks.lock("free").acquire_timeout(SECOND).await.is_ok();
    eventually("acquires succeed again", 4 * SECOND, free).await;
    for name in ["0", "1", "2", "3"] {
        nothing_left(&server, name, 4 * SECOND).await;
    }
    locks.close().await.unwrap();
    let calls = server.calls().await["evalsha"] - before;
    assert!(calls < 2 * IN_FLIGHT, "{calls} calls for {given_up} waits");
}

/// Makes one call of a flood, whose outcome is of no interest.
type Call = fn(&LockManager, &Arc<LockGuard>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// The server answers some three thousand calls a second here, so that it needs longer than a lease for each
/// of these floods, and the test far less.
///
/// Race: A program makes calls faster than the server answers them, and its renewals wait behind these.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_outlive_a_flood_of_calls_by_their_client() {
    let floods: [(&str, usize, Call); 2] = [
        ("status", 25_000, |locks, _| {
            let status = locks.lock(NAME).status();
            Box::pin(async move { drop(status.await) })
        }),
        ("renew", 30_000, |_, guard| {
            let guard = Arc::clone(guard);
            Box::pin(async move { drop(guard.renew().await) })
        }),
    ];
    let server = Server::start().await;
    let _busy = occupy(&server).await;
    for (name, calls, call) in floods {
        let locks = settings().lease(3 * SECOND).claim_window(SECOND);
        let locks = locks.connect(&server.url()).await.unwrap();
        let mut guards = Vec::new();
        for n in 0..100 {
            let guard = locks.lock(format!("{name}-{n}")).acquire().await.unwrap();
            guards.push(Arc::new(guard));
        }
        let mut flood: JoinSet<_> = (0..calls).map(|_| call(&locks, &guards[0])).collect();
        while flood.join_next().await.is_some() {}
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        assert_eq!(lost, 0, "holds were lost in a flood of {name}");
    }
}

/// Keeps the server busy with scripts of some 20 ms each. In between, it reads a part of what others sent.
async fn occupy(server: &Server) -> JoinSet<()> {
    let mut client = server.client().await;
    let mut busy = JoinSet::new();
    busy.spawn(async move {
        loop {
            let script = "for i = 1, 4000000 do end";
            client.command(&["EVAL", script, "0"]).await.unwrap();
        }
    });
    busy
}
