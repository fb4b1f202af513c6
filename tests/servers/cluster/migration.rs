//! A slot moves to another master while its locks are held and waited for.

use std::time::Duration;

use fairlock::{Error, Lock};
use fairlock_testkit::{Cluster, History, Server, eventually};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::scene::{all_served, clients, longest_gap, overtakings, queue, serve_some, waiting};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Clients of a lock, and the planned move of its slot.
struct Scene {
    cluster: Cluster,
    locks: Vec<Lock>,
    slot: usize,
    from: usize,
    to: usize,
}

impl Scene {
    async fn start() -> Scene {
        let cluster = Cluster::start().await;
        let clients = clients(&cluster, 5).await;
        let slot = cluster.slot("{moving}").await;
        let from = Cluster::first_owner(slot);
        Scene {
            cluster,
            locks: clients.iter().map(|client| client.lock("moving")).collect(),
            slot,
            from,
            to: (from + 1) % 3,
        }
    }
}

/// Race: A slot moves while its locks are held and waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_loses_no_waiter_and_serves_none_twice() {
    const WAITERS: usize = 50;

    let Scene {
        cluster,
        locks,
        slot,
        from,
        to,
    } = Scene::start().await;

    let history = History::default();
    let mut waiters = JoinSet::new();
    let served_before = serve_some(&locks, WAITERS, &history, &mut waiters).await;
    cluster.migrate(slot, from, to, Duration::from_millis(50)).await;
    let served_by_then = history.grants().len();
    all_served(&mut waiters, 60 * SECOND).await;

    let grants = history.grants();
    println!(
        "{served_before} served before, {} while the slot moved, {} after; longest gap {:?}, {} overtakings",
        served_by_then - served_before,
        WAITERS - served_by_then,
        longest_gap(&grants),
        overtakings(&grants)
    );
    assert!(
        served_before < WAITERS && served_by_then < WAITERS,
        "the slot moved too late"
    );
    assert_eq!(grants.len(), WAITERS, "each waiter is served once");
    history.assert_no_overlap();
    history.assert_fences_increase();
    assert_eq!(overtakings(&grants), 0, "{grants:?}");
    // Each client finds out about the move by its next poll at the latest.
    assert!(longest_gap(&grants) < 10 * SECOND);
    assert_empty(&cluster.servers[from]).await;
}

/// Race: A slot moves while its locks are held and waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_waiter_is_passed_over_while_a_slot_is_between_two_servers() {
    const WAITERS: usize = 10;

    let Scene {
        cluster,
        locks,
        slot,
        from,
        to,
    } = Scene::start().await;
    let guard = locks[0].acquire().await.unwrap();
    let (history, mut waiters) = (History::default(), JoinSet::new());
    queue(&locks, WAITERS, 5 * MS, &history, &mut waiters).await;

    cluster.send_off(slot, from, to, Duration::ZERO).await;
    let released = tokio::spawn(guard.release());
    // The waiters do not listen on the server that has the keys.
    sleep(300 * MS).await;
    assert!(!released.is_finished());
    assert_eq!(waiting(&locks[0]).await, WAITERS as u64);
    cluster.assign(slot, from, to).await;
    released.await.unwrap().unwrap();
    all_served(&mut waiters, 20 * SECOND).await;
    let grants = history.grants();
    assert_eq!(grants.len(), WAITERS);
    assert_eq!(overtakings(&grants), 0, "{grants:?}");
}

