//! Calls and messages find the server that has the slot.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fairlock::spin::SpinLock;
use fairlock::{Error, LockManager};
use fairlock_testkit::{Cluster, History, Server, eventually};
use futures_util::TryStreamExt;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::scene::{all_served, clients, queue};

const SECOND: Duration = Duration::from_secs(1);

/// Race: Keys of one lock are on two servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_spread_over_the_masters_and_all_keys_of_one_share_a_slot() {
    let cluster = Cluster::start().await;
    let locks = LockManager::connect(&cluster.url()).await.unwrap();
    let mut guards = Vec::new();
    let mut waits = JoinSet::new();
    for n in 0..24 {
        let lock = locks.lock(format!("lock-{n}"));
        guards.push(lock.acquire().await.unwrap());
        waits.spawn(lock.acquire());
        let spin = SpinLock::new(&locks, lock.name());
        assert!(spin.try_lock(SECOND, 10 * SECOND).await.unwrap());
        eventually("one waits", 5 * SECOND, async || {
            lock.status().await.unwrap().waiting == 1
        })
        .await;
    }
    let mut masters = BTreeSet::new();
    for n in 0..24 {
        let tag = format!("{{lock-{n}}}");
        let slot = cluster.slot(&tag).await;
        let owner = Cluster::first_owner(slot);
        masters.insert(owner);
        let keys = cluster.servers[owner].keys("fairlock:").await;
        let mine: Vec<_> = keys.iter().filter(|key| key.ends_with(&tag)).collect();
        assert_eq!(mine.len(), 3, "the lock, its queue and its spin lock: {mine:?}");
        for key in mine {
            assert_eq!(cluster.slot(key).await, slot, "{key}");
        }
    }
    assert_eq!(masters.len(), 3, "24 locks are on all masters");
    for guard in guards {
        guard.release().await.unwrap();
    }
    while let Some(next) = waits.join_next().await {
        next.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_covers_all_masters_and_shows_labels_from_other_slots() {
    let cluster = Cluster::start().await;
    let connect = |label| {
        let url = cluster.url();
        async move { LockManager::builder().label(label).connect(&url).await }
    };
    let (holder, observer) = (connect("web-7").await.unwrap(), connect("shell").await.unwrap());
    let expected: BTreeSet<String> = (0..24).map(|n| format!("lock-{n}")).collect();
    let mut guards = Vec::new();
    for name in &expected {
        guards.push(holder.lock(name).acquire().await.unwrap());
    }
    eventually("the label is on its server", 10 * SECOND, async || {
        let status = observer.lock("lock-0").status().await.unwrap();
        status.holder.unwrap().label.is_some()
    })
    .await;
    let listed: Vec<_> = observer.list("lock-*").try_collect().await.unwrap();
    let names: BTreeSet<String> = listed.iter().map(|lock| lock.name.clone()).collect();
    assert_eq!((names, listed.len()), (expected, 24));
    for lock in listed {
        assert_eq!(
            lock.status.holder.unwrap().label.as_deref(),
            Some("web-7"),
            "{}",
            lock.name
        );
    }
}

/// Race: The server that has the label of a holder hangs, while the server of the lock answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_with_the_label_of_a_holder_holds_up_no_status() {
    let cluster = Cluster::start().await;
    let holder = LockManager::builder()
        .label("web-7")
        .connect(&cluster.url())
        .await;
    let holder = holder.unwrap();
    let mut labelled = None;
    eventually("the label is on its server", 10 * SECOND, async || {
        for (n, server) in cluster.servers[..3].iter().enumerate() {
            if !server.keys("fairlock:label:").await.is_empty() {
                labelled = Some(n);
            }
        }
        labelled.is_some()
    })
    .await;
    let labelled = labelled.unwrap();
    let mut name = "elsewhere-0".to_owned();
    for n in 1.. {
        if Cluster::first_owner(cluster.slot(&format!("{{{name}}}")).await) != labelled {
            break;
        }
        name = format!("elsewhere-{n}");
    }
    let _lead = holder.leadership(&name).campaign().await.unwrap();
    let observer = LockManager::connect(&cluster.url()).await.unwrap();
    let (lock, leadership) = (observer.lock(&name), observer.leadership(&name));
    let label = async || lock.status().await.unwrap().holder.unwrap().label;
    assert_eq!(label().await.as_deref(), Some("web-7"));

    cluster.servers[labelled].pause();
    let began = Instant::now();
    assert_eq!(label().await, None);
    let leader = leadership.leader().await.unwrap();
    assert_eq!(leader.unwrap().label, None);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    cluster.servers[labelled].resume();
    eventually("the label is told again", 10 * SECOND, async || {
        label().await.is_some()
    })
    .await;
}

