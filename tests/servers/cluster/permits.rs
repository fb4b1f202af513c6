//! Semaphores and read/write locks in a cluster: on several masters, while a slot moves, and when a master
//! dies.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fairlock::{Fence, Kind, LockGuard, LockManager, LockSet, Semaphore};
use fairlock_testkit::{Cluster, History, Server, eventually};
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::scene::{all_served, clients, overtakings, queue, waiting};

const SECOND: Duration = Duration::from_secs(1);
/// Enough for everything that needs no lease to end, on a machine that stands still for a while too.
const IN_TIME: Duration = Duration::from_secs(20);
/// The number of permits. A guard of the waiters takes more than half of them, so two would overlap.
const CAPACITY: u32 = 5;

/// Clients, and the planned move of the slot of what they use.
struct Scene {
    cluster: Cluster,
    clients: Vec<LockManager>,
    slot: usize,
    from: usize,
    to: usize,
}

impl Scene {
    async fn start() -> Scene {
        let cluster = Cluster::start().await;
        // Half of them speak RESP3.
        let clients = clients(&cluster, 4).await;
        let slot = cluster.slot("{moving}").await;
        let from = Cluster::first_owner(slot);
        Scene {
            cluster,
            clients,
            slot,
            from,
            to: (from + 1) % 3,
        }
    }

    /// Of each client, its semaphore with these permits.
    fn semaphores(&self, permits: u32) -> Vec<Semaphore> {
        let semaphore = |client: &LockManager| client.semaphore("moving", CAPACITY).permits(permits);
        self.clients.iter().map(semaphore).collect()
    }
}

