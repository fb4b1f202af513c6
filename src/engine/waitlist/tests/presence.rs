//! Tests of what a waitlist knows of its client's presence record. It relies on the presence record for a
//! while after a call has written or prolonged it. When in doubt, the next call writes it again.

use super::*;

/// A waitlist with two waiters, whose client has written its presence record.
async fn opened() -> (Fixture, Arc<Waitlist>) {
    let fixture = Fixture::new();
    // A lease that ended when the clock began is over on the server by now, and would not count.
    sleep(2 * NOT_AFTER).await;
    std::mem::forget(fixture.other.acquire().await.unwrap());
    for _ in 0..2 {
        drop(fixture.waiter().await);
    }
    let waitlist = fixture.waitlist();
    assert_eq!(next_mode(&waitlist), Mode::Wait);
    (fixture, waitlist)
}

/// The mode of the waitlist's next request.
fn next_mode(waitlist: &Waitlist) -> Mode {
    let next = *waitlist.numbers().last().unwrap();
    waitlist.prepare(next, false).unwrap().call.mode
}

fn all_quit(waitlist: &Waitlist) {
    for number in waitlist.numbers() {
        waitlist.give_up(number);
    }
}

#[tokio::test(start_paused = true)]
async fn next_request_after_a_late_grant_opens_the_record() {
    let (fixture, waitlist) = opened().await;
    let first = waitlist.first().unwrap();
    let request = locked(&waitlist.state).waiters[&first].request.clone();
    let grant = Grant {
        fence: crate::types::fence::Fence::new(1).unwrap(),
        deadline: ServerTime::default(),
        pushed: true,
        slot: None,
        request,
    };
    waitlist.deliver(&grant, Some(fixture.waitlists().client().now()));
    assert_eq!(next_mode(&waitlist), Mode::Register);
}

#[tokio::test(start_paused = true)]
async fn briefly_empty_waitlist_still_knows_its_record() {
    let (fixture, waitlist) = opened().await;
    all_quit(&waitlist);
    let _verdict = fixture.newcomer();
    assert_eq!(next_mode(&waitlist), Mode::Wait);
}

/// Race: A client loses its presence record while it has no waiter, by an unclaimed grant or a missed turn.
#[tokio::test(start_paused = true)]
async fn waitlist_empty_for_a_poll_interval_registers_again() {
    let (fixture, waitlist) = opened().await;
    all_quit(&waitlist);
    sleep(fixture.waitlists().client().options.poll_interval()).await;
    let _verdict = fixture.newcomer();
    assert_eq!(next_mode(&waitlist), Mode::Register);
}

#[tokio::test(start_paused = true)]
async fn waitlist_with_waiters_polls_its_record_however_old_it_is() {
    let (fixture, waitlist) = opened().await;
    sleep(2 * fixture.waitlists().client().options.poll_interval()).await;
    // As if no poll had prolonged the presence record.
    locked(&waitlist.state).registration.as_mut().unwrap().since = LocalTime::ZERO;
    let prepared = waitlist.prepare(waitlist.first().unwrap(), true).unwrap();
    assert_eq!(prepared.call.mode, Mode::Poll);
}

/// Race: A client loses its presence record while it has no waiter, by an unclaimed grant or a missed turn.
#[tokio::test(start_paused = true)]
async fn waitlist_subscribed_while_empty_registers_again() {
    let (fixture, waitlist) = opened().await;
    all_quit(&waitlist);
    waitlist.subscribed();
    let _verdict = fixture.newcomer();
    assert_eq!(next_mode(&waitlist), Mode::Register);
}

/// Race: A client loses its presence record while it has no waiter, by an unclaimed grant or a missed turn.
#[tokio::test(start_paused = true)]
async fn unclaimed_lease_ends_the_record_when_the_server_finds_it_expired() {
    let fixture = Fixture::new();
    let guard = fixture.other.acquire().await.unwrap();
    let waiter = fixture.waiter().await;
    released(guard).await;
    let mine = granted(waiter).await;
    stand_still(fixture.waitlists().client().options.claim_window());
    std::mem::forget(fixture.other.acquire().await.unwrap());
    settle().await;
    assert!(mine.is_lost());
    drop(fixture.waiter().await);
    let waitlist = fixture.waitlist();
    assert_eq!(
        next_mode(&waitlist),
        Mode::Register,
        "it was registered before the lease was over on the server"
    );
    all_quit(&waitlist);
    sleep(NOT_AFTER + Duration::from_millis(100)).await;
    drop(fixture.waiter().await);
    assert_eq!(next_mode(&waitlist), Mode::Wait, "it was registered after that");
}

#[tokio::test(start_paused = true)]
async fn lease_meant_to_expire_leaves_the_record() {
    let fixture = Fixture::new();
    let lease = Duration::from_millis(100);
    let guard = fixture
        .lock
        .clone()
        .lease(lease)
        .renew(false)
        .acquire()
        .await
        .unwrap();
    guard.lost().await;
    drop(fixture.waiter().await);
    assert_eq!(next_mode(&fixture.waitlist()), Mode::Wait);
}

#[tokio::test(start_paused = true)]
async fn call_without_effect_on_the_record_says_nothing_about_it() {
    let (_scene, waitlist) = opened().await;
    let prepared = waitlist.prepare(waitlist.first().unwrap(), false).unwrap();
    assert_eq!(prepared.call.mode, Mode::Wait);
    waitlist.forget_registration();
    assert_eq!(waitlist.send(prepared).await.unwrap().0, Progress::Queued);
    assert_eq!(next_mode(&waitlist), Mode::Register);
}

#[tokio::test(start_paused = true)]
async fn failed_call_says_nothing_about_the_record() {
    let (fixture, waitlist) = opened().await;
    let prepared = waitlist.prepare(waitlist.first().unwrap(), true).unwrap();
    fixture.seen.lose_calls(1);
    waitlist.send(prepared).await.unwrap_err();
    assert_eq!(next_mode(&waitlist), Mode::Register);
}
