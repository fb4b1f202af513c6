//! Tests that every waiter is reached when its turn comes, whatever happened to its place, and though its
//! client was noted absent.
//!
//! The clock is paused unless a test sleeps. [`settle`] runs everything that must not wait for a timer.

mod failures;

use futures_util::FutureExt;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::*;
use crate::engine::metrics::Group;
use crate::engine::options::{JITTER, LockOptions, ManagerOptions};
use crate::engine::waitlist::registry::Waitlists;
use crate::protocol::ids::ClientId;
use crate::protocol::{Acquire, Acquired, Contended, Grant, Listener, Mode};
use crate::protocol::{ConnectionId, Stamp};
use crate::tests::scripted_store;
use crate::tests::scripted_store::Scripted;
use crate::time::clock_offset::Sample;
use crate::time::deadline::NOT_AFTER;
use crate::time::server_time::ServerTime;
use crate::{Lock, LockGuard, LockManager, MemoryStore};

const NAME: &str = "a";

/// Two clients of one store.
struct Fixture {
    store: MemoryStore,
    /// The lock in the client that holds it while the other client waits.
    other: Lock,
    locks: LockManager,
    /// The store as that client sees it.
    seen: Arc<Scripted>,
    lock: Lock,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::on(MemoryStore::new())
    }

    fn on(store: MemoryStore) -> Fixture {
        Fixture::of(store, ManagerOptions::default())
    }

    fn of(store: MemoryStore, options: ManagerOptions) -> Fixture {
        let (other, _) = scripted_store::client_with(options.clone(), &store, &[]);
        let (locks, seen) = scripted_store::client_with(options, &store, &[]);
        Fixture {
            other: other.lock(NAME),
            lock: locks.lock(NAME),
            locks,
            seen,
            store,
        }
    }

    fn waitlists(&self) -> &Arc<Waitlists> {
        self.locks.shared().waitlists()
    }

    fn waitlist(&self) -> Arc<Waitlist> {
        let keys = keys();
        let channel = keys.channel_of(&self.waitlists().client().id);
        self.waitlists().enter(&keys, &channel, |_| ()).0
    }

    /// A request that is in the waitlist, and of which nothing has been sent.
    fn newcomer(&self) -> (RequestId, oneshot::Receiver<WaitOutcome>) {
        let client = self.waitlists().client();
        let terms = LockOptions::default().terms(&client.options).unwrap();
        let request = client.next_request(&terms, None);
        let waiter = self.waitlist().take_in(&request, terms, None);
        (request, waiter.outcome)
    }

    /// Starts another waiter, and returns when it is queued and subscribed.
    async fn waiter(&self) -> JoinHandle<LockGuard> {
        let wait = self.lock.acquire();
        let waiter = tokio::spawn(async move { wait.await.unwrap() });
        settle().await;
        assert!(!waiter.is_finished());
        waiter
    }
}

impl Waitlist {
    /// Adds this request.
    pub(in crate::engine) fn take_in(
        &self,
        request: &RequestId,
        terms: LeaseTerms,
        ticket: Option<Ticket>,
    ) -> Joined {
        let wait = WaitTerms {
            ticket,
            was_queued: ticket.is_some(),
            ..newcomer()
        };
        self.join(terms, wait, || request.clone()).unwrap()
    }

    /// The caller of this request gives up.
    fn give_up(&self, number: u64) {
        let state = locked(&self.state);
        let Waiter { request, calls, .. } = &*state.waiters[&number];
        let waiter = Joined {
            request: request.clone(),
            calls: Arc::clone(calls),
            outcome: oneshot::channel().1,
        };
        drop(state);
        self.quit(&waiter);
    }
}

/// The terms of a request that has no place yet.
fn newcomer() -> WaitTerms {
    WaitTerms {
        until: None,
        ticket: None,
        was_queued: false,
        floor: None,
        group: Group::default(),
    }
}

fn keys() -> Arc<Keys> {
    Arc::new(Keys::new("fairlock", NAME).unwrap())
}

