//! Failovers to a replica with real sentinels. Clients follow the primary. Waiters keep their places, as far
//! as the new primary knows them. Fences increase, and a resource that checks the fence accepts no stale
//! write.

mod campaign;
#[cfg(target_os = "linux")]
mod clocks;
mod holders;
mod leaders;
mod lying_sentinel;
mod partition;
mod unreplicated;

use std::time::{Duration, Instant};

use fairlock::{Error, LockGuard, LockManager};
use fairlock_testkit::{Proxy, SERVICE, Sentinels, Server, Setup, eventually};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinHandle;

/// Two thirds of the lease are longer than a failover, even when the sentinels need a second vote, on a
/// machine that stands still for some seconds. A hold that the new primary knows continues there.
const LEASE: Duration = Duration::from_secs(40);
/// How long clients take to find the new primary once the sentinels name it, on a busy machine too.
const FOLLOW: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);

async fn client(url: &str) -> LockManager {
    let builder = LockManager::builder().lease(LEASE).server_timeout(LIMIT);
    builder.connect(url).await.unwrap()
}

/// A set whose replicas have all data of the primary: a held lock and three waiters.
struct Scene {
    group: Sentinels,
    former: usize,
    locks: LockManager,
    guard: LockGuard,
    /// In the order of their requests, each with its client.
    waiters: Vec<(LockManager, JoinHandle<LockGuard>)>,
}

async fn scene() -> Scene {
    let group = Sentinels::start().await;
    let url = group.url();
    let locks = client(&url).await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let waiters = queue(&url, &locks).await;
    group.replicated().await;
    Scene {
        former: group.primary().await,
        group,
        locks,
        guard,
        waiters,
    }
}

/// Makes three clients wait for the lock, one after the other.
async fn queue(url: &str, watch: &LockManager) -> Vec<(LockManager, JoinHandle<LockGuard>)> {
    let mut waiters = Vec::new();
    for place in 1..=3 {
        let locks = client(url).await;
        let acquire = locks.lock("a").acquire();
        waiters.push((locks, tokio::spawn(async move { acquire.await.unwrap() })));
        eventually("the waiter is queued", LIMIT, async || {
            watch.lock("a").status().await.unwrap().waiting == place
        })
        .await;
    }
    waiters
}

/// How many waiters this server sees subscribed.
async fn subscriptions(server: &Server) -> usize {
    let words = ["PUBSUB", "CHANNELS", "fairlock:unlock:*"];
    server.command(&words).await.array().len()
}

/// Waits until the new primary can reach the waiters, which would otherwise miss their turns. Then the holder
/// releases the lock, and the waiters get it in their order, with increasing fences. On a busy machine a
/// waiter can lose its connection again. That one may miss its turn.
async fn served_in_order(
    Scene {
        group,
        guard,
        waiters,
        ..
    }: Scene,
    now: usize,
) {
    eventually("all waiters are subscribed again", LIMIT, async || {
        subscriptions(&group.servers[now]).await == waiters.len()
    })
    .await;
    let reconnects = |locks: &LockManager| locks.stats().reconnects;
    let before: Vec<u64> = waiters.iter().map(|(locks, _)| reconnects(locks)).collect();
    let mut last = guard.fence();
    guard.release().await.unwrap();

    let (clients, tasks): (Vec<_>, Vec<_>) = waiters.into_iter().unzip();
    let place = |(place, task)| async move { (place, task.await) };
    let mut tasks: FuturesUnordered<_> = tasks.into_iter().enumerate().map(place).collect();
    let mut order = Vec::new();
    while let Some((place, guard)) = tokio::time::timeout(LIMIT, tasks.next()).await.unwrap() {
        let guard = guard.unwrap();
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        guard.release().await.unwrap();
        order.push(place);
    }
    order.retain(|place| reconnects(&clients[*place]) == before[*place]);
    assert!(order.is_sorted(), "the order of the waiters: {order:?}");
}

/// Race: A failover loses the queue, or a part of it.
#[tokio::test]
async fn waiters_keep_their_order_after_the_primary_is_killed() {
    let scene = scene().await;
    let Scene {
        group, former, locks, ..
    } = &scene;
    let killed = Instant::now();
    group.servers[*former].kill();
    let now = group.switched(*former).await;
    let switched = Instant::now();
    locks.ping().await.unwrap();
    println!(
        "killed: the sentinels name another primary after {:?}, the client has followed {:?} later",
        switched - killed,
        switched.elapsed()
    );
    assert!(switched.elapsed() < FOLLOW);
    served_in_order(scene, now).await;
}

