//! Semaphores and read/write locks whose users die, and whose server fails, forgets or refuses.
//!
//! The leases outlast every test, unless one is about their end. So a grant within [`IN_TIME`] is due to
//! none.

mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlock::{Error, Fence, HoldEnd, LockManager, LockSet, Result, RwLock, Semaphore};
use fairlock_testkit::{History, Proxy, Server, eventually};
use futures_util::future::join_all;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::parts;
use super::scene::{NAME, SECOND, connect, granted, settings};
use crate::common::is_busy;

/// Enough for everything that needs no lease to end, on a machine that stands still for a while too.
const IN_TIME: Duration = Duration::from_secs(12);

/// What stands between the prefix and the name in the keys.
const SEMAPHORE: &str = "semaphore:{a}";
const READ_WRITE: &str = "rw:{a}";

/// The keys of permits.
fn keys(of: &str) -> [String; 3] {
    ["", "queue:", "timers:"].map(|key| format!("t:{key}{of}"))
}

async fn waiting(server: &Server, of: &str) -> i64 {
    server.command(&["ZCARD", &keys(of)[1]]).await.int()
}

async fn queued(server: &Server, of: &str, count: i64) {
    let is_so = async || waiting(server, of).await == count;
    eventually(&format!("{count} queued for {of}"), IN_TIME, is_so).await;
}

/// Waits until the server sees so many subscriptions: one of each client for what it waits for.
async fn listening(server: &Server, count: usize) {
    let is_so = async || server.command(&["PUBSUB", "CHANNELS"]).await.array().len() == count;
    eventually(&format!("{count} subscriptions"), IN_TIME, is_so).await;
}

/// Starts to wait, and returns when the server has queued the request in the given place.
async fn in_line<G: Send + 'static>(
    server: &Server,
    acquiring: impl Future<Output = Result<G>> + Send + 'static,
    of: &str,
    place: i64,
) -> JoinHandle<Result<G>> {
    let waiter = tokio::spawn(acquiring);
    queued(server, of, place).await;
    waiter
}

/// Waits until nothing is left but the last fence, and who let a grant run out. No lease had to end for that.
async fn nothing_left(server: &Server, of: &str) {
    let [permits, queue, timers] = keys(of);
    let is_so = async || {
        let fields = server.command(&["HKEYS", &permits]).await.texts();
        let left = server.command(&["EXISTS", &queue, &timers]).await.int();
        let is_over = |field: &String| ["permits", "absent"].contains(&field.as_str());
        fields.iter().all(is_over) && left == 0
    };
    eventually(&format!("nothing left of {of}"), IN_TIME, is_so).await;
}

/// A manager whose waitlists poll every 1.8 s. They outlast every outage here.
async fn polling(server: &Server) -> LockManager {
    let settings = settings().claim_window(2 * SECOND).server_timeout(60 * SECOND);
    settings.connect(&server.url()).await.unwrap()
}

/// A manager whose holds are renewed every two seconds.
async fn renewing(server: &Server) -> LockManager {
    let settings = settings().lease(6 * SECOND).claim_window(2 * SECOND);
    settings.connect(&server.url()).await.unwrap()
}

/// Race: A writer dies while it keeps later readers out.
#[tokio::test]
async fn a_writer_killed_at_the_head_keeps_no_reader_out() {
    // Either another reader comes, or the one that waits polls.
    for (comes, claim_window) in [(true, 30 * SECOND), (false, SECOND)] {
        let server = Server::start().await;
        let locks = connect(&server.url()).await;
        let others = settings().claim_window(claim_window);
        let others = others.connect(&server.url()).await.unwrap();
        let reading = locks.rw_lock(NAME).read().acquire().await.unwrap();
        let mut writer = parts::client_of(&server, "writer", "30000", "30000");
        writer.tell("acquire 1");
        queued(&server, READ_WRITE, 1).await;
        // Before this, it would be passed over now, and come back to its place.
        listening(&server, 1).await;
        let behind = in_line(&server, others.rw_lock(NAME).read().acquire(), READ_WRITE, 2).await;
        listening(&server, 2).await;
        assert!(is_busy(&locks.rw_lock(NAME).read()).await);
        writer.kill();
        listening(&server, 1).await;
        if comes {
            let newcomer = locks.rw_lock(NAME).read().acquire_timeout(IN_TIME);
            newcomer.await.unwrap().release().await.unwrap();
        }
        granted(behind, IN_TIME).await.release().await.unwrap();
        reading.renew().await.unwrap();
        reading.release().await.unwrap();
        nothing_left(&server, READ_WRITE).await;
    }
}

