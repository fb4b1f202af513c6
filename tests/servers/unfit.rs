//! Servers that are something else than their URL says: nodes of a cluster, sentinels, replicas, and one
//! server behind two URLs.

use std::time::Duration;

use fairlock::diagnose::{self, Verdict};
use fairlock::{Error, LockManager, Quorum};
use fairlock_testkit::{Cluster, Proxy, Sentinels, Server, ServerBuilder, eventually};

const LIMIT: Duration = Duration::from_secs(30);
const REPLICA: &str =
    "a replica, whose locks the next synchronisation takes away: the URL must name its primary";

/// A node of a cluster that has no other nodes.
async fn node() -> Server {
    Server::builder().config("cluster-enabled", "yes").start().await
}

/// A replica whose primary is away.
fn replica(builder: ServerBuilder) -> ServerBuilder {
    builder.config("replicaof", "127.0.0.1 1")
}

/// Connecting fails at once, with these words, and so does the examination.
async fn is_refused(urls: &[String], words: &str) {
    let connected = match urls {
        [url] => LockManager::connect(url).await,
        urls => {
            LockManager::builder()
                .connect_quorum(Quorum::of(urls).durable())
                .await
        }
    };
    match connected.map(drop) {
        Err(Error::Refused(error)) => assert!(error.to_string().contains(words), "{error}"),
        other => panic!("{urls:?}: {other:?}"),
    }
    is_found(Verdict::Refused, urls, words).await;
}

/// The examination finds this, with these words.
async fn is_found(verdict: Verdict, urls: &[String], words: &str) {
    let settings = LockManager::builder();
    let findings = match urls {
        [url] => diagnose::server(settings, url).await,
        urls => diagnose::quorum(settings, Quorum::of(urls).durable()).await,
    };
    let findings = findings.unwrap();
    let mut found = findings.iter().filter(|finding| finding.verdict == verdict);
    assert!(found.any(|finding| finding.text.contains(words)), "{findings:?}");
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused_with_the_scheme_that_helps() {
    let cluster = Cluster::of_masters(3).await;
    is_refused(
        &[cluster.servers[1].url()],
        "node of a cluster, which has a part of the locks: the URL must begin with redis-cluster://",
    )
    .await;
    let masters: Vec<_> = cluster.servers.iter().map(Server::url).collect();
    is_refused(
        &masters,
        "node of a cluster, which has a part of the locks: a quorum is made of",
    )
    .await;
}

#[tokio::test]
async fn a_sentinel_is_refused_with_the_url_that_helps() {
    let sentinels = Sentinels::start().await;
    is_refused(
        &[sentinels.sentinels[0].url()],
        "a sentinel, which keeps no locks: the URL must be redis-sentinel://",
    )
    .await;
}

/// What is written to it is lost when its primary is back.
#[tokio::test]
async fn a_replica_grants_nothing_whether_or_not_it_takes_writes() {
    let settings = LockManager::builder().server_timeout(Duration::from_secs(1));
    for read_only in ["yes", "no"] {
        let builder = Server::builder().config("replica-read-only", read_only);
        let server = replica(builder).start().await;
        match settings.clone().connect(&server.url()).await {
            Err(Error::Unavailable(error)) => assert!(error.to_string().contains(REPLICA), "{error}"),
            other => panic!("{:?}", other.map(drop)),
        }
        is_found(Verdict::Unavailable, &[server.url()], REPLICA).await;
    }
}

/// Race: A process starts in the middle of a failover, and its URL leads to a replica.
#[tokio::test]
async fn a_replica_is_waited_for_until_it_is_the_primary() {
    let server = replica(Server::builder()).start().await;
    let url = server.url();
    let connecting = tokio::spawn(async move { LockManager::connect(&url).await });
    let seen = async || {
        server.info("stats").await["total_connections_received"]
            .parse::<u32>()
            .unwrap()
            > 3
    };
    eventually("it was tried", LIMIT, seen).await;
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    let locks = connecting.await.unwrap().unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_plain_server_is_refused_with_the_scheme_that_helps() {
    let server = Server::start().await;
    for (url, helps) in [
        (
            format!("redis-cluster://127.0.0.1:{}", server.port()),
            "is in no cluster: its URL begins with redis://",
        ),
        (
            format!(
                "redis-sentinel://127.0.0.1:{}?sentinelServiceName=main",
                server.port()
            ),
            "is no sentinel: its URL begins with redis://",
        ),
    ] {
        is_refused(&[url], helps).await;
    }
}

/// Two addresses of one server look like two servers.
#[tokio::test]
async fn a_server_behind_two_urls_of_a_quorum_is_refused() {
    let (one, two, three) = (
        Server::start().await,
        Server::start().await,
        Server::start().await,
    );
    let by_name = format!("redis://localhost:{}", one.port());
    let proxy = Proxy::start(one.port());
    // Two of these are a majority, and any two are one server.
    let same = [one.url(), by_name.clone(), proxy.url()];
    is_refused(&same, "this server is also that of").await;
    // Of these, two other servers may answer first. The examination waits for all.
    for other in [by_name, proxy.url()] {
        is_found(
            Verdict::Refused,
            &[one.url(), two.url(), other],
            "this server is also that of",
        )
        .await;
    }
    let urls = [one.url(), two.url(), three.url()];
    LockManager::builder()
        .connect_quorum(Quorum::of(urls).durable())
        .await
        .unwrap();
}

/// The server behind an address can change at each reconnect.
#[tokio::test]
async fn an_unfit_server_that_is_reached_by_a_reconnect_is_refused_until_another_one_is_there() {
    let (server, node) = (Server::start().await, node().await);
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    proxy.lead_to(&[node.port()]);
    proxy.cut();
    let refused = async || matches!(locks.lock("a").acquire().await, Err(Error::Refused(_)));
    eventually("the node is refused", LIMIT, refused).await;
    proxy.lead_to(&[server.port()]);
    let free = async || locks.lock("a").acquire().await.is_ok();
    eventually("the lock is taken", LIMIT, free).await;
}

/// Race: A primary is demoted, and its clients come back before its successor is there.
#[tokio::test]
async fn a_replica_that_was_a_primary_is_waited_for() {
    let server = Server::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    server.kill_clients().await;
    let waiting = tokio::spawn(locks.lock("a").acquire());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    drop(waiting.await.unwrap().unwrap());
}