/// Race: A former primary still accepts writes.
#[tokio::test]
async fn a_failover_by_hand_is_followed_before_the_former_primary_knows() {
    let scene = scene().await;
    let Scene {
        group, former, locks, ..
    } = &scene;
    group.sentinels[1]
        .command(&["SENTINEL", "FAILOVER", SERVICE])
        .await;
    let now = group.switched(*former).await;
    let switched = Instant::now();
    let mut number = 0;
    eventually("new locks go to the new primary", FOLLOW, async || {
        number += 1;
        let name = format!("b{number}");
        let guard = locks.lock(&name).acquire().await.unwrap();
        if guard.release().await.is_err() {
            // The clients moved to the new primary between the two calls, and the new primary does not know
            // this hold.
            return false;
        }
        let key = format!("fairlock:{{{name}}}");
        group.servers[now].command(&["EXISTS", &key]).await.int() == 1
    })
    .await;
    let role = group.servers[*former].command(&["ROLE"]).await;
    assert_eq!(
        role.array()[0].text(),
        "master",
        "the former primary already knows"
    );
    println!(
        "by hand: the client is at the new primary {:?} after the sentinels",
        switched.elapsed()
    );
    served_in_order(scene, now).await;
}

/// Race: A former primary still accepts writes.
#[tokio::test]
async fn primary_returning_from_a_freeze_finds_no_client() {
    let scene = scene().await;
    let Scene {
        group, former, locks, ..
    } = &scene;
    group.servers[*former].pause();
    let now = group.switched(*former).await;
    eventually("the client has followed", FOLLOW, async || {
        locks.ping().await.is_ok()
    })
    .await;
    group.servers[*former].resume();
    // A sentinel takes some seconds to make the former primary a replica.
    locks.lock("c").acquire().await.unwrap().release().await.unwrap();
    for (server, count) in [(now, 1), (*former, 0)] {
        let there = group.servers[server].command(&["EXISTS", "fairlock:{c}"]).await;
        assert_eq!(there.int(), count);
    }
    served_in_order(scene, now).await;
}

#[tokio::test]
async fn holder_without_any_server_left_is_told_before_its_lease_ends() {
    const LEASE: Duration = Duration::from_secs(10);

    let group = Sentinels::start().await;
    let locks = client(&group.url()).await;
    let guard = locks.lock("a").lease(LEASE).acquire().await.unwrap();
    let granted = Instant::now();
    for server in &group.servers {
        server.kill();
    }
    guard.lost().await;
    // A renewal may have succeeded just before the servers were killed.
    assert!(granted.elapsed() < 2 * LEASE, "{:?}", granted.elapsed());
    assert!(guard.check().is_err());
}

#[tokio::test]
async fn dead_and_frozen_sentinels_are_skipped() {
    let group = Sentinels::start().await;
    group.sentinels[0].kill();
    group.sentinels[1].pause();
    let locks = client(&group.url()).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    group.sentinels[1].resume();
}

#[tokio::test]
async fn highest_config_epoch_wins() {
    let group = Sentinels::start().await;
    let former = group.primary().await;
    group.sentinels[0]
        .command(&["SENTINEL", "FAILOVER", SERVICE])
        .await;
    let now = group.switched(former).await;
    let lying_port = lying_sentinel::start(group.servers[former].port()).await;
    // Neither the order in which sentinels are asked nor that of their replies matters.
    let slow = Proxy::start(group.sentinels[0].port());
    slow.delay(Duration::from_millis(20));
    let url = format!(
        "redis-sentinel://127.0.0.1:{lying_port}?node=127.0.0.1:{}&sentinelServiceName={SERVICE}",
        slow.port()
    );
    let locks = client(&url).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    let key = "fairlock:{a}";
    assert_eq!(group.servers[now].command(&["EXISTS", key]).await.int(), 1);
    let role = group.servers[former].command(&["ROLE"]).await;
    assert_eq!(
        role.array()[0].text(),
        "master",
        "the former primary would have been refused anyway"
    );
}

#[tokio::test]
async fn server_that_denies_being_a_primary_is_not_used() {
    let primary = Server::start().await;
    let replica = Server::builder().config("replicaof", &format!("127.0.0.1 {}", primary.port()));
    let replica = replica.start().await;
    let lying_port = lying_sentinel::start(replica.port()).await;
    let builder = LockManager::builder().server_timeout(Duration::from_secs(1));
    let url = format!("redis-sentinel://127.0.0.1:{lying_port}?sentinelServiceName={SERVICE}");
    let error = builder.connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("it is no primary"), "{error}");
    replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    client(&url).await.ping().await.unwrap();
}

#[tokio::test]
async fn a_primary_that_no_sentinel_knows_is_refused_and_dead_sentinels_are_unavailable() {
    let group = Sentinels::start().await;
    let unknown = group.url().replace(SERVICE, "unknown");
    let error = LockManager::connect(&unknown).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("sentinel 127.0.0.1"), "{error}");
    let builder = LockManager::builder().server_timeout(Duration::from_millis(500));
    let error = builder
        .connect("redis-sentinel://127.0.0.1:1?sentinelServiceName=main")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn servers_and_sentinels_have_passwords_of_their_own() {
    let group = Sentinels::with(Setup {
        passwords: Some(("servers", "sentinels")),
        ..Setup::default()
    })
    .await;
    let url = group.url().replace("//", "//:servers@");
    let error = LockManager::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    let url = format!("{url}&sentinelPassword=sentinels");
    let locks = client(&url).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
