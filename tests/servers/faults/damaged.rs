//! Data that somebody else has damaged on the server. The reply to a call still names its request, so the
//! data are bad, and not the connection.

use std::fmt::Debug;

use fairlock::{Error, LockManager, Result};
use fairlock_testkit::{Server, eventually};

use super::scene::{NAME, SECOND, connect, kept, lock_key, settings};

/// Makes the fence of a lock that is held unreadable.
async fn damage(server: &Server, name: &str) {
    let summary = kept(server, name).await.to_string();
    let fence = kept(server, name).await.fence.to_string();
    let damaged = summary.replace(&fence, &format!("x{}", &fence[1..]));
    server.command(&["HSET", &lock_key(name), "hold", &damaged]).await;
}

#[track_caller]
fn refused<T: Debug>(result: Result<T>, key: &str) {
    match result {
        Err(Error::Refused(error)) => assert!(error.to_string().contains(key), "{error}"),
        other => panic!("not refused: {other:?}"),
    }
}

/// Checks that the client still has the connections that it began with, and that they work.
async fn undisturbed(locks: &LockManager) {
    let guard = locks.lock("another").acquire().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(locks.stats().reconnects, 0, "a connection was replaced");
}

/// Race: The data of a lock are damaged, and calls for other locks are in flight on the same connection.
#[tokio::test]
async fn a_lock_whose_fence_is_no_number_is_refused_by_name_and_costs_no_connection() {
    let server = Server::start().await;
    let (holder, locks) = (connect(&server.url()).await, connect(&server.url()).await);
    let _guard = holder.lock(NAME).acquire().await.unwrap();
    damage(&server, NAME).await;
    for _ in 0..5 {
        let another = locks.lock("another");
        let (status, guard) = tokio::join!(locks.lock(NAME).status(), another.acquire());
        refused(status, &lock_key(NAME));
        guard.unwrap().release().await.unwrap();
    }
    // The reply to a sibling of the holder names the holder's fence.
    refused(holder.lock(NAME).acquire_timeout(SECOND).await, &lock_key(NAME));
    undisturbed(&locks).await;
    undisturbed(&holder).await;
}

#[tokio::test]
async fn a_label_that_is_no_label_is_missing_and_costs_no_connection() {
    let server = Server::start().await;
    let settings = settings().label("web-7");
    let locks = settings.connect(&server.url()).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let label = async || {
        let holder = locks.lock(NAME).status().await.unwrap().holder;
        holder.unwrap().label
    };
    eventually("the label is there", SECOND, async || {
        label().await.as_deref() == Some("web-7")
    })
    .await;
    let keys = server.keys("t:label:").await;
    // In the words of Lua: no UTF-8, what clears a terminal, nothing, and a word with an accent.
    for damaged in [r"web\255", r"\27[2J", "", r"caf\195\169"] {
        let set = format!("return redis.call('HSET', KEYS[1], 'label', '{damaged}')");
        let set = server.command(&["EVAL", &set, "1", &keys[0]]).await;
        assert_eq!(set.int(), 0, "the label was there");
        for _ in 0..5 {
            assert_eq!(label().await, None, "{damaged}");
        }
    }
    undisturbed(&locks).await;
    guard.release().await.unwrap();
}