/// Race: Keys of one lock are on two servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_spread_over_the_masters_and_a_list_has_all_kinds_from_all_of_them() {
    let cluster = Cluster::start().await;
    let clients = clients(&cluster, 2).await;
    let (here, there) = (&clients[0], &clients[1]);
    let (mut waits, mut masters) = (Vec::new(), BTreeSet::new());
    let mut guards: Vec<LockGuard> = Vec::new();
    for n in 0..12 {
        let name = format!("name-{n}");
        let semaphore = here.semaphore(&name, CAPACITY).permits(3);
        guards.push(here.lock(&name).acquire().await.unwrap());
        guards.push(semaphore.acquire().await.unwrap().into());
        guards.push(here.rw_lock(&name).read().acquire().await.unwrap().into());
        guards.push(there.rw_lock(&name).read().acquire().await.unwrap().into());
        waits.push(tokio::spawn(LockSet::from(semaphore.clone()).acquire()));
        eventually("one waits", IN_TIME, async || waiting(&semaphore).await == 1).await;
        let rw = there.rw_lock(&name);
        waits.push(tokio::spawn(LockSet::from(rw.write()).acquire()));
        eventually("one waits", IN_TIME, async || waiting(&rw).await == 1).await;
        let tag = format!("{{{name}}}");
        let slot = cluster.slot(&tag).await;
        let owner = Cluster::first_owner(slot);
        masters.insert(owner);
        let mut keys = cluster.servers[owner].keys("fairlock:").await;
        keys.retain(|key| key.ends_with(&tag));
        // The permits, their timers and their queue, and the lock of the same name.
        assert_eq!(keys.len(), 3 + 3 + 1, "{keys:?}");
        for key in keys {
            assert_eq!(cluster.slot(&key).await, slot, "{key}");
        }
    }
    assert_eq!(masters.len(), 3, "12 names are on all masters");
    let listed = there.list_all("name-*").await.unwrap();
    let listed: BTreeSet<_> = listed
        .into_iter()
        .map(|lock| {
            (
                lock.name,
                lock.kind,
                lock.status.permits_in_use + lock.status.readers,
                lock.status.waiting,
            )
        })
        .collect();
    let expected = (0..12).flat_map(|n| {
        let name = format!("name-{n}");
        [
            (name.clone(), Kind::Lock, 0, 0),
            (name.clone(), Kind::Semaphore, 3, 1),
            (name, Kind::ReadWrite, 2, 1),
        ]
    });
    assert_eq!(listed, expected.collect());
    for guard in guards {
        guard.release().await.unwrap();
    }
    for waits in waits {
        let guard = timeout(IN_TIME, waits).await.expect("its turn");
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

/// Race: A message passes through a cluster, where subscribers at other nodes are not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_handed_over_by_messages_to_clients_of_either_protocol() {
    let scene = Scene::start().await;
    let server = &scene.cluster.servers[scene.from];
    let semaphores = scene.semaphores(1);
    let all = scene.semaphores(CAPACITY).swap_remove(0).acquire().await.unwrap();
    let mut waits = Vec::new();
    for (n, semaphore) in semaphores.iter().enumerate() {
        waits.push(tokio::spawn(semaphore.acquire()));
        let is_so = async || waiting(semaphore).await == n as u64 + 1;
        eventually("one more waits", IN_TIME, is_so).await;
    }
    let sharded = !server.command(&["PUBSUB", "SHARDCHANNELS"]).await.is_error();
    if sharded {
        let pattern = ["PUBSUB", "SHARDCHANNELS", "fairlock:unlock:semaphore:{moving}:*"];
        let is_so = async || server.command(&pattern).await.array().len() == waits.len();
        eventually("all listen for their shard", IN_TIME, is_so).await;
    }
    // By now every client has polled once after its subscription was confirmed.
    sleep(SECOND).await;
    all.release().await.unwrap();
    let guards = timeout(IN_TIME, join_all(waits)).await.expect("their turn");
    let guards: Vec<_> = guards.into_iter().map(|guard| guard.unwrap().unwrap()).collect();
    let handed_over: u64 = scene
        .clients
        .iter()
        .map(|client| client.stats().handed_over)
        .sum();
    assert_eq!(handed_over, 4, "all grants were pushed");
    assert_eq!(semaphores[0].status().await.unwrap().permits_in_use, 4);
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// Race: A slot moves while its locks are held and waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_loses_no_permits_and_gives_none_out_twice() {
    const WAITERS: usize = 30;

    let scene = Scene::start().await;
    // Two permits are held during the whole move, by leases that end in its course unless they are renewed.
    let short = |semaphore: Semaphore| semaphore.lease(5 * SECOND);
    let [one, other] = [0, 1].map(|n| short(scene.semaphores(1).swap_remove(n)));
    let lasting = [one.acquire().await.unwrap(), other.acquire().await.unwrap()];
    let three = scene.semaphores(3);
    let (history, mut waiters) = (History::default(), JoinSet::new());
    let first = three[0].acquire().await.unwrap();
    let hold = Duration::from_millis(20);
    queue(&three, WAITERS, hold, &history, &mut waiters).await;
    // By now their subscriptions are up.
    sleep(SECOND).await;
    let Scene {
        cluster,
        slot,
        from,
        to,
        ..
    } = &scene;
    cluster.announce(*slot, *from, *to).await;
    let moved = async {
        sleep(SECOND / 10).await;
        cluster.migrate(*slot, *from, *to, SECOND * 3 / 2).await;
    };
    let (released, ()) = tokio::join!(first.release(), moved);
    released.unwrap();
    all_served(&mut waiters, 60 * SECOND).await;
    let grants = history.grants();
    assert_eq!(grants.len(), WAITERS, "each waiter is served once");
    history.assert_no_overlap();
    history.assert_fences_increase();
    assert_eq!(overtakings(&grants), 0, "{grants:?}");
    assert_eq!(one.status().await.unwrap().permits_in_use, 2);
    for guard in lasting {
        guard.check().unwrap();
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
    let status = one.status().await.unwrap();
    assert_eq!((status.permits_in_use, status.waiting), (0, 0));
    nothing_left(&cluster.servers[*from]).await;
}

/// Race: A script empties a key while its slot moves, and needs the key again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_handed_to_the_last_in_the_queue_are_counted_though_their_slot_moves() {
    let scene = Scene::start().await;
    let Scene {
        cluster,
        slot,
        from,
        to,
        ..
    } = &scene;
    // The permits come back by a release or by time. In the latter case no other hold is left.
    for runs_out in [false, true] {
        let [one, other] = [0, 1].map(|n| scene.semaphores(3).swap_remove(n));
        let lasting = match runs_out {
            false => Some(scene.semaphores(2)[0].acquire().await.unwrap()),
            true => None,
        };
        let ending = match runs_out {
            false => one.acquire().await.unwrap(),
            true => one.lease(5 * SECOND).auto_renew(false).acquire().await.unwrap(),
        };
        let waits = tokio::spawn(other.acquire());
        eventually("one waits", IN_TIME, async || waiting(&other).await == 1).await;
        // By now its subscription is up.
        sleep(SECOND).await;
        let (from, to) = if runs_out { (*to, *from) } else { (*from, *to) };
        cluster.announce(*slot, from, to).await;
        if !runs_out {
            ending.release().await.unwrap();
        }
        let next = timeout(IN_TIME, waits).await.expect("before the slot has moved");
        let next = next.unwrap().unwrap();
        next.renew().await.unwrap();
        cluster.migrate(*slot, from, to, Duration::ZERO).await;
        let in_use = other.status().await.unwrap().permits_in_use;
        assert_eq!(in_use, if runs_out { 3 } else { 5 });
        next.release().await.unwrap();
        if let Some(lasting) = lasting {
            lasting.release().await.unwrap();
        }
        assert_eq!(other.status().await.unwrap().permits_in_use, 0);
    }
}

