//! Once callers give up, some of a client's waiters wait in the client: nobody is the worse for it.

use super::*;
use crate::Owner;

impl Scene {
    /// The lock is held by the other client, and two wait; a third one has given up, and there is a place for no more.
    async fn full() -> (Scene, LockGuard, Vec<JoinHandle<LockGuard>>) {
        let scene = Scene::new();
        let guard = scene.other.acquire().await.unwrap();
        let waiters = vec![scene.waiter().await, scene.waiter().await];
        scene
            .lock
            .acquire_timeout(Duration::from_millis(10))
            .await
            .unwrap_err();
        settle().await;
        (scene, guard, waiters)
    }

    /// How many wait in the server's queue.
    async fn queued(&self) -> u64 {
        self.other.status().await.unwrap().waiting
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_the_client_is_not_in_the_queue_and_leaves_nothing() {
    let (scene, _guard, _waiters) = Scene::full().await;
    let waits = scene.waiter().await;
    assert_eq!(scene.queued().await, 2);
    waits.abort();
    let left = scene
        .lock
        .acquire_timeout(Duration::from_millis(10))
        .await
        .unwrap_err();
    assert!(matches!(left, Error::Timeout { retry_after, .. } if retry_after > Duration::from_secs(1)));
    settle().await;
    assert_eq!(scene.queued().await, 2);
    assert!(locked(&scene.room().state).applicants().is_empty());
    assert_eq!(scene.locks.service().keeper().pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_in_the_client_have_their_turns_by_their_arrival_among_all_clients() {
    let (scene, guard, mut waiters) = Scene::full().await;
    for n in 0..6 {
        sleep(Duration::from_millis(10)).await;
        waiters.push(match n % 2 {
            0 => scene.waiter().await,
            _ => {
                let wait = scene.other.acquire();
                let waiter = tokio::spawn(async move { wait.await.unwrap() });
                settle().await;
                waiter
            }
        });
    }
    assert_eq!(scene.queued().await, 5, "three wait in the client");
    let mut guard = guard;
    for waiter in waiters {
        released(guard).await;
        guard = granted(waiter).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_who_may_hold_already_is_not_held_up() {
    let (scene, guard, waiters) = Scene::full().await;
    let owner = Owner::new();
    let outer = {
        let wait = scene.lock.clone().owner(&owner).acquire();
        tokio::spawn(async move { wait.await.unwrap() })
    };
    settle().await;
    released(guard).await;
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
    let _outer = granted(outer).await;
    let _full = [scene.waiter().await, scene.waiter().await, scene.waiter().await];
    let inner = scene
        .lock
        .clone()
        .owner(&owner)
        .acquire_timeout(Duration::from_millis(10));
    drop(inner.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_the_client_is_told_that_the_server_is_away() {
    let (scene, _guard, _waiters) = Scene::full().await;
    let waits = tokio::spawn(scene.lock.acquire());
    settle().await;
    scene.store.lose_calls(u32::MAX);
    let options = &scene.rooms().client().options;
    sleep(options.question_interval() + 2 * options.server_timeout).await;
    assert!(waits.is_finished());
    assert!(matches!(waits.await.unwrap(), Err(Error::Unavailable(_))));
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_a_client_that_is_closed_is_told_so() {
    let (scene, _guard, waiters) = Scene::full().await;
    drop(waiters);
    let waits = tokio::spawn(scene.lock.acquire());
    settle().await;
    scene.locks.close().await.unwrap();
    assert!(matches!(waits.await.unwrap(), Err(Error::Closed)));
    settle().await;
    assert_eq!(scene.rooms().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_is_admitted_as_it_gives_up_holds_up_nobody() {
    let (scene, guard, mut waiters) = Scene::full().await;
    let patience = Duration::from_millis(100);
    let wait = scene.lock.acquire_timeout(patience);
    let gives_up = tokio::spawn(wait);
    settle().await;
    let next = scene.waiter().await;
    // It is polled again only when there is a place and its time is over.
    assert!(tokio::time::advance(patience).now_or_never().is_none());
    released(guard).await;
    gives_up.await.unwrap().unwrap_err();
    waiters.push(next);
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
    settle().await;
    assert_eq!(
        (scene.queued().await, scene.locks.service().keeper().pending()),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_while_only_those_wait_whose_time_is_over_is_admitted_as_they_leave() {
    let scene = Scene::new();
    let _guard = scene.other.acquire().await.unwrap();
    let room = scene.room();
    let client = scene.rooms().client();
    let terms = LockOptions::default().terms(&client.options).unwrap();
    let enter = |patience: Option<Duration>| {
        let request = client.next_request(&terms, None);
        let arrived = client.now();
        let standing = Standing {
            arrived,
            until: patience.map(|patience| arrived.after(patience)),
            ticket: None,
            is_admitted: false,
        };
        let calls = PendingCalls::new(terms.lease(), standing.until);
        let (waiter, verdict) = Waiter::new(&request, terms, standing, &calls);
        (request.number(), room.enter(waiter).unwrap(), verdict)
    };
    let patience = Some(Duration::from_millis(10));
    let (gives_up, _, _first) = enter(patience);
    room.quit(gives_up);
    let (gives_up, _, _second) = enter(patience);
    let (_, leaves, _third) = enter(patience);
    sleep(Duration::from_millis(10)).await;
    room.quit(gives_up);
    let (_, waits, _fourth) = enter(None);
    let mut waits = waits.expect("it waits behind one whose time is over");
    assert!((&mut waits.admitted).now_or_never().is_none());
    room.cancel(&leaves.expect("it waited"));
    assert!((&mut waits.admitted).now_or_never().is_some(), "nobody admits it");
}
