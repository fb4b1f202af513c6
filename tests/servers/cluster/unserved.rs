//! A slot has no owner: nobody serves its locks, and the others go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};
use fairlock_testkit::{Cluster, History, Hold, eventually};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::scene::{all_served, clients, longest_gap, overtakings, queue};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// The lock whose slot loses its owner.
const LOST: &str = "orphan";

/// A cluster that serves the other slots while one has no owner.
struct Scene {
    cluster: Cluster,
    slot: usize,
    owner: usize,
    /// How many connections the owner has from here.
    mine: AtomicU64,
}

impl Scene {
    async fn start() -> Scene {
        Scene::with_full_coverage("no").await
    }

    async fn with_full_coverage(required: &str) -> Scene {
        let cluster = Cluster::of_masters(3).await;
        for server in &cluster.servers {
            let reply = server
                .command(&["CONFIG", "SET", "cluster-require-full-coverage", required])
                .await;
            assert_eq!(reply.text(), "OK");
        }
        let slot = cluster.slot(LOST).await;
        Scene {
            owner: Cluster::first_owner(slot),
            slot,
            mine: AtomicU64::new(0),
            cluster,
        }
    }

    /// Names of other locks whose slots the same server has.
    async fn neighbours(&self, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        for n in 0.. {
            let name = format!("lock-{n}");
            let slot = self.cluster.slot(&name).await;
            if slot != self.slot && Cluster::first_owner(slot) == self.owner {
                names.push(name);
            }
            if names.len() == count {
                break;
            }
        }
        names
    }

    /// Takes the slot from its owner. The others go on naming it as the owner.
    async fn given_up_by_the_owner(&self) {
        assert!(self.tell(self.owner, "DELSLOTS").await);
    }

    /// Takes the slot from its owner on all servers.
    async fn orphaned(&self) {
        self.given_up_by_the_owner().await;
        eventually("no server names an owner", 10 * SECOND, async || {
            let mut named = false;
            for server in 0..3 {
                // A message of the former owner may still be on its way.
                named |= self.tell(server, "DELSLOTS").await;
            }
            !named
        })
        .await;
    }

    async fn adopted_by(&self, server: usize) {
        assert!(self.tell(server, "ADDSLOTS").await);
    }

    /// Returns whether the server did it.
    async fn tell(&self, server: usize, what: &str) -> bool {
        if server == self.owner {
            self.mine.fetch_add(1, Ordering::Relaxed);
        }
        let slot = self.slot.to_string();
        let reply = self.cluster.servers[server]
            .command(&["CLUSTER", what, &slot])
            .await;
        !reply.is_error()
    }

    /// How many connections the owner has accepted from clients.
    async fn connections(&self) -> u64 {
        let mine = self.mine.fetch_add(1, Ordering::Relaxed) + 1;
        let stats = self.cluster.servers[self.owner].info("stats").await;
        stats["total_connections_received"].parse::<u64>().unwrap() - mine
    }
}

/// Tasks that take and release locks, one each.
struct Load {
    tasks: JoinSet<()>,
    done: Arc<AtomicU64>,
}

