//! Servers that answer with an error, because they are full, busy, paused, loading, read-only, or unable to
//! save their data. They execute nothing, so the client repeats its calls until the wait ends or
//! `server_timeout` is over.

use std::time::{Duration, Instant};

use fairlock::spin::SpinLock;
use fairlock::{Error, LockManager};
use fairlock_testkit::{Client, Server, eventually, free_port};

use super::scene::{
    NAME, SECOND, SETTLED, SOON, connect, granted, in_line, is_held, lock_key, nothing_left, queue_key,
    queued, settings, subscribed, waiting,
};

const PATIENCE: Duration = Duration::from_millis(900);

async fn impatient(server: &Server) -> LockManager {
    settings()
        .server_timeout(PATIENCE)
        .connect(&server.url())
        .await
        .unwrap()
}

async fn config(server: &Server, key: &str, value: &str) {
    assert_eq!(
        server.command(&["CONFIG", "SET", key, value]).await.text(),
        "OK",
        "{key}"
    );
}

/// Checks that an acquire ends in time with `Unavailable`, and with this word of the server's error.
async fn refused_for_now(locks: &LockManager, name: &str, word: &str) {
    let started = Instant::now();
    let result = tokio::time::timeout(4 * SECOND, locks.lock(name).acquire())
        .await
        .expect("no hang");
    let Err(Error::Unavailable(error)) = result else {
        panic!("{result:?}")
    };
    assert!(error.to_string().contains(word), "{error}");
    assert!(started.elapsed() >= PATIENCE, "{:?}", started.elapsed());
}

/// Race: The server is out of memory.
#[tokio::test]
async fn a_full_server_grants_nothing_new_and_lets_holders_renew_release_and_hand_over() {
    let server = Server::builder()
        .config("maxmemory-policy", "noeviction")
        .start()
        .await;
    let (locks, others) = (impatient(&server).await, connect(&server.url()).await);
    let (guard, single) = (
        locks.lock(NAME).acquire().await.unwrap(),
        locks.lock("single").acquire().await.unwrap(),
    );
    let spin = SpinLock::new(&locks, NAME);
    for _ in 0..2 {
        assert!(spin.try_lock(Duration::ZERO, 30 * SECOND).await.unwrap());
    }
    let first = in_line(&server, &others, NAME, 1).await;
    let second = in_line(&server, &others, NAME, 2).await;
    subscribed(&server, 1).await;
    config(&server, "maxmemory", "1").await;

    refused_for_now(&locks, "free", "OOM").await;
    refused_for_now(&locks, NAME, "OOM").await;
    let waits = tokio::spawn(others.lock("free").acquire());
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let guard = granted(first, SOON).await;
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    granted(second, SOON).await.release().await.unwrap();
    single.release().await.unwrap();
    for _ in 0..2 {
        spin.unlock().await.unwrap();
    }
    assert!(!waits.is_finished());

    config(&server, "maxmemory", "0").await;
    granted(waits, 2 * SECOND).await.release().await.unwrap();
    for name in ["free", "single", NAME] {
        nothing_left(&server, name, SETTLED).await;
    }
}

/// Race: The server is paused, busy, loading, or a replica.
#[tokio::test]
async fn a_replica_is_waited_for_until_it_is_a_primary_again() {
    let server = Server::start().await;
    let (locks, others) = (impatient(&server).await, connect(&server.url()).await);
    let guard = others.lock("held").acquire().await.unwrap();
    let dead_port = free_port().to_string();
    // The server then answers READONLY or MASTERDOWN.
    for stale in ["yes", "no"] {
        config(&server, "replica-serve-stale-data", stale).await;
        server.command(&["REPLICAOF", "127.0.0.1", &dead_port]).await;
        let waits = tokio::spawn(others.lock(NAME).acquire());
        // Either answer has this word, and so has the refusal of the connection that the client makes then.
        refused_for_now(&locks, NAME, "replica").await;
        assert!(!waits.is_finished());
        server.command(&["REPLICAOF", "NO", "ONE"]).await;
        granted(waits, 3 * SECOND).await.release().await.unwrap();
    }
    guard.release().await.unwrap();
    nothing_left(&server, NAME, SETTLED).await;
}

