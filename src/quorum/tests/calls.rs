//! What each call does while votes are split, servers are away, or holds were repaired.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::select_all;
use tokio::time::{Instant, sleep, timeout};

use super::link::State;
use super::{
    LockManager, MS, NEAR, Process, SECOND, Servers, acquire_as, acquire_through, acquire_with, fences,
    params, votes,
};
use crate::caller::local_queue::LocalQueues;
use crate::engine::acquire::Tried;
use crate::engine::any_hold::{AnyHold, Watched};
use crate::engine::counters::Correction;
use crate::quorum::Majority;
use crate::sync::locked;
use crate::types::error::{Error, HoldEnd};
use crate::types::fence::Fence;
use crate::types::lease::LeaseState;
use crate::types::status::Status;

impl Process {
    /// Only this server answers.
    fn reaches_only(&self, server: usize) {
        for other in 0..self.links.len() {
            self.set(other, if other == server { NEAR } else { State::Busy });
        }
    }

    /// This server answers at once, and the others take their time.
    fn is_near(&self, server: usize) {
        for other in 0..self.links.len() {
            let state = if other == server { NEAR } else { State::Up(SECOND) };
            self.set(other, state);
        }
    }

    async fn tried(&self) -> Tried<Majority> {
        let tried = self.quorum.try_acquire(params(&self.quorum)).await;
        tried.expect("a majority answers")
    }

    async fn seen(&self) -> Status {
        let params = params(&self.quorum);
        let seen = self.quorum.inspect(&params.keys, &params.terms);
        seen.await.unwrap().status
    }

    async fn forced(&self, fence: Fence) -> bool {
        let params = params(&self.quorum);
        let forced = self.quorum.force_release(&params.keys, &params.terms, fence);
        forced.await.unwrap()
    }

    fn counted(&self, correction: Correction) -> u64 {
        self.quorum.counters.corrections(correction)
    }
}

/// Two processes that have one vote each, of three servers, and have not reached the others yet.
async fn split(servers: &Servers) -> [(Process, tokio::task::JoinHandle<Majority>); 2] {
    let processes = [servers.process(1), servers.process(2)];
    let mut split = Vec::new();
    for (server, process) in processes.into_iter().enumerate() {
        process.is_near(server);
        let wait = process.waits();
        sleep(MS).await;
        split.push((process, wait));
    }
    split.try_into().ok().expect("two processes")
}

#[tokio::test(start_paused = true)]
async fn nobody_holds_while_votes_are_split() {
    let servers = Servers::new(3);
    let split = split(&servers).await;
    let third = servers.process(3);
    let seen = third.seen().await;
    assert!(seen.holder.is_none(), "{seen:?}");
    assert!(matches!(third.tried().await, Tried::Busy { .. }));
    for (process, _) in &split {
        for server in 0..3 {
            process.set(server, NEAR);
        }
    }
    // Neither is queued at a majority yet, so either may be the first to hold.
    let waits = split.map(|(_, wait)| wait);
    let first = timeout(2 * SECOND, select_all(waits))
        .await
        .expect("one of them holds");
    let (held, _, others) = first;
    assert!(!others[0].is_finished());
    held.unwrap().release().await.unwrap();
    for other in others {
        other.await.unwrap().release().await.unwrap();
    }
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}

#[tokio::test(start_paused = true)]
async fn try_that_gets_too_few_votes_gives_them_back() {
    let servers = Servers::new(3);
    let holder = servers.process(1);
    holder.set(2, State::Down);
    let held = holder.acquire().await;
    let other = servers.process(2);
    let Tried::Busy { ttl, ahead } = other.tried().await else {
        panic!("two holders");
    };
    assert!(ttl > SECOND && ahead == 0, "{ttl:?}");
    held.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
    let Tried::Held(held) = other.tried().await else {
        panic!("the lock is free");
    };
    assert_eq!(votes(&held), 2, "it waits for no more than a majority");
    sleep(MS).await;
    assert_eq!(votes(&held), 3);
    held.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}

/// It may be free, and with the server whose lease is over first it is a majority.
#[tokio::test(start_paused = true)]
async fn try_does_not_put_off_the_caller_because_of_a_server_that_has_not_answered() {
    let servers = Servers::new(3);
    let mut held = Vec::new();
    for (server, lease) in [(0, SECOND), (1, 30 * SECOND)] {
        let locks = LockManager::builder().in_memory(&servers.0[server]).unwrap();
        held.push(locks.lock("a").lease(lease).acquire().await.unwrap());
    }
    let process = servers.process(1);
    process.set(2, State::Up(SECOND));
    let Tried::Busy { ttl, .. } = process.tried().await else {
        panic!("two servers are taken");
    };
    assert!(!ttl.is_zero() && ttl <= SECOND, "{ttl:?}");
}

