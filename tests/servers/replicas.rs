//! Grants that count only once replicas have them. Each test has a real primary with two replicas of its own.

use std::time::{Duration, Instant};

use fairlock::{Error, Lock, LockManager, LockManagerBuilder, LockSet, MemoryStore, Owner, Result};
use fairlock_testkit::{Server, eventually};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::mpsc;

use crate::common::Looked;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// Everything that does not wait for a lease happens within this time, also on a busy machine.
const SOON: Duration = Duration::from_secs(5);
const NAME: &str = "orders:42";

/// A primary and its replicas.
struct Scene {
    primary: Server,
    replicas: [Server; 2],
}

impl Scene {
    async fn start() -> Scene {
        let primary = Scene::primary().await;
        let port = primary.port();
        let replicas = [Scene::replica_of(port).await, Scene::replica_of(port).await];
        let scene = Scene { primary, replicas };
        scene.wait_for_replicas(2).await;
        scene
    }

    async fn primary() -> Server {
        // Without this setting the primary delays the first transfer to a replica, in case others ask for it
        // too.
        let alone = Server::builder().config("repl-diskless-sync-delay", "0");
        alone.start().await
    }

    async fn replica_of(port: u16) -> Server {
        let address = format!("127.0.0.1 {port}");
        Server::builder().config("replicaof", &address).start().await
    }

    /// Waits until `count` replicas have everything.
    async fn wait_for_replicas(&self, count: i64) {
        let wanted = count.to_string();
        // A replica that has received the initial data counts for `WAIT` up to a second before it receives
        // later writes. So this connection first makes such a write.
        let is_so = async || {
            let mut client = self.primary.client().await;
            client.command(&["PUBLISH", "in step", ""]).await.unwrap();
            client.command(&["WAIT", &wanted, "500"]).await.unwrap().int() == count
        };
        eventually(&format!("{count} replicas"), 20 * SECOND, is_so).await;
    }

    /// Returns a client whose grants count once this many replicas have them.
    async fn client(&self, replicas: u32) -> LockManager {
        settings()
            .replicas(replicas)
            .connect(&self.primary.url())
            .await
            .unwrap()
    }

    /// Whether the lock is free now and its queue is empty.
    async fn is_free(&self, lock: &impl Looked) -> bool {
        let status = lock.look().await.unwrap();
        status.holder.is_none() && status.waiting == 0
    }

    /// Waits until `count` requests of different clients are queued for the lock, and all of the clients are
    /// reachable.
    async fn in_line(&self, lock: &Lock, count: usize) {
        let are = async || {
            let listening = self.primary.command(&["PUBSUB", "CHANNELS"]).await.array().len();
            let waiting = lock.status().await.unwrap().waiting;
            usize::try_from(waiting) == Ok(count) && listening == count
        };
        eventually(&format!("{count} waiters are queued and subscribed"), SOON, are).await;
    }

    /// Closes a connection that is waiting for replicas. Returns whether there was one.
    async fn kill_waiting(&self) -> bool {
        let list = self.primary.command(&["CLIENT", "LIST"]).await;
        let mut waiting = list.text().lines().filter(|line| line.contains(" cmd=wait "));
        let Some(id) = waiting
            .next()
            .and_then(|line| line.strip_prefix("id=")?.split(' ').next())
        else {
            return false;
        };
        self.primary.command(&["CLIENT", "KILL", "ID", id]).await.int() == 1
    }
}

/// Returns a port that leads to `port` with a delay in each direction. The proxy of the other tests cannot do
/// this: it parses commands and replies, but a replica also receives a snapshot.
async fn long_road_to(port: u16, each_way: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let entrance = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (near, far) = (near.into_split(), far.into_split());
            tokio::spawn(carry(near.0, far.1, each_way));
            tokio::spawn(carry(far.0, near.1, each_way));
        }
    });
    entrance
}

async fn carry(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, delay: Duration) {
    let (on_the_way, mut arriving) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some((due, bytes)) = arriving.recv().await {
            tokio::time::sleep_until(due).await;
            let bytes: Vec<u8> = bytes;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let due = tokio::time::Instant::now() + delay;
        if on_the_way.send((due, buffer[..length].to_vec())).is_err() {
            return;
        }
    }
}

/// Replicas have up to a second to confirm.
fn settings() -> LockManagerBuilder {
    LockManager::builder().prefix("t").server_timeout(SECOND)
}