/// Race: The server is paused, busy, loading, or a replica.
#[tokio::test]
async fn a_busy_script_is_waited_for() {
    let server = Server::start().await;
    let (locks, others) = (impatient(&server).await, connect(&server.url()).await);
    config(&server, "lua-time-limit", "20").await;
    let mut client = server.client().await;
    client.send(&["EVAL", "while true do end", "0"]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let waits = tokio::spawn(others.lock(NAME).acquire());
    refused_for_now(&locks, NAME, "BUSY").await;
    assert!(!waits.is_finished());
    assert_eq!(server.command(&["SCRIPT", "KILL"]).await.text(), "OK");
    granted(waits, 3 * SECOND).await.release().await.unwrap();
}

/// Race: The server is paused, busy, loading, or a replica.
#[tokio::test]
async fn a_pause_of_all_clients_is_waited_for_and_leaves_nothing() {
    let server = Server::start().await;
    let (locks, others) = (impatient(&server).await, connect(&server.url()).await);
    for mode in ["WRITE", "ALL"] {
        let mut client = server.client().await;
        client.command(&["CLIENT", "PAUSE", "1500", mode]).await.unwrap();
        let waits = tokio::spawn(others.lock("other").acquire());
        let result = tokio::time::timeout(4 * SECOND, locks.lock(NAME).acquire())
            .await
            .expect("no hang");
        assert!(matches!(result, Err(Error::Unavailable(_))), "{result:?}");
        granted(waits, 4 * SECOND).await.release().await.unwrap();
        // The paused calls run when the pause is over, although their caller has left.
        nothing_left(&server, NAME, SETTLED).await;
    }
}

/// Race: A grant is published, and then its writes fail.
#[tokio::test]
async fn server_refusing_writes_hands_nothing_over_and_announces_no_grant() {
    let server = Server::builder()
        .config("dbfilename", "occupied.rdb")
        .start()
        .await;
    let (locks, others) = (impatient(&server).await, connect(&server.url()).await);
    // A server refuses writes with too few replicas, and also when it cannot write a snapshot.
    std::fs::create_dir(server.dir().join("occupied.rdb")).unwrap();
    let no_replicas = [
        ("min-replicas-to-write", "1"),
        ("min-replicas-to-write", "0"),
        ("", "NOREPLICAS"),
    ];
    let no_snapshot = [("save", "1 1"), ("save", ""), ("", "MISCONF")];
    for [(key, refuse), (_, accept), (_, word)] in [no_replicas, no_snapshot] {
        let guard = others.lock(NAME).acquire().await.unwrap();
        let waiter = in_line(&server, &others, NAME, 1).await;
        subscribed(&server, 1).await;
        let mut monitor = server.client().await;
        monitor.command(&["PSUBSCRIBE", "t:unlock:*"]).await.unwrap();
        config(&server, key, refuse).await;
        if word == "MISCONF" {
            server.command(&["BGSAVE"]).await;
            let has_failed = async || server.info("persistence").await["rdb_last_bgsave_status"] == "err";
            eventually("the snapshot fails", 3 * SECOND, has_failed).await;
        }

        refused_for_now(&locks, "free", word).await;
        let release = tokio::spawn(guard.release());
        assert_eq!(monitor.message(Duration::from_millis(300)).await, None);
        assert!(!waiter.is_finished());
        assert_eq!(waiting(&server, NAME).await, 1);
        config(&server, key, accept).await;
        release.await.unwrap().unwrap();
        granted(waiter, SOON).await.release().await.unwrap();
        nothing_left(&server, NAME, SETTLED).await;
        drop(monitor);
        subscribed(&server, 1).await;
    }
}

/// Race: Releases are refused.
#[tokio::test]
async fn a_release_that_was_given_up_goes_on_until_the_server_takes_it() {
    let server = Server::start().await;
    let (locks, others) = (impatient(&server).await, connect(&server.url()).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiter = in_line(&server, &others, NAME, 1).await;
    config(&server, "min-replicas-to-write", "1").await;
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Unavailable(_))), "{released:?}");
    assert!(is_held(&server, NAME).await);
    config(&server, "min-replicas-to-write", "0").await;
    granted(waiter, 2 * SECOND).await.release().await.unwrap();
}