/// Race: A holder's second server hangs when another client tries to take the lock.
#[tokio::test(start_paused = true)]
async fn try_on_which_a_hung_server_decides_ends_soon_and_gives_its_vote_back() {
    let servers = Servers::new(3);
    let locks = LockManager::builder().in_memory(&servers.0[0]).unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let process = servers.process(1);
    process.set(2, State::Hung);
    let began = Instant::now();
    let Tried::Busy { ttl, .. } = process.tried().await else {
        panic!("two servers gave no vote");
    };
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert!(ttl > SECOND, "the server that hangs is not free: {ttl:?}");
    held.release().await.unwrap();
    sleep(200 * SECOND).await;
    assert_eq!(servers.left().await, 0);
}

#[tokio::test(start_paused = true)]
async fn try_without_a_majority_is_no_quorum() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    process.reaches_only(0);
    let tried = process.quorum.try_acquire(params(&process.quorum)).await;
    let error = tried.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { answering: 1, .. }), "{error:?}");
    sleep(10 * SECOND).await;
    assert_eq!(servers.left().await, 0);

    // It ends with the second failure, and waits for no third.
    process.set(0, State::Down);
    let tried = process.quorum.try_acquire(params(&process.quorum)).await;
    let error = tried.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { answering: 0, .. }), "{error:?}");
}