/// Race: A waiter that names a smaller capacity dies, as in a rolling change that raises a limit.
#[tokio::test]
async fn a_waiter_killed_with_a_smaller_capacity_keeps_nobody_out() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let semaphore = locks.semaphore(NAME, 9);
    let held = semaphore.clone().permits(3).acquire().await.unwrap();
    let mut dead = parts::client_of(&server, "1/2", "30000", "30000");
    dead.tell("acquire 100");
    queued(&server, SEMAPHORE, 100).await;
    // Before this, they would be passed over now, and come back to their places.
    listening(&server, 1).await;
    dead.kill();
    listening(&server, 0).await;
    let tried = semaphore.try_acquire().await.expect("six of nine are free");
    assert_eq!(waiting(&server, SEMAPHORE).await, 0);
    tried.release().await.unwrap();
    held.release().await.unwrap();
    nothing_left(&server, SEMAPHORE).await;
}

/// Race: The first waiter is dead when permits are kept taken for a while.
#[tokio::test]
async fn permits_that_come_back_by_time_reach_the_next_waiter_though_the_first_is_dead() {
    let server = Server::start().await;
    // The clients poll after 5 s.
    let locks = settings().claim_window(30 * SECOND);
    let locks = locks.connect(&server.url()).await.unwrap();
    let semaphore = locks.semaphore(NAME, 1);
    let held = semaphore.clone().at_least(SECOND).acquire().await.unwrap();
    let mut dead = parts::client_of(&server, "1/1", "30000", "30000");
    dead.tell("acquire 1");
    queued(&server, SEMAPHORE, 1).await;
    let next = in_line(&server, semaphore.acquire(), SEMAPHORE, 2).await;
    listening(&server, 2).await;
    dead.kill();
    listening(&server, 1).await;
    held.release().await.unwrap();
    granted(next, 4 * SECOND).await.release().await.unwrap();
    nothing_left(&server, SEMAPHORE).await;
}

/// Race: A waiter dies after its grant.
#[tokio::test]
async fn permits_handed_to_a_killed_process_come_back_after_a_claim_window() {
    const CLAIM: Duration = Duration::from_secs(2);
    let server = Server::start().await;
    let locks = polling(&server).await;
    let semaphore = locks.semaphore(NAME, 3);
    let all = semaphore.clone().permits(3).acquire().await.unwrap();
    let mut dead = parts::client_of(&server, "2/3", "30000", "2000");
    dead.tell("acquire 1");
    queued(&server, SEMAPHORE, 1).await;
    let beside = in_line(&server, semaphore.acquire(), SEMAPHORE, 2).await;
    let behind = in_line(&server, semaphore.clone().permits(2).acquire(), SEMAPHORE, 3).await;
    listening(&server, 2).await;
    // The process is stopped first, so it cannot claim the grant.
    dead.stop();
    let began = Instant::now();
    all.release().await.unwrap();
    dead.kill();
    let beside = granted(beside, IN_TIME).await;
    let behind = granted(behind, IN_TIME).await;
    assert!(began.elapsed() >= CLAIM, "{:?}", began.elapsed());
    beside.renew().await.unwrap();
    beside.release().await.unwrap();
    behind.release().await.unwrap();
    nothing_left(&server, SEMAPHORE).await;
}

