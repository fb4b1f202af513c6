//! What a room knows of its client's record: that there is one, only after a call of somebody who waits opened it or
//! prolonged it. When in doubt the next call opens it.

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

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_read_too_late_has_the_next_request_open_it() {
    let (scene, room) = opened().await;
    let first = room.first().unwrap();
    let request = locked(&room.state).waiters[&first].request.clone();
    let grant = Grant {
        fence: crate::lease::Fence::new(1).unwrap(),
        deadline: ServerTime::default(),
        pushed: true,
        request,
    };
    room.tell(&grant, Some(scene.rooms().client().now()));
    assert_eq!(next_mode(&room), Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_when_nobody_waits_any_more_tells_nothing_of_it() {
    let (scene, room) = opened().await;
    let first = room.first().unwrap();
    let terms = locked(&room.state).waiters[&first].terms;
    let asked = room.ask(first, true).unwrap();
    for number in room.numbers() {
        room.quit(number);
    }
    room.send(asked).await.unwrap();
    let request = scene.rooms().client().next_request(&terms, None);
    let _verdict = room.join(&request, terms, None, &Arc::new(Trail::default()));
    assert_eq!(next_mode(&room), Mode::Open);
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
