//! What operators see: who holds a lock and for how long, and which locks there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fairlock::{Error, Listed, LockManager, LockManagerBuilder, Owner};
use futures_util::TryStreamExt;
use tokio::time::{Instant, sleep};

use crate::backend::{Backend, in_a_quorum, on_each_backend, with_local_handoffs};

on_each_backend! {
    status_names_the_client_that_holds,
    status_names_the_client_by_which_an_owner_holds,
    status_names_the_waiter_that_was_handed_the_lock,
    status_shows_how_long_the_lock_is_held,
    status_counts_from_the_release_by_which_the_lock_was_handed_over,
    status_shows_how_long_the_first_waiter_has_waited,
    default_label_names_this_process,
    label_goes_with_its_client,
    list_shows_locks_that_are_held_or_waited_for,
    list_keeps_to_its_pattern_and_prefix,
    list_finds_every_one_of_many_locks,
    list_fails_once_its_client_is_closed,
}

with_local_handoffs! {
    status_names_the_client_that_holds,
    status_names_the_client_by_which_an_owner_holds,
    status_names_the_waiter_that_was_handed_the_lock,
    status_shows_how_long_the_lock_is_held,
    status_counts_from_the_release_by_which_the_lock_was_handed_over,
    status_shows_how_long_the_first_waiter_has_waited,
    default_label_names_this_process,
    label_goes_with_its_client,
    list_shows_locks_that_are_held_or_waited_for,
    list_keeps_to_its_pattern_and_prefix,
    list_finds_every_one_of_many_locks,
    list_fails_once_its_client_is_closed,
}

in_a_quorum! {
    status_names_the_client_that_holds,
    status_names_the_waiter_that_was_handed_the_lock,
    status_counts_from_the_release_by_which_the_lock_was_handed_over,
    status_shows_how_long_the_first_waiter_has_waited,
    default_label_names_this_process,
    list_shows_locks_that_are_held_or_waited_for,
    list_keeps_to_its_pattern_and_prefix,
    list_finds_every_one_of_many_locks,
    list_fails_once_its_client_is_closed,
}

const SECOND: Duration = Duration::from_secs(1);

fn labelled(label: &str) -> impl FnOnce(LockManagerBuilder) -> LockManagerBuilder {
    move |settings| settings.label(label)
}

async fn label_of_holder(locks: &LockManager, name: &str) -> Option<String> {
    let status = locks.lock(name).status().await.unwrap();
    status.holder.expect("somebody holds the lock").label
}

/// Waits for the first report of a client, which it makes in the background.
async fn label_appears(locks: &LockManager, name: &str) -> String {
    for _ in 0..1000 {
        if let Some(label) = label_of_holder(locks, name).await {
            return label;
        }
        sleep(SECOND / 100).await;
    }
    panic!("the holder has no label after 10 s");
}

async fn listed(locks: &LockManager, pattern: &str) -> BTreeMap<String, Listed> {
    let all: Vec<Listed> = locks.list(pattern).try_collect().await.unwrap();
    all.into_iter().map(|lock| (lock.name.clone(), lock)).collect()
}

async fn names(locks: &LockManager, pattern: &str) -> Vec<String> {
    listed(locks, pattern).await.into_keys().collect()
}

async fn status_names_the_client_that_holds(backend: Backend) {
    let holder = backend.client_with(labelled("web-7")).await;
    let observer = backend.client_with(labelled("shell")).await;
    let _guard = holder.lock("a").acquire().await.unwrap();
    assert_eq!(label_appears(&observer, "a").await, "web-7");
    assert_eq!(label_appears(&holder, "a").await, "web-7");
}

/// A server hears of the label in the background. In memory it is there before the first lock is held.
#[tokio::test]
async fn status_in_memory_names_the_holder_of_the_first_lock() {
    let locks = Backend::in_memory().client_with(labelled("web-7")).await;
    let _guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(label_of_holder(&locks, "a").await.as_deref(), Some("web-7"));
}

