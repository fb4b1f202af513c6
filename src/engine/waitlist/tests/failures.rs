//! Tests that failing calls and subscriptions delay a caller no longer than it takes to repeat them.

use super::*;
use crate::engine::waitlist::driver::drive;

const LEASE: Duration = Duration::from_secs(2);

impl Fixture {
    /// The other client holds the lock for this long, and sends nothing more about it.
    async fn held_for(&self, lease: Duration) {
        let holder = self.other.clone().lease(lease).auto_renew(false);
        std::mem::forget(holder.acquire().await.unwrap());
    }
}

/// A call of a client that does not listen.
fn call_of_a_deaf_client(n: u128, lease: Duration) -> Acquire {
    let id = ClientId::from_number(n);
    Acquire {
        keys: keys(),
        request: RequestId::new(&id, Duration::from_secs(5), 1, None),
        mode: Mode::Ask,
        lease,
        not_after: Arc::new(ServerTime::MAX),
        ticket: None,
        floor: None,
    }
}

/// A client that takes the server for unreachable after a second.
fn impatient() -> Fixture {
    let options = ManagerOptions {
        server_timeout: Duration::from_secs(1),
        ..ManagerOptions::default()
    };
    Fixture::of(MemoryStore::new(), options)
}

#[tokio::test(start_paused = true)]
async fn failed_poll_is_repeated_soon() {
    let fixture = Fixture::new();
    fixture.held_for(LEASE).await;
    let waiter = fixture.waiter().await;
    sleep(LEASE - Duration::from_millis(1)).await;
    fixture.seen.lose_calls(1);
    sleep(3 * JITTER).await;
    released(granted(waiter).await).await;
}

/// Race: A grant is pushed while the last call that its caller has patience for goes unanswered.
#[tokio::test(start_paused = true)]
async fn caller_whose_last_call_fails_gets_the_grant_that_was_pushed_meanwhile() {
    let fixture = impatient();
    // From now on, the client listens.
    let guard = fixture.other.acquire().await.unwrap();
    handed_over(guard, fixture.waiter().await).await;

    let guard = fixture.other.acquire().await.unwrap();
    fixture.seen.lose_replies_to_acquires(Duration::from_secs(1));
    let waiter = fixture.waiter().await;
    released(guard).await;
    sleep(Duration::from_millis(1_001)).await;
    released(granted(waiter).await).await;
}

/// Race: The caller of the request that a waitlist polls with gives up, and the poll fails.
#[tokio::test(start_paused = true)]
async fn failed_poll_of_a_request_that_gives_up_is_repeated_for_the_next() {
    let fixture = Fixture::new();
    fixture.held_for(LEASE).await;
    let (first, second) = (fixture.waiter().await, fixture.waiter().await);
    sleep(LEASE / 2).await;
    fixture.seen.lose_calls(1);
    fixture.waitlist().poll_now();
    settle().await;
    first.abort();
    // The poll that was due at the end of the lease was replaced by the one that failed.
    sleep(LEASE / 2 + 2 * JITTER).await;
    released(granted(second).await).await;
}

/// Race: The reply to a poll comes when the caller of its request has given up.
#[tokio::test(start_paused = true)]
async fn reply_to_the_poll_of_a_request_that_gave_up_still_tells_when_the_lock_can_be_free() {
    let fixture = Fixture::new();
    let _guard = fixture.other.acquire().await.unwrap();
    let (_first, _second) = (fixture.waiter().await, fixture.waiter().await);
    let waitlist = fixture.waitlist();
    let prepared = waitlist.prepare(waitlist.firsts()[0], true).unwrap();
    waitlist.give_up(prepared.context.number);
    let now = fixture.waitlists().client().now();
    let at = sample(now, ServerTime::from_ms(1_000));
    let reply = Contended {
        ttl: JITTER,
        ..contended()
    };
    let progress = waitlist.on_reply(prepared.context, &at, Acquired::Contended(reply));
    assert_eq!(progress, Progress::Settled);
    let Action::Wait(until) = waitlist.todo(Duration::ZERO) else {
        panic!("nothing is due yet");
    };
    assert!(until <= now.after(2 * JITTER));
}

#[tokio::test(start_paused = true)]
async fn waiter_asks_at_once_after_a_push_that_cannot_be_read() {
    let fixture = Fixture::new();
    fixture.held_for(LEASE).await;
    let _waiter = fixture.waiter().await;
    let asked = fixture.seen.acquires();
    fixture.waitlist().pushed(ServerId::default(), "unreadable");
    settle().await;
    assert_eq!(fixture.seen.acquires(), asked + 1);
}

/// Race: An unreachable client always has calls to send, and so never subscribes.
#[tokio::test(start_paused = true)]
async fn waitlist_with_endless_calls_still_subscribes() {
    let fixture = Fixture::new();
    let _guard = fixture.other.acquire().await.unwrap();
    let (client, waitlist) = (fixture.waitlists().client(), fixture.waitlist());
    let _newcomer = fixture.newcomer();
    waitlist.ask_all();
    fixture.seen.lose_calls(u32::MAX);
    let driver = tokio::spawn(drive(Arc::clone(fixture.waitlists()), waitlist));
    sleep(client.options.server_timeout / 2).await;
    assert_eq!(fixture.store.subscribed(), 1);
    driver.abort();
}