/// Race: The only server that answers has given its vote to somebody else.
#[tokio::test(start_paused = true)]
async fn a_try_that_one_server_calls_busy_is_no_quorum_if_the_others_are_away() {
    let servers = Servers::new(3);
    let locks = LockManager::builder().in_memory(&servers.0[2]).unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    for state in [State::Down, State::Hung] {
        let process = servers.process(1);
        process.set(0, State::Down);
        process.set(1, state);
        let tried = process.quorum.try_acquire(params(&process.quorum)).await;
        let error = tried.unwrap_err();
        assert!(matches!(error, Error::NoQuorum { answering: 1, .. }), "{error:?}");
    }
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bounded_wait_in_a_split_ends_in_time_and_leaves_nothing() {
    let servers = Servers::new(3);
    let (first, second) = (servers.process(1), servers.process(2));
    first.reaches_only(0);
    second.reaches_only(1);
    let began = Instant::now();
    let until = |bound| Some(began + bound);
    let waits = [(&first, 2 * SECOND), (&second, 3 * SECOND)];
    for (process, bound) in waits {
        let error = acquire_with(&process.quorum, until(bound)).await.unwrap_err();
        // Each reaches one server alone, and knows nothing of the others.
        assert!(matches!(error, Error::NoQuorum { answering: 1, .. }), "{error:?}");
        let took = began.elapsed();
        assert!(took >= bound && took < bound + 100 * MS, "{took:?}");
    }
    for process in [&first, &second] {
        for server in 0..3 {
            process.set(server, NEAR);
        }
    }
    // Nothing of it blocks the next attempt.
    let next = acquire_with(&second.quorum, Some(Instant::now() + SECOND)).await;
    next.unwrap().release().await.unwrap();
    sleep(10 * SECOND).await;
    assert_eq!(servers.left().await, 0);
}

/// The votes are a majority, under different fences, and a server hangs before it has raised its own.
#[tokio::test(start_paused = true)]
async fn bounded_wait_whose_votes_disagree_ends_in_time() {
    let servers = Servers::new(3);
    servers.take_alone(1, 3).await;
    let process = servers.process(1);
    process.set(0, State::Down);
    process.set(2, State::Up(10 * MS));
    let bound = 100 * MS;
    let began = Instant::now();
    let quorum = std::sync::Arc::clone(&process.quorum);
    let wait = tokio::spawn(async move { acquire_with(&quorum, Some(began + bound)).await });
    sleep(5 * MS).await;
    process.set(2, State::Hung);
    let error = wait.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let took = began.elapsed();
    assert!(took >= bound && took < bound + 100 * MS, "{took:?}");
    process.set(2, NEAR);
    sleep(10 * SECOND).await;
    assert_eq!(servers.left().await, 0);
}

#[tokio::test(start_paused = true)]
async fn hold_of_a_bounded_wait_gets_its_missing_vote_after_the_bound() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    process.set(1, State::Down);
    let held = acquire_with(&process.quorum, Some(Instant::now() + SECOND))
        .await
        .unwrap();
    sleep(60 * SECOND).await;
    process.set(1, NEAR);
    sleep(10 * SECOND).await;
    assert_eq!(votes(&held), 3);
    assert_eq!(process.counted(Correction::Repaired), 1);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn forced_release_ends_a_hold_for_good() {
    let servers = Servers::new(3);
    let (process, operator) = (servers.process(1), servers.process(2));
    let held = process.acquire().await;
    sleep(30 * SECOND).await;
    assert!(operator.forced(held.fence).await);
    assert!(!operator.forced(held.fence).await);
    let lost = timeout(30 * SECOND, held.votes().lost()).await.expect("told");
    assert_eq!(lost.reason, HoldEnd::Taken);
    sleep(60 * SECOND).await;
    assert_eq!(servers.left().await, 0, "it comes back");
}

/// The holder does not know of it yet, and renews the votes that are left.
#[tokio::test(start_paused = true)]
async fn forced_release_reaches_servers_that_have_not_told_who_holds() {
    let servers = Servers::new(3);
    let (process, operator) = (servers.process(1), servers.process(2));
    let held = process.acquire().await;
    sleep(3 * SECOND).await;
    assert_eq!(servers.left().await, 3);
    assert!(operator.forced(held.fence).await);
    assert_eq!(servers.left().await, 0);
    drop(held);
}

/// A server that hangs holds up nobody, and is told when it answers again.
#[tokio::test(start_paused = true)]
async fn forced_release_does_not_wait_for_a_server_that_hangs() {
    let servers = Servers::new(3);
    let (process, operator) = (servers.process(1), servers.process(2));
    let held = process.acquire().await;
    sleep(3 * SECOND).await;
    operator.set(0, State::Hung);
    let began = Instant::now();
    assert!(operator.forced(held.fence).await);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(servers.left().await, 1);
    operator.set(0, NEAR);
    sleep(5 * SECOND).await;
    assert!(held.votes().end_if_over().is_ok(), "no renewal has found it");
    assert_eq!(servers.left().await, 0);
    drop(held);
}

/// Each server of the hold has another fence by then, and none the one that the holder was given.
#[tokio::test(start_paused = true)]
async fn hold_with_other_fences_everywhere_is_seen_and_forced() {
    let servers = Servers::new(3);
    let (process, operator) = (servers.process(1), servers.process(2));
    let held = process.acquire().await;
    for (server, others) in (0..3).zip([100, 300, 200]) {
        process.set(server, State::Down);
        sleep(60 * SECOND).await;
        servers.take_alone(server, others).await;
        process.set(server, NEAR);
        sleep(10 * SECOND).await;
    }
    held.votes().end_if_over().unwrap();
    let others = BTreeSet::from_iter(fences(&held));
    assert_eq!(others.len(), 3);
    assert!(!others.contains(&held.fence));
    let holder = operator.seen().await.holder.expect("it is held");
    assert_eq!(holder.owner, held.votes().owner);
    let params = params(&operator.quorum);
    let forced = (operator.quorum).force_release(&params.keys, &params.terms, holder.fence);
    assert!(forced.await.unwrap());
    let lost = timeout(30 * SECOND, held.votes().lost()).await.expect("told");
    assert_eq!(lost.reason, HoldEnd::Taken);
}

#[tokio::test(start_paused = true)]
async fn servers_with_other_fences_give_one_fence_from_the_next_release_on() {
    let servers = Servers::new(3);
    // The fence of this server stays ahead of the clocks until the release.
    servers.take_alone(0, 5_000).await;
    let (first, second) = (servers.process(1), servers.process(2));
    let held = first.acquire().await;
    let raised = || first.counted(Correction::Raised) + second.counted(Correction::Raised);
    let before = raised();
    let waiter = second.waits();
    sleep(MS).await;
    held.release().await.unwrap();
    let next = waiter.await.unwrap();
    sleep(MS).await;
    assert_eq!(fences(&next), [next.fence; 3]);
    assert_eq!(raised(), before);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_quorum_count_once_and_up_to_their_bound() {
    let servers = Servers::new(3);
    let process = servers.process_with(1, |options| options.max_waiters = 2);
    let held = process.acquire().await;
    let waits = |queues: Arc<LocalQueues>| async move { acquire_through(&queues, None).await.unwrap() };
    let waiters = [(); 2].map(|()| tokio::spawn(waits(Arc::clone(&process.queues))));
    sleep(SECOND).await;
    assert_eq!(process.quorum.waiting(), 2);
    let refused = acquire_through(&process.queues, None).await.unwrap_err();
    assert!(
        matches!(refused, Error::QueueFull { max_waiters: 2, .. }),
        "{refused:?}"
    );
    assert_eq!(process.quorum.held().len(), 1);
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().release().await.unwrap();
    }
    assert_eq!((process.quorum.waiting(), process.quorum.held().len()), (0, 0));
    assert!(locked(&process.quorum.held).is_empty(), "nothing piles up");
}

/// A server that is far behind, or whose lock is of another kind, must not stop the others.
#[tokio::test(start_paused = true)]
async fn minority_that_refuses_is_passed_over_and_a_majority_is_an_error() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    process.set(0, State::Refusing);
    process.acquire().await.release().await.unwrap();
    // If one refuses and one is away, the second one may come back.
    process.set(1, State::Down);
    let error = acquire_with(&process.quorum, None).await.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error:?}");
    process.set(1, State::Refusing);
    let error = acquire_with(&process.quorum, None).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
}

