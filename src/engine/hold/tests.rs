//! Tests of a hold by itself, without a background task.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake};
use std::thread;

use tokio::time::sleep;

use super::*;
use crate::engine::floor::{Floor, QuorumClocks};
use crate::engine::server_clocks::ServerClocks;
use crate::protocol::ids::ClientId;
use crate::protocol::{Answer, ConnectionId};
use crate::time::deadline_queue::GivesUp;

const LEASE: Duration = Duration::from_secs(6);

/// A hold that was granted just now.
fn hold(max_hold: Option<Duration>) -> Hold {
    hold_with(max_hold, LEASE)
}

/// A hold of which the client heard when `left` of its lease was left.
fn hold_with(max_hold: Option<Duration>, left: Duration) -> Hold {
    hold_of(max_hold, left, Fence::new(1).unwrap(), None)
}

/// A vote of a quorum with one server.
fn vote(max_hold: Option<Duration>) -> Hold {
    let clock = Clock::tokio();
    let at = Sample {
        sent: clock.now(),
        received: clock.now(),
        now: server(Duration::ZERO),
    };
    let first = Answer {
        on: ConnectionId::default(),
        at,
        reply: (),
    };
    let clocks = Arc::new(QuorumClocks::new(vec![Arc::new(ServerClocks::new(
        clock,
        Some(&first),
    ))]));
    let floor = Floor::of_ballot(&clocks, clock.now(), &Arc::default()).unwrap();
    hold_of(max_hold, LEASE, Fence::new(1).unwrap(), Some(floor))
}

fn hold_of(max_hold: Option<Duration>, left: Duration, fence: Fence, floor: Option<Floor>) -> Hold {
    let terms = LeaseTerms {
        length: LEASE,
        fixed: false,
        max_hold,
        at_least: None,
        longest_claim_window: LEASE,
    };
    let client = ClientId::from_number(1);
    let grant = Grant {
        request: RequestId::new(&client, terms.claim_window(), 1, None),
        deadline: server(LEASE),
        fence,
        pushed: false,
        slot: None,
    };
    let keys = Arc::new(Keys::new("fairlock", "a").unwrap());
    let clock = Clock::tokio();
    Hold::new(
        keys,
        &grant,
        terms,
        PendingCalls::new(LEASE, GivesUp::Unknown, floor),
        clock,
        LocalTime::ZERO.after(left),
    )
}

/// The server time at `span` after the grant.
fn server(span: Duration) -> ServerTime {
    ServerTime::from_ms(1_000_000).after(span)
}

