//! Local hand-off: the holds of a quorum as tenures, whose turns follow one another without a call.

use super::*;
use crate::caller::local_queue::turn::Turn;
use crate::caller::place::held::Held;
use crate::engine::acquire::Tried;
use crate::protocol::RESERVED;
use crate::quorum::Votes;

const TURNS: u16 = 8;

impl Process {
    async fn turn(&self) -> Turn {
        turn(Arc::clone(&self.queues)).await
    }

    /// The next turn, in a task of its own, which has its place in the local queue already.
    async fn waits_for_a_turn(&self) -> tokio::task::JoinHandle<Turn> {
        let waiter = tokio::spawn(turn(Arc::clone(&self.queues)));
        settle().await;
        waiter
    }
}

/// Lets everything happen that needs no time. The shortest sleep would be a millisecond.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn turn(queues: Arc<LocalQueues>) -> Turn {
    let Place::Quorum(quorum) = queues.place() else {
        panic!("a quorum");
    };
    let (tenure, began) = (tenure(quorum, TURNS), quorum.client().now());
    let _permit = quorum.count_caller().unwrap();
    queues.acquire(&tenure, began, None).await.unwrap()
}

/// The hold of a turn.
fn votes_of(turn: &Turn) -> &Arc<Votes> {
    match turn.held() {
        Some(Held::Majority(majority)) => majority.votes(),
        _ => panic!("a quorum"),
    }
}

async fn release(turn: Turn) {
    if let Some(tenure) = turn.release() {
        tenure.release().await.unwrap();
    }
}

/// Has `more` turns after this one. Returns the last one.
async fn passes_on(process: &Process, mut turn: Turn, more: usize) -> Turn {
    for _ in 0..more {
        let next = process.waits_for_a_turn().await;
        assert!(turn.release().is_none(), "the turn passes on");
        turn = turn_after(next).await;
    }
    turn
}

async fn turn_after(waiter: tokio::task::JoinHandle<Turn>) -> Turn {
    timeout(SECOND, waiter).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn turns_have_fences_of_their_own_and_the_next_process_a_larger_one_of_all_servers() {
    let servers = Servers::new(3);
    let [first, second] = [servers.process(1), servers.process(2)];
    let turn = first.turn().await;
    let fence = turn.fence().get();
    let other = second.waits_for_a_turn().await;
    let turn = passes_on(&first, turn, 3).await;
    assert_eq!(turn.fence().get(), fence + 3);
    assert_eq!(first.quorum.held()[0].1, turn.fence());
    let last = turn.fence();
    release(turn).await;
    let next = turn_after(other).await;
    assert_eq!(next.fence(), last.next(), "none is wasted");
    let fences: Vec<_> = votes_of(&next)
        .holds()
        .iter()
        .map(|(_, hold)| hold.fence())
        .collect();
    assert_eq!(fences, [next.fence(); 3], "one fence, without a look");
    release(next).await;
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
    for process in [first, second] {
        assert_eq!(process.queues.len(), 0);
    }
}

/// The only turn so far of a process in whose local queue nobody waits.
async fn lone_turn(process: &Process) -> Turn {
    let tenure = tenure(&process.quorum, TURNS);
    let Ok(Tried::Held(turn)) = process.queues.try_acquire(tenure).await else {
        panic!("the lock is free");
    };
    settle().await;
    turn
}

/// The clocks stand still, and nobody is queued, so only the data of the servers can tell of the turns.
#[tokio::test(start_paused = true)]
async fn every_server_remembers_the_last_fence() {
    let servers = Servers::new(3);
    let [first, second] = [servers.process(1), servers.process(2)];
    let turn = lone_turn(&first).await;
    let (hold, now) = (Arc::clone(votes_of(&turn)), first.quorum.client().now());
    let last = (0..3).fold(turn.fence(), |fence, _| {
        assert!(hold.begin_turn(fence.next(), now));
        fence.next()
    });
    release(turn).await;
    assert_eq!(hold.next_floor.ended(), Some(last.next()));
    second.set(0, State::Down);
    let held = second.acquire().await;
    assert_eq!(fences(&held), [last.next(); 2]);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tenure_that_was_taken_by_force_may_have_used_all_fences() {
    let servers = Servers::new(3);
    let [first, second] = [servers.process(1), servers.process(2)];
    let turn = lone_turn(&first).await;
    let AcquireParams { keys, terms, .. } = params(&second.quorum);
    let forced = second.quorum.force_release(&keys, &terms, turn.fence()).await;
    assert!(forced.unwrap());
    let held = second.acquire().await;
    assert_eq!(held.fence, turn.fence().plus(RESERVED).next());
    held.release().await.unwrap();
    drop(turn);
}

/// Race: A vote of a tenure is lost, and its server has another holder, while the turns go on.
#[tokio::test(start_paused = true)]
async fn vote_that_is_lost_while_the_hold_lasts_may_have_used_all_fences() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let turn = process.turn().await;
    let all = turn.fence().plus(RESERVED);
    let turn = passes_on(&process, turn, 2).await;
    let lost = votes_of(&turn).take(0).unwrap();
    drop(lost);
    sleep(MS).await;
    // The next tenure, which was asked for with the second turn, has that vote now.
    let seen = LockManager::builder().in_memory(&servers.0[0]).unwrap();
    let holder = seen.lock("a").status().await.unwrap().holder.unwrap();
    assert!(holder.fence > all, "{} after {all}", holder.fence);
    assert!(turn.hold().check().is_ok());
    drop(turn);
}

#[tokio::test(start_paused = true)]
async fn no_turn_begins_while_most_votes_are_in_doubt() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let turn = process.turn().await;
    let now = process.quorum.client().now();
    process.set(0, State::Down);
    turn.renew().await.unwrap();
    let begins = || turn.hold().begin_turn(turn.fence().next(), now);
    assert!(begins(), "a majority is sure");
    process.set(1, State::Down);
    assert!(turn.renew().await.is_err());
    assert!(!begins());
    drop(turn);
}