async fn status_names_the_client_by_which_an_owner_holds(backend: Backend) {
    let first = backend.client_with(labelled("first")).await;
    let second = backend.client_with(labelled("second")).await;
    let me = Owner::named("me");
    let outer = first.lock("a").owner(&me).acquire().await.unwrap();
    let _inner = second.lock("a").owner(&me).acquire().await.unwrap();
    assert_eq!(label_appears(&second, "a").await, "first");
    outer.release().await.unwrap();
    assert_eq!(label_appears(&second, "a").await, "second");
}

async fn status_names_the_waiter_that_was_handed_the_lock(backend: Backend) {
    let first = backend.client_with(labelled("first")).await;
    let second = backend.client_with(labelled("second")).await;
    let guard = first.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(second.lock("a").acquire());
    while first.lock("a").status().await.unwrap().waiting == 0 {
        sleep(SECOND / 100).await;
    }
    assert_eq!(label_appears(&first, "a").await, "first");
    guard.release().await.unwrap();
    let _guard = waiting.await.unwrap().unwrap();
    assert_eq!(label_appears(&first, "a").await, "second");
}

async fn status_shows_how_long_the_lock_is_held(backend: Backend) {
    let locks = backend.client().await;
    let held_for = async |name| locks.lock(name).status().await.unwrap().holder.unwrap().held_for;
    let owner = Owner::new();
    let outer = locks.lock("a").owner(&owner).acquire().await.unwrap();
    sleep(SECOND / 5).await;
    let _other = locks.lock("b").acquire().await.unwrap();
    let inner = locks.lock("a").owner(&owner).acquire().await.unwrap();
    outer.release().await.unwrap();
    let (longer, shorter) = (held_for("a").await, held_for("b").await);
    // The time counts from the fence, and that of a new lock is 2 ms ahead.
    assert!(
        longer >= SECOND / 5 - SECOND / 500 && longer < 20 * SECOND,
        "{longer:?}"
    );
    assert!(shorter + SECOND / 10 < longer, "{shorter:?}, {longer:?}");
    inner.release().await.unwrap();
    let _again = locks.lock("a").acquire().await.unwrap();
    let again = held_for("a").await;
    assert!(again + SECOND / 10 < longer, "{again:?}, {longer:?}");
}

async fn status_counts_from_the_release_by_which_the_lock_was_handed_over(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = here.lock("a");
    let guard = lock.acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("a").acquire());
    backend.queued(&lock, 1, 1).await;
    sleep(2 * SECOND).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let _guard = waiting.await.unwrap().unwrap();
    let held_for = lock.status().await.unwrap().holder.unwrap().held_for;
    let most = released.elapsed() + SECOND;
    assert!(held_for < most, "{held_for:?}, {most:?}");
}

async fn status_shows_how_long_the_first_waiter_has_waited(backend: Backend) {
    let clients = backend.clients(3).await;
    let lock = clients[0].lock("a");
    let longest_wait = async || lock.status().await.unwrap().longest_wait;
    assert_eq!(longest_wait().await, None);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(longest_wait().await, None);
    let first = tokio::spawn(clients[1].lock("a").acquire());
    backend.queued(&lock, 1, 1).await;
    sleep(SECOND / 5).await;
    let second = tokio::spawn(clients[2].lock("a").acquire());
    backend.queued(&lock, 2, 2).await;
    let looked = Instant::now();
    let before = longest_wait().await.unwrap();
    assert!(before >= SECOND / 5 && before < 20 * SECOND, "{before:?}");
    // The second one has waited for less.
    guard.release().await.unwrap();
    let _first = first.await.unwrap().unwrap();
    let after = longest_wait().await.unwrap();
    assert!(
        after + SECOND / 10 < before + looked.elapsed(),
        "{after:?}, {before:?}"
    );
    second.abort();
}

async fn default_label_names_this_process(backend: Backend) {
    let locks = backend.client().await;
    let _guard = locks.lock("a").acquire().await.unwrap();
    let label = label_appears(&locks, "a").await;
    assert!(label.ends_with(&format!(":{}", std::process::id())), "{label}");
}

