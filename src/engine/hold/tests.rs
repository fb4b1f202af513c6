//! Tests of a hold by itself, without a background task.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake};
use std::thread;

use futures_util::FutureExt;
use tokio::time::sleep;

use super::*;
use crate::engine::floor::{Floor, QuorumClocks};
use crate::engine::server_clocks::ServerClocks;
use crate::error::Lost;
use crate::place::held::HoldRef;
use crate::store::ids::ClientId;
use crate::store::{Answer, ConnectionId};
use crate::time::deadline_queue::GivesUp;

const LEASE: Duration = Duration::from_secs(6);

/// A hold that was granted just now.
fn hold(max_hold: Option<Duration>) -> Hold {
    hold_with(max_hold, 1, LEASE)
}

/// A hold with so many turns, of which the client heard when `left` of its lease was left.
fn hold_with(max_hold: Option<Duration>, turns: u16, left: Duration) -> Hold {
    hold_of(max_hold, turns, left, None)
}

/// A vote of a quorum with one server, whose request reserved so many turns.
fn vote(turns: u16) -> Hold {
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
        clock, &first,
    ))]));
    let floor = Floor::of_ballot(&clocks, clock.now(), &Arc::default()).unwrap();
    hold_of(None, turns, LEASE, Some(floor))
}

fn hold_of(max_hold: Option<Duration>, turns: u16, left: Duration, floor: Option<Floor>) -> Hold {
    let terms = LeaseTerms {
        length: LEASE,
        fixed: false,
        max_hold,
        at_least: None,
        claim_window: LEASE,
    };
    let client = ClientId::from_number(1);
    let grant = Grant {
        request: RequestId::with_turns(&client, terms.grant(), 1, turns),
        deadline: server(LEASE),
        fence: Fence::new(1).unwrap(),
        pushed: false,
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
    for (end, is_kept) in [(LostReason::Released, true), (LostReason::Expired, false)] {
        let mut hold = hold(None);
        hold.terms.at_least = Some(LEASE);
        hold.mark_used();
        hold.end(end);
        assert_eq!(
            matches!(hold.ending(), ReleaseWhat::Keep { .. }),
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
    assert_eq!(lost.reason(), LostReason::Expired);
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
    hold.end(LostReason::Released);
    for (watcher, told) in watchers.into_iter().zip(told) {
        assert!(told.0.load(Ordering::SeqCst));
        assert_eq!(watcher.await.reason(), LostReason::Released);
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
                hold.end(LostReason::Released);
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
    assert_eq!(hold.lost().await.reason(), LostReason::Expired);
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
    assert_eq!(hold.lost().await.reason(), LostReason::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn first_end_of_a_hold_counts() {
    let hold = hold(None);
    assert_eq!(hold.end(LostReason::Released).0, None);
    assert_eq!(hold.end(LostReason::Taken).0, Some(LostReason::Released));
    assert_eq!(hold.lost().await.reason(), LostReason::Released);
}

#[tokio::test(start_paused = true)]
async fn max_hold_is_the_reason_only_if_the_hold_lasted_until_then() {
    // Nothing renews the hold.
    assert_eq!(hold(Some(2 * LEASE)).lost().await.reason(), LostReason::Expired);
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
    assert_eq!(lost.reason(), LostReason::MaxHold);
    assert_eq!(hold.clock.now(), end);
}

fn next_turn(hold: &Hold) -> Option<Fence> {
    let (turns, now) = (hold.turns()?, hold.clock.now());
    let next = turns.next(now)?;
    hold.begin_turn(turns, next, now).then_some(next)
}

/// How the turn with this fence ends.
async fn turn_over(hold: &Arc<Hold>, fence: Fence) -> Lost {
    HoldRef::One(hold).turn_over(fence).await
}

#[tokio::test(start_paused = true)]
async fn each_turn_has_a_fence_of_its_own_and_there_are_no_more_than_were_reserved() {
    let hold = Arc::new(hold_with(None, 3, LEASE));
    assert_eq!(hold.last_fence(), hold.fence());
    let mut lost = Box::pin(turn_over(&hold, hold.fence()));
    assert!(lost.as_mut().now_or_never().is_none());
    let next = [(); 3].map(|()| next_turn(&hold).map(Fence::get));
    assert_eq!(next, [Some(2), Some(3), None]);
    assert_eq!((hold.last_fence().get(), hold.fence().get()), (3, 1));
    assert_eq!(lost.await.reason(), LostReason::Released);
    assert_eq!(next_turn(&hold_with(None, 1, LEASE)), None);
}

#[tokio::test(start_paused = true)]
async fn no_turn_begins_once_the_hold_is_old_or_lost_or_in_doubt_or_nearly_over() {
    let turns = || hold_with(None, 3, LEASE);
    assert!(next_turn(&turns()).is_some());
    let nearly_over = |left| next_turn(&hold_with(None, 3, left));
    assert!(nearly_over(LEASE / 4).is_some());
    assert!(nearly_over(LEASE / 4 - Duration::from_millis(1)).is_none());
    let in_doubt = turns();
    in_doubt.set_in_doubt();
    assert!(next_turn(&in_doubt).is_none());
    let lost = turns();
    lost.end(LostReason::Taken);
    assert!(next_turn(&lost).is_none());
    let old = turns();
    // Until then, its grant may have waited for replicas.
    sleep(turns::LONGEST_TENURE).await;
    old.turns().unwrap().begin(old.clock.now());
    sleep(turns::LONGEST_TENURE / 2).await;
    assert!(next_turn(&old).is_some());
    sleep(turns::LONGEST_TENURE / 2).await;
    assert!(next_turn(&old).is_none());
}

/// The hold of the majority may go on without the vote, and its turns with it.
#[tokio::test(start_paused = true)]
async fn vote_that_was_part_of_a_hold_may_have_used_all_fences_unless_it_is_told_the_last_one() {
    let vote = vote(4);
    let (first, grant) = (vote.fence(), ReleaseWhat::Grant(vote.fence()));
    let turns = |last| ReleaseWhat::Turns {
        first,
        last: Fence::new(last).unwrap(),
    };
    assert_eq!(vote.ending(), grant, "no hold, no turns");
    vote.join(LocalTime::ZERO, LEASE);
    assert_eq!(vote.ending(), turns(4));
    vote.end_turns(Fence::new(3).unwrap());
    assert_eq!(vote.ending(), turns(3));
    vote.end_turns(first);
    assert_eq!(vote.ending(), grant);
}

#[tokio::test(start_paused = true)]
async fn watcher_of_a_turn_is_told_of_the_end_of_its_hold() {
    let hold = Arc::new(hold_with(None, 3, LEASE));
    let fence = next_turn(&hold).unwrap();
    let lost = tokio::time::timeout(2 * LEASE, turn_over(&hold, fence));
    assert_eq!(lost.await.unwrap().reason(), LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn vote_ends_with_its_majority_though_its_own_lease_is_longer() {
    let vote = hold_with(Some(LEASE / 2), 1, LEASE);
    vote.join(LocalTime::ZERO, LEASE / 2);
    assert_eq!(vote.deadline(), LocalTime::ZERO.after(LEASE / 2));
}
