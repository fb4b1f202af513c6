//! Whoever waits in a room is reached when its turn comes, whatever became of its place and of the client's record.
//!
//! Time stands still unless a test sleeps: what must not wait for a timer is done by [`settle`].

mod admission;
mod failures;
mod record;

use futures_util::FutureExt;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::applicants::Joined;
use super::calls::{About, Asked};
use super::*;
use crate::engine::waitlist::registry::Rooms;
use crate::options::{JITTER, LockOptions};
use crate::store::ids::ClientId;
use crate::store::{Acquire, Acquired, Contended, Grant, Listener, Mode};
use crate::store::{ConnectionId, Stamp};
use crate::time::clock_offset::Exchange;
use crate::time::deadline::NOT_AFTER;
use crate::time::server_time::ServerTime;
use crate::{Lock, LockGuard, LockManager, LockManagerBuilder, MemoryStore};

const NAME: &str = "a";

/// Two clients of one store.
struct Scene {
    store: MemoryStore,
    /// Of the one that holds the lock while the other one waits.
    other: Lock,
    locks: LockManager,
    lock: Lock,
}

impl Scene {
    fn new() -> Scene {
        Scene::on(MemoryStore::new())
    }

    fn on(store: MemoryStore) -> Scene {
        Scene::of(store, &LockManager::builder())
    }

    fn of(store: MemoryStore, builder: &LockManagerBuilder) -> Scene {
        let client = || builder.clone().in_memory(&store).unwrap();
        let (other, locks) = (client(), client());
        Scene {
            other: other.lock(NAME),
            lock: locks.lock(NAME),
            locks,
            store,
        }
    }

    fn rooms(&self) -> &Arc<Rooms> {
        self.locks.service().rooms()
    }

    fn room(&self) -> Arc<Room> {
        let keys = keys();
        let channel = keys.channel_of(&self.rooms().client().id);
        self.rooms().enter(&keys, &channel, |_| ()).0
    }

    /// A request that is in the room, and of which nothing has been sent.
    fn newcomer(&self) -> (Request, oneshot::Receiver<Verdict>) {
        let client = self.rooms().client();
        let terms = LockOptions::default().terms(&client.options).unwrap();
        let request = client.next_request(&terms, None);
        let waiter = self.room().take_in(&request, terms, None);
        (request, waiter.verdict)
    }

    /// Another waiter, queued and subscribed.
    async fn waiter(&self) -> JoinHandle<LockGuard> {
        let wait = self.lock.acquire();
        let waiter = tokio::spawn(async move { wait.await.unwrap() });
        settle().await;
        assert!(!waiter.is_finished());
        waiter
    }
}

impl Room {
    /// Takes in a request that is not held up.
    pub(crate) fn take_in(&self, request: &Request, terms: Terms, ticket: Option<Ticket>) -> Joined {
        let standing = Standing {
            ticket,
            is_admitted: true,
            ..self.newcomer(None)
        };
        locked(&self.state).join(standing.arrived, request.clone(), terms, standing)
    }

    /// One that comes now.
    fn newcomer(&self, patience: Option<Duration>) -> Standing {
        let arrived = self.client.now();
        Standing {
            arrived,
            until: patience.map(|patience| arrived.after(patience)),
            ticket: None,
            is_admitted: false,
        }
    }

    /// The caller of this request gives up.
    fn give_up(&self, number: u64) {
        let state = locked(&self.state);
        let Waiter { request, calls, .. } = &*state.waiters[&number];
        let waiter = Joined {
            request: request.clone(),
            calls: Arc::clone(calls),
            verdict: oneshot::channel().1,
        };
        drop(state);
        self.quit(&waiter);
    }
}

fn keys() -> Arc<Keys> {
    Arc::new(Keys::new("fairlock", NAME).unwrap())
}

/// Everything happens that needs no time.
async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

fn exchange(now: Tick, server: ServerTime) -> Exchange {
    Exchange {
        sent: now,
        received: now,
        now: server,
    }
}

/// The answer to a request that is queued as before.
fn contended() -> Contended {
    Contended {
        ttl: Duration::from_secs(30),
        ticket: None,
        ahead: 0,
        seen: true,
        enqueued: false,
        denied: false,
        sibling: None,
    }
}