/// In memory, the label is removed with its client. A server keeps it for a minute after the client's last
/// call, so there this only shows that other clients keep their labels.
async fn label_goes_with_its_client(backend: Backend) {
    let gone = backend.client_with(labelled("gone")).await;
    let stays = backend.client_with(labelled("stays")).await;
    let kept = gone.lock("a").at_least(10 * SECOND).acquire().await.unwrap();
    kept.release().await.unwrap();
    let _guard = stays.lock("b").acquire().await.unwrap();
    assert_eq!(label_appears(&stays, "a").await, "gone");
    gone.close().await.ok();
    drop(gone);
    sleep(SECOND / 10).await;
    let after = label_of_holder(&stays, "a").await;
    assert_eq!(after.is_none(), backend.is_in_memory(), "{after:?}");
    assert_eq!(label_appears(&stays, "b").await, "stays");
}

async fn list_shows_locks_that_are_held_or_waited_for(backend: Backend) {
    let (here, there) = (
        backend.client_with(labelled("here")).await,
        backend.client_with(labelled("there")).await,
    );
    let busy = here.lock("busy").acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("busy").acquire());
    let _quiet = there.lock("{user:7}:quiet").acquire().await.unwrap();
    here.lock("released")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    while here.lock("busy").status().await.unwrap().waiting == 0 {
        sleep(SECOND / 100).await;
    }
    label_appears(&here, "busy").await;
    label_appears(&here, "{user:7}:quiet").await;

    let all = listed(&there, "*").await;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["busy", "{user:7}:quiet"]);
    let status = &all["busy"].status;
    let holder = status.holder.as_ref().unwrap();
    assert_eq!((status.waiting, holder.fence), (1, busy.fence()));
    assert_eq!(holder.label.as_deref(), Some("here"));
    assert!(holder.ttl > backend.unrenewed(30 * SECOND) / 2, "{holder:?}");
    let status = &all["{user:7}:quiet"].status;
    assert_eq!(status.waiting, 0);
    assert_eq!(status.holder.as_ref().unwrap().label.as_deref(), Some("there"));
    waiting.abort();
}

async fn list_keeps_to_its_pattern_and_prefix(backend: Backend) {
    let locks = backend.client().await;
    let inner_prefix = format!("{}:sub", backend.prefix());
    let inner = backend
        .client_with(|settings| settings.prefix(inner_prefix))
        .await;
    let mut guards = vec![inner.lock("invoice:3").acquire().await.unwrap()];
    for name in ["invoice:1", "invoice:22", "order:1", "in*oice"] {
        guards.push(locks.lock(name).acquire().await.unwrap());
    }
    assert_eq!(
        names(&locks, "*").await,
        ["in*oice", "invoice:1", "invoice:22", "order:1"]
    );
    assert_eq!(names(&locks, "invoice:*").await, ["invoice:1", "invoice:22"]);
    assert_eq!(names(&locks, "invoice:?").await, ["invoice:1"]);
    assert_eq!(names(&locks, "*:1").await, ["invoice:1", "order:1"]);
    assert_eq!(names(&locks, "in?oice").await, ["in*oice"]);
    assert_eq!(names(&locks, "invoice").await, [""; 0]);
    assert_eq!(names(&inner, "*").await, ["invoice:3"]);

    let refused = locks.list("").next().await.unwrap().unwrap_err().to_string();
    assert!(refused.contains("pattern \"\""), "{refused}");
}

/// There are more locks than a server lists at once, among other keys.
async fn list_finds_every_one_of_many_locks(backend: Backend) {
    // On a busy machine the renewals of so many votes may come later than those of a claim window must.
    let patient = |settings: LockManagerBuilder| settings.claim_window(30 * SECOND);
    let locks = backend.client_with(patient).await;
    let expected: BTreeSet<String> = (0..3000).map(|n| format!("job:{n}")).collect();
    let guards = futures_util::future::join_all(expected.iter().map(|name| locks.lock(name).acquire())).await;
    let found: BTreeSet<String> = listed(&locks, "job:*").await.into_keys().collect();
    assert_eq!(found, expected);
    for guard in guards {
        drop(guard.unwrap());
    }
}

async fn list_fails_once_its_client_is_closed(backend: Backend) {
    let locks = backend.client().await;
    locks.close().await.unwrap();
    let mut list = locks.list("*");
    assert!(matches!(list.next().await, Some(Err(Error::Closed))));
    assert!(list.next().await.is_none());
}