/// The server that confirms the release is one of two that the hold was on. The lock is free with it.
#[tokio::test(start_paused = true)]
async fn release_of_a_bare_majority_waits_for_no_server_that_hangs() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    process.set(2, State::Down);
    let held = process.acquire().await;
    assert_eq!(votes(&held), 2);
    process.set(1, State::Hung);
    let released = timeout(SECOND, held.release()).await;
    released.expect("it waits for no server").unwrap();
    process.set(2, NEAR);
    let next = acquire_with(&process.quorum, Some(Instant::now() + SECOND)).await;
    next.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn release_waits_for_no_server_that_hangs_if_the_others_have_lost_their_votes() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let held = process.acquire().await;
    sleep(MS).await;
    assert_eq!(votes(&held), 3);
    servers.0[0].flush();
    servers.0[1].flush();
    process.set(2, State::Hung);
    let released = timeout(SECOND, held.release()).await;
    let error = released.expect("it waits for no server").unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn hold_with_a_short_fixed_lease_lasts_for_it_though_its_first_vote_came_much_earlier() {
    let servers = Servers::new(3);
    let (others, process) = (servers.process(1), servers.process(2));
    others.set(0, State::Down);
    let held = others.acquire().await;
    process.set(2, State::Down);
    let mut params = params(&process.quorum);
    (params.terms.length, params.terms.fixed) = (4 * SECOND, true);
    let quorum = Arc::clone(&process.quorum);
    let waiter = tokio::spawn(async move { acquire_as(&quorum, params).await.unwrap() });
    sleep(3900 * MS).await;
    held.release().await.unwrap();
    let began = Instant::now();
    let held = waiter.await.unwrap();
    assert_eq!(votes(&held), 2);
    held.votes().lost().await;
    let lasted = began.elapsed();
    assert!(lasted > 3 * SECOND && lasted <= 4 * SECOND, "{lasted:?}");
}

