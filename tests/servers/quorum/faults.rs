//! Servers, connections and processes that fail while others hold the lock or wait for it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Error, HoldEnd, LockGuard, LockManager, LockManagerBuilder, Quorum};
use fairlock_testkit::{History, Proxy, Server, eventually};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{AT_ONCE, LIMIT, client, client_with, left, queued_everywhere, servers, urls};

/// A client that reaches each server through a proxy.
async fn client_through_proxies(
    servers: &[Server],
    settings: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
) -> (Vec<Proxy>, LockManager) {
    let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(server.port())).collect();
    let quorum = Quorum::of(proxies.iter().map(Proxy::url)).durable();
    let client = settings(LockManager::builder())
        .connect_quorum(quorum)
        .await
        .unwrap();
    (proxies, client)
}

/// How many clients listen for their locks, without that of the holder. A client that once waited listens for
/// a while.
async fn listeners(server: &Server, holder: &LockGuard) -> usize {
    let holder = holder.owner().to_string();
    let (holder, _) = holder.split_once(':').expect("the client and the ballot");
    let channels = server.command(&["PUBSUB", "CHANNELS", "fairlock:unlock:*"]).await;
    let others = channels
        .texts()
        .into_iter()
        .filter(|channel| !channel.ends_with(holder));
    others.count()
}