/// Lets everything happen that needs no time.
async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

fn sample(now: LocalTime, server: ServerTime) -> Sample {
    Sample {
        sent: now,
        received: now,
        now: server,
    }
}

/// The reply to a request that is queued and was queued before.
fn contended() -> Contended {
    Contended {
        ttl: Duration::from_secs(30),
        ticket: None,
        ahead: 0,
        enqueued: false,
        own_grant: None,
    }
}

/// The guard of a waiter that must have heard of its grant by now.
async fn granted(waiter: JoinHandle<LockGuard>) -> LockGuard {
    settle().await;
    assert!(waiter.is_finished(), "the grant waits for a timer");
    waiter.await.unwrap()
}

async fn released(guard: LockGuard) {
    guard.release().await.unwrap();
}

/// Releases the lock, which must go to this waiter at once. Then the waiter releases it too.
async fn handed_over(guard: LockGuard, waiter: JoinHandle<LockGuard>) {
    released(guard).await;
    released(granted(waiter).await).await;
}

#[tokio::test(start_paused = true)]
async fn first_waiter_is_reached_though_a_hold_of_its_client_ran_out() {
    let mut fixture = Fixture::new();
    fixture.lock = fixture
        .lock
        .clone()
        .lease(Duration::from_secs(20))
        .auto_renew(false);
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    released(guard).await;
    let _ran_out = granted(waiter).await;
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    handed_over(guard, waiter).await;
}

/// Advances the clock as if the process were paused: no task runs meanwhile.
fn stand_still(span: Duration) {
    assert!(tokio::time::advance(span).now_or_never().is_none());
}

/// Race: An unclaimed grant costs the waiters of its client their turn, and the client's next request is
/// served before them.
#[tokio::test(start_paused = true)]
async fn turn_missed_with_an_unclaimed_hold_is_recovered_once_the_process_goes_on() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let (first, earlier) = (fixture.waiter().await, fixture.waiter().await);
    released(guard).await;
    let mine = granted(first).await;
    stand_still(fixture.waitlists().client().options.claim_window());
    assert!(mine.is_lost());
    // This call finds the expired lease, and notes its client absent. So the earlier waiter misses its turn.
    let guard = fixture.other.acquire().await.unwrap();
    // The background task notices the loss, and the poll that is due by now finds out about the turn.
    settle().await;
    let later = fixture.waiter().await;
    handed_over(guard, earlier).await;
    released(granted(later).await).await;
}