#[tokio::test]
async fn a_release_that_is_dropped_under_a_closed_client_goes_on_too() {
    let server = Server::start().await;
    let (locks, others) = (impatient(&server).await, connect(&server.url()).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiter = in_line(&server, &others, NAME, 1).await;
    config(&server, "min-replicas-to-write", "1").await;
    locks.close().await.unwrap_err();
    let released = tokio::time::timeout(Duration::from_millis(200), guard.release()).await;
    assert!(released.is_err(), "{released:?}");
    config(&server, "min-replicas-to-write", "0").await;
    granted(waiter, 2 * SECOND).await.release().await.unwrap();
}

/// Race: The server is paused, busy, loading, or a replica.
#[tokio::test]
async fn a_server_that_loads_its_data_is_waited_for() {
    // Loading takes more than a second. The server answers after every 2 MiB that it has read.
    let server = Server::builder()
        .config("key-load-delay", "300")
        .config("rdbcompression", "no")
        .start()
        .await;
    let fill = "for i = 1, 4000 do redis.call('SET', 'other:' .. i, string.rep('x', 4096)) end";
    server.command(&["EVAL", fill, "0"]).await;
    // How long that takes depends on the machine.
    let patient = settings().server_timeout(60 * SECOND);
    let (locks, others) = (
        impatient(&server).await,
        patient.connect(&server.url()).await.unwrap(),
    );
    assert_eq!(server.command(&["SAVE"]).await.text(), "OK");
    server.kill();
    let loading = async {
        // From here on the server accepts connections.
        let is_up = async || Client::connect(server.port()).await.is_ok();
        eventually("the server is up", 10 * SECOND, is_up).await;
        refused_for_now(&locks, NAME, "LOADING").await;
    };
    let (guard, (), ()) = tokio::join!(others.lock(NAME).acquire(), server.restart(), loading);
    guard.unwrap().release().await.unwrap();
}

/// Race: A key of another type has the lock's name.
#[tokio::test]
async fn keys_of_another_type_are_refused_and_left_alone() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    server.command(&["SET", &lock_key(NAME), "mine"]).await;
    for result in [
        locks.lock(NAME).acquire().await.err(),
        locks.lock(NAME).try_acquire().await.err(),
    ] {
        assert!(
            matches!(&result, Some(Error::Refused(error)) if error.to_string().contains("WRONGTYPE")),
            "{result:?}"
        );
    }
    assert_eq!(server.command(&["GET", &lock_key(NAME)]).await.text(), "mine");

    server.command(&["SET", &queue_key("b"), "mine"]).await;
    let result = locks.lock("b").acquire().await.err();
    assert!(matches!(result, Some(Error::Refused(_))), "{result:?}");
    assert!(!is_held(&server, "b").await);
    assert_eq!(server.command(&["GET", &queue_key("b")]).await.text(), "mine");
    queued(&server, NAME, 0).await;
}

/// Race: The server stops answering while the work is done.
#[tokio::test]
async fn finished_work_returns_its_result_although_the_server_is_stopped() {
    for_work(async |locks, server| {
        let worked = locks.lock(NAME).with_timeout(SECOND, async |_| {
            server.pause();
            7
        });
        assert_eq!(worked.await.unwrap(), 7);
    })
    .await;
    for_work(async |locks, server| {
        let led = locks.leadership(NAME).run(async |_| {
            server.pause();
            7
        });
        assert_eq!(led.await.unwrap(), 7);
    })
    .await;
}