/// A minority that is hung, killed or cut off delays neither an acquire nor a hand-over.
async fn minority_costs_nothing(fail: impl Fn(&Server)) {
    let servers = servers::<3>().await;
    let (here, there) = (client(&servers).await, client(&servers).await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    eventually("queued", LIMIT, async || {
        here.lock("a").status().await.unwrap().waiting == 1
    })
    .await;
    // The waiter is subscribed at a majority at least.
    eventually("subscribed", LIMIT, async || {
        listeners(&servers[0], &guard).await + listeners(&servers[1], &guard).await == 2
    })
    .await;
    fail(&servers[2]);
    let began = Instant::now();
    guard.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    next.release().await.unwrap();
    let guard = here.lock("b").acquire().await.unwrap();
    assert!(matches!(
        there.lock("b").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    guard.release().await.unwrap();
    let took = began.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_server_delays_nothing() {
    minority_costs_nothing(Server::pause).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_server_delays_nothing() {
    minority_costs_nothing(Server::kill).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hung_servers_of_five_delay_nothing() {
    let servers = servers::<5>().await;
    let locks = client(&servers).await;
    servers[0].pause();
    servers[3].pause();
    let began = Instant::now();
    for _ in 0..10 {
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    }
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_majority_is_no_quorum_and_waiters_get_the_lock_once_it_is_back() {
    let servers = servers::<3>().await;
    let locks = client_with(&servers, |settings| {
        settings.server_timeout(Duration::from_secs(2))
    })
    .await;
    let patient = client_with(&servers, |settings| settings.server_timeout(LIMIT)).await;
    servers[0].kill();
    servers[1].kill();
    let began = Instant::now();
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoQuorum {
                servers: 3,
                wanted: 2,
                answering: 1,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.is_transient());
    assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
    assert!(matches!(locks.ping().await, Err(Error::NoQuorum { .. })));
    assert!(matches!(
        locks.lock("a").status().await,
        Err(Error::NoQuorum { .. })
    ));
    assert!(matches!(
        locks.lock("a").try_acquire().await,
        Err(Error::NoQuorum { .. })
    ));

    let waiter = tokio::spawn(patient.lock("a").acquire());
    sleep(Duration::from_millis(500)).await;
    assert!(!waiter.is_finished());
    for server in &servers[..2] {
        server.restart().await;
    }
    let guard = timeout(LIMIT, waiter).await.expect("served").unwrap().unwrap();
    guard.release().await.unwrap();
    eventually("nothing is left", LIMIT, async || left(&servers).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_that_is_cut_off_from_a_majority_is_told_before_others_get_the_lock() {
    let servers = servers::<3>().await;
    let lease = Duration::from_secs(3);
    let (proxies, here) = client_through_proxies(&servers, |settings| settings.lease(lease)).await;
    let there = client(&servers).await;
    let guard = here.lock("a").acquire().await.unwrap();
    let lost = guard.lost();
    let told = tokio::spawn(async move { (lost.await, Instant::now()) });
    let waiter = tokio::spawn(there.lock("a").acquire());
    // Its lease has its whole length now.
    sleep(lease).await;
    assert!(!told.is_finished() && !waiter.is_finished());
    proxies[0].freeze();
    proxies[1].freeze();
    let next = timeout(LIMIT, waiter).await.expect("served").unwrap().unwrap();
    let granted = Instant::now();
    let (lost, told) = told.await.unwrap();
    assert_eq!(lost, HoldEnd::Expired);
    assert!(told <= granted);
    assert!(next.fence() > guard.fence());
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    next.release().await.unwrap();
}

/// The process of the first waiter ends. Its requests stay at the heads of all queues.
#[tokio::test(flavor = "multi_thread")]
async fn dead_waiter_costs_the_next_one_no_lease() {
    let servers = servers::<3>().await;
    let (here, there) = (client(&servers).await, client(&servers).await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiting = async |count| {
        eventually("queued", LIMIT, async || {
            here.lock("a").status().await.unwrap().waiting == count
        })
        .await;
    };
    let urls = urls(&servers);
    let (ready, is_ready) = std::sync::mpsc::channel::<()>();
    let process = thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let locks = runtime.block_on(async {
            let locks = LockManager::builder()
                .connect_quorum(Quorum::of(urls).durable())
                .await
                .unwrap();
            tokio::spawn(locks.lock("a").acquire());
            locks
        });
        is_ready.recv().unwrap();
        // Nothing is withdrawn: the tasks are gone before the manager.
        runtime.shutdown_background();
        drop(locks);
    });
    waiting(1).await;
    let waiter = tokio::spawn(there.lock("a").acquire());
    waiting(2).await;
    ready.send(()).unwrap();
    process.join().unwrap();
    // A server that still knows of the connection would hand the lock to the dead waiter.
    for server in &servers {
        eventually("the connection is closed", LIMIT, async || {
            listeners(server, &guard).await <= 1
        })
        .await;
    }
    let began = Instant::now();
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_one_server_cannot_reach_gets_the_lock_by_the_others() {
    let servers = servers::<3>().await;
    let here = client(&servers).await;
    let (proxies, there) = client_through_proxies(&servers, |settings| settings).await;
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    eventually("queued everywhere", LIMIT, async || {
        let mut queued = 0;
        for server in &servers {
            queued += listeners(server, &guard).await;
        }
        queued == 3
    })
    .await;
    proxies[0].refuse();
    proxies[0].cut();
    let began = Instant::now();
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

/// Race: The next waiter is cut off from a majority, and the others need the vote that it gets
#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_is_cut_off_from_a_majority_keeps_no_vote_from_others() {
    let servers = servers::<3>().await;
    let there = client(&servers).await;
    let (proxies, here) = client_through_proxies(&servers, |settings| settings).await;
    let guard = there.lock("a").acquire().await.unwrap();
    let first = tokio::spawn(here.lock("a").acquire());
    queued_everywhere(&servers, 1).await;
    let second = tokio::spawn(there.lock("a").acquire());
    queued_everywhere(&servers, 2).await;
    servers[0].kill();
    proxies[1].refuse();
    proxies[1].cut();
    let began = Instant::now();
    guard.release().await.unwrap();
    let next = second.await.unwrap().unwrap();
    // The first one polls within 4.5 s, and that fails after 2 s. It would go on for 10 s.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    next.release().await.unwrap();
    let error = first.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoQuorum { answering: 1, .. }), "{error}");
}

/// One of three servers is dead, and the connection of a client to another one comes and goes.
#[tokio::test(flavor = "multi_thread")]
async fn client_whose_connection_comes_and_goes_stops_nobody() {
    let servers = servers::<3>().await;
    let brief = |settings: LockManagerBuilder| settings.claim_window(Duration::from_secs(2));
    let there = client_with(&servers, brief).await;
    let (proxies, here) = client_through_proxies(&servers, brief).await;
    servers[0].kill();
    let end = Instant::now() + Duration::from_secs(10);
    let comes_and_goes = async {
        while Instant::now() < end {
            sleep(Duration::from_millis(300)).await;
            proxies[1].refuse();
            proxies[1].cut();
            sleep(Duration::from_millis(700)).await;
            proxies[1].heal();
        }
    };
    let history = History::default();
    let mut tasks = JoinSet::new();
    for n in 0..20 {
        let lock = if n % 2 == 0 { &here } else { &there }.lock("a");
        let patience = if n % 4 == 0 {
            Duration::from_millis(200)
        } else {
            LIMIT
        };
        let history = history.clone();
        tasks.spawn(async move {
            let mut longest = Duration::ZERO;
            while Instant::now() < end {
                let entry = history.asks(n);
                let began = Instant::now();
                let acquired = lock.acquire_timeout(patience).await;
                longest = longest.max(began.elapsed());
                // Its connection may be lost just after the grant.
                let Ok(guard) = acquired else { continue };
                if guard.check().is_ok() {
                    entry.granted(guard.fence().get());
                    entry.released();
                }
                let _ = guard.release().await;
            }
            (n, longest)
        });
    }
    let mut longest = Duration::ZERO;
    let all = async {
        while let Some(task) = tasks.join_next().await {
            let (n, waited) = task.unwrap();
            if n % 2 == 1 {
                longest = longest.max(waited);
            }
        }
    };
    tokio::join!(all, comes_and_goes);
    // A hold that is handed to a client that does not hear of it ends with its claim window.
    assert!(longest < Duration::from_secs(7), "{longest:?}");
    history.assert_no_overlap();
    history.assert_fences_increase();
}

/// Every process is nearest to another server, so each has one vote at first.
#[tokio::test(flavor = "multi_thread")]
async fn split_votes_are_resolved_and_nothing_is_left() {
    #[cfg(feature = "metrics")]
    let yielded = || super::corrected("split", "yielded");
    #[cfg(feature = "metrics")]
    assert_eq!(yielded(), 0.0);
    let servers = servers::<3>().await;
    let mut clients = Vec::new();
    let mut proxies = Vec::new();
    for n in 0..3 {
        let ways: Vec<_> = servers.iter().map(|server| Proxy::start(server.port())).collect();
        for (server, proxy) in ways.iter().enumerate() {
            if server != n {
                proxy.delay(Duration::from_millis(10));
            }
        }
        let quorum = Quorum::of(ways.iter().map(Proxy::url)).durable();
        clients.push(LockManager::builder().connect_quorum(quorum).await.unwrap());
        proxies.push(ways);
    }
    let history = History::default();
    let next_round = Arc::new(Barrier::new(clients.len()));
    let mut tasks = JoinSet::new();
    for (n, locks) in clients.iter().enumerate() {
        let (lock, history) = (locks.lock("a").group("split"), history.clone());
        let next_round = Arc::clone(&next_round);
        tasks.spawn(async move {
            for _ in 0..20 {
                let entry = history.asks(n);
                let guard = lock.acquire().await.unwrap();
                entry.granted(guard.fence().get());
                entry.released();
                guard.release().await.unwrap();
                // All of them find a free lock at the same time.
                next_round.wait().await;
            }
        });
    }
    let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    timeout(LIMIT, all).await.expect("all are served");
    history.assert_no_overlap();
    history.assert_fences_increase();
    #[cfg(feature = "metrics")]
    assert!(yielded() > 0.0, "there was no split");
    eventually("nothing is left", LIMIT, async || left(&servers).await.is_empty()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_by_hours_change_neither_exclusion_nor_fences() {
    const HOUR: i64 = 3600;
    let servers = [
        Server::builder().clock(0).start().await,
        Server::builder().clock(2 * HOUR).start().await,
        Server::builder().clock(-HOUR).start().await,
    ];
    let mut tasks = JoinSet::new();
    let history = History::default();
    for n in 0..6 {
        let (locks, history) = (client(&servers).await, history.clone());
        tasks.spawn(async move {
            for _ in 0..10 {
                let entry = history.asks(n);
                let guard = locks.lock("a").acquire().await.unwrap();
                entry.granted(guard.fence().get());
                sleep(Duration::from_millis(1)).await;
                guard.check().unwrap();
                entry.released();
                guard.release().await.unwrap();
            }
        });
    }
    let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    timeout(LIMIT, all).await.expect("all are served");
    history.assert_no_overlap();
    history.assert_fences_increase();
}

/// A server whose clock is behind refuses the floors of the others. One whose clock is ahead gives none.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn server_whose_clock_is_days_off_does_not_hinder_the_others() {
    for (days, wrong) in [(-3, 0), (3, 0), (-3, 2), (3, 2)] {
        let mut servers = Vec::new();
        for n in 0..3 {
            let days = if n == wrong { days } else { 0 };
            servers.push(Server::builder().clock(days * 24 * 3600).start().await);
        }
        let (here, there) = (client(&servers).await, client(&servers).await);
        for _ in 0..3 {
            let guard = here.lock("a").acquire().await.unwrap();
            assert!(matches!(
                there.lock("a").try_acquire().await,
                Err(Error::Busy { .. })
            ));
            guard.release().await.unwrap();
        }
    }
}

/// Nobody knows then whether the vote keeps an earlier request waiting.
#[tokio::test(flavor = "multi_thread")]
async fn vote_is_given_up_where_the_server_refuses_to_look_for_earlier_requests() {
    let servers = servers::<3>().await;
    let mut urls = Vec::new();
    for (server, right) in servers.iter().zip(["+zrange", "+zrange", "-zrange"]) {
        let user = ["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", right];
        server.set_user(&user).await;
        urls.push(server.url_as("u", "p"));
    }
    let locks = LockManager::builder()
        .connect_quorum(Quorum::of(urls).durable())
        .await
        .unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    // Somebody else holds two of the three, and waits for the third one.
    let mut held = Vec::new();
    for server in &servers[..2] {
        let alone = LockManager::connect(&server.url()).await.unwrap();
        held.push(alone.lock("a").acquire().await.unwrap());
    }
    let wait = tokio::spawn(locks.lock("a").acquire());
    let alone = LockManager::connect(&servers[2].url()).await.unwrap();
    eventually("one vote is there", LIMIT, async || {
        alone.lock("a").status().await.unwrap().holder.is_some()
    })
    .await;
    let third = timeout(LIMIT, alone.lock("a").acquire()).await;
    drop((held, third.expect("not for ever").unwrap()));
    let guard = timeout(LIMIT, wait).await.expect("a majority is free");
    guard.unwrap().unwrap().release().await.unwrap();
}

/// Race: The server stops answering while callers wait that have little time.
#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_wait_without_a_majority_is_no_quorum_and_with_one_it_is_a_timeout() {
    let servers = servers::<3>().await;
    // Its votes last for longer than two of the servers are silent here, although they cannot be renewed.
    let here = client_with(&servers, |settings| settings.claim_window(LIMIT / 2)).await;
    let there = client(&servers).await;
    let guard = here.lock("held").acquire().await.unwrap();
    let wait = async |name: &str, turns: u32| {
        let lock = there.lock(name).local_handoffs(turns);
        lock.acquire_timeout(Duration::from_millis(300)).await
    };
    // The servers are known to answer fast.
    for _ in 0..16 {
        there.lock("free").status().await.unwrap();
    }
    servers[0].pause();
    for turns in [1, 64] {
        let busy = wait("held", turns).await;
        assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
    }
    servers[1].pause();
    // A reply from before that is an answer when it is read.
    sleep(Duration::from_millis(300)).await;
    for turns in [1, 64] {
        let away = wait("free", turns).await;
        assert!(
            matches!(away, Err(Error::NoQuorum { answering: 1, .. })),
            "{away:?}"
        );
    }
    let stats = there.stats();
    assert_eq!((stats.timed_out, stats.unavailable), (2, 2));
    let tried = timeout(LIMIT, there.lock("free").try_acquire()).await.unwrap();
    assert!(matches!(tried, Err(Error::NoQuorum { .. })), "{tried:?}");
    servers[0].resume();
    servers[1].resume();
    guard.release().await.unwrap();
}
