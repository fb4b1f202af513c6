//! While most callers give up, most of a client's waiters wait in the client: nobody is the worse for it.

use super::super::applicants::Application;
use super::*;
use crate::Owner;

impl Scene {
    /// The lock is held by the other client, and one waits. Many have given up: there is a place for no more.
    async fn full() -> (Scene, LockGuard, Vec<JoinHandle<LockGuard>>) {
        let scene = Scene::new();
        let guard = scene.other.acquire().await.unwrap();
        for _ in 0..32 {
            scene
                .lock
                .acquire_timeout(Duration::from_millis(10))
                .await
                .unwrap_err();
        }
        let waiters = vec![scene.waiter().await];
        (scene, guard, waiters)
    }

    /// One that comes to the room, in which there is no place.
    fn applied(&self, patience: Option<Duration>) -> Application {
        let (room, options) = (self.room(), &self.rooms().client().options);
        let terms = LockOptions::default().terms(options).unwrap();
        match room.enter(terms, None, room.newcomer(patience)).unwrap() {
            Entered::Waiter(_) => panic!("there is a place"),
            Entered::Applicant(application) => *application,
        }
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
    assert_eq!(scene.queued().await, 1);
    waits.abort();
    let left = scene
        .lock
        .acquire_timeout(Duration::from_millis(10))
        .await
        .unwrap_err();
    assert!(matches!(left, Error::Timeout { retry_after, .. } if retry_after > Duration::from_secs(1)));
    settle().await;
    assert_eq!(scene.queued().await, 1);
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
    assert_eq!(scene.queued().await, 4, "three wait in the client");
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
    let (scene, _guard, waiters) = Scene::full().await;
    let room = scene.room();
    let leaves = scene.applied(Some(Duration::from_millis(10)));
    sleep(Duration::from_millis(10)).await;
    for waiter in waiters {
        waiter.abort();
    }
    settle().await;
    assert_eq!(scene.queued().await, 0, "its time is over");
    // It waits behind one whose time is over.
    let mut waits = scene.applied(None);
    assert!((&mut waits.admitted).now_or_never().is_none());
    room.cancel(leaves);
    assert!((&mut waits.admitted).now_or_never().is_some(), "nobody admits it");
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_as_it_is_admitted_leaves_nothing() {
    for is_granted in [true, false] {
        let (scene, guard, waiters) = Scene::full().await;
        // Its caller does not read that it is admitted.
        let application = scene.applied(None);
        let mut guard = Some(guard);
        for waiter in waiters {
            if is_granted {
                released(guard.take().unwrap()).await;
                guard = Some(granted(waiter).await);
            } else {
                waiter.abort();
            }
        }
        if is_granted {
            released(guard.take().unwrap()).await;
        }
        settle().await;
        assert_eq!(scene.queued().await, u64::from(!is_granted));
        scene.room().cancel(application);
        settle().await;
        assert_eq!(scene.queued().await, 0);
        assert!(scene.room().is_empty());
        drop(guard);
        settle().await;
        assert!(scene.other.status().await.unwrap().holder.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_admitted_in_the_place_of_its_arrival_has_not_been_in_the_queue_before() {
    let scene = Scene::new();
    let room = scene.room();
    let client = scene.rooms().client();
    let terms = LockOptions::default().terms(&client.options).unwrap();
    for is_admitted in [true, false] {
        let standing = Standing {
            ticket: Some(Ticket(1)),
            is_admitted,
            ..room.newcomer(None)
        };
        let request = client.next_request(&terms, None);
        let number = request.number();
        let mut state = locked(&room.state);
        state.join(client.now(), request, terms, standing);
        assert_eq!(state.waiters[&number].was_queued, is_admitted);
    }
}

#[tokio::test(start_paused = true)]
async fn once_most_are_served_again_all_are_in_the_queue() {
    let (scene, guard, mut waiters) = Scene::full().await;
    for _ in 0..100 {
        waiters.push(scene.waiter().await);
    }
    assert_eq!(scene.queued().await, 1);
    let mut guard = guard;
    for waiter in waiters.drain(..60) {
        released(guard).await;
        guard = granted(waiter).await;
    }
    assert_eq!(scene.queued().await, 41);
    for waiter in waiters {
        released(guard).await;
        guard = granted(waiter).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_by_arrival_is_behind_those_that_came_before() {
    let scene = Scene::new();
    let room = scene.room();
    let client = scene.rooms().client();
    let terms = LockOptions::default().terms(&client.options).unwrap();
    let state = &mut *locked(&room.state);
    let [before, mut first, mut second, after] = [(); 4].map(|()| room.newcomer(None));
    let joins = |state: &mut State, standing, ticket| {
        let request = client.next_request(&terms, None);
        state.join(client.now(), request, terms, Standing { ticket, ..standing });
    };
    // As if the server's clock were ahead of what is known here.
    let far = Ticket(u64::MAX / 2);
    joins(state, before, Some(far));
    room.give_places(client.now(), state, [&mut first, &mut second]);
    assert_eq!(first.ticket, Some(Ticket(far.0 + 1)));
    assert_eq!(second.ticket, Some(Ticket(far.0 + 2)));
    joins(state, after, Some(Ticket(far.0 + 7)));
    let mut last = Standing {
        arrived: client.now().after(Duration::from_millis(1)),
        ..first
    };
    room.give_places(client.now(), state, [&mut first, &mut last]);
    assert_eq!(
        (first.ticket, last.ticket),
        (Some(Ticket(far.0 + 8)), Some(Ticket(far.0 + 9)))
    );
    joins(state, before, None);
    room.give_places(client.now(), state, [&mut first, &mut last]);
    assert_eq!((first.ticket, last.ticket), (None, None));
}