impl Load {
    fn start(locks: &LockManager, names: &[String]) -> Load {
        let (mut tasks, done) = (JoinSet::new(), Arc::<AtomicU64>::default());
        for name in names {
            let (lock, done) = (locks.lock(name), Arc::clone(&done));
            tasks.spawn(async move {
                loop {
                    lock.acquire().await.unwrap().release().await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Load { tasks, done }
    }

    /// Acquisitions per second.
    async fn rate(&self, span: Duration) -> f64 {
        let (began, before) = (Instant::now(), self.done.load(Ordering::Relaxed));
        sleep(span).await;
        let done = self.done.load(Ordering::Relaxed) - before;
        done as f64 / began.elapsed().as_secs_f64()
    }

    async fn stop(mut self) {
        let failed = self.tasks.try_join_next();
        assert!(failed.is_none(), "{failed:?}");
        self.tasks.shutdown().await;
    }
}

/// Callers that want the lock without an owner, one after the other, for ever.
fn callers(locks: &LockManager, count: usize) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    for _ in 0..count {
        let lock = locks.lock(LOST);
        callers.spawn(async move {
            loop {
                let _ = lock.acquire().await;
            }
        });
    }
    callers
}

/// Race: A slot loses its owner while calls about its locks are in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_without_an_owner_does_not_hold_up_the_other_locks_of_its_server() {
    let scene = Scene::start().await;
    let locks = LockManager::connect(&scene.cluster.url()).await.unwrap();
    let load = Load::start(&locks, &scene.neighbours(24).await);
    let _callers = callers(&locks, 3);
    let before = load.rate(2 * SECOND).await;
    let connections = scene.connections().await;
    scene.orphaned().await;
    let at_first = load.rate(SECOND).await;
    let lost = scene.connections().await - connections;
    let meanwhile = load.rate(4 * SECOND).await;
    println!(
        "{before:.0} acquisitions/s before, {at_first:.0} in the first second, {meanwhile:.0} then; {lost} \
         connections lost"
    );
    assert_eq!(scene.connections().await - connections, lost, "no more are lost");
    // The first answer ends a command connection, and its subscriber connection is replaced with it.
    assert!(lost <= 4, "{lost}");
    assert!(meanwhile > before / 4.0, "{meanwhile} of {before}");
    load.stop().await;
}

/// Race: Only the owner of a slot knows that it has given it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_gave_up_a_slot_is_believed_before_the_others() {
    let scene = Scene::start().await;
    let locks = LockManager::connect(&scene.cluster.url()).await.unwrap();
    // The client is connected to all servers, and asks each of them.
    for n in 0..24 {
        let lock = locks.lock(format!("lock-{n}"));
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let load = Load::start(&locks, &scene.neighbours(4).await);
    let _callers = callers(&locks, 3);
    load.rate(SECOND / 2).await;
    scene.given_up_by_the_owner().await;
    sleep(SECOND).await;
    let connections = scene.connections().await;
    load.rate(3 * SECOND).await;
    assert_eq!(scene.connections().await, connections, "a connection was lost");
    load.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_slot_without_an_owner_are_told_which_it_is() {
    let scene = Scene::start().await;
    let builder = LockManager::builder().server_timeout(SECOND);
    let before = builder.connect(&scene.cluster.url()).await.unwrap();
    before
        .lock(LOST)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    scene.orphaned().await;
    let builder = LockManager::builder().server_timeout(SECOND);
    let after = builder.connect(&scene.cluster.url()).await.unwrap();
    for locks in [before, after] {
        let lock = locks.lock(LOST);
        let began = Instant::now();
        let errors = [
            lock.acquire().await.unwrap_err(),
            lock.acquire().await.unwrap_err(),
            lock.status().await.unwrap_err(),
        ];
        println!("{errors:?} after {:?}", began.elapsed());
        for error in &errors[1..] {
            assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
            let named = format!("no server of the cluster serves slot {}", scene.slot);
            assert!(error.to_string().contains(&named), "{error}");
        }
        // The first call may have met the server's own refusal.
        assert!(matches!(errors[0], Error::Unavailable(_)), "{errors:?}");
        assert!(began.elapsed() < 15 * SECOND);
        timeout(SECOND, locks.ping()).await.unwrap().unwrap();
    }
}

/// Race: A slot loses its owner while its lock is held and waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_slot_are_served_in_order_once_it_has_an_owner_again() {
    const WAITERS: usize = 12;

    let scene = Scene::start().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(LockManager::connect(&scene.cluster.url()).await.unwrap());
    }
    let locks: Vec<_> = clients.iter().map(|client| client.lock(LOST)).collect();
    let guard = locks[0].acquire().await.unwrap();
    let (history, mut waiters) = (History::default(), JoinSet::new());
    queue(&locks, WAITERS, 5 * MS, &history, &mut waiters).await;
    sleep(SECOND / 2).await;
    scene.orphaned().await;
    let released = tokio::spawn(guard.release());
    sleep(2 * SECOND).await;
    assert!(!released.is_finished(), "nobody serves the slot");
    assert_eq!(history.grants().len(), 0);
    scene.adopted_by(scene.owner).await;
    let adopted = Instant::now();
    timeout(3 * SECOND, released).await.unwrap().unwrap().unwrap();
    println!("released {:?} after the slot had an owner", adopted.elapsed());
    all_served(&mut waiters, 20 * SECOND).await;
    let grants = history.grants();
    println!(
        "all served after {:?}, longest gap {:?}",
        adopted.elapsed(),
        longest_gap(&grants)
    );
    assert_eq!(grants.len(), WAITERS);
    // On a busy machine, a client may not listen yet when its turn comes. Then its waiters come later, all
    // together.
    assert!(overtakings(&grants) < clients.len(), "{grants:?}");
    for client in 0..clients.len() {
        let is_its = |hold: &&Hold| hold.waiter.parse::<usize>().unwrap() % clients.len() == client;
        let its: Vec<_> = grants.iter().filter(is_its).cloned().collect();
        assert_eq!(overtakings(&its), 0, "{its:?}");
    }
    history.assert_no_overlap();
    history.assert_fences_increase();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_slot_are_served_soon_after_any_server_has_taken_it() {
    let scene = Scene::start().await;
    let known = LockManager::connect(&scene.cluster.url()).await.unwrap();
    known.lock(LOST).acquire().await.unwrap().release().await.unwrap();
    scene.orphaned().await;
    let new = LockManager::connect(&scene.cluster.url()).await.unwrap();
    let mut callers = JoinSet::new();
    for locks in [known, new] {
        callers.spawn(async move {
            locks.lock(LOST).acquire().await.unwrap().release().await.unwrap();
        });
    }
    sleep(3 * SECOND).await;
    assert!(callers.try_join_next().is_none(), "nobody serves the slot");
    scene.adopted_by((scene.owner + 1) % 3).await;
    let adopted = Instant::now();
    all_served(&mut callers, 10 * SECOND).await;
    println!("served {:?} after the slot had an owner", adopted.elapsed());
}

/// Race: A slot is without an owner when a lease of one of its locks must be renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_outlives_the_time_in_which_its_slot_has_no_owner() {
    let scene = Scene::start().await;
    let locks = LockManager::connect(&scene.cluster.url()).await.unwrap();
    let guard = locks.lock(LOST).lease(6 * SECOND).acquire().await.unwrap();
    scene.orphaned().await;
    sleep(4 * SECOND).await;
    scene.adopted_by(scene.owner).await;
    sleep(4 * SECOND).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Race: A server ends the subscriptions of a slot that it gives up, and refuses to begin them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_other_locks_are_handed_them_while_a_slot_has_no_owner() {
    let scene = Scene::start().await;
    let clients = clients(&scene.cluster, 2).await;
    let name = &scene.neighbours(1).await[0];
    let mut waiters = JoinSet::new();
    let held = clients[0].lock(LOST).acquire().await.unwrap();
    for client in &clients {
        let lock = client.lock(LOST);
        waiters.spawn(async move { lock.acquire().await.map(drop) });
    }
    sleep(SECOND).await;
    scene.orphaned().await;
    // The subscriber connection is replaced, and must not ask for the channel of that slot again and again.
    scene.cluster.servers[scene.owner].kill_clients().await;
    sleep(2 * SECOND).await;
    let connections = scene.connections().await;
    let handed_over = clients[1].stats().handed_over;
    for _ in 0..5 {
        let guard = clients[0].lock(name).acquire().await.unwrap();
        let waiting = tokio::spawn(clients[1].lock(name).acquire());
        sleep(300 * MS).await;
        guard.release().await.unwrap();
        let next = timeout(SECOND, waiting).await.unwrap().unwrap().unwrap();
        next.release().await.unwrap();
    }
    assert_eq!(scene.connections().await, connections, "a connection was lost");
    assert_eq!(clients[1].stats().handed_over - handed_over, 5);
    scene.adopted_by(scene.owner).await;
    held.release().await.unwrap();
    while let Some(served) = timeout(10 * SECOND, waiters.join_next()).await.unwrap() {
        served.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_is_used_again_soon_after_it_is_whole() {
    let scene = Scene::with_full_coverage("yes").await;
    let builder = LockManager::builder().server_timeout(SECOND);
    let locks = builder.connect(&scene.cluster.url()).await.unwrap();
    let mut names = scene.neighbours(4).await;
    names.push(LOST.to_owned());
    for name in &names {
        locks.lock(name).acquire().await.unwrap().release().await.unwrap();
    }
    scene.orphaned().await;
    for name in &names {
        let error = locks.lock(name).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    }
    scene.adopted_by((scene.owner + 1) % 3).await;
    let adopted = Instant::now();
    for name in &names {
        eventually("the lock is served", 10 * SECOND, async || {
            match locks.lock(name).acquire().await {
                Ok(guard) => guard.release().await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
    }
    println!(
        "all locks are served {:?} after the slot had an owner",
        adopted.elapsed()
    );
}
