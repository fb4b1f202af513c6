//! Servers that come back without their memory, or with an old one.

use std::time::Duration;

use fairlock::{Error, LockManager, Quorum};
use fairlock_testkit::{Server, eventually};
use tokio::time::{sleep, timeout};

use super::{LIMIT, client, client_with, servers, urls};

/// A short time, after which a server grants locks again.
const LEASE: Duration = Duration::from_secs(2);

/// A client that does not trust servers that have just been started.
async fn wary(servers: &[Server]) -> LockManager {
    let builder = LockManager::builder().lease(LEASE).server_timeout(LIMIT);
    let quorum = Quorum::of(urls(servers)).longest_lease(LEASE);
    builder.connect_quorum(quorum).await.unwrap()
}

/// Whether a server has the scripts of this quorum. Without them, no client can get its vote.
async fn has_scripts(server: &Server) -> bool {
    server.info("memory").await["number_of_cached_scripts"] != "0"
}

/// Whether a hold of the lock "a" has the vote of this server.
async fn has_voted_for_a(server: &Server) -> bool {
    let keys = server.keys("fairlock:{a}").await;
    !keys.is_empty() && server.lock_summary(&keys[0]).await.is_held()
}

#[tokio::test(flavor = "multi_thread")]
async fn new_servers_grant_nothing_for_the_longest_lease_and_say_why() {
    let servers = servers::<3>().await;
    let builder = LockManager::builder().server_timeout(Duration::from_secs(1));
    let hasty = builder.connect_quorum(Quorum::of(urls(&servers))).await.unwrap();
    let error = hasty.lock("a").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { answering: 0, .. }), "{error:?}");
    assert!(error.to_string().contains("started recently"), "{error}");
    let locks = wary(&servers).await;
    let guard = timeout(LIMIT, locks.lock("a").acquire())
        .await
        .expect("served")
        .unwrap();
    guard.release().await.unwrap();
}

/// Redlock without a delay after restarts has two holders here: the second one has the votes of the server
/// that forgot and of the one that the first holder never had.
#[tokio::test(flavor = "multi_thread")]
async fn server_that_forgot_a_hold_makes_no_second_holder() {
    let servers = servers::<3>().await;
    let (here, there) = (wary(&servers).await, wary(&servers).await);
    // The scripts are loaded everywhere.
    here.lock("b").acquire().await.unwrap().release().await.unwrap();
    for server in &servers {
        eventually("loaded", LIMIT, async || has_scripts(server).await).await;
    }
    servers[2].kill();
    let guard = here
        .lock("a")
        .lease(LEASE)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    servers[1].kill();
    servers[1].restart().await;
    servers[2].restart().await;
    let next = timeout(LIMIT, there.lock("a").acquire())
        .await
        .expect("served")
        .unwrap();
    assert!(guard.is_lost(), "two holders at once");
    assert!(next.fence() > guard.fence());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_outlives_one_restart_after_the_other() {
    #[cfg(feature = "metrics")]
    let repaired = || super::corrected("restarted", "repaired");
    #[cfg(feature = "metrics")]
    assert_eq!(repaired(), 0.0);
    let servers = servers::<3>().await;
    let locks = wary(&servers).await;
    let guard = timeout(LIMIT, locks.lock("a").group("restarted").acquire())
        .await
        .expect("served")
        .unwrap();
    let has_all_votes = async || {
        guard.check().unwrap();
        for server in &servers {
            if !has_voted_for_a(server).await {
                return false;
            }
        }
        true
    };
    // One of the servers may have been started too late to be among the first two.
    eventually("all have voted", LIMIT, has_all_votes).await;
    for server in &servers {
        server.kill();
        server.restart().await;
        eventually("repaired", LIMIT, has_all_votes).await;
    }
    #[cfg(feature = "metrics")]
    eventually("counted", LIMIT, async || repaired() >= 3.0).await;
    let status = locks.lock("a").status().await.unwrap();
    assert_eq!(status.holder.unwrap().owner, *guard.owner());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn client_connects_while_a_minority_is_down_and_the_others_follow() {
    let servers = servers::<3>().await;
    servers[1].kill();
    // Far less than the `server_timeout`.
    let connected = timeout(Duration::from_secs(5), client(&servers)).await;
    let locks = connected.expect("it does not wait for the third server");
    let guard = locks.lock("a").acquire().await.unwrap();
    servers[1].restart().await;
    eventually("the hold gets its vote", LIMIT, async || {
        has_voted_for_a(&servers[1]).await
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn client_does_not_connect_without_a_majority() {
    let servers = servers::<3>().await;
    servers[1].kill();
    servers[2].kill();
    let builder = LockManager::builder().server_timeout(Duration::from_secs(1));
    let error = builder
        .connect_quorum(Quorum::of(urls(&servers)))
        .await
        .unwrap_err();
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
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_connect_leaves_no_connection() {
    let servers = servers::<3>().await;
    servers[1].pause();
    servers[2].pause();
    for _ in 0..5 {
        let connecting = LockManager::builder()
            .label("dropped")
            .connect_quorum(Quorum::of(urls(&servers)));
        assert!(timeout(Duration::from_millis(200), connecting).await.is_err());
    }
    eventually("no connection is left", LIMIT, async || {
        let clients = servers[0].command(&["CLIENT", "LIST"]).await;
        !clients.text().contains("name=dropped")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_no_dead_minority() {
    let servers = servers::<3>().await;
    let locks = client_with(&servers, |settings| settings.server_timeout(LIMIT)).await;
    let guard = locks.lock("a").acquire().await.unwrap();
    sleep(Duration::from_millis(50)).await;
    servers[0].kill();
    drop(guard);
    // The dead server's release is repeated until the lease there is over, which takes 5 s.
    let closed = timeout(Duration::from_secs(4), locks.close()).await;
    closed.expect("it waits for no lease").unwrap();
    assert!(locks.is_closed());
    let others = client(&servers).await;
    assert!(others.lock("a").try_acquire().await.is_ok());
}