#[track_caller]
fn not_replicated<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(
            error @ Error::NotReplicated {
                wanted: 2, got: 1, ..
            },
        ) => assert!(error.is_transient()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_way_to_acquire_gives_a_guard_once_the_replicas_have_the_grant() {
    let scene = Scene::start().await;
    for wanted in [1, 2] {
        let locks = scene.client(wanted).await;
        let owner = Owner::new();
        let lock = locks.lock(NAME).owner(&owner);
        let guard = lock.acquire().await.unwrap();
        let inner = lock.try_acquire().await.expect("re-entrant");
        assert_eq!(inner.fence(), guard.fence());
        inner.release().await.unwrap();
        guard.release().await.unwrap();
        lock.acquire_timeout(SOON).await.unwrap().release().await.unwrap();
        lock.acquire_timeout(Duration::ZERO)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_eq!(lock.with(async |_| 7).await.unwrap(), 7);
        assert_eq!(
            locks
                .lock(NAME)
                .lease(SECOND)
                .auto_renew(false)
                .with(async |_| 7)
                .await
                .unwrap(),
            7
        );
    }
}

#[tokio::test]
async fn a_guard_is_given_out_no_sooner_than_the_last_replica_has_the_grant() {
    let scene = Scene::start().await;
    let (locks, others) = (scene.client(2).await, scene.client(0).await);
    let guard = others.lock(NAME).acquire().await.unwrap();
    let handed_over = tokio::spawn(locks.lock(NAME).acquire());
    scene.in_line(&others.lock(NAME), 1).await;

    scene.replicas[0].pause();
    let found_free = tokio::spawn(locks.lock("free").acquire());
    guard.release().await.unwrap();
    tokio::time::sleep(300 * MS).await;
    for name in [NAME, "free"] {
        assert!(others.lock(name).status().await.unwrap().holder.is_some());
    }
    assert!(!handed_over.is_finished() && !found_free.is_finished());
    scene.replicas[0].resume();
    for grant in [handed_over, found_free] {
        grant.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn permits_that_too_few_replicas_have_are_given_back() {
    let scene = Scene::start().await;
    let (locks, others) = (scene.client(2).await, scene.client(0).await);
    let (semaphore, rw) = (locks.semaphore(NAME, 3), locks.rw_lock(NAME));
    let both = [LockSet::from(semaphore.clone().permits(2)), rw.write().into()];
    for lock in &both {
        let guard = lock.acquire().await.unwrap();
        guard.get(NAME).unwrap().renew().await.unwrap();
        guard.release().await.unwrap();
    }
    let lasting = semaphore.acquire().await.unwrap();
    scene.replicas[0].pause();
    for lock in &both {
        let mut refused = lock.acquire().await;
        // On a machine that stands still for a while, no word comes in time.
        while matches!(refused, Err(Error::Unavailable(_))) {
            refused = lock.try_acquire().await;
        }
        not_replicated(refused);
    }
    // What others have stays theirs, and what was given back can be had.
    let (semaphore, rw) = (others.semaphore(NAME, 3), others.rw_lock(NAME));
    let both = LockSet::from(semaphore.clone().permits(2)).and(rw.write());
    both.acquire_timeout(SOON).await.unwrap().release().await.unwrap();
    lasting.check().unwrap();
    scene.replicas[0].resume();
    let all = others.semaphore(NAME, 3).permits(3);
    let mut waiting = tokio::spawn(all.acquire());
    tokio::time::sleep(300 * MS).await;
    assert!(!waiting.is_finished());
    lasting.release().await.unwrap();
    let all = (&mut waiting).await.unwrap().unwrap();
    all.release().await.unwrap();
    assert!(scene.is_free(&rw).await && scene.is_free(&semaphore).await);
}

#[tokio::test]
async fn a_replica_that_is_promoted_knows_every_holder_that_it_confirmed() {
    let scene = Scene::start().await;
    let locks = scene.client(2).await;
    let guards = join_all((0..32).map(|n| locks.lock(format!("lock {n}")).acquire())).await;
    scene.primary.kill();
    for replica in &scene.replicas {
        replica.command(&["REPLICAOF", "NO", "ONE"]).await;
        let promoted = settings().connect(&replica.url()).await.unwrap();
        for guard in &guards {
            let guard = guard.as_ref().unwrap();
            let status = promoted.lock(guard.name()).status().await.unwrap();
            assert_eq!(status.holder.expect("a holder").fence, guard.fence());
        }
    }
}

#[tokio::test]
async fn replicas_far_away_confirm_too_while_others_write() {
    let primary = Scene::primary().await;
    let road = long_road_to(primary.port(), 100 * MS).await;
    let replicas = [Scene::replica_of(road).await, Scene::replica_of(road).await];
    let scene = Scene { primary, replicas };
    scene.wait_for_replicas(2).await;
    let locks = scene.client(2).await;
    let writing = tokio::spawn({
        let others = scene.client(0).await;
        async move {
            loop {
                others
                    .lock("busy")
                    .acquire()
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
            }
        }
    });
    for _ in 0..5 {
        let began = Instant::now();
        let guard = locks.lock(NAME).acquire().await.unwrap();
        assert!(began.elapsed() >= 200 * MS, "{:?}", began.elapsed());
        guard.release().await.unwrap();
    }
    writing.abort();
}

#[tokio::test]
async fn grant_with_too_few_replicas_is_released_after_every_way_to_acquire() {
    let scene = Scene::start().await;
    let (locks, others) = (scene.client(2).await, scene.client(0).await);
    scene.replicas[0].pause();
    let lock = locks.lock(NAME);
    not_replicated(lock.acquire().await);
    assert_eq!(locks.stats().unconfirmed, 0, "its release is confirmed");
    assert!(scene.is_free(&lock).await);
    not_replicated(lock.try_acquire().await);
    assert!(scene.is_free(&lock).await);
    not_replicated(lock.acquire_timeout(SOON).await);
    not_replicated(lock.acquire_timeout(Duration::ZERO).await);
    not_replicated(lock.with(async |_| panic!("work without a guard")).await);
    assert!(scene.is_free(&lock).await);
    let stats = locks.stats();
    assert_eq!((stats.held, stats.acquired, stats.unavailable), (0, 0, 5));
    assert_eq!(stats.held_for, Duration::ZERO);

    // The outer hold of the same owner is kept.
    let owner = Owner::new();
    let outer = others.lock(NAME).owner(&owner).acquire().await.unwrap();
    not_replicated(lock.clone().owner(&owner).acquire().await);
    let holder = lock.status().await.unwrap().holder.expect("the outer hold");
    assert_eq!((holder.fence, holder.holds), (outer.fence(), 1));
    outer.release().await.unwrap();

    scene.replicas[0].resume();
    scene.wait_for_replicas(2).await;
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn next_waiter_gets_a_handed_over_lock_that_is_released_unconfirmed() {
    let scene = Scene::start().await;
    let (locks, others) = (scene.client(2).await, scene.client(0).await);
    let guard = others.lock(NAME).acquire().await.unwrap();
    let first = tokio::spawn(locks.lock(NAME).acquire());
    scene.in_line(&others.lock(NAME), 1).await;
    let second = tokio::spawn(others.lock(NAME).acquire());
    scene.in_line(&others.lock(NAME), 2).await;

    scene.replicas[1].pause();
    guard.release().await.unwrap();
    not_replicated(first.await.unwrap());
    let given_back = Instant::now();
    second.await.unwrap().unwrap().release().await.unwrap();
    assert!(given_back.elapsed() < SECOND, "{:?}", given_back.elapsed());
    assert!(scene.is_free(&others.lock(NAME)).await);
}

#[tokio::test]
async fn a_call_that_is_dropped_while_it_waits_for_replicas_leaves_nothing() {
    let scene = Scene::start().await;
    let (locks, others) = (scene.client(2).await, scene.client(0).await);
    scene.replicas[0].pause();
    for wait in [1, 3, 10, 30, 100, 300].map(|n| n * MS) {
        let dropped = tokio::time::timeout(wait, locks.lock(NAME).acquire()).await;
        assert!(dropped.is_err(), "{dropped:?}");
        let guard = others.lock(NAME).acquire_timeout(SOON).await.unwrap();
        guard.release().await.unwrap();
        let dropped = tokio::time::timeout(wait, locks.lock(NAME).try_acquire()).await;
        assert!(dropped.is_err(), "{dropped:?}");
        let is_free = async || scene.is_free(&others.lock(NAME)).await;
        eventually("the lock is free", SOON, is_free).await;
    }
}

#[tokio::test]
async fn failing_waits_for_a_replica_run_side_by_side_and_delay_no_other_call() {
    let scene = Scene::start().await;
    let locks = scene.client(2).await;
    let kept = locks.lock("kept").acquire().await.unwrap();
    scene.replicas[0].pause();
    let began = Instant::now();
    let waiting: Vec<_> = (0..64)
        .map(|n| tokio::spawn(locks.lock(format!("lock {n}")).acquire()))
        .collect();
    tokio::time::sleep(300 * MS).await;
    let asked = Instant::now();
    locks.ping().await.unwrap();
    kept.renew().await.unwrap();
    kept.release().await.unwrap();
    assert!(asked.elapsed() < 500 * MS, "{:?}", asked.elapsed());
    for grant in waiting {
        not_replicated(grant.await.unwrap());
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[tokio::test]
async fn many_waiters_of_one_lock_are_all_confirmed_in_their_turns() {
    let scene = Scene::start().await;
    let locks = scene.client(2).await;
    let turns = (0..64).map(|_| async {
        let lock = locks.lock(NAME);
        for _ in 0..4 {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
    });
    join_all(turns).await;
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.held, crate::lost(&locks)), (256, 0, 0));
    assert!(stats.handed_over > 100, "{stats:?}");
}

#[tokio::test]
async fn new_connection_does_not_count_earlier_grants_as_replicated() {
    let scene = Scene::start().await;
    let locks = scene.client(2).await;
    scene.replicas[0].pause();
    let grant = tokio::spawn(locks.lock(NAME).acquire());
    let mut kills = 0;
    while !grant.is_finished() {
        kills += usize::from(scene.kill_waiting().await);
        tokio::time::sleep(30 * MS).await;
    }
    assert!(kills > 1);
    let ended = grant.await.unwrap();
    let said = matches!(
        ended,
        Err(Error::NotReplicated {
            wanted: 2,
            got: 0 | 1,
            ..
        } | Error::Unavailable(_))
    );
    assert!(said, "{ended:?}");
    assert!(scene.is_free(&locks.lock(NAME)).await);

    // A connection that breaks once does no harm.
    let locks = scene.client(2).await;
    let grant = tokio::spawn(locks.lock(NAME).acquire());
    eventually("killed", SOON, async || scene.kill_waiting().await).await;
    scene.replicas[0].resume();
    grant.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn scripts_that_the_server_forgets_are_loaded_again() {
    let scene = Scene::start().await;
    let locks = scene.client(2).await;
    for _ in 0..3 {
        scene.primary.command(&["SCRIPT", "FLUSH"]).await;
        locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_primary_that_takes_no_writes_without_replicas_is_unavailable_and_grants_nothing() {
    let scene = Scene::start().await;
    let locks = scene.client(1).await;
    for (key, value) in [("min-replicas-max-lag", "1"), ("min-replicas-to-write", "2")] {
        scene.primary.command(&["CONFIG", "SET", key, value]).await;
    }
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    scene.replicas[0].pause();
    let refuses = async || {
        let info = scene.primary.info("replication").await;
        info.get("min_slaves_good_slaves").is_some_and(|good| good == "1")
    };
    eventually("one replica lags", SOON, refuses).await;
    // One replica would be enough for the client, but not for the primary.
    match locks.lock(NAME).acquire().await {
        Err(Error::Unavailable(error)) => assert!(error.to_string().contains("NOREPLICAS"), "{error}"),
        other => panic!("{other:?}"),
    }
    scene.replicas[0].resume();
    eventually("both follow again", SOON, async || !refuses().await).await;
    assert!(scene.is_free(&locks.lock(NAME)).await);
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn waiting_for_replicas_needs_one_more_right_and_reports_its_lack_at_once() {
    let scene = Scene::start().await;
    let advised = include_str!("../../docs/operations.md")
        .lines()
        .find(|line| line.starts_with("ACL SETUSER locks "))
        .expect("the page advises a user");
    let words: Vec<&str> = advised.split(' ').collect();
    scene.primary.set_user(&words).await;
    let url = scene.primary.url_as("locks", "secret");
    let settings = || LockManager::builder().replicas(2);
    match settings().connect(&url).await {
        Err(Error::Refused(error)) => assert!(error.to_string().contains("wait"), "{error}"),
        other => panic!("{other:?}"),
    }
    scene.primary.command(&["ACL", "SETUSER", "locks", "+wait"]).await;
    scene.primary.command(&["ACL", "LOG", "RESET"]).await;
    let locks = settings().connect(&url).await.unwrap();
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(scene.primary.command(&["ACL", "LOG"]).await.array(), []);
}

#[tokio::test]
async fn client_without_replicas_opens_no_connection_for_them() {
    let server = Server::start().await;
    let connections = async || {
        let list = server.command(&["CLIENT", "LIST"]).await;
        // The connection that asks is not counted.
        list.text().lines().count() - 1
    };
    let locks = settings().connect(&server.url()).await.unwrap();
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(connections().await, 1);
    assert!(!server.calls().await.contains_key("wait"));

    let others = settings().replicas(1).connect(&server.url()).await.unwrap();
    eventually("two more are open", SOON, async || connections().await == 3).await;
    others.close().await.unwrap();
    drop(others);
    eventually("closed", SOON, async || connections().await == 1).await;
}

#[tokio::test]
async fn there_are_no_replicas_in_memory() {
    match settings().replicas(1).in_memory(&MemoryStore::new()) {
        Err(Error::Invalid(invalid)) => assert!(invalid.to_string().contains("replicas 1"), "{invalid}"),
        other => panic!("{other:?}"),
    }
}
