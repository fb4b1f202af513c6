//! The attendant of a waiting room: its task. It subscribes, asks the server what nobody tells, and stays for a while
//! after the last waiter, so that a hot lock does not subscribe again and again.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use crate::engine::retry::Patience;
use crate::engine::waitlist::registry::Rooms;
use crate::engine::waitlist::schedule::{Sight, Todo};
use crate::engine::waitlist::{Heard, Room};
use crate::options::{MAX_ROOMS_KEPT, ROOM_KEPT};
use crate::store::Failure;
use crate::time::backoff::Backoff;
use crate::time::clock::Tick;

/// Attends to a room until it has been empty for long enough, or its client is closed.
pub(crate) async fn attend(rooms: Arc<Rooms>, room: Arc<Room>) {
    let client = Arc::clone(rooms.client());
    let mut patience = Patience::new(&client);
    let mut backoff = Backoff::new();
    let mut subscription = Subscription::Due(Tick::ZERO);
    // It was not seen, and made anew for that.
    let mut renewed = false;
    loop {
        if matches!(subscription, Subscription::Due(at) if client.now() >= at && !room.is_empty()) {
            subscription = Subscription::Asked(client.store.subscribe(Arc::clone(&room.channel)));
        }
        // First: a room that can't be reached misses its turns, and so has always somebody to ask for.
        if let Some(answer) = subscription.answer().now_or_never() {
            subscription = subscription_after(answer, &room, client.now(), &mut backoff);
        }
        let kept = if client.is_closed() || rooms.len() > MAX_ROOMS_KEPT {
            Duration::ZERO
        } else {
            ROOM_KEPT
        };
        let done = match room.todo(kept) {
            Todo::AskAll => ask(&room, room.numbers()).await,
            Todo::Ask(numbers) => ask(&room, numbers).await,
            Todo::Question => {
                let sight = question(&room).await;
                match sight {
                    Ok(Some(Sight::Seen)) => renewed = false,
                    Ok(Some(Sight::Unseen)) if matches!(subscription, Subscription::Up) => {
                        if renewed {
                            client.store.unseen(&room.channel);
                        } else {
                            renewed = true;
                            client.store.unsubscribe(&room.channel);
                            subscription = Subscription::Due(client.now());
                        }
                    }
                    _ => {}
                }
                sight.map(drop)
            }
            Todo::Wait(until) => {
                let until = match &subscription {
                    Subscription::Due(at) if !room.is_empty() => until.min(*at),
                    _ => until,
                };
                tokio::select! {
                    biased;
                    // Until it is up, the room lives by its questions.
                    answer = subscription.answer() => {
                        subscription = subscription_after(answer, &room, client.now(), &mut backoff);
                    }
                    () = room.call.notified() => {}
                    () = client.clock.sleep_until(until) => {}
                }
                patience.restore();
                continue;
            }
            Todo::Leave if rooms.remove(&room) => return,
            Todo::Leave => continue,
        };
        match done {
            Ok(()) => patience.restore(),
            Err(failure) => match patience.endure(failure) {
                Ok(pause) => tokio::time::sleep(pause).await,
                Err(error) => room.fail_all(&error),
            },
        }
    }
}

/// Whether the room's channel is subscribed to.
enum Subscription {
    /// To be asked for then.
    Due(Tick),
    Asked(Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>),
    Up,
}

impl Subscription {
    /// What comes of asking for it; nothing, if it has not been asked for.
    async fn answer(&mut self) -> Result<(), Failure> {
        match self {
            Subscription::Asked(answer) => answer.await,
            Subscription::Due(_) | Subscription::Up => std::future::pending().await,
        }
    }
}

/// What becomes of a subscription by the answer to it; the room hears of it.
fn subscription_after(
    answer: Result<(), Failure>,
    room: &Room,
    now: Tick,
    backoff: &mut Backoff,
) -> Subscription {
    match answer {
        Ok(()) => {
            *backoff = Backoff::new();
            room.subscribed();
            Subscription::Up
        }
        Err(failure @ (Failure::Refused(_) | Failure::Closed)) => {
            room.fail_all(&failure.into());
            Subscription::Due(now)
        }
        Err(_) => Subscription::Due(now.after(backoff.step())),
    }
}

/// Sends the calls of these requests, in this order and all at once.
async fn ask(room: &Room, numbers: impl IntoIterator<Item = u64>) -> Result<(), Failure> {
    let calls = numbers.into_iter().map(|number| call(room, number, false));
    let mut calls: FuturesUnordered<_> = calls.collect();
    let mut outcome = Ok(());
    while let Some(answer) = calls.next().await {
        outcome = outcome.and(answer.map(drop));
    }
    outcome
}

/// Asks for the first of the room whether anything happened that nobody told. Returns whether the server sees the
/// subscription, where it tells.
async fn question(room: &Room) -> Result<Option<Sight>, Failure> {
    let Some(number) = room.first() else {
        return Ok(None);
    };
    // Whoever is granted the lock hears nothing of the subscription.
    let seen = call(room, number, true).await?;
    Ok(seen.map(|seen| room.questioned(seen)))
}

/// Sends one call of a request, and has it repeated if need be. Returns whether the server sees the room's
/// subscription, where it tells.
async fn call(room: &Room, number: u64, question: bool) -> Result<Option<bool>, Failure> {
    let Some(asked) = room.ask(number, question) else {
        return Ok(None);
    };
    let heard = room.send(asked).await;
    if matches!(heard, Err(_) | Ok((Heard::Again, _))) {
        room.ask_again(number);
    }
    heard.map(|(_, seen)| seen)
}