/// A client that was there before would otherwise come behind all newer ones, until the clocks have caught
/// up.
#[tokio::test(start_paused = true)]
async fn clients_keep_the_order_of_arrival_after_the_clocks_were_set_back() {
    let servers = Servers::new(3);
    let here = servers.process(1);
    here.acquire().await.release().await.unwrap();
    for server in &servers.0 {
        server.set_back(3600 * SECOND);
    }
    let there = servers.process(2);
    sleep(MS).await;
    let held = there.acquire().await;
    // Its calls tell this client the time.
    let _ = here.quorum.try_acquire(params(&here.quorum)).await;
    let first = here.waits();
    sleep(10 * MS).await;
    let second = there.waits();
    sleep(10 * MS).await;
    held.release().await.unwrap();
    let held = timeout(SECOND, first).await.expect("it came first").unwrap();
    assert!(!second.is_finished());
    held.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn vote_that_is_lost_before_there_is_a_majority_is_asked_for_again() {
    let servers = Servers::new(3);
    let _others = [servers.held_alone(1).await, servers.held_alone(2).await];
    let process = servers.process(1);
    let waiter = process.waits();
    sleep(100 * MS).await;
    let alone = LockManager::builder().in_memory(&servers.0[0]).unwrap();
    let fence = async || {
        alone
            .lock("a")
            .status()
            .await
            .unwrap()
            .holder
            .map(|holder| holder.fence)
    };
    let vote = fence().await.expect("it has a vote");
    assert!(alone.lock("a").force_release(vote).await.unwrap());
    sleep(5 * SECOND).await;
    assert!(fence().await > Some(vote));
    waiter.abort();
}

/// The process of a waiter dies while it has too few votes.
#[tokio::test(start_paused = true)]
async fn vote_without_a_majority_lasts_no_longer_than_a_claim_window() {
    let servers = Servers::new(3);
    let _others = [servers.held_alone(1).await, servers.held_alone(2).await];
    let process = servers.process(1);
    let _waiter = process.waits();
    sleep(100 * MS).await;
    assert_eq!(servers.left().await, 5);
    process.set(0, State::Hung);
    sleep(6 * SECOND).await;
    let alone = LockManager::builder().in_memory(&servers.0[0]).unwrap();
    assert!(alone.lock("a").try_acquire().await.is_ok());
}

/// It came earlier, but it is queued on too few servers to hold the lock.
#[tokio::test(start_paused = true)]
async fn earlier_waiter_gives_its_vote_to_a_holder() {
    let servers = Servers::new(3);
    let (earlier, holder) = (servers.process(1), servers.process(2));
    for server in [0, 1] {
        earlier.set(server, State::Up(60 * SECOND));
    }
    let waiter = earlier.waits();
    sleep(SECOND).await;
    let held = holder.acquire().await;
    assert_eq!(votes(&held), 2);
    // The waiter still waits for the other servers.
    sleep(4 * SECOND).await;
    assert!(!waiter.is_finished());
    assert_eq!(votes(&held), 3);
    held.release().await.unwrap();
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn hold_is_in_doubt_while_too_few_servers_renew_it() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let held = process.acquire().await;
    process.set(0, State::Hung);
    sleep(30 * SECOND).await;
    assert_eq!(held.votes().lease().state, LeaseState::Held);
    process.set(1, State::Hung);
    sleep(15 * SECOND).await;
    held.votes().end_if_over().unwrap();
    assert_eq!(held.votes().lease().state, LeaseState::InDoubt);
    process.set(0, NEAR);
    sleep(15 * SECOND).await;
    assert_eq!(held.votes().lease().state, LeaseState::Held);
}

/// Two of three servers will grant the lock under one fence, and one of them was asked to raise its fence to
/// that of the third server just before. It has done so, and the process does not know it yet.
async fn prepare_a_late_raise(process: &Process, servers: &Servers) {
    servers.take_alone(1, 5).await;
    process.set(0, State::Replies(10 * MS));
    process.set(2, State::Up(15 * MS));
}

#[tokio::test(start_paused = true)]
async fn renewal_finds_a_vote_whose_fence_is_being_raised() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    prepare_a_late_raise(&process, &servers).await;
    let held = process.acquire().await;
    assert_ne!(fences(&held), [held.fence; 3]);
    held.votes().renew().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(votes(&held), 3);
    assert_eq!(process.counted(Correction::Repaired), 0);
    held.release().await.unwrap();
}

/// With one server down, the release depends on the two that have raised their fences.
#[tokio::test(start_paused = true)]
async fn release_finds_votes_whose_fences_are_being_raised() {
    let servers = Servers::new(5);
    let process = servers.process(1);
    servers.take_alone(1, 5).await;
    process.set(0, State::Replies(10 * MS));
    process.set(2, State::Replies(10 * MS));
    process.set(3, State::Up(15 * MS));
    process.set(4, State::Down);
    let held = process.acquire().await;
    assert_eq!(votes(&held), 4);
    held.release().await.unwrap();
}

/// Race: A guard is dropped while a server has granted a vote whose reply is on its way, and its task takes
/// the lock again.
#[tokio::test(start_paused = true)]
async fn a_try_after_a_drop_finds_no_vote_that_was_on_its_way() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    process.set(1, State::Replies(SECOND));
    let guard = process.acquire().await;
    process.set(1, NEAR);
    process.set(2, State::Busy);
    drop(guard);
    assert!(matches!(process.tried().await, Tried::Held(_)));
}