/// Race: A slot moves while its locks are held and waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_and_the_readers_after_it_outlast_the_move_of_their_slot() {
    let scene = Scene::start().await;
    let [here, there] = [0, 1].map(|n: usize| scene.clients[n].rw_lock("moving"));
    let writing = here.clone().lease(5 * SECOND).write().acquire().await.unwrap();
    let queued = async |count| {
        let is_so = async || waiting(&here).await == count;
        eventually("one more waits", IN_TIME, is_so).await;
    };
    let mut waits = Vec::new();
    for (n, lock) in [&there, &here].into_iter().enumerate() {
        waits.push(tokio::spawn(lock.read().acquire()));
        queued(n as u64 + 1).await;
    }
    let last = tokio::spawn(there.write().acquire());
    queued(3).await;
    let Scene {
        cluster,
        slot,
        from,
        to,
        ..
    } = &scene;
    cluster.send_off(*slot, *from, *to, SECOND / 2).await;
    let fence = writing.fence();
    let (downgraded, ()) = tokio::join!(writing.downgrade(), async {
        sleep(SECOND / 2).await;
        cluster.assign(*slot, *from, *to).await;
    });
    let reading = downgraded.unwrap();
    let readers = timeout(IN_TIME, join_all(waits)).await.expect("they share");
    let readers: Vec<_> = readers.into_iter().map(|guard| guard.unwrap().unwrap()).collect();
    assert_eq!(here.status().await.unwrap().readers, 3);
    assert!(!last.is_finished());
    assert_eq!(reading.fence(), fence);
    reading.release().await.unwrap();
    drop(readers);
    let last = timeout(IN_TIME, last).await.expect("its turn").unwrap().unwrap();
    assert!(last.fence() > fence);
    last.release().await.unwrap();
    nothing_left(&cluster.servers[*from]).await;
}

/// Race: A failover loses writes that had not reached the replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_all_waiters_for_permits_are_served_under_larger_fences() {
    const WAITERS: usize = 12;

    let cluster = Cluster::start().await;
    let master = Cluster::first_owner(cluster.slot("{moving}").await);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let builder = LockManager::builder().lease(30 * SECOND).claim_window(5 * SECOND);
        clients.push(
            builder
                .server_timeout(60 * SECOND)
                .connect(&cluster.url())
                .await
                .unwrap(),
        );
    }
    let semaphores: Vec<_> = clients
        .iter()
        .map(|client| client.semaphore("moving", 2))
        .collect();
    let lasting = semaphores[0].acquire().await.unwrap();
    let busy = semaphores[1].acquire().await.unwrap();
    let mut waits = JoinSet::new();
    for n in 0..WAITERS {
        let semaphore = semaphores[n % 3].clone();
        waits.spawn(async move {
            let guard = semaphore.acquire().await.unwrap();
            let fence = guard.fence();
            sleep(SECOND / 50).await;
            // The release may find the master gone.
            let _ = guard.release().await;
            fence
        });
        let is_so = async || waiting(&semaphores[0]).await == n as u64 + 1;
        eventually("one more waits", IN_TIME, is_so).await;
    }
    // The replica has all of this.
    sleep(SECOND).await;
    let killed = Instant::now();
    cluster.servers[master].kill();
    let before = busy.fence().max(lasting.fence());
    let released = busy.release().await;
    println!("{released:?} {:?} after the kill", killed.elapsed());
    let fences = timeout(90 * SECOND, waits.join_all())
        .await
        .expect("all are served");
    let distinct: BTreeSet<Fence> = fences.iter().copied().collect();
    assert_eq!(distinct.len(), WAITERS, "no fence is given out twice");
    assert!(distinct.iter().all(|&fence| fence > before), "{distinct:?}");
    lasting.renew().await.unwrap();
    lasting.release().await.unwrap();
    eventually("nothing is left", IN_TIME, async || {
        let status = semaphores[0].status().await.unwrap();
        status.permits_in_use == 0 && status.waiting == 0
    })
    .await;
}

/// Nothing is left on the server that has given its slot away. Labels have slots of their own.
async fn nothing_left(server: &Server) {
    let mut keys = server.keys("fairlock:").await;
    keys.retain(|key| !key.starts_with("fairlock:label:"));
    assert!(keys.is_empty(), "left behind: {keys:?}");
}