/// Race: A message passes through a cluster, where subscribers at other nodes are not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_lock_is_handed_over_in_order_by_two_commands() {
    const TASKS: usize = 16;
    const ROUNDS: usize = 50;

    let cluster = Cluster::start().await;
    let clients = clients(&cluster, 4).await;
    let history = History::default();
    let first = clients[0].lock("hot").acquire().await.unwrap();
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let lock = clients[n % clients.len()].lock("hot");
        let history = history.clone();
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let entry = history.asks(format!("{n}.{round}"));
                let guard = lock.acquire().await.unwrap();
                entry.granted(guard.fence().get());
                entry.released();
                guard.release().await.unwrap();
            }
        });
    }
    let lock = clients[0].lock("hot");
    eventually("all wait", 10 * SECOND, async || {
        lock.status().await.unwrap().waiting == TASKS as u64
    })
    .await;
    // By now every client has polled once after its subscription was confirmed.
    sleep(SECOND / 2).await;
    let before = cluster.calls("evalsha").await;
    first.release().await.unwrap();
    all_served(&mut tasks, 60 * SECOND).await;
    let commands = cluster.calls("evalsha").await - before;
    let owner = Cluster::first_owner(cluster.slot("hot").await);
    let connected = cluster.servers[owner].command(&["CLIENT", "LIST"]).await;
    for protocol in ["resp=2", "resp=3"] {
        // Servers before 7.0 do not report the protocol.
        let text = connected.text();
        assert!(text.contains(protocol) || !text.contains("resp="), "{text}");
    }

    let acquisitions = (TASKS * ROUNDS) as u64;
    history.assert_no_overlap();
    history.assert_fences_increase();
    println!(
        "{acquisitions} acquisitions by {commands} commands, {:.2} each",
        commands as f64 / acquisitions as f64
    );
    // The first calls were sent before the count began. Each client may also have polled sometimes.
    assert!(commands >= 2 * acquisitions - TASKS as u64, "{commands}");
    assert!(commands <= 2 * acquisitions + acquisitions / 10, "{commands}");
    let handed_over: u64 = clients.iter().map(|client| client.stats().handed_over).sum();
    assert!(handed_over >= acquisitions * 9 / 10, "{handed_over} by push");
}

/// Race: A message passes through a cluster, where subscribers at other nodes are not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_many_clients_are_served_in_the_order_of_their_asking() {
    let cluster = Cluster::start().await;
    let clients = clients(&cluster, 4).await;
    let locks: Vec<_> = clients.iter().map(|client| client.lock("ordered")).collect();
    let history = History::default();
    let mut waiters = JoinSet::new();
    let first = locks[0].acquire().await.unwrap();
    queue(&locks, 20, Duration::from_millis(2), &history, &mut waiters).await;
    sleep(SECOND / 2).await;
    first.release().await.unwrap();
    all_served(&mut waiters, 20 * SECOND).await;
    history.assert_order(0..20);
    history.assert_no_overlap();
}

#[tokio::test]
async fn any_server_of_the_cluster_leads_to_the_others() {
    let cluster = Cluster::start().await;
    let replica = cluster.servers[5].port();
    // The first server in the list is down.
    let url = format!("valkey-cluster://127.0.0.1:1?node=127.0.0.1:{replica}");
    let locks = LockManager::connect(&url).await.unwrap();
    for n in 0..8 {
        let guard = locks.lock(format!("lock-{n}")).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    locks.ping().await.unwrap();
    locks.close().await.unwrap();
    assert!(matches!(locks.lock("a").acquire().await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_single_server_is_refused_as_a_cluster() {
    let server = Server::start().await;
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let refused = LockManager::connect(&url).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(_)), "{refused:?}");
    assert!(
        refused.to_string().contains("cluster support disabled"),
        "{refused}"
    );
}

/// Race: The server stops answering while callers wait that have little time.
#[tokio::test]
async fn a_bounded_wait_at_a_master_that_hangs_is_an_outage() {
    let cluster = Cluster::start().await;
    let locks = LockManager::connect(&cluster.url()).await.unwrap();
    let wait = async |name: &str| locks.lock(name).acquire_timeout(Duration::from_millis(300)).await;
    let hung = Cluster::first_owner(cluster.slot("{a}").await);
    let mut elsewhere = "b".to_owned();
    while Cluster::first_owner(cluster.slot(&format!("{{{elsewhere}}}")).await) == hung {
        elsewhere.push('b');
    }
    cluster.servers[hung].pause();
    let away = wait("a").await;
    assert!(matches!(away, Err(Error::Unavailable(_))), "{away:?}");
    let held = locks.lock(&elsewhere).acquire().await.unwrap();
    let busy = wait(&elsewhere).await;
    assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
    cluster.servers[hung].resume();
    held.release().await.unwrap();
}
