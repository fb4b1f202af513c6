//! Managers that are made while their servers are away.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockManagerBuilder};
use fairlock_testkit::{Cluster, Proxy, Server, free_port};
use futures_util::TryStreamExt;

const LIMIT: Duration = Duration::from_secs(10);

fn client() -> LockManagerBuilder {
    LockManager::builder().server_timeout(Duration::from_secs(1))
}

/// Makes a manager whose way to its server is closed, and opens that while calls wait. They are served in
/// the order of their arrival.
async fn calls_wait_for_the_server(url: &str, way: &Proxy) {
    way.refuse();
    let locks = LockManager::connect_lazy(url).unwrap();
    let lock = locks.lock("a").local_handoffs(2);
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..4 {
        let (lock, served) = (lock.clone(), served.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.send(n).unwrap();
            guard.release().await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(order.try_recv().is_err(), "nobody can hold it yet");
    way.heal();
    for n in 0..4 {
        let next = tokio::time::timeout(LIMIT, order.recv()).await;
        assert_eq!(next.expect("served"), Some(n));
    }
    locks
        .lock("a")
        .try_acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_manager_that_is_made_before_its_server_serves_the_calls_that_wait() {
    let server = Server::start().await;
    let way = Proxy::start(server.port());
    calls_wait_for_the_server(&way.url(), &way).await;
}

#[tokio::test]
async fn a_manager_that_is_made_before_its_cluster_serves_the_calls_that_wait() {
    let cluster = Cluster::start().await;
    let way = Proxy::start(cluster.servers[0].port());
    let url = format!("redis-cluster://127.0.0.1:{}", way.port());
    calls_wait_for_the_server(&url, &way).await;
}

/// The first call to a server whose time is unknown does nothing, and is repeated.
#[tokio::test]
async fn a_first_try_and_a_first_bounded_wait_find_a_free_lock() {
    let (server, cluster) = (Server::start().await, Cluster::of_masters(2).await);
    for url in [server.url(), cluster.url()] {
        let bound = Duration::from_secs(5);
        let first = LockManager::connect_lazy(&url).unwrap();
        first
            .lock("a")
            .try_acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let first = LockManager::connect_lazy(&url).unwrap();
        let guard = first.lock("a").acquire_timeout(bound).await.unwrap();
        let first = LockManager::connect_lazy(&url).unwrap();
        let listed: Vec<_> = first.list("*").try_collect().await.unwrap();
        assert_eq!(listed.len(), 1, "a cluster that is not known yet is not empty");
        let first = LockManager::connect_lazy(&url).unwrap();
        let busy = first.lock("a").try_acquire().await;
        assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn calls_are_told_that_the_server_is_away() {
    let port = free_port();
    for url in [
        format!("redis://127.0.0.1:{port}"),
        format!("redis-cluster://127.0.0.1:{port}"),
    ] {
        let locks = client().connect_lazy(&url).unwrap();
        for called in [
            locks.lock("a").acquire().await,
            locks.lock("a").try_acquire().await,
            locks.lock("a").acquire_timeout(Duration::from_millis(100)).await,
        ] {
            let Err(Error::Unavailable(why)) = called else {
                panic!("{url}: {called:?}");
            };
            assert!(why.to_string().contains("refused"), "{url}: {why}");
        }
        assert!(matches!(locks.ping().await, Err(Error::Unavailable(_))));
        locks.close().await.unwrap();
    }
}

#[tokio::test]
async fn calls_are_refused_for_what_connect_is_refused_for() {
    let server = Server::start().await;
    for url in [
        server.url_as("nobody", "wrong"),
        format!("redis-cluster://127.0.0.1:{}", server.port()),
    ] {
        let locks = LockManager::connect_lazy(&url).unwrap();
        let began = Instant::now();
        let refused = locks.lock("a").acquire().await.unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
        assert!(began.elapsed() < LIMIT / 2, "it is told at once");
        let connected = LockManager::connect(&url).await.unwrap_err();
        assert_eq!(refused.to_string(), connected.to_string());
    }
}

#[tokio::test]
async fn a_url_that_is_wrong_is_refused_at_once() {
    for url in ["redis://", "http://127.0.0.1:1", "redis://locks@127.0.0.1:1"] {
        let refused = LockManager::connect_lazy(url);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
}

/// A static can hold such a manager, before any runtime is there.
#[test]
fn a_manager_with_its_own_thread_is_made_outside_of_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let locks = LockManager::builder()
        .own_thread()
        .connect_lazy(&server.url())
        .unwrap();
    let guard = pollster::block_on(locks.lock("a").acquire()).unwrap();
    pollster::block_on(guard.release()).unwrap();
}

#[test]
#[should_panic(expected = "outside of a Tokio runtime")]
fn without_one_it_panics_there() {
    let _ = LockManager::connect_lazy("redis://127.0.0.1:1");
}