/// Race: A server ends a subscription without a message, because the slot has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silently_dropped_subscription_is_repeated() {
    let cluster = Cluster::start().await;
    let clients = clients(&cluster, 2).await;
    let lock = clients[1].lock("moving");
    let slot = cluster.slot("{moving}").await;
    let (from, to) = (Cluster::first_owner(slot), (Cluster::first_owner(slot) + 1) % 3);
    let source = &cluster.servers[from];
    let sharded = !source.command(&["PUBSUB", "SHARDCHANNELS"]).await.is_error();
    let kind = if sharded { "SHARDCHANNELS" } else { "CHANNELS" };
    let channels = async || {
        source
            .command(&["PUBSUB", kind, "fairlock:*"])
            .await
            .texts()
            .len()
    };

    let listener = async || {
        let list = source.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        let id = list.text().split(' ').next().map(str::to_owned);
        id.filter(|id| !id.is_empty())
    };

    let guard = clients[0].lock("moving").acquire().await.unwrap();
    let waiting = tokio::spawn(lock.acquire());
    eventually("the waiter listens", 5 * SECOND, async || channels().await == 1).await;
    let before = listener().await;
    // The two moves are so quick that no client finds the slot on the other server.
    cluster.migrate(slot, from, to, Duration::ZERO).await;
    cluster.migrate(slot, to, from, Duration::ZERO).await;
    println!("{} subscriptions left", channels().await);
    eventually("the waiter listens again", 20 * SECOND, async || {
        channels().await == 1
    })
    .await;
    assert_eq!(listener().await, before, "its connection was replaced");
    sleep(SECOND / 2).await;
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(SECOND, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(clients[1].stats().handed_over, 1, "the grant was pushed");
    guard.release().await.unwrap();
}

/// Race: A renewal arrives while its slot is half moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_while_its_slot_moves() {
    let cluster = Cluster::start().await;
    let clients = clients(&cluster, 1).await;
    let lock = clients[0].lock("moving").lease(SECOND);
    let slot = cluster.slot("{moving}").await;
    let from = Cluster::first_owner(slot);
    let guard = lock.acquire().await.unwrap();
    // The pauses are longer than the lease. One is before any key has moved, and another after one key has
    // moved.
    cluster.migrate(slot, from, (from + 2) % 3, 2 * SECOND).await;
    guard.check().unwrap();
    sleep(2 * SECOND).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Race: Locks cannot be taken while their slot moves, because some of their keys are missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncontended_locks_are_taken_and_released_while_a_slot_moves() {
    let Scene {
        cluster,
        locks,
        slot,
        from,
        to,
    } = Scene::start().await;
    let soon = async |what: &str, work: &mut (dyn Future<Output = ()> + Unpin)| {
        let done = tokio::time::timeout(2 * SECOND, work).await;
        assert!(done.is_ok(), "{what}: not done while the slot moves");
    };
    // One lock was held before the move, one was used before it, and one is new.
    let [used, new] = ["{moving}:used", "{moving}:new"];
    let clients = clients(&cluster, 2).await;
    let held = locks[0].acquire().await.unwrap();
    clients[0]
        .lock(used)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    cluster.announce(slot, from, to).await;
    soon(
        "a release",
        &mut Box::pin(async { held.release().await.unwrap() }),
    )
    .await;
    for name in [used, new, "moving"] {
        // Each lock is taken several times, on whichever server it is.
        let turns = async {
            for turn in 0..3 {
                let [mine, other] = [0, 1].map(|n: usize| clients[(turn + n) % 2].lock(name));
                let guard = mine.acquire().await.unwrap();
                guard.check().unwrap();
                assert!(
                    matches!(other.try_acquire().await, Err(Error::Busy { .. })),
                    "{name}"
                );
                guard.release().await.unwrap();
            }
        };
        soon(name, &mut Box::pin(turns)).await;
    }
    // Locks that are held on either server, under any owner, still exclude others after the move.
    let owner = fairlock::Owner::new();
    let (mut old, mut fresh) = (None, None);
    let both = async {
        old = Some(clients[0].lock(used).owner(&owner).acquire().await.unwrap());
        fresh = Some(clients[0].lock("{moving}:newer").acquire().await.unwrap());
        drop(clients[0].lock(used).owner(&owner).acquire().await.unwrap());
    };
    soon("two holds that are kept", &mut Box::pin(both)).await;
    cluster.migrate(slot, from, to, Duration::ZERO).await;
    for name in [used, "{moving}:newer"] {
        let tried = clients[1].lock(name).try_acquire().await;
        assert!(matches!(tried, Err(Error::Busy { .. })), "{name}: {tried:?}");
    }
    for guard in [old, fresh] {
        guard.unwrap().release().await.unwrap();
    }
    assert_empty(&cluster.servers[from]).await;
}

/// No key of a lock is left on this server. Labels have slots of their own.
async fn assert_empty(server: &Server) {
    let mut keys = server.keys("fairlock:").await;
    keys.retain(|key| !key.starts_with("fairlock:label:"));
    assert!(keys.is_empty(), "left behind: {keys:?}");
}
