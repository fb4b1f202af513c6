//! What a room knows of its client's record: that there is one, for a while after a call opened it or prolonged it. When in
//! doubt the next call opens it.

use super::*;

/// A room whose client has opened its record, and in which two wait.
async fn opened() -> (Scene, Arc<Room>) {
    let scene = Scene::new();
    scene.other.acquire().await.unwrap().forget();
    for _ in 0..2 {
        drop(scene.waiter().await);
    }
    let room = scene.room();
    assert_eq!(next_mode(&room), Mode::Wait);
    (scene, room)
}

/// How the next request of the room asks.
fn next_mode(room: &Room) -> Mode {
    let next = *room.numbers().last().unwrap();
    room.ask(next, false).unwrap().call.mode
}

fn all_quit(room: &Room) {
    for number in room.numbers() {
        room.give_up(number);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_read_too_late_has_the_next_request_open_it() {
    let (scene, room) = opened().await;
    let first = room.first().unwrap();
    let request = locked(&room.state).waiters[&first].request.clone();
    let grant = Grant {
        fence: crate::fence::Fence::new(1).unwrap(),
        deadline: ServerTime::default(),
        pushed: true,
        request,
    };
    room.tell(&grant, Some(scene.rooms().client().now()));
    assert_eq!(next_mode(&room), Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_was_empty_for_a_moment_knows_of_it() {
    let (scene, room) = opened().await;
    all_quit(&room);
    let _verdict = scene.newcomer();
    assert_eq!(next_mode(&room), Mode::Wait);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_was_empty_for_as_long_as_between_two_questions_opens_it_again() {
    let (scene, room) = opened().await;
    all_quit(&room);
    sleep(scene.rooms().client().options.question_interval()).await;
    let _verdict = scene.newcomer();
    assert_eq!(next_mode(&room), Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn a_room_in_which_somebody_waits_asks_whether_it_is_there_however_old_it_is() {
    let (scene, room) = opened().await;
    sleep(2 * scene.rooms().client().options.question_interval()).await;
    // As if no question had prolonged it.
    locked(&room.state).record.as_mut().unwrap().since = Tick::ZERO;
    let asked = room.ask(room.first().unwrap(), true).unwrap();
    assert_eq!(asked.call.mode, Mode::Question);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_subscribed_while_it_was_empty_opens_it_again() {
    let (scene, room) = opened().await;
    all_quit(&room);
    room.subscribed();
    let _verdict = scene.newcomer();
    assert_eq!(next_mode(&room), Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_unclaimed_takes_it_with_it_as_the_server_finds_it_over() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    released(guard).await;
    let mine = granted(waiter).await;
    stand_still(&scene);
    scene.other.acquire().await.unwrap().forget();
    settle().await;
    assert!(mine.is_lost());
    drop(scene.waiter().await);
    let room = scene.room();
    assert_eq!(
        next_mode(&room),
        Mode::Open,
        "it was opened before the lease was over on the server"
    );
    all_quit(&room);
    sleep(NOT_AFTER + Duration::from_millis(100)).await;
    drop(scene.waiter().await);
    assert_eq!(next_mode(&room), Mode::Wait, "it was opened since");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_meant_to_run_out_leaves_it() {
    let scene = Scene::new();
    let lease = Duration::from_millis(100);
    let guard = scene.lock.clone().fixed_lease(lease).acquire().await.unwrap();
    guard.lost().await;
    drop(scene.waiter().await);
    assert_eq!(next_mode(&scene.room()), Mode::Wait);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_forgotten_lasts_for_its_whole_lease() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    released(guard).await;
    let guard = granted(waiter).await;
    let lease = guard.lease();
    assert!(lease.remaining() < lease.length() / 2, "it was handed over");
    guard.forget();
    sleep(lease.length() - Duration::from_secs(1)).await;
    let attempt = scene.other.try_acquire().await.unwrap();
    assert!(attempt.acquired().is_none(), "it ran out too soon");
    sleep(2 * Duration::from_secs(1)).await;
    let attempt = scene.other.try_acquire().await.unwrap();
    assert!(attempt.acquired().is_some(), "it goes on");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_forgotten_and_cannot_be_claimed_takes_it_with_it() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    released(guard).await;
    let guard = granted(waiter).await;
    let lapse = || scene.rooms().client().presence.last_expiry(&keys());
    assert_eq!(lapse(), None);
    scene.store.flush();
    guard.forget();
    settle().await;
    assert!(lapse().is_some());
    scene.other.acquire().await.unwrap().forget();
    drop(scene.waiter().await);
    assert_eq!(next_mode(&scene.room()), Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_neither_opens_nor_prolongs_it_tells_nothing_of_it() {
    let (_scene, room) = opened().await;
    let asked = room.ask(room.first().unwrap(), false).unwrap();
    assert_eq!(asked.call.mode, Mode::Wait);
    room.forget_record();
    assert_eq!(room.send(asked).await.unwrap().0, Heard::Queued);
    assert_eq!(next_mode(&room), Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_failed_tells_nothing_of_it() {
    let (scene, room) = opened().await;
    let asked = room.ask(room.first().unwrap(), true).unwrap();
    scene.store.lose_calls(1);
    room.send(asked).await.unwrap_err();
    assert_eq!(next_mode(&room), Mode::Open);
}
