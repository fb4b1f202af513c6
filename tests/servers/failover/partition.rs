//! A primary that is cut off from its replicas and from the sentinels, together with one of its clients. That
//! client has no other way to learn of the failover, so it and the primary notice nothing.

use std::time::Duration;

use fairlock::{LockGuard, LockManager};
use fairlock_testkit::resource::{Resource, writes};
use fairlock_testkit::{Proxy, Sentinels, Server, Setup};

use super::{LIMIT, client};

/// A machine may stand still for some seconds, which must not end a lease that is renewed.
const LEASE: Duration = Duration::from_secs(12);

struct Partition {
    group: Sentinels,
    /// The connections of the client inside to the sentinels.
    links: Vec<Proxy>,
    /// The client on the side of the former primary, which is the first of the servers.
    inside: LockManager,
    outside: LockManager,
    /// A guard of the client inside. Its grant is known to the replicas.
    held: LockGuard,
}

async fn partition(config: &[(&str, &str)]) -> Partition {
    let setup = Setup {
        network: true,
        config,
        ..Setup::default()
    };
    let group = Sentinels::with(setup).await;
    let outside = client(&group.url()).await;
    let network = group.network.as_ref().unwrap();
    let others = network.accepted();
    let sentinels = group.sentinels.iter();
    let links: Vec<Proxy> = sentinels.map(|sentinel| Proxy::start(sentinel.port())).collect();
    let inside = client(&group.url_by(links.iter().map(Proxy::port))).await;
    let held = inside.lock("a").lease(LEASE).acquire().await.unwrap();
    group.replicated().await;
    links.iter().for_each(Proxy::freeze);
    network.cut_off(others);
    Partition {
        group,
        links,
        inside,
        outside,
        held,
    }
}

/// Race: A client is cut off together with a former primary.
#[tokio::test]
async fn holders_on_both_sides_of_a_cut_overlap_under_growing_fences_until_the_former_primary_is_demoted() {
    let Partition {
        group,
        links,
        inside,
        outside,
        held,
    } = partition(&[]).await;
    let now = group.switched(0).await;

    // Inside, locks are renewed and granted as before. Outside, the first lock stays held until the deadline
    // that the replicas knew when the network was cut.
    let alone = inside.lock("b").lease(LEASE).acquire().await.unwrap();
    for (before, name) in [(&held, "a"), (&alone, "b")] {
        let guard = outside.lock(name).acquire().await.unwrap();
        before.check().unwrap();
        assert!(guard.fence() > before.fence());
        only_the_newer_writes(before, &guard).await;
        guard.release().await.unwrap();
    }
    assert_eq!(role(&group.servers[0]).await, "master");

    // The sentinels reach the former primary again before the client can reach them.
    group.network.as_ref().unwrap().heal();
    for guard in [&held, &alone] {
        tokio::time::timeout(LIMIT, guard.lost()).await.unwrap();
    }
    assert_eq!(role(&group.servers[0]).await, "slave");
    links.iter().for_each(Proxy::thaw);
    let guard = inside.lock("a").acquire().await.unwrap();
    let summary = group.servers[now].lock_summary("fairlock:{a}").await;
    assert_eq!(summary.fence, guard.fence().get());
    guard.release().await.unwrap();
}

/// Race: A client is cut off together with a former primary.
#[tokio::test]
async fn a_primary_that_must_have_a_replica_renews_nothing_once_it_is_cut_off() {
    let config = [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "1")];
    let Partition { group, held, .. } = partition(&config).await;
    tokio::time::timeout(LIMIT, held.lost()).await.unwrap();
    assert_eq!(role(&group.servers[0]).await, "master", "it is still cut off");
}

/// Lets both holders write after the resource has seen both fences.
async fn only_the_newer_writes(older: &LockGuard, newer: &LockGuard) {
    let server = Server::start().await;
    let mut resource = Resource::connect(server.port()).await;
    let fences = [older.fence().get(), newer.fence().get()];
    for fence in fences {
        assert_eq!(resource.read(0, fence).await, Some(0));
    }
    for fence in fences {
        resource.write(0, fence, 1).await;
    }
    let writes = writes(&server, 0).await;
    assert_eq!((writes.refused, writes.accepted), (1, 1));
}

async fn role(server: &Server) -> String {
    server.command(&["ROLE"]).await.array()[0].text().to_owned()
}
