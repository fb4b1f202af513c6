//! Servers that refuse something to this user. The client reports it at once, in words that help to fix it,
//! and without passwords.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};
use fairlock_testkit::{Server, eventually};

use super::scene::{
    NAME, SECOND, SETTLED, SOON, connect, granted, in_line, is_held, nothing_left, queued, settings,
    subscribed,
};

const PASSWORD: &str = "s3cret-w0rd";

async fn set_user(server: &Server, name: &str, rules: &str) -> String {
    let password = format!(">{PASSWORD}");
    let mut words = vec!["ACL", "SETUSER", name, "reset", "on", &password];
    words.extend(rules.split(' '));
    server.set_user(&words).await;
    server.url_as(name, PASSWORD)
}

/// Returns the message of a refusal by the server, which must contain no password.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let Err(error) = result else {
        panic!("not refused: {result:?}")
    };
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert!(!error.is_transient());
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn the_least_rights_are_enough_for_every_call() {
    let server = Server::start().await;
    let rules = "resetkeys ~t:* resetchannels &t:* -@all +evalsha +script|load +hello +auth +ping +info +client|id \
        +client|setname +subscribe +unsubscribe +pubsub|numsub +time +hget +hgetall +hset +hdel +hlen +hscan +del +pexpire +pttl +zadd +zcard \
        +zrange +zscore +zpopmin +zrem +publish";
    let url = set_user(&server, "locks", rules).await;
    let (locks, others) = (connect(&url).await, connect(&url).await);
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiter = in_line(&server, &others, NAME, 1).await;
    subscribed(&server, 1).await;
    guard.renew().await.unwrap();
    assert_eq!(locks.lock(NAME).status().await.unwrap().waiting, 1);
    guard.release().await.unwrap();
    let guard = granted(waiter, SOON).await;
    assert!(matches!(
        locks.lock(NAME).try_acquire().await,
        Err(Error::Busy { .. })
    ));
    assert!(locks.lock(NAME).force_release(guard.fence()).await.unwrap());
    assert!(guard.release().await.is_err());
    let writing = locks.rw_lock(NAME).write().acquire().await.unwrap();
    let reader = tokio::spawn(others.rw_lock(NAME).read().acquire());
    let rw = locks.rw_lock(NAME);
    eventually("a reader waits", 5 * SECOND, async || {
        rw.status().await.unwrap().waiting == 1
    })
    .await;
    writing.renew().await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    granted(reader, 2 * SECOND).await.release().await.unwrap();
    assert!(rw.force_release(reading.fence()).await.unwrap());
    // A client that reconnects after its connection broke needs no further rights.
    server.kill_clients().await;
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(server.command(&["ACL", "LOG"]).await.array(), []);
}

/// Race: The user may not publish, or not subscribe.
#[tokio::test]
async fn a_waiter_without_its_channel_is_told_which_pattern_it_needs() {
    let server = Server::start().await;
    let url = set_user(&server, "restricted", "allkeys allcommands resetchannels").await;
    let (locks, restricted) = (connect(&server.url()).await, connect(&url).await);
    // A client that does not wait needs no channel.
    restricted
        .lock(NAME)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waited = tokio::time::timeout(SOON, restricted.lock(NAME).acquire())
        .await
        .expect("at once");
    let said = refused(waited);
    assert!(said.contains("NOPERM") && said.contains("&t:*"), "{said}");
    nothing_left_but_the_holder(&server).await;
    guard.release().await.unwrap();
    nothing_left(&server, NAME, SETTLED).await;
}

/// Race: The user may not subscribe, and its locks are to be retained.
#[tokio::test]
async fn a_free_lock_is_granted_though_it_cannot_be_retained_without_its_channel() {
    let server = Server::start().await;
    let url = set_user(&server, "restricted", "allkeys allcommands resetchannels").await;
    let restricted = settings().retain(SECOND).connect(&url).await.unwrap();
    for _ in 0..30 {
        let granted = restricted.lock(NAME).acquire_timeout(SOON).await.unwrap();
        granted.release().await.unwrap();
    }
    // Nothing keeps this thread busy meanwhile.
    let began = Instant::now();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(restricted.stats().retained, 0);
}

async fn nothing_left_but_the_holder(server: &Server) {
    queued(server, NAME, 0).await;
    assert!(is_held(server, NAME).await);
}

/// Race: The user may not publish, or not subscribe.
#[tokio::test]
async fn a_holder_that_may_not_publish_releases_and_the_next_has_it_by_its_timer() {
    let server = Server::start().await;
    let url = set_user(&server, "mute", "allkeys allcommands resetchannels").await;
    let mute = connect(&url).await;
    // With this claim window the waitlist polls every 0.9 s.
    let others = settings()
        .claim_window(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let guard = mute.lock(NAME).acquire().await.unwrap();
    let first = in_line(&server, &others, NAME, 1).await;
    let second = in_line(&server, &others, NAME, 2).await;
    subscribed(&server, 1).await;
    guard.release().await.unwrap();
    let guard = granted(first, 3 * SECOND).await;
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    granted(second, 3 * SECOND).await.release().await.unwrap();
}

#[tokio::test]
async fn wrong_and_missing_passwords_are_refused_at_once_and_never_shown() {
    let server = Server::builder().config("requirepass", PASSWORD).start().await;
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}", server.port());
    let locks = LockManager::connect(&url).await.unwrap();
    locks.lock(NAME).acquire().await.unwrap().release().await.unwrap();
    assert!(!format!("{locks:?} {:?}", locks.lock(NAME)).contains(PASSWORD));

    let started = Instant::now();
    let wrong = server.url_as("default", &format!("not-{PASSWORD}"));
    let said = refused(LockManager::connect(&wrong).await);
    assert!(said.contains("WRONGPASS"), "{said}");
    let said = refused(LockManager::connect(&server.url()).await);
    assert!(said.contains("NOAUTH"), "{said}");
    assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());

    server.kill();
    let lost = settings()
        .server_timeout(Duration::from_millis(300))
        .connect(&url)
        .await
        .unwrap_err();
    assert!(matches!(lost, Error::Unavailable(_)), "{lost:?}");
    assert!(!format!("{lost} {lost:?}").contains(PASSWORD), "{lost:?}");
}

#[tokio::test]
async fn revoked_rights_are_noticed_at_the_next_call() {
    let server = Server::start().await;
    let url = set_user(&server, "locks", "allkeys allcommands allchannels").await;
    let locks = connect(&url).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    server.command(&["ACL", "SETUSER", "locks", "-evalsha"]).await;
    let started = Instant::now();
    let said = refused(locks.lock("b").acquire().await);
    assert!(said.contains("NOPERM"), "{said}");
    refused(guard.renew().await);
    assert!(guard.check().is_ok());
    refused(guard.release().await);
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
}

#[tokio::test]
async fn rights_to_other_keys_only_are_refused_with_the_servers_message() {
    let server = Server::start().await;
    let url = set_user(&server, "stranger", "~other:* &* allcommands").await;
    let locks = connect(&url).await;
    let said = refused(locks.lock(NAME).acquire().await);
    assert!(said.contains("NOPERM"), "{said}");
    refused(locks.lock(NAME).try_acquire().await);
    refused(locks.lock(NAME).status().await);
}