/// The guard of a lost hold was told so, and its work may not be done.
#[tokio::test(start_paused = true)]
async fn release_of_a_lost_hold_keeps_nothing() {
    for (end, is_kept) in [(HoldEnd::Released, true), (HoldEnd::Expired, false)] {
        let mut hold = hold(None);
        hold.terms.at_least = Some(LEASE);
        hold.mark_used();
        hold.end(end);
        assert_eq!(
            matches!(hold.release_kind(), ReleaseWhat::Keep { .. }),
            is_kept,
            "{end:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unwatched_hold_is_lost_at_its_deadline() {
    let hold = hold(None);
    sleep(LEASE / 2).await;
    assert!(hold.check().is_ok());
    let lost = tokio::time::timeout(LEASE, hold.lost()).await.unwrap();
    assert_eq!(lost.reason, HoldEnd::Expired);
    assert_eq!(hold.clock.now(), hold.deadline());
}

#[tokio::test(start_paused = true)]
async fn every_watcher_is_told_of_the_end() {
    let hold = hold(None);
    let told = [(); 2].map(|()| Arc::new(Told::default()));
    let mut watchers = [Box::pin(hold.lost()), Box::pin(hold.lost())];
    for (watcher, told) in watchers.iter_mut().zip(&told) {
        let waker = Arc::clone(told).into();
        let watching = watcher.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(watching.is_pending());
    }
    hold.end(HoldEnd::Released);
    for (watcher, told) in watchers.into_iter().zip(told) {
        assert!(told.0.load(Ordering::SeqCst));
        assert_eq!(watcher.await.reason, HoldEnd::Released);
    }
    assert_eq!(hold.clock.now(), LocalTime::ZERO);
}

/// A waker that only notes that it was woken.
#[derive(Default)]
struct Told(AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Two threads race, many times.
///
/// Race: A lease ends as somebody begins to watch it.
#[tokio::test(start_paused = true)]
async fn watcher_starting_as_the_hold_ends_is_told() {
    for _ in 0..5_000 {
        let hold = hold(None);
        let at_once = AtomicUsize::new(0);
        let meet = || {
            at_once.fetch_add(1, Ordering::SeqCst);
            // The two threads spin so that they meet. They yield because there may be only one processor for
            // both.
            for spins in 0.. {
                if at_once.load(Ordering::SeqCst) == 2 {
                    break;
                }
                if spins > 10_000 {
                    thread::yield_now();
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                meet();
                hold.end(HoldEnd::Released);
            });
            let told = Arc::new(Told::default());
            let mut lost = Box::pin(hold.lost());
            meet();
            let waker = Arc::clone(&told).into();
            let watching = lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
            while !hold.is_over() {
                thread::yield_now();
            }
            // The hold has ended, and the waiting task must be told after that.
            let patience = std::time::Instant::now();
            while watching && !told.0.load(Ordering::SeqCst) {
                assert!(
                    patience.elapsed() < Duration::from_secs(5),
                    "the waiting task was not woken"
                );
                thread::yield_now();
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_moves_its_deadline_on_and_never_back() {
    let hold = hold(None);
    let later = LocalTime::ZERO.after(2 * LEASE);
    hold.renewed(LEASE, server(2 * LEASE), later);
    assert_eq!(hold.deadline(), later);
    // The same deadline, from a sample that took longer.
    hold.renewed(LEASE, server(2 * LEASE), LocalTime::ZERO.after(LEASE));
    assert_eq!(hold.deadline(), later);
}

#[tokio::test(start_paused = true)]
async fn renewal_heard_after_the_deadline_does_not_restore_the_hold() {
    let hold = hold(None);
    assert_eq!(hold.lost().await.reason, HoldEnd::Expired);
    hold.renewed(LEASE, server(2 * LEASE), LocalTime::ZERO.after(2 * LEASE));
    assert!(hold.check().is_err());
    assert!(hold.may_be_prolonged(), "the server may still have the hold");
}

#[tokio::test(start_paused = true)]
async fn hold_is_looked_at_after_a_third_and_at_its_cap_only_at_its_end() {
    let hold = hold(Some(2 * LEASE));
    assert_eq!(hold.next_look(), LocalTime::ZERO.after(LEASE / 3));
    hold.renewed(LEASE, server(2 * LEASE), LocalTime::ZERO.after(2 * LEASE));
    assert_eq!(hold.next_look(), hold.deadline());
    assert_eq!(hold.lost().await.reason, HoldEnd::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn first_end_of_a_hold_counts() {
    let hold = hold(None);
    assert_eq!(hold.end(HoldEnd::Released).0, None);
    assert_eq!(hold.end(HoldEnd::Taken).0, Some(HoldEnd::Released));
    assert_eq!(hold.lost().await.reason, HoldEnd::Released);
}

#[tokio::test(start_paused = true)]
async fn max_hold_is_the_reason_only_if_the_hold_lasted_until_then() {
    // Nothing renews the hold.
    assert_eq!(hold(Some(2 * LEASE)).lost().await.reason, HoldEnd::Expired);
}

#[tokio::test(start_paused = true)]
async fn maximum_hold_ends_by_the_local_clock() {
    let max_hold = LEASE * 5 / 3;
    let hold = hold(Some(max_hold));
    sleep(LEASE * 5 / 6).await;
    // The server's clock was set back by an hour, and the server keeps renewing.
    let now = hold.clock.now();
    hold.renewed(LEASE, server(Duration::ZERO), now.after(LEASE));
    let end = LocalTime::ZERO.after(max_hold);
    assert_eq!(hold.deadline(), end);
    assert!(
        hold.may_be_prolonged(),
        "by the server's clock the cap is not reached"
    );
    assert_eq!(hold.next_look(), end, "no further renewal is due");
    let lost = tokio::time::timeout(max_hold, hold.lost()).await.unwrap();
    assert_eq!(lost.reason, HoldEnd::MaxHold);
    assert_eq!(hold.clock.now(), end);
}

#[tokio::test(start_paused = true)]
async fn no_turn_begins_once_the_hold_is_lost_or_in_doubt_or_nearly_over() {
    let begins = |hold: &Hold| hold.begin_turn(hold.fence().next(), hold.clock.now());
    let is_left = |left| begins(&hold_with(None, left));
    assert!(is_left(LEASE / 4));
    assert!(!is_left(LEASE / 4 - Duration::from_millis(1)));
    let in_doubt = hold(None);
    in_doubt.set_in_doubt();
    assert!(!begins(&in_doubt));
    let lost = hold(None);
    lost.end(HoldEnd::Taken);
    assert!(!begins(&lost));
}

#[tokio::test(start_paused = true)]
async fn the_last_fence_of_a_hold_is_that_of_its_last_turn() {
    let hold = hold(None);
    let first = hold.fence();
    assert_eq!(
        (hold.last_fence(), hold.release_kind()),
        (first, ReleaseWhat::Grant(first))
    );
    let last = first.next().next();
    assert!(hold.begin_turn(last, hold.clock.now()));
    assert_eq!((hold.fence(), hold.last_fence()), (first, last));
    assert_eq!(hold.release_kind(), ReleaseWhat::Turns { first, last });
}

#[tokio::test(start_paused = true)]
async fn only_a_fence_that_follows_a_loss_of_the_lock_takes_turns_away() {
    let granted_us = 1000 * server(Duration::ZERO).ms();
    let more = |ahead_us: u64| {
        let first = Fence::new(granted_us + ahead_us).unwrap();
        let last = hold_of(None, LEASE, first, None).last_reserved();
        last.get().saturating_sub(first.get())
    };
    assert_eq!([0, 1_000, 1_001, 1_998].map(more), [999, 999, 998, 1]);
    // The time was cut to ms, so the fence may be ahead by another one.
    assert_eq!([1_999, 2_000, 2_999].map(more), [0, 0, 0]);
    // The server's clock was set back.
    assert_eq!([3_000, 3_600_000_000].map(more), [999, 999]);
}

/// The hold of the majority may go on without the vote, and its turns with it.
#[tokio::test(start_paused = true)]
async fn vote_that_was_part_of_a_hold_may_have_used_all_fences_unless_it_is_told_the_last_one() {
    let vote = vote(None);
    let (first, grant) = (vote.fence(), ReleaseWhat::Grant(vote.fence()));
    let turns = |last| ReleaseWhat::Turns {
        first,
        last: Fence::new(last).unwrap(),
    };
    assert_eq!(vote.release_kind(), grant, "no hold, no turns");
    vote.join(LocalTime::ZERO, LEASE);
    assert_eq!(vote.release_kind(), turns(first.get() + RESERVED));
    vote.end_turns(Fence::new(3).unwrap());
    assert_eq!(vote.release_kind(), turns(3));
    vote.end_turns(first);
    assert_eq!(vote.release_kind(), grant);
}

#[tokio::test(start_paused = true)]
async fn vote_ends_with_its_majority_though_its_own_lease_is_longer() {
    let vote = vote(Some(LEASE / 2));
    vote.join(LocalTime::ZERO, LEASE / 2);
    assert_eq!(vote.deadline(), LocalTime::ZERO.after(LEASE / 2));
}