/// The guard of a waiter that has heard of its grant.
async fn granted(waiter: JoinHandle<LockGuard>) -> LockGuard {
    settle().await;
    assert!(waiter.is_finished(), "it waits for a timer");
    waiter.await.unwrap()
}

async fn released(guard: LockGuard) {
    guard.release().await.unwrap();
}

/// The lock goes on from that holder to that waiter at once, and is given back.
async fn handed_over(guard: LockGuard, waiter: JoinHandle<LockGuard>) {
    released(guard).await;
    released(granted(waiter).await).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_of_a_room_is_reached_though_the_last_record_is_about_to_run_out() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    handed_over(guard, waiter).await;

    let heartbeat = scene.rooms().client().options.heartbeat;
    sleep(heartbeat * 8 / 10).await;
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    sleep(heartbeat * 3 / 10 - Duration::from_millis(500)).await;
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_of_a_room_is_reached_though_a_hold_of_its_client_ran_out() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    released(guard).await;
    let forgotten = granted(waiter).await;
    let lease = forgotten.lease().length();
    forgotten.forget();
    let guard = scene.other.acquire().await.unwrap();
    assert!(guard.lease().length() >= lease);
    let waiter = scene.waiter().await;
    handed_over(guard, waiter).await;
}

/// The process stands still for as long as an unclaimed grant lasts: nobody looks at anything meanwhile.
fn stand_still(scene: &Scene) {
    let claim_window = scene.rooms().client().options.claim_window();
    assert!(tokio::time::advance(claim_window).now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn who_missed_its_turn_as_a_hold_of_its_client_ran_out_unclaimed_is_back_as_soon_as_another_asks() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let (first, earlier) = (scene.waiter().await, scene.waiter().await);
    released(guard).await;
    let mine = granted(first).await;
    stand_still(&scene);
    assert!(mine.is_lost());
    // This finds what ran out, and takes the record of its client away. So the turn of the earlier one is missed.
    let guard = scene.other.acquire().await.unwrap();
    let later = scene.waiter().await;
    handed_over(guard, earlier).await;
    released(granted(later).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_meant_to_run_out_costs_the_waiters_of_its_client_no_turn() {
    let (lease, ms) = (Duration::from_secs(2), Duration::from_millis);
    for way in ["fixed lease", "maximum hold", "forgotten"] {
        for is_pushed in [false, true] {
            let scene = Scene::new();
            let lock = scene.lock.clone();
            let lock = match way {
                "fixed lease" => lock.fixed_lease(lease),
                "maximum hold" => lock.max_hold(lease),
                _ => lock.lease(lease),
            };
            let before = match is_pushed {
                true => Some(scene.other.acquire().await.unwrap()),
                false => None,
            };
            let mine = tokio::spawn(async move { lock.acquire().await.unwrap() });
            settle().await;
            // They are queued before anybody else.
            let waiters = [scene.waiter().await, scene.waiter().await];
            if let Some(guard) = before {
                released(guard).await;
            }
            let mine = granted(mine).await;
            let mut held = Some(mine);
            if way == "forgotten" {
                held.take().unwrap().forget();
            }
            // Others ask before they do, just when the lease is over.
            let others = scene.other.clone();
            let next = tokio::spawn(async move { others.acquire().await.unwrap() });
            sleep(lease + ms(1)).await;
            drop(scene.other.try_acquire().await.unwrap());
            for waiter in waiters {
                assert!(!next.is_finished(), "{way}, pushed: {is_pushed}");
                released(granted(waiter).await).await;
            }
            released(granted(next).await).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_goes_on_until_it_has_reached_somebody() {
    let scene = Scene::on(MemoryStore::with_bound(2));
    let guard = scene.other.acquire().await.unwrap();
    for _ in 0..5 {
        tokio::spawn(scene.other.acquire());
    }
    settle().await;
    scene.store.forget_records();
    let waiter = scene.waiter().await;
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn all_of_a_room_are_reached_after_a_reconnect() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiters = [scene.waiter().await, scene.waiter().await];
    scene.store.forget_records();
    scene.rooms().reconnected(ServerId::default());
    settle().await;
    released(guard).await;
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_call_of_before_a_reconnect_tells_nothing_of_the_record() {
    let scene = Scene::new();
    let _guard = scene.other.acquire().await.unwrap();
    let _waiter = scene.waiter().await;
    let room = scene.room();
    let first = room.first().unwrap();
    room.forget_record();
    let before = room.ask(first, true).unwrap();
    scene.rooms().reconnected(ServerId::default());
    let (heard, _) = room.send(before).await.unwrap();
    assert_eq!(heard, Heard::Queued);
    assert_eq!(room.ask(first, true).unwrap().call.mode, Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_call_of_before_the_record_went_tells_nothing_of_it() {
    let scene = Scene::new();
    let _guard = scene.other.acquire().await.unwrap();
    let _waiter = scene.waiter().await;
    let room = scene.room();
    let first = room.first().unwrap();
    room.forget_record();
    let before = room.ask(first, true).unwrap();
    let (now, about) = (scene.rooms().client().now(), before.about);
    let at = Exchange {
        sent: now,
        received: now,
        now: ServerTime::default(),
    };
    room.heard(about, &at, Acquired::Gone { seen: true });
    room.send(before).await.unwrap();
    assert_eq!(room.ask(first, true).unwrap().call.mode, Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_everybody_has_left_needs_no_attendant() {
    let scene = Scene::new();
    assert!(!scene.room().needs_attendant());
}

#[tokio::test(start_paused = true)]
async fn all_of_a_room_are_reached_once_a_question_was_answered_that_the_record_is_gone() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiters = [scene.waiter().await, scene.waiter().await];
    scene.store.forget_records();
    sleep(scene.rooms().client().options.question_interval() + 2 * JITTER).await;
    settle().await;
    released(guard).await;
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_of_a_room_are_reached_once_one_found_the_lock_free_that_had_missed_its_turn() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiters = [scene.waiter().await, scene.waiter().await, scene.waiter().await];
    scene.store.forget_records();
    // Nobody can be reached: all lose their places.
    released(guard).await;
    settle().await;
    let room = scene.room();
    assert_eq!(room.numbers().len(), 3, "nobody has heard of anything");
    // As after a lost reply.
    room.ask_again(room.numbers()[0]);
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_not_heard_of_its_grant_is_told_by_a_reply_to_another() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let (waiter, other) = (scene.waiter().await, scene.waiter().await);
    let room = scene.room();
    let (number, now) = (room.first().unwrap(), scene.rooms().client().now());
    let request = locked(&room.state).waiters[&number].request.clone();
    let time = ServerTime::from_ms(1_000);
    let sibling = Grant {
        fence: guard.fence(),
        deadline: time.after(request.grant()),
        pushed: true,
        request,
    };
    let about = About {
        number: room.numbers().into_iter().find(|other| *other != number).unwrap(),
        record: None,
        again: true,
        subscriptions: locked(&room.state).subscriptions,
    };
    let at = exchange(now, time);
    let reply = Contended {
        sibling: Some(sibling),
        ..contended()
    };
    assert_eq!(room.heard(about, &at, Acquired::Contended(reply)), Heard::Queued);
    granted(waiter).await.forget();
    assert!(!other.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_question_to_the_holder_is_asked_once_more_for_another() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let (waiter, _other) = (scene.waiter().await, scene.waiter().await);
    let room = scene.room();
    let asked = room.ask(room.first().unwrap(), true).unwrap();
    released(guard).await;
    // Its push is read before that: only the server's answer tells that nothing was prolonged.
    room.send(asked).await.unwrap();
    assert_eq!(room.todo(Duration::ZERO), Todo::Question);
    let next = room.first().unwrap();
    assert_eq!(room.ask(next, true).unwrap().call.mode, Mode::Open);
    released(granted(waiter).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_question_that_comes_too_late_prolongs_nothing() {
    let scene = Scene::new();
    let _guard = scene.other.acquire().await.unwrap();
    let _waiter = scene.waiter().await;
    let room = scene.room();
    let first = room.first().unwrap();
    let mut asked = room.ask(first, true).unwrap();
    asked.call.not_after = Arc::new(ServerTime::default());
    assert!(room.send(asked).await.is_err());
    assert_eq!(room.ask(first, false).unwrap().call.mode, Mode::Open);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_was_empty_asks_in_time_however_long_the_lease_is() {
    let scene = Scene::new();
    let lease = Duration::from_secs(600);
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    handed_over(guard, waiter).await;
    // From then on its attendant sleeps until it leaves.
    let interval = scene.rooms().client().options.question_interval();
    sleep(2 * interval).await;
    let guard = scene.other.clone().lease(lease).acquire().await.unwrap();
    let waiter = scene.waiter().await;
    scene.store.forget_records();
    sleep(interval + 2 * JITTER).await;
    settle().await;
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn a_room_that_somebody_has_come_into_is_not_left() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    assert!(!scene.rooms().remove(&scene.room()));
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn who_reads_of_a_grant_too_late_leaves_nothing_and_keeps_its_place() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    let behind = scene.other.acquire();
    let behind = tokio::spawn(async move { behind.await.unwrap() });
    settle().await;
    let room = scene.room();
    let first = room.first().unwrap();
    let request = locked(&room.state).waiters[&first].request.clone();
    let grant = Grant {
        fence: guard.fence(),
        deadline: ServerTime::default(),
        pushed: true,
        request,
    };
    let left = grant.request.grant() / 8;
    let heard = room.tell(&grant, Some(scene.rooms().client().now().after(left)));
    assert_eq!(heard, Heard::Settled);
    settle().await;
    released(guard).await;
    let guard = granted(waiter).await;
    assert!(!behind.is_finished());
    handed_over(guard, behind).await;
}

#[tokio::test(start_paused = true)]
async fn a_room_asks_for_the_one_whose_turn_comes_first() {
    let scene = Scene::new();
    let _guard = scene.other.acquire().await.unwrap();
    let _waiter = scene.waiter().await;
    let room = scene.room();
    let oldest = room.first().unwrap();
    let ticket = locked(&room.state).waiters[&oldest].standing.ticket.unwrap();
    let terms = locked(&room.state).waiters[&oldest].terms;
    let client = scene.rooms().client();
    // They wait on in places of before, as after a grant that came too late; and one has no place yet.
    let mut verdicts = Vec::new();
    for ticket in [Some(Ticket(ticket.0 - 1)), Some(Ticket(ticket.0 - 2)), None] {
        let request = client.next_request(&terms, None);
        verdicts.push((request.number(), room.take_in(&request, terms, ticket)));
    }
    let turns: Vec<u64> = std::iter::from_fn(|| {
        let first = room.first()?;
        room.give_up(first);
        Some(first)
    })
    .collect();
    let [one_before, two_before, none] = [0, 1, 2].map(|n: usize| verdicts[n].0);
    assert_eq!(turns, [two_before, one_before, oldest, none]);
}

#[tokio::test(start_paused = true)]
async fn all_of_a_room_ask_at_once_after_one_found_itself_removed() {
    // It found that out before it heard of its grant, or after.
    for is_here in [true, false] {
        let scene = Scene::new();
        let _guard = scene.other.acquire().await.unwrap();
        let _waiters = [scene.waiter().await, scene.waiter().await];
        let room = scene.room();
        // Later than that the attendant is not put off by the answer.
        sleep(Duration::from_millis(100)).await;
        scene.store.flush();
        let _other = scene.other.acquire().await.unwrap();
        let number = room.first().unwrap();
        if !is_here {
            room.give_up(number);
        }
        let about = About {
            number,
            record: None,
            again: true,
            subscriptions: locked(&room.state).subscriptions,
        };
        let reply = Contended {
            enqueued: true,
            ..contended()
        };
        let client = scene.rooms().client();
        let at = exchange(client.now(), client.clocks.server_time(ServerId::default()));
        room.heard(about, &at, Acquired::Contended(reply));
        settle().await;
        assert_eq!(scene.store.queued(), room.numbers().len(), "{is_here}");
    }
}

/// It has waited for its turn, or it was being written and then another thread was faster.
#[tokio::test(start_paused = true)]
async fn a_question_that_would_run_after_the_end_of_its_request_leaves_nothing() {
    // Its hold was released, or its caller stopped waiting.
    for (was_granted, was_written) in [(true, true), (true, false), (false, true), (false, false)] {
        let scene = Scene::new();
        let mut guard = scene.other.acquire().await.unwrap();
        let waiter = scene.waiter().await;
        let room = scene.room();
        let mut asked = room.ask(room.first().unwrap(), true).unwrap();
        if was_written {
            let not_after = asked.pending.written(ConnectionId::default()).unwrap();
            asked.call.not_after = Arc::new(not_after);
        }
        if was_granted {
            handed_over(guard, waiter).await;
            guard = scene.other.acquire().await.unwrap();
        } else {
            waiter.abort();
        }
        settle().await;
        assert_eq!(scene.store.queued(), 0);
        let case = format!("granted: {was_granted}, written: {was_written}");
        assert_eq!(room.send(asked).await.is_ok(), was_written, "{case}");
        settle().await;
        assert_eq!(scene.store.queued(), 0, "{case}");
        released(guard).await;
        let tried = scene.other.try_acquire().await.unwrap();
        assert!(tried.acquired().is_some(), "{case}");
    }
}

/// Its turn comes before its client listens, and its first answer after the client has asked whether it missed anything.
#[tokio::test(start_paused = true)]
async fn who_missed_its_turn_before_it_heard_of_its_place_does_not_wait_for_a_timer() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let (client, room) = (scene.rooms().client(), scene.room());
    let (request, _verdict) = scene.newcomer();
    let Asked {
        call, pending, about, ..
    } = room.ask(request.number(), false).unwrap();
    let answer = client.acquire(call, &pending).await.unwrap();
    let next = tokio::spawn(scene.other.acquire());
    settle().await;
    released(guard).await;
    settle().await;
    let _guard = next.await.unwrap().unwrap();
    // Another one opens the client's record again, subscribes, and asks.
    let _waiter = scene.waiter().await;
    assert_eq!(scene.store.queued(), 1);
    room.heard(about, &answer.at, answer.reply);
    settle().await;
    assert_eq!(scene.store.queued(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_reconnect_a_push_is_only_a_reason_to_ask() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    let room = scene.room();
    let first = room.first().unwrap();
    let client = scene.rooms().client();
    let request = locked(&room.state).waiters[&first].request.clone();
    let push = Push::write(&Grant {
        fence: guard.fence(),
        deadline: client
            .clocks
            .server_time(ServerId::default())
            .after(request.grant()),
        pushed: true,
        request,
    });
    scene.rooms().reconnected(ServerId::default());
    // By the clock of before it would be in time.
    room.pushed(ServerId::default(), &push);
    assert_eq!(room.first(), Some(first));
    settle().await;
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_anothers_request_is_not_taken() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = scene.waiter().await;
    let room = scene.room();
    let first = room.first().unwrap();
    let claim_window = Duration::from_secs(5);
    let grant = Grant {
        fence: guard.fence(),
        deadline: ServerTime::MAX,
        pushed: true,
        request: Request::new(&ClientId::from_number(7), claim_window, first, None),
    };
    room.tell(&grant, Some(scene.rooms().client().now().after(claim_window)));
    assert_eq!(room.first(), Some(first));
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_as_the_lease_ends_is_not_told_to_try_again_at_once() {
    let scene = Scene::new();
    let lease = Duration::from_secs(2);
    let holder = scene.other.clone().fixed_lease(lease);
    holder.acquire().await.unwrap().forget();
    let ended = scene.lock.acquire_timeout(lease).await;
    let Err(Error::Timeout { retry_after, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(retry_after, Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn nobody_enters_a_room_of_a_closed_client() {
    let scene = Scene::new();
    let room = scene.room();
    let client = scene.rooms().client();
    let terms = LockOptions::default().terms(&client.options).unwrap();
    scene.locks.close().await.unwrap();
    let entered = room.enter(terms, None, room.newcomer(None));
    assert!(matches!(entered, Err(Error::Closed)));
    assert!(room.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_leaves_its_rooms_at_once() {
    let scene = Scene::new();
    let guard = scene.other.acquire().await.unwrap();
    let waiter = tokio::spawn(scene.lock.acquire());
    settle().await;
    assert_eq!(scene.rooms().len(), 1);
    scene.locks.close().await.unwrap();
    assert!(matches!(waiter.await.unwrap(), Err(Error::Closed)));
    settle().await;
    assert_eq!(scene.rooms().len(), 0);
    released(guard).await;
}