#[tokio::test(start_paused = true)]
async fn no_turn_begins_when_the_leases_are_nearly_over_or_the_hold_is_over() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let turn = process.turn().await;
    (0..3).for_each(|server| process.set(server, State::Hung));
    let (hold, now) = (Arc::clone(votes_of(&turn)), process.quorum.client().now());
    let left = hold.holds()[0].1.deadline().since(now);
    // The tenure is young all the same.
    let begins = |now| hold.begin_turn(turn.fence().next(), now);
    assert!(begins(now));
    assert!(!begins(now.after(left * 7 / 8)));
    // A hold that was lost never comes back.
    let votes = [0, 1].map(|server| (server, hold.take(server).unwrap()));
    assert!(hold.end_if_over().is_err());
    for (server, vote) in votes {
        hold.put(server, vote);
    }
    assert!(!begins(now));
    drop(turn);
}

#[tokio::test(start_paused = true)]
async fn a_try_makes_no_call_while_the_lock_is_wanted_here() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let turn = process.turn().await;
    let waiter = process.waits_for_a_turn().await;
    assert_eq!(
        process.quorum.waiting(),
        1,
        "the tenure that is asked for is no caller"
    );
    (0..3).for_each(|server| process.set(server, State::Down));
    let tried = process.queues.try_acquire(tenure(&process.quorum, TURNS)).await;
    let Ok(Tried::Busy { ttl, ahead }) = tried else {
        panic!("{tried:?}");
    };
    assert_eq!(ahead, 1);
    assert!(ttl > SECOND, "{ttl:?}");
    drop(turn);
    drop(turn_after(waiter).await);
}

#[tokio::test(start_paused = true)]
async fn watcher_of_a_turn_is_told_when_it_is_passed_on_and_when_the_hold_is_lost() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let turn = process.turn().await;
    let watched = turn.watched();
    let watcher = tokio::spawn(async move { watched.lost().await });
    let next = passes_on(&process, turn, 1).await;
    assert_eq!(watcher.await.unwrap().reason, HoldEnd::Released);
    (0..3).for_each(|server| process.set(server, State::Hung));
    let watched = next.watched();
    let lost = timeout(60 * SECOND, watched.lost());
    assert_eq!(lost.await.unwrap().reason, HoldEnd::Expired);
    drop(next);
}
