//! The attendant of a waiting room: its task. It subscribes, asks the server what nobody tells, gives back what came
//! too late, and stays for a while after the last waiter, so that a hot lock does not subscribe again and again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::client::{Client, as_error};
use crate::clock::Tick;
use crate::error::{Error, Result};
use crate::options::{MAX_ROOMS_KEPT, ROOM_KEPT};
use crate::retry::Backoff;
use crate::room::{GiveBack, Heard, Room, Todo};
use crate::rooms::Rooms;
use crate::store::{Acquired, Failure, Release, ReleaseWhat};

/// Attends to a room until it has been empty for long enough, or its client is closed.
pub(crate) async fn attend(rooms: Arc<Rooms>, room: Arc<Room>) {
    let client = Arc::clone(rooms.client());
    let mut patience = Patience::new(&client);
    let mut subscribed = false;
    loop {
        if client.is_closed() {
            room.fail_all(&Error::Closed);
        }
        let step = if !subscribed && !room.is_empty() {
            let step = client.store.subscribe(Arc::clone(&room.channel)).await;
            if step.is_ok() {
                subscribed = true;
                room.subscribed();
            }
            step
        } else {
            let kept = if client.is_closed() || rooms.len() > MAX_ROOMS_KEPT {
                Duration::ZERO
            } else {
                ROOM_KEPT
            };
            match room.todo(kept) {
                Todo::GiveBack(give_back) => return_grant(&client, &room, give_back).await,
                Todo::Ask(numbers) => ask(&client, &room, &numbers).await,
                Todo::Question(number) => question(&client, &room, number).await,
                Todo::Wait(until) => {
                    tokio::select! {
                        () = room.call.notified() => {}
                        () = client.clock.sleep_until(until) => {}
                    }
                    continue;
                }
                Todo::Leave if rooms.remove(&room) => return,
                Todo::Leave => continue,
            }
        };
        match step {
            Ok(()) => patience.restore(),
            Err(failure) => match patience.endure(failure) {
                Ok(pause) => tokio::time::sleep(pause).await,
                Err(error) => room.fail_all(&error),
            },
        }
    }
}

/// Sends the calls of these requests, in this order and all at once.
async fn ask(client: &Client, room: &Room, numbers: &[u64]) -> Result<(), Failure> {
    let mut calls: FuturesUnordered<_> = numbers
        .iter()
        .map(|&number| async move { (number, call(client, room, number, false).await) })
        .collect();
    let mut outcome = Ok(());
    while let Some((number, answer)) = calls.next().await {
        if let Err(failure) = answer {
            room.ask_again(number);
            outcome = Err(failure);
        }
    }
    outcome
}

/// Asks for the first of the room whether anything happened that nobody told.
async fn question(client: &Client, room: &Room, number: u64) -> Result<(), Failure> {
    let answer = call(client, room, number, true).await;
    room.questioned(matches!(answer, Ok(Some(true))));
    if answer.is_err() {
        room.ask_again(number);
    }
    answer.map(drop)
}

/// Sends one call of a request. Returns whether the server sees the room's subscription, where it tells.
async fn call(client: &Client, room: &Room, number: u64, question: bool) -> Result<Option<bool>, Failure> {
    let Some((call, trail)) = room.ask(number, question) else {
        return Ok(None);
    };
    let answer = client.acquire(call).await;
    trail.answered(&answer);
    match answer {
        Ok(answer) => {
            let seen = match &answer.reply {
                Acquired::Contended(contended) => Some(contended.seen),
                _ => None,
            };
            if room.heard(number, &answer.at, answer.reply) == Heard::Again {
                room.ask_again(number);
            }
            Ok(seen)
        }
        Err(failure) => {
            room.unheard();
            Err(failure)
        }
    }
}

/// Gives one grant back, by request and fence, and has its request ask again, at its old place.
async fn return_grant(client: &Client, room: &Room, grant: GiveBack) -> Result<(), Failure> {
    let what = ReleaseWhat::Grant(grant.fence);
    let call = Release {
        keys: Arc::clone(&room.keys),
        request: grant.request,
        what,
    };
    // Unanswered, the grant ends by itself, with its claim window.
    let released = client.release(call).await.map(drop);
    room.ask_again(grant.number);
    released
}

/// How long failures are put up with: until no server has answered for the `server_timeout`.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    client: &'a Client,
    since: Option<Tick>,
    backoff: Backoff,
}

impl Patience<'_> {
    pub(crate) fn new(client: &Client) -> Patience<'_> {
        Patience {
            client,
            since: None,
            backoff: Backoff::new(),
        }
    }

    /// How long to wait before the next try; or what to tell the caller.
    pub(crate) fn endure(&mut self, failure: Failure) -> Result<Duration> {
        if matches!(failure, Failure::Refused(_) | Failure::Closed) {
            return Err(as_error(failure));
        }
        let now = self.client.now();
        let attempt = match failure {
            Failure::Unknown(_) => self.client.options.attempt_timeout(),
            _ => Duration::ZERO,
        };
        let since = *self.since.get_or_insert(now.before(attempt));
        if now.since(since) >= self.client.options.server_timeout {
            return Err(as_error(failure));
        }
        Ok(self.backoff.step())
    }

    pub(crate) fn restore(&mut self) {
        self.since = None;
        self.backoff = Backoff::new();
    }
}