/// Race: A lease expires, and no message says so.
#[tokio::test]
async fn a_killed_holder_of_permits_costs_its_lease_and_no_other_holder_notices() {
    let server = Server::start().await;
    let locks = renewing(&server).await;
    let semaphore = locks.semaphore(NAME, 4);
    let mut dead = parts::client_of(&server, "2/4", "3000", "3000");
    dead.tell("acquire 1");
    let fence = parts::fence(&mut dead).await;
    let lasting = [
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    ];
    let waiter = in_line(&server, semaphore.clone().permits(2).acquire(), SEMAPHORE, 1).await;
    dead.kill();
    let began = Instant::now();
    let holders = semaphore.status().await.unwrap().holders;
    let of_dead = holders.iter().find(|holder| holder.fence.get() == fence);
    let left = of_dead.map(|holder| holder.ttl).unwrap_or_default();
    let next = granted(waiter, IN_TIME).await;
    assert!(began.elapsed() >= left, "{:?} of {left:?}", began.elapsed());
    assert!(next.fence().get() > fence);
    assert_eq!(semaphore.status().await.unwrap().permits_in_use, 4);
    for guard in lasting {
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
    next.release().await.unwrap();
    nothing_left(&server, SEMAPHORE).await;
}

/// Race: Keys are flushed, deleted or renamed by hand.
#[tokio::test]
async fn holders_of_permits_are_told_of_a_flush_and_waiters_come_in_by_their_tickets() {
    let server = Server::start().await;
    let (locks, others) = (renewing(&server).await, polling(&server).await);
    let semaphore = locks.semaphore(NAME, 3);
    let holders = join_all((0..3).map(|_| semaphore.acquire())).await;
    let holders: Vec<_> = holders.into_iter().map(Result::unwrap).collect();
    let mut waiters = Vec::new();
    for place in 1..=9 {
        waiters.push(in_line(&server, others.semaphore(NAME, 3).acquire(), SEMAPHORE, place).await);
    }
    listening(&server, 1).await;
    // The client has read the replies to all requests, and has their tickets.
    others.semaphore(NAME, 3).status().await.unwrap();
    server.command(&["FLUSHALL"]).await;
    let lost = holders.iter().map(|guard| guard.lost());
    let lost = tokio::time::timeout(IN_TIME, join_all(lost)).await;
    assert_eq!(lost.expect("at their renewals"), [HoldEnd::Taken; 3]);
    let mut last = holders.iter().map(|guard| guard.fence()).max().unwrap();
    for waiter in waiters {
        let guard = granted(waiter, IN_TIME).await;
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.release().await.unwrap();
    }
    for holder in holders {
        assert!(matches!(holder.release().await, Err(Error::Lost(_))));
    }
    nothing_left(&server, SEMAPHORE).await;
}

/// Race: Keys are flushed, deleted or renamed by hand.
#[tokio::test]
async fn permits_heal_when_any_one_of_their_keys_is_deleted() {
    for (n, key) in keys(SEMAPHORE).iter().enumerate() {
        let server = Server::start().await;
        let (locks, others) = (renewing(&server).await, polling(&server).await);
        let semaphore = others.semaphore(NAME, 2);
        let lasting = locks.semaphore(NAME, 2).acquire().await.unwrap();
        let ending = locks.semaphore(NAME, 2).lease(4 * SECOND).auto_renew(false);
        let ending = ending.acquire().await.unwrap();
        let first = in_line(&server, semaphore.acquire(), SEMAPHORE, 1).await;
        let second = in_line(&server, semaphore.acquire(), SEMAPHORE, 2).await;
        listening(&server, 1).await;
        semaphore.status().await.unwrap();
        assert_eq!(server.command(&["DEL", key]).await.int(), 1, "{key}");
        let first = granted(first, IN_TIME).await;
        assert!(first.fence() > ending.fence(), "{key}");
        if n == 0 {
            // The holds are lost with the hash.
            let lost = tokio::time::timeout(IN_TIME, lasting.lost()).await;
            assert_eq!(lost.expect("at its renewal"), HoldEnd::Taken);
        } else {
            assert!(!second.is_finished(), "{key}");
            lasting.renew().await.unwrap();
            lasting.release().await.unwrap();
        }
        let second = granted(second, IN_TIME).await;
        assert!(second.fence() > first.fence(), "{key}");
        assert!(is_busy(&semaphore).await, "{key}");
        first.release().await.unwrap();
        second.release().await.unwrap();
        nothing_left_after_its_time(&server, &semaphore).await;
    }
}

/// The timer of a hold that was deleted is left until it is due.
async fn nothing_left_after_its_time(server: &Server, semaphore: &Semaphore) {
    let use_again = async || {
        semaphore.acquire().await.unwrap().release().await.unwrap();
        server.command(&["EXISTS", &keys(SEMAPHORE)[2]]).await.int() == 0
    };
    eventually("the timers are gone", IN_TIME, use_again).await;
    nothing_left(server, SEMAPHORE).await;
}

/// Race: The server's clock is set back.
#[tokio::test]
async fn clock_set_back_costs_no_permits_and_a_dead_holder_its_lease() {
    let server = Server::builder().clock(0).start().await;
    let (locks, others) = (renewing(&server).await, polling(&server).await);
    let semaphore = locks.semaphore(NAME, 3);
    let lasting = semaphore.acquire().await.unwrap();
    let mut dead = parts::client_of(&server, "2/3", "3000", "3000");
    dead.tell("acquire 1");
    let mut last = parts::fence(&mut dead).await;
    dead.kill();
    server.set_clock(-3600).await;
    let two = others.semaphore(NAME, 3).permits(2);
    for _ in 0..2 {
        let next = two.acquire_timeout(IN_TIME).await.unwrap();
        assert!(next.fence().get() > last);
        last = next.fence().get();
        assert!(is_busy(&two).await);
        next.release().await.unwrap();
    }
    sleep(3 * SECOND).await;
    lasting.check().unwrap();
    lasting.release().await.unwrap();
    nothing_left(&server, SEMAPHORE).await;
}

/// Race: The server's clock is set forward.
#[tokio::test]
async fn clock_set_forward_ends_holds_of_permits_and_those_who_wait_come_in() {
    let server = Server::builder().clock(0).start().await;
    let (locks, others) = (renewing(&server).await, polling(&server).await);
    let writing = locks.rw_lock(NAME).write().acquire().await.unwrap();
    let read = others.rw_lock(NAME).read();
    let waits = [
        in_line(&server, read.acquire(), READ_WRITE, 1).await,
        in_line(&server, read.acquire(), READ_WRITE, 2).await,
    ];
    listening(&server, 1).await;
    server.set_clock(3600).await;
    for waiter in waits {
        let guard = granted(waiter, IN_TIME).await;
        assert!(guard.fence() > writing.fence());
        guard.release().await.unwrap();
    }
    let lost = tokio::time::timeout(IN_TIME, writing.lost()).await;
    assert_eq!(lost.expect("at its renewal"), HoldEnd::Taken);
    nothing_left(&server, READ_WRITE).await;
}

/// Race: The server is out of memory.
#[tokio::test]
async fn a_full_server_grants_no_new_permits_and_lets_holders_renew_release_and_downgrade() {
    let server = Server::builder()
        .config("maxmemory-policy", "noeviction")
        .start()
        .await;
    let impatient = settings().server_timeout(SECOND);
    let locks = impatient.connect(&server.url()).await.unwrap();
    let patient = settings().server_timeout(60 * SECOND);
    let others = patient.connect(&server.url()).await.unwrap();
    let semaphore = locks.semaphore(NAME, 3);
    let one = semaphore.acquire().await.unwrap();
    let two = semaphore.clone().permits(2).acquire().await.unwrap();
    let (rw, other_rw) = (locks.rw_lock(NAME), others.rw_lock(NAME));
    let writing = rw.write().acquire().await.unwrap();
    let both = others.semaphore(NAME, 3).permits(2);
    let waiters = [
        in_line(&server, both.acquire(), SEMAPHORE, 1).await,
        in_line(&server, both.acquire(), SEMAPHORE, 2).await,
    ];
    let reader = in_line(&server, other_rw.read().acquire(), READ_WRITE, 1).await;
    let writer = in_line(&server, other_rw.write().acquire(), READ_WRITE, 2).await;
    listening(&server, 2).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let free = locks.semaphore("free", 3);
    for lock in [LockSet::from(free), semaphore.clone().into(), rw.read().into()] {
        match lock.acquire().await {
            Err(Error::Unavailable(error)) => assert!(error.to_string().contains("OOM"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    for guard in [&*one, &*two, &*writing] {
        guard.renew().await.unwrap();
    }
    let reading = writing.downgrade().await.unwrap();
    let reader = granted(reader, IN_TIME).await;
    assert!(!writer.is_finished());
    reader.release().await.unwrap();
    reading.release().await.unwrap();
    granted(writer, IN_TIME).await.release().await.unwrap();
    two.release().await.unwrap();
    for waiter in waiters {
        let guard = granted(waiter, IN_TIME).await;
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
    one.release().await.unwrap();
    assert_eq!(semaphore.status().await.unwrap().permits_in_use, 0);

    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let guard = semaphore.acquire().await.unwrap();
    guard.release().await.unwrap();
    for of in [SEMAPHORE, READ_WRITE, "semaphore:{free}"] {
        nothing_left(&server, of).await;
    }
}

/// Race: A full server finds leases that are over.
#[tokio::test]
async fn a_full_server_gives_the_permits_of_a_dead_holder_to_those_who_wait() {
    let server = Server::builder()
        .config("maxmemory-policy", "noeviction")
        .start()
        .await;
    let others = polling(&server).await;
    let lasting = others
        .semaphore(NAME, 2)
        .lease(6 * SECOND)
        .acquire()
        .await
        .unwrap();
    let ending = others.semaphore(NAME, 2).lease(4 * SECOND).auto_renew(false);
    let ending = ending.acquire().await.unwrap();
    let waiter = in_line(&server, others.semaphore(NAME, 2).acquire(), SEMAPHORE, 1).await;
    listening(&server, 1).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let next = granted(waiter, IN_TIME).await;
    assert!(next.fence() > ending.fence());
    next.renew().await.unwrap();
    lasting.renew().await.unwrap();
    next.release().await.unwrap();
    lasting.release().await.unwrap();
    nothing_left(&server, SEMAPHORE).await;
}

/// Race: The server stops for a while, and goes on.
#[tokio::test]
async fn permits_outlast_a_server_that_stops_for_less_than_a_lease() {
    let server = Server::start().await;
    let locks = settings().lease(15 * SECOND).server_timeout(30 * SECOND);
    let locks = locks.connect(&server.url()).await.unwrap();
    let semaphore = locks.semaphore(NAME, 2);
    let holders = [
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    ];
    let first = in_line(&server, semaphore.clone().permits(2).acquire(), SEMAPHORE, 1).await;
    let second = in_line(&server, semaphore.acquire(), SEMAPHORE, 2).await;
    listening(&server, 1).await;
    server.pause();
    let third = tokio::spawn(semaphore.acquire());
    let [lasting, released] = holders;
    let released = tokio::spawn(released.release());
    sleep(3 * SECOND).await;
    assert!(!released.is_finished() && !first.is_finished());
    server.resume();
    tokio::time::timeout(IN_TIME, released)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    lasting.renew().await.unwrap();
    assert!(!first.is_finished());
    lasting.release().await.unwrap();
    let mut last = Fence::try_from(1_u64).unwrap();
    for waiter in [first, second, third] {
        let guard = granted(waiter, IN_TIME).await;
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.release().await.unwrap();
    }
    nothing_left(&server, SEMAPHORE).await;
}

/// Acquires more than half of the permits, and logs that.
async fn turn(lock: Semaphore, history: History, waiter: String, hold: Duration) {
    let entry = history.asks(waiter);
    let guard = lock.acquire().await.expect("a guard");
    entry.granted(guard.fence().get());
    sleep(hold).await;
    entry.released();
    guard.release().await.expect("a release");
}

/// Writes, logs that, and reads before the release.
async fn write(lock: RwLock, history: History, waiter: String, hold: Duration) {
    let entry = history.asks(waiter);
    let writing = lock.write().acquire().await.expect("a guard");
    entry.granted(writing.fence().get());
    sleep(hold).await;
    entry.released();
    let reading = writing.downgrade().await.expect("a reader");
    reading.release().await.expect("a release");
}

/// Runs one turn of a waiter whose `n`-th reply is lost, between two turns of others. Returns whether a reply
/// was lost.
async fn turn_without_reply(server: &Server, n: usize, writes: bool) -> bool {
    let name = format!("reply-{n}");
    let proxy = Proxy::start(server.port());
    let locks = settings().lease(6 * SECOND);
    let locks = locks.connect(&proxy.url()).await.unwrap();
    let others = polling(server).await;
    let history = History::default();
    let spawn = |locks: &LockManager, waiter: &str, hold| {
        let (history, waiter) = (history.clone(), waiter.to_owned());
        match writes {
            true => tokio::spawn(write(locks.rw_lock(&name), history, waiter, hold)),
            false => tokio::spawn(turn(locks.semaphore(&name, 3).permits(2), history, waiter, hold)),
        }
    };
    let first = spawn(&others, "first", SECOND / 2);
    eventually("the first one has permits", IN_TIME, async || {
        !history.grants().is_empty()
    })
    .await;
    proxy.lose_reply(n);
    // Long enough for a renewal.
    let middle = spawn(&locks, "middle", SECOND * 5 / 2);
    sleep(SECOND / 5).await;
    let last = spawn(&others, "last", Duration::ZERO);
    for done in [first, middle, last] {
        let done = tokio::time::timeout(2 * IN_TIME, done).await;
        done.expect("in time").expect("a turn");
    }
    history.assert_no_overlap();
    history.assert_fences_increase();
    let kind = if writes { "rw" } else { "semaphore" };
    nothing_left(server, &format!("{kind}:{{{name}}}")).await;
    proxy.lost_replies() > 0
}

/// Race: A script runs, and its reply is lost.
#[tokio::test]
async fn no_lost_reply_costs_permits_or_gives_them_out_twice() {
    let server = Server::start().await;
    // The calls of a turn: acquire, poll, renewals, a downgrade, release.
    for writes in [false, true] {
        let lost = join_all((1..=6).map(|n| turn_without_reply(&server, n, writes))).await;
        assert!(lost[..3].iter().all(|&lost| lost), "{lost:?}");
    }
}

/// Race: A connection breaks while permits are acquired and released.
#[tokio::test]
async fn connections_cut_at_any_moment_cost_no_permits() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let clients = [polling_through(&proxy).await, polling_through(&proxy).await];
    let history = History::default();
    let stopped = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for n in 0..6 {
        let lock = clients[n % 2].semaphore(NAME, 3).permits(2);
        let (history, stopped) = (history.clone(), Arc::clone(&stopped));
        tasks.spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let hold = Duration::from_millis(2);
                turn(lock.clone(), history.clone(), n.to_string(), hold).await;
            }
        });
    }
    for n in 0..60 {
        sleep(Duration::from_millis(20 + n % 7 * 9)).await;
        proxy.cut();
    }
    stopped.store(true, Ordering::Relaxed);
    tokio::time::timeout(3 * IN_TIME, tasks.join_all())
        .await
        .expect("nobody waits for a lease");
    assert!(history.grants().len() > 6, "{}", history.grants().len());
    history.assert_no_overlap();
    history.assert_fences_increase();
    nothing_left(&server, SEMAPHORE).await;
}

async fn polling_through(proxy: &Proxy) -> LockManager {
    let settings = settings().claim_window(3 * SECOND).server_timeout(30 * SECOND);
    settings.connect(&proxy.url()).await.unwrap()
}

/// Race: A first attempt runs after the second was granted and released.
#[tokio::test]
async fn a_first_attempt_for_permits_that_runs_after_the_second_was_released_leaves_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (locks, others) = (connect(&proxy.url()).await, connect(&server.url()).await);
    proxy.freeze_open();
    let acquiring = tokio::spawn(locks.semaphore(NAME, 3).permits(2).acquire());
    sleep(SECOND / 5).await;
    proxy.strand();
    let guard = granted(acquiring, IN_TIME).await;
    guard.release().await.unwrap();
    proxy.thaw();
    let all = others.semaphore(NAME, 3).permits(3);
    for _ in 0..3 {
        let guard = all.acquire_timeout(IN_TIME).await.unwrap();
        guard.release().await.unwrap();
        sleep(SECOND / 10).await;
    }
    nothing_left(&server, SEMAPHORE).await;
}

/// Race: The user may not publish, or not subscribe.
#[tokio::test]
async fn a_holder_of_permits_that_may_not_publish_releases_and_others_have_them_by_their_timers() {
    let server = Server::start().await;
    let rules = [
        "reset",
        "on",
        ">secret",
        "allkeys",
        "allcommands",
        "resetchannels",
    ];
    let user: Vec<_> = ["ACL", "SETUSER", "mute"].into_iter().chain(rules).collect();
    server.set_user(&user).await;
    let mute = connect(&server.url_as("mute", "secret")).await;
    let others = polling(&server).await;
    let writing = mute.rw_lock(NAME).write().acquire().await.unwrap();
    let rw = others.rw_lock(NAME);
    let readers = [
        in_line(&server, rw.read().acquire(), READ_WRITE, 1).await,
        in_line(&server, rw.read().acquire(), READ_WRITE, 2).await,
    ];
    let writer = in_line(&server, rw.write().acquire(), READ_WRITE, 3).await;
    listening(&server, 1).await;
    let reading = writing.downgrade().await.unwrap();
    let readers = join_all(readers.map(|reader| granted(reader, IN_TIME))).await;
    assert!(!writer.is_finished());
    for guard in readers {
        guard.release().await.unwrap();
    }
    reading.release().await.unwrap();
    granted(writer, IN_TIME).await.release().await.unwrap();
    nothing_left(&server, READ_WRITE).await;
}