/// Has work done that stops the server. Its result must not wait for the server, and the lock must be free
/// once that answers again.
async fn for_work(work: impl AsyncFnOnce(&LockManager, &Server)) {
    let server = Server::start().await;
    let locks = settings()
        .server_timeout(40 * SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let worked = tokio::time::timeout(10 * SECOND, work(&locks, &server)).await;
    server.resume();
    worked.expect("the result of the work");
    nothing_left(&server, NAME, SETTLED).await;
}

/// Race: The server stops answering while callers wait that have little time.
#[tokio::test]
async fn a_bounded_wait_in_which_nothing_was_answered_is_an_outage() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let waits = async |name: &str, turns: u32| {
        let lock = locks.lock(name).local_handoffs(turns);
        lock.acquire_timeout(Duration::from_millis(600)).await
    };
    let held = locks.lock("held").local_handoffs(64).acquire().await.unwrap();
    let queued = tokio::spawn(locks.lock("held").acquire_timeout(4 * SECOND));
    waiting_for(&server, "held", 1).await;
    // The client has read the reply to the queued request, and knows that the server answers fast.
    for _ in 0..16 {
        locks.lock("free").status().await.unwrap();
    }

    server.pause();
    for turns in [1, 64] {
        let away = waits("free", turns).await;
        assert!(matches!(away, Err(Error::Unavailable(_))), "{away:?}");
    }
    // This process knows better.
    let busy = waits("held", 64).await;
    assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
    // The server has told this one that the lock is held.
    let busy = queued.await.unwrap();
    assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
    let stats = locks.stats();
    assert_eq!((stats.unavailable, stats.timed_out), (2, 2));
    server.resume();
    held.release().await.unwrap();

    server.kill();
    eventually("disconnected", 5 * SECOND, async || {
        match waits("free", 1).await {
            Err(Error::Unavailable(why)) => why.to_string().contains("refused"),
            other => panic!("{other:?}"),
        }
    })
    .await;
}

/// Race: The work of a process blocks its thread until the bounds of its waits are over.
#[tokio::test]
async fn bounds_that_end_while_a_thread_is_blocked_are_no_outage() {
    const CALLERS: usize = 200;
    let server = Server::start().await;
    let (locks, others) = (connect(&server.url()).await, connect(&server.url()).await);
    let names: Vec<String> = (0..CALLERS).map(|n| format!("held-{n}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(others.lock(name).acquire().await.unwrap());
    }
    for turns in [1, 64, 1, 64] {
        let calls = names.iter().map(|name| {
            let lock = locks.lock(name).local_handoffs(turns);
            tokio::spawn(lock.acquire_timeout(Duration::from_millis(200)))
        });
        let calls: Vec<_> = calls.collect();
        // The calls are written, and answered while this thread is blocked.
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::thread::sleep(Duration::from_millis(600));
        for call in calls {
            let busy = call.await.unwrap();
            assert!(matches!(busy, Err(Error::Timeout { .. })), "{turns}: {busy:?}");
        }
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// Race: The server stops answering while callers wait that have little time.
#[tokio::test]
async fn a_try_ends_soon_although_the_server_does_not_answer() {
    let server = Server::start().await;
    let locks = settings()
        .server_timeout(60 * SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    server.pause();
    for turns in [1, 64] {
        let lock = locks.lock(NAME).local_handoffs(turns);
        let tried = tokio::time::timeout(20 * SECOND, lock.try_acquire()).await;
        let tried = tried.expect("far less than the server_timeout");
        assert!(matches!(tried, Err(Error::Unavailable(_))), "{tried:?}");
    }
    server.resume();
    nothing_left(&server, NAME, SETTLED).await;
}

async fn waiting_for(server: &Server, name: &str, count: i64) {
    eventually("queued", 5 * SECOND, async || {
        waiting(server, name).await == count
    })
    .await;
}
