//! The addresses of the servers change.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use fairlock::LockManager;
use fairlock_testkit::{Cluster, Proxy, Server, eventually};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// Whether the server shows clients the port under which it is announced. Redis does so from 7.0 on.
async fn knows_its_address(server: &Server) -> bool {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let announce = async |port: u16| {
        let words = ["CONFIG", "SET", "cluster-announce-port", &port.to_string()];
        assert_eq!(server.command(&words).await.text(), "OK");
        // It looks at its settings ten times a second.
        sleep(SECOND / 2).await;
    };
    announce(port).await;
    let shown = server.command(&["CLUSTER", "NODES"]).await;
    announce(0).await;
    shown.text().contains(&format!(":{port}@"))
}

/// Race: A server is back while the client waits for addresses that it had before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_back_soon_after_an_outage_however_many_addresses_its_server_had() {
    const ADDRESSES: usize = 30;

    let cluster = Cluster::of_masters(1).await;
    let server = &cluster.servers[0];
    let announce = async |port: u16| {
        let port = port.to_string();
        let words = ["CONFIG", "SET", "cluster-announce-port", &port];
        assert_eq!(server.command(&words).await.text(), "OK");
    };
    if !knows_its_address(server).await {
        return println!("skipped: the server tells others alone under which port it is announced");
    }
    let locks = LockManager::connect(&cluster.url()).await.unwrap();
    let lock = locks.lock("orders");
    // Nothing answers at an address once there is another one.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let silence = |proxy: &Proxy| {
        proxy.lead_to(&[nobody.local_addr().unwrap().port()]);
        proxy.black_hole();
    };
    let mut former: Vec<Proxy> = Vec::new();
    for _ in 0..ADDRESSES {
        let proxy = Proxy::start(server.port());
        announce(proxy.port()).await;
        eventually("the client uses the address", 10 * SECOND, async || {
            lock.acquire().await.unwrap().release().await.unwrap();
            proxy.count("EVALSHA") > 0
        })
        .await;
        if let Some(before) = former.last() {
            silence(before);
        }
        former.push(proxy);
    }
    server.kill();
    former.iter().for_each(silence);
    let waiting = tokio::spawn(lock.acquire());
    sleep(5 * SECOND).await;
    // From now on, the server announces its own port.
    server.restart().await;
    let back = Instant::now();
    eventually("a new client is served", 30 * SECOND, async || {
        let new = LockManager::connect(&cluster.url()).await.unwrap();
        let served = new.lock("others").acquire_timeout(SECOND).await;
        served.is_ok()
    })
    .await;
    let new = back.elapsed();
    eventually("the client is served", 60 * SECOND, async || {
        locks.lock("others").acquire_timeout(SECOND).await.is_ok()
    })
    .await;
    let known = back.elapsed();
    println!("after the restart, a new client is served after {new:?}, the other after {known:?}");
    assert!(
        known < new + 5 * SECOND,
        "{known:?}, and a new client after {new:?}"
    );
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