/// Race: A lease that is meant to expire is taken for the death of its client.
#[tokio::test(start_paused = true)]
async fn lease_meant_to_expire_costs_its_clients_waiters_no_turn() {
    let (lease, ms) = (Duration::from_secs(2), Duration::from_millis);
    for is_fixed in [true, false] {
        for is_pushed in [false, true] {
            let fixture = Fixture::new();
            let lock = fixture.lock.clone();
            let lock = match is_fixed {
                true => lock.lease(lease).auto_renew(false),
                false => lock.max_hold(lease),
            };
            let before = match is_pushed {
                true => Some(fixture.other.acquire().await.unwrap()),
                false => None,
            };
            let mine = tokio::spawn(async move { lock.acquire().await.unwrap() });
            settle().await;
            // They are queued before any other request.
            let waiters = [fixture.waiter().await, fixture.waiter().await];
            if let Some(guard) = before {
                released(guard).await;
            }
            let _mine = granted(mine).await;
            // Others ask before them, at the moment when the lease is over.
            let others = fixture.other.clone();
            let next = tokio::spawn(async move { others.acquire().await.unwrap() });
            sleep(lease + ms(1)).await;
            let tried = fixture.other.try_acquire().await;
            assert!(matches!(tried, Err(Error::Busy { .. })), "{tried:?}");
            for waiter in waiters {
                assert!(!next.is_finished(), "fixed: {is_fixed}, pushed: {is_pushed}");
                released(granted(waiter).await).await;
            }
            released(granted(next).await).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn incomplete_release_is_repeated_until_it_reaches_a_waiter() {
    let fixture = Fixture::on(MemoryStore::with_bound(2));
    let guard = fixture.other.acquire().await.unwrap();
    for _ in 0..5 {
        tokio::spawn(fixture.other.acquire());
    }
    settle().await;
    fixture.store.note_absent();
    let waiter = fixture.waiter().await;
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn all_waiters_are_reached_after_a_reconnect() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiters = [fixture.waiter().await, fixture.waiter().await];
    fixture.store.note_absent();
    fixture.waitlists().reconnected(ServerId::default());
    settle().await;
    released(guard).await;
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn empty_waitlist_needs_no_driver() {
    let fixture = Fixture::new();
    assert!(!fixture.waitlist().needs_driver());
}

#[tokio::test(start_paused = true)]
async fn client_that_was_noted_absent_is_present_again_with_its_next_poll() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiters = [fixture.waiter().await, fixture.waiter().await];
    fixture.store.note_absent();
    sleep(fixture.waitlists().client().options.poll_interval() + 2 * JITTER).await;
    settle().await;
    released(guard).await;
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_waiters_are_reached_once_a_missed_one_finds_the_lock_free() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiters = [
        fixture.waiter().await,
        fixture.waiter().await,
        fixture.waiter().await,
    ];
    fixture.store.note_absent();
    // No client can be reached, so all waiters lose their places.
    released(guard).await;
    settle().await;
    let waitlist = fixture.waitlist();
    assert_eq!(waitlist.numbers().len(), 3, "no waiter knows of its loss");
    // As after a lost reply.
    waitlist.ask_again(waitlist.numbers()[0]);
    settle().await;
    // Those who come now do not overtake them.
    assert_eq!(fixture.store.queued(), 2);
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
}

/// Otherwise the end of each lease would cost as many calls as there are waiters.
#[tokio::test(start_paused = true)]
async fn waiter_that_takes_its_turn_at_the_end_of_a_lease_makes_no_other_ask() {
    let fixture = Fixture::new();
    let lease = Duration::from_secs(2);
    let holder = fixture.other.clone().lease(lease).auto_renew(false);
    let _held = holder.acquire().await.unwrap();
    let (first, _second, _third) = (
        fixture.waiter().await,
        fixture.waiter().await,
        fixture.waiter().await,
    );
    let asked = fixture.seen.acquires();
    sleep(lease + 2 * JITTER).await;
    let _guard = granted(first).await;
    settle().await;
    // It polled.
    assert_eq!(fixture.seen.acquires(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn unheard_grant_is_told_by_a_reply_to_another_request() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let (waiter, other) = (fixture.waiter().await, fixture.waiter().await);
    let waitlist = fixture.waitlist();
    let (number, now) = (waitlist.firsts()[0], fixture.waitlists().client().now());
    let request = locked(&waitlist.state).waiters[&number].request.clone();
    let time = ServerTime::from_ms(1_000);
    let own_grant = Grant {
        fence: guard.fence(),
        deadline: time.after(request.claim_window()),
        pushed: true,
        slot: None,
        request,
    };
    let context = CallContext {
        number: waitlist
            .numbers()
            .into_iter()
            .find(|other| *other != number)
            .unwrap(),
        again: true,
        subscriptions: locked(&waitlist.state).subscriptions,
    };
    let at = sample(now, time);
    let reply = Contended {
        own_grant: Some(own_grant),
        ..contended()
    };
    assert_eq!(
        waitlist.on_reply(context, &at, Acquired::Contended(reply)),
        Progress::Queued
    );
    let _guard = granted(waiter).await;
    assert!(!other.is_finished());
}

#[tokio::test(start_paused = true)]
async fn refilled_waitlist_polls_in_time_however_long_the_lease_is() {
    let fixture = Fixture::new();
    let lease = Duration::from_secs(600);
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    handed_over(guard, waiter).await;
    // From now on the driver of the waitlist sleeps until it leaves.
    let interval = fixture.waitlists().client().options.poll_interval();
    sleep(2 * interval).await;
    let guard = fixture.other.clone().lease(lease).acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    fixture.store.note_absent();
    sleep(interval + 2 * JITTER).await;
    settle().await;
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn waitlist_with_a_waiter_is_not_removed() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    assert!(!fixture.waitlists().remove(&fixture.waitlist()));
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn grant_read_too_late_leaves_nothing_and_costs_no_place() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    let behind = fixture.other.acquire();
    let behind = tokio::spawn(async move { behind.await.unwrap() });
    settle().await;
    let waitlist = fixture.waitlist();
    let first = waitlist.firsts()[0];
    let request = locked(&waitlist.state).waiters[&first].request.clone();
    let grant = Grant {
        fence: guard.fence(),
        deadline: ServerTime::default(),
        pushed: true,
        slot: None,
        request,
    };
    let left = grant.request.claim_window() / 8;
    let progress = waitlist.deliver(&grant, Some(fixture.waitlists().client().now().after(left)));
    assert_eq!(progress, Progress::Settled);
    settle().await;
    released(guard).await;
    let guard = granted(waiter).await;
    assert!(!behind.is_finished());
    handed_over(guard, behind).await;
}

#[tokio::test(start_paused = true)]
async fn waitlist_polls_for_the_waiter_with_the_first_turn() {
    let fixture = Fixture::new();
    let _guard = fixture.other.acquire().await.unwrap();
    let _waiter = fixture.waiter().await;
    let waitlist = fixture.waitlist();
    let oldest = waitlist.firsts()[0];
    let ticket = locked(&waitlist.state).waiters[&oldest].wait.ticket.unwrap();
    let terms = locked(&waitlist.state).waiters[&oldest].terms;
    let client = fixture.waitlists().client();
    // Two requests have older places, as after a late grant, and one has no place yet.
    let mut verdicts = Vec::new();
    for ticket in [Some(Ticket(ticket.0 - 1)), Some(Ticket(ticket.0 - 2)), None] {
        let request = client.next_request(&terms, None);
        verdicts.push((request.number(), waitlist.take_in(&request, terms, ticket)));
    }
    let turns: Vec<u64> = std::iter::from_fn(|| {
        let first = waitlist.firsts().pop()?;
        waitlist.give_up(first);
        Some(first)
    })
    .collect();
    let [one_before, two_before, none] = [0, 1, 2].map(|n: usize| verdicts[n].0);
    assert_eq!(turns, [two_before, one_before, oldest, none]);
}

/// A waiter can be passed over while another one of its client, which asks for a smaller capacity, keeps its
/// place.
#[tokio::test(start_paused = true)]
async fn waitlist_polls_for_the_first_waiter_of_each_capacity() {
    let fixture = Fixture::new();
    let client = fixture.waitlists().client();
    let terms = LockOptions::default().terms(&client.options).unwrap();
    let waitlist = fixture.waitlist();
    let mut verdicts = Vec::new();
    for (number, capacity, ticket) in [(1, 2, 10), (2, 4, 30), (3, 4, 20), (4, 2, 40)] {
        let request = RequestId::with_permits(&client.id, terms.claim_window(), number, 1, capacity);
        verdicts.push(waitlist.take_in(&request, terms, Some(Ticket(ticket))));
    }
    assert_eq!(waitlist.firsts(), [1, 3]);
}

#[tokio::test(start_paused = true)]
async fn all_waiters_ask_at_once_after_one_was_found_removed() {
    // The request finds out before it hears of its grant, or after.
    for is_here in [true, false] {
        let fixture = Fixture::new();
        let _guard = fixture.other.acquire().await.unwrap();
        let _waiters = [fixture.waiter().await, fixture.waiter().await];
        let waitlist = fixture.waitlist();
        // By then, the poll that this reply plans is later than the driver's next poll, so it does not wake
        // the driver.
        sleep(Duration::from_millis(100)).await;
        fixture.store.flush();
        let _other = fixture.other.acquire().await.unwrap();
        let number = waitlist.firsts()[0];
        if !is_here {
            waitlist.give_up(number);
        }
        let context = CallContext {
            number,
            again: true,
            subscriptions: locked(&waitlist.state).subscriptions,
        };
        let reply = Contended {
            enqueued: true,
            ..contended()
        };
        let client = fixture.waitlists().client();
        let at = sample(
            client.now(),
            client.clocks.server_time(ServerId::default()).unwrap(),
        );
        waitlist.on_reply(context, &at, Acquired::Contended(reply));
        settle().await;
        assert_eq!(fixture.store.queued(), waitlist.numbers().len(), "{is_here}");
    }
}

/// The call has waited to be written, or another thread was faster while it was being written.
///
/// Race: A poll is noted as sent, and runs after the release of its request.
#[tokio::test(start_paused = true)]
async fn poll_after_the_end_of_its_request_leaves_nothing() {
    // The hold of the request was released, or its caller stopped waiting.
    for (was_granted, was_written) in [(true, true), (true, false), (false, true), (false, false)] {
        let fixture = Fixture::new();
        let mut guard = fixture.other.acquire().await.unwrap();
        let waiter = fixture.waiter().await;
        let waitlist = fixture.waitlist();
        let mut prepared = waitlist.prepare(waitlist.firsts()[0], true).unwrap();
        if was_written {
            let not_after = prepared.pending.written(ConnectionId::default()).unwrap();
            prepared.call.not_after = Arc::new(not_after);
        }
        if was_granted {
            handed_over(guard, waiter).await;
            guard = fixture.other.acquire().await.unwrap();
        } else {
            waiter.abort();
        }
        settle().await;
        assert_eq!(fixture.store.queued(), 0);
        let case = format!("granted: {was_granted}, written: {was_written}");
        assert_eq!(waitlist.send(prepared).await.is_ok(), was_written, "{case}");
        settle().await;
        assert_eq!(fixture.store.queued(), 0, "{case}");
        released(guard).await;
        assert!(fixture.other.try_acquire().await.is_ok(), "{case}");
    }
}

/// The turn of the request comes before its client listens, and its first reply comes after the poll that
/// asks whether anything was missed.
///
/// Race: A turn comes and goes before the client listens.
#[tokio::test(start_paused = true)]
async fn a_waitlist_polls_once_it_has_subscribed() {
    let fixture = Fixture::new();
    let waitlist = fixture.waitlist();
    let _waiter = fixture.newcomer();
    let todo = || waitlist.todo(Duration::ZERO);
    assert!(matches!(todo(), Action::Wait(_)));
    waitlist.subscribed();
    assert_eq!(todo(), Action::Poll);
    assert!(matches!(todo(), Action::Wait(_)));
}

/// Race: A turn comes before the subscription is up, and the reply with the ticket arrives only once it is
/// up.
#[tokio::test(start_paused = true)]
async fn turn_missed_before_ticket_reply_is_recovered_at_once() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let (client, waitlist) = (fixture.waitlists().client(), fixture.waitlist());
    let (request, _verdict) = fixture.newcomer();
    let PreparedCall {
        call,
        pending,
        context,
        ..
    } = waitlist.prepare(request.number(), false).unwrap();
    let answer = client.acquire(call, &pending).await.unwrap();
    let next = tokio::spawn(fixture.other.acquire());
    settle().await;
    released(guard).await;
    settle().await;
    let _guard = next.await.unwrap().unwrap();
    // Another waiter is queued, subscribes and polls.
    let _waiter = fixture.waiter().await;
    assert_eq!(fixture.store.queued(), 1);
    waitlist.on_reply(context, &answer.at, answer.reply);
    settle().await;
    assert_eq!(fixture.store.queued(), 2);
}

/// Race: A request asks again before it knows its ticket, and has missed its turn by then.
#[tokio::test(start_paused = true)]
async fn turn_missed_before_a_second_call_is_recovered_at_the_earlier_ticket_at_once() {
    // Both replies are read after the second call, in this order or in the other one.
    for in_order in [true, false] {
        let fixture = Fixture::new();
        // From now on, the client listens.
        let guard = fixture.other.acquire().await.unwrap();
        handed_over(guard, fixture.waiter().await).await;

        let guard = fixture.other.acquire().await.unwrap();
        let (client, waitlist) = (fixture.waitlists().client(), fixture.waitlist());
        let (request, mut outcome) = fixture.newcomer();
        let first = waitlist.prepare(request.number(), false).unwrap();
        let second = waitlist.prepare(request.number(), false).unwrap();
        let told_first = client.acquire(first.call, &first.pending).await.unwrap();
        fixture.store.note_absent();
        let (next, later) = (fixture.other.acquire(), fixture.other.acquire());
        let next = tokio::spawn(async move { next.await.unwrap() });
        settle().await;
        released(guard).await;
        let guard = granted(next).await;
        sleep(Duration::from_millis(1)).await;
        let later = tokio::spawn(async move { later.await.unwrap() });
        settle().await;
        sleep(Duration::from_millis(1)).await;
        let told_second = client.acquire(second.call, &second.pending).await.unwrap();

        let mut replies = [(first.context, told_first), (second.context, told_second)];
        if !in_order {
            replies.reverse();
        }
        for (context, answer) in replies {
            waitlist.on_reply(context, &answer.at, answer.reply);
        }
        settle().await;
        released(guard).await;
        settle().await;
        let mine = outcome.try_recv();
        assert!(
            matches!(mine, Ok(WaitOutcome::Done(Ok(_)))),
            "in order: {in_order}, {mine:?}"
        );
        drop(mine);
        released(granted(later).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_reconnect_a_push_is_only_a_reason_to_ask() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    let waitlist = fixture.waitlist();
    let first = waitlist.firsts()[0];
    let client = fixture.waitlists().client();
    let request = locked(&waitlist.state).waiters[&first].request.clone();
    let push = Push::Granted(vec![Grant {
        fence: guard.fence(),
        deadline: client
            .clocks
            .server_time(ServerId::default())
            .unwrap()
            .after(request.claim_window()),
        pushed: true,
        slot: None,
        request,
    }]);
    fixture.waitlists().reconnected(ServerId::default());
    // By the former clock offset the grant would be in time.
    waitlist.pushed(ServerId::default(), &push.write());
    assert_eq!(waitlist.firsts(), [first]);
    settle().await;
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn grant_of_another_clients_request_is_not_taken() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    let waitlist = fixture.waitlist();
    let first = waitlist.firsts()[0];
    let claim_window = Duration::from_secs(5);
    let grant = Grant {
        fence: guard.fence(),
        deadline: ServerTime::MAX,
        pushed: true,
        slot: None,
        request: RequestId::new(&ClientId::from_number(7), claim_window, first, None),
    };
    waitlist.deliver(
        &grant,
        Some(fixture.waitlists().client().now().after(claim_window)),
    );
    assert_eq!(waitlist.firsts(), [first]);
    handed_over(guard, waiter).await;
}

/// Race: A client is closed while a waiter enters, is granted the lock, or releases it.
#[tokio::test(start_paused = true)]
async fn closed_client_admits_no_request_to_its_waitlists() {
    let fixture = Fixture::new();
    let waitlist = fixture.waitlist();
    let client = fixture.waitlists().client();
    let terms = LockOptions::default().terms(&client.options).unwrap();
    fixture.locks.close().await.unwrap();
    let entered = waitlist.join(terms, newcomer(), || client.next_request(&terms, None));
    assert!(matches!(entered, Err(Error::Closed)));
    assert!(waitlist.is_empty());
}

#[tokio::test(start_paused = true)]
async fn closed_client_leaves_its_waitlists_at_once() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = tokio::spawn(fixture.lock.acquire());
    settle().await;
    assert_eq!(fixture.waitlists().len(), 1);
    fixture.locks.close().await.unwrap();
    assert!(matches!(waiter.await.unwrap(), Err(Error::Closed)));
    settle().await;
    assert_eq!(fixture.waitlists().len(), 0);
    released(guard).await;
}