#[tokio::test(start_paused = true)]
async fn incomplete_poll_is_repeated_until_the_lock_is_granted() {
    let fixture = Fixture::on(MemoryStore::with_bound(2));
    let store = &fixture.waitlists().client().store;
    for n in 1..8 {
        store.call(call_of_a_deaf_client(n, LEASE)).await.unwrap();
    }
    let waiter = fixture.waiter().await;
    sleep(LEASE + 2 * JITTER).await;
    released(granted(waiter).await).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_that_an_incomplete_call_of_their_client_removed_return_with_its_next_poll() {
    let fixture = Fixture::on(MemoryStore::with_bound(2));
    fixture.held_for(LEASE).await;
    // The server cannot reach the two waiters.
    fixture.seen.swallow_subscriptions();
    let _waiters = [fixture.waiter().await, fixture.waiter().await];
    sleep(LEASE).await;
    // This call removes both, and is incomplete. Its repetition is granted the lock.
    let _guard = fixture.lock.acquire().await.unwrap();
    sleep(fixture.waitlists().client().options.poll_interval() + 2 * JITTER).await;
    assert_eq!(fixture.store.queued(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_failure_after_a_long_rest_ends_no_wait() {
    let fixture = impatient();
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    fixture.seen.lose_calls(1);
    sleep(fixture.waitlists().client().options.poll_interval() + 3 * JITTER).await;
    handed_over(guard, waiter).await;
}

/// Race: A call has a bound, and its future is not polled until the bound is long over.
#[tokio::test(start_paused = true)]
async fn wait_that_nobody_polls_past_its_bound_ends_no_other() {
    for is_asked_for in [false, true] {
        let fixture = impatient();
        let guard = fixture.other.acquire().await.unwrap();
        let patience = Duration::from_millis(100);
        let mut stalled = Box::pin(fixture.lock.acquire_timeout(patience));
        tokio::select! {
            biased;
            done = &mut stalled => panic!("{done:?}"),
            () = settle() => {}
        }
        let waiter = fixture.waiter().await;
        sleep(2 * patience).await;
        if is_asked_for {
            fixture.waitlists().reconnected(ServerId::default());
        }
        let asked = fixture.seen.acquires();
        let interval = fixture.waitlists().client().options.poll_interval() + JITTER;
        sleep(2 * interval).await;
        assert!(!waiter.is_finished(), "asked for: {is_asked_for}");
        let asked = fixture.seen.acquires() - asked;
        assert!((1..=4).contains(&asked), "{asked} calls for one waiter");
        assert!(matches!(stalled.await, Err(Error::Timeout { .. })));
        handed_over(guard, waiter).await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_subscription_is_repeated_soon() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    fixture.seen.lose_subscriptions(1);
    let waiter = fixture.waiter().await;
    assert_eq!(fixture.store.subscribed(), 0);
    sleep(JITTER).await;
    handed_over(guard, waiter).await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_subscription_is_neither_ended_nor_repeated() {
    let store = MemoryStore::new();
    let (locks, seen) = scripted_store::client(&store, &[]);
    let fixture = Fixture::on(store);
    let guard = fixture.other.acquire().await.unwrap();
    seen.swallow_subscriptions();
    let wait = locks.lock(NAME).acquire();
    let waiter = tokio::spawn(async move { wait.await.unwrap() });
    // The reply to each poll says that the server does not see the subscription.
    let interval = fixture.waitlists().client().options.poll_interval();
    sleep(3 * (interval + JITTER)).await;
    assert_eq!(seen.subscriptions(), (1, 0));
    released(guard).await;
    sleep(interval + JITTER).await;
    released(granted(waiter).await).await;
}

#[tokio::test(start_paused = true)]
async fn answer_silent_about_the_subscription_does_not_end_it() {
    let fixture = Fixture::new();
    fixture.held_for(LEASE).await;
    let (first, second) = (fixture.waiter().await, fixture.waiter().await);
    fixture.seen.lose_subscriptions(100);
    // The poll finds the lock free.
    sleep(LEASE + 2 * JITTER).await;
    handed_over(granted(first).await, second).await;
}

#[tokio::test(start_paused = true)]
async fn late_attempt_of_a_busy_try_leaves_no_hold() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    fixture.seen.lose_calls(1);
    let tried = fixture.lock.try_acquire().await;
    assert!(matches!(tried, Err(Error::Busy { .. })));
    released(guard).await;
    let client = fixture.waitlists().client();
    let first = Acquire {
        request: RequestId::new(&client.id, client.options.claim_window(), 0, None),
        mode: Mode::Try,
        ..call_of_a_deaf_client(0, client.options.lease)
    };
    let late = client.store.call(first).await.unwrap();
    assert!(matches!(late.reply, Acquired::Granted { .. }));
    released(fixture.other.acquire_timeout(2 * NOT_AFTER).await.unwrap()).await;
}
