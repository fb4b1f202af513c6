//! No fault makes a lock leave anything on a server for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlock::Owner;
use fairlock_testkit::{History, Server, eventually};
use futures_util::future::join_all;

use super::parts;
use super::scene::{
    NAME, SECOND, SETTLED, SOON, connect, granted, lock_key, nothing_left, queued, settings, turn,
};

/// The longest remaining TTL of all keys, in ms; -1 if a key has none.
const LONGEST: &str = "local longest = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left == -1 then return {-1, key} end
  longest = math.max(longest, left)
end
return {longest, ''}";

const LEASE: Duration = Duration::from_secs(10);
/// How long keys outlive their content, plus how much longer they may live.
const KEPT: Duration = Duration::from_secs(70);

/// Checks that every key has a TTL now, and that none is longer than necessary.
async fn check(server: &Server) {
    let reply = server.command(&["EVAL", LONGEST, "0"]).await;
    let (left, key) = (reply.array()[0].int(), reply.array()[1].text());
    assert!(left >= 0, "{key} would stay forever");
    let longest = KEPT + LEASE;
    assert!(u128::try_from(left).unwrap() <= longest.as_millis(), "{left} ms");
}

/// Race: Names that are used only once pile up on the server.
#[tokio::test]
async fn every_key_has_a_ttl_at_all_times() {
    let server = Server::start().await;
    let settings = settings().lease(LEASE);
    let histories = [(); 3].map(|()| History::default());
    let owner = Owner::new();
    let names = ["a", "b", "c"];
    let mut running = Vec::new();
    for client in 0..3 {
        let locks = settings.clone().connect(&server.url()).await.unwrap();
        for (name, history) in names.into_iter().zip(&histories) {
            for _ in 0..5 {
                let (locks, history) = (locks.clone(), history.clone());
                running.push(tokio::spawn(async move {
                    for _ in 0..20 {
                        turn(&locks, name, &history, name, Duration::ZERO).await;
                    }
                }));
            }
        }
        // Re-entrant holds, waits that time out, and guards that are dropped.
        let (locks, owner) = (locks.clone(), owner.clone());
        running.push(tokio::spawn(async move {
            for _ in 0..20 {
                let lock = locks.lock("owned").owner(&owner);
                let holds = [lock.acquire().await.unwrap(), lock.acquire().await.unwrap()];
                let _ = locks
                    .lock("owned")
                    .acquire_timeout(Duration::from_millis(2 + client))
                    .await;
                drop(holds);
            }
        }));
    }
    let over = AtomicBool::new(false);
    let all = async {
        join_all(running)
            .await
            .into_iter()
            .for_each(|done| done.expect("a waiter that got all its turns"));
        over.store(true, Ordering::SeqCst);
    };
    let watch = async {
        let mut checks = 0;
        while !over.load(Ordering::SeqCst) {
            check(&server).await;
            checks += 1;
            if checks % 20 == 0 && checks <= 120 {
                server.kill_clients().await;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(checks > 20, "{checks} checks");
    };
    tokio::join!(all, watch);
    histories.iter().for_each(History::assert_no_overlap);
    for name in names.into_iter().chain(["owned"]) {
        nothing_left(&server, name, SETTLED + SECOND).await;
    }
    check(&server).await;
    // An empty queue has no key. A free lock is kept for its fence, but not for ever.
    let keys = server.keys("t:queue:").await;
    assert!(keys.is_empty(), "{keys:?}");
    let left = server.command(&["PTTL", &lock_key("a")]).await.int();
    assert!((0..=120_000).contains(&left), "{left} ms");
}

/// Race: Names that are used only once pile up on the server.
#[tokio::test]
async fn leftovers_of_killed_processes_expire() {
    let server = Server::start().await;
    let mut dead = parts::client(&server, "2000", "1000");
    dead.tell("acquire 50");
    parts::fence(&mut dead).await;
    queued(&server, NAME, 49).await;
    dead.kill();
    let reply = server.command(&["EVAL", LONGEST, "0"]).await;
    let left = reply.array()[0].int();
    assert!((1..=75_000).contains(&left), "{left} ms");
    // The lock, its queue, and the label of the dead one.
    assert_eq!(server.command(&["DBSIZE"]).await.int(), 3);
}

/// Race: A lock's name looks like a key of another lock.
#[tokio::test]
async fn locks_that_are_named_like_keys_of_another_are_locks_of_their_own() {
    let server = Server::start().await;
    let locks = connect(&server.url()).await;
    let names = [
        NAME,
        "queue:a",
        "a:queue",
        "timers:a",
        "spin:a",
        "unlock:a",
        "{a}:queue",
        "{queue:a}:x",
    ];
    let mut waits = Vec::new();
    for name in names {
        let guard = locks.lock(name).acquire().await.unwrap();
        let waiter = tokio::spawn(locks.lock(name).acquire());
        let is_queued = async || locks.lock(name).status().await.unwrap().waiting == 1;
        eventually("queued", SECOND, is_queued).await;
        waits.push((guard, waiter));
    }
    for (guard, waiter) in waits {
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        granted(waiter, SOON).await.release().await.unwrap();
    }
}
