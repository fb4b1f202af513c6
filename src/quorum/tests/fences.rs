//! Fences of servers that know different ones.

use super::*;

#[tokio::test(start_paused = true)]
async fn fences_that_differ_are_raised_to_the_largest() {
    let servers = Servers::new(3);
    let early = servers.process(1);
    let held = early.acquire().await;
    let usual = held.fence;
    held.release().await.unwrap();
    // That makes the fence of this server larger by far.
    servers.take_alone(0, 100).await;
    let process = servers.process(2);
    // Two servers answer, and one of them has the larger fence.
    process.set(2, State::Down);
    let held = process.acquire().await;
    let fences = fences(&held);
    assert_eq!(fences, [held.fence; 2]);
    assert!(held.fence > usual);
    held.release().await.unwrap();
    // A majority without that server is told a larger one all the same.
    let last = servers.process(3);
    last.set(0, State::Down);
    let next = last.acquire().await;
    assert!(next.fence > fences[0]);
    next.release().await.unwrap();
}

/// Otherwise a majority with that server, and with one that has forgotten the fence, could give it again.
#[tokio::test(start_paused = true)]
async fn vote_that_comes_later_has_no_smaller_fence_than_the_hold() {
    let servers = Servers::new(3);
    // That makes the fence of this server larger by far.
    servers.take_alone(0, 100).await;
    let process = servers.process(1);
    process.set(2, State::Down);
    let held = process.acquire().await;
    process.set(2, NEAR);
    sleep(10 * SECOND).await;
    let fences = fences(&held);
    assert_eq!(fences.len(), 3);
    assert!(fences.iter().all(|fence| *fence >= held.fence), "{fences:?}");
    held.release().await.unwrap();
}

/// Race: The reply of a server comes after the decision. Its grant is older, and so is its floor.
#[tokio::test(start_paused = true)]
async fn vote_that_is_heard_of_after_the_decision_is_raised_to_the_fence_of_the_hold() {
    let servers = Servers::new(3);
    servers.take_alone(0, 100).await;
    let process = servers.process(1);
    process.set(2, State::Replies(SECOND));
    let held = process.acquire().await;
    process.set(2, NEAR);
    sleep(SECOND + MS).await;
    let fence = |server: usize| held.votes().holds()[server].1.fence();
    assert!(fence(2) < held.fence, "{} and {}", fence(2), held.fence);
    sleep(SECOND).await;
    assert_eq!(fence(2), held.fence);
    held.release().await.unwrap();
}

/// Otherwise the next majority with that server must have its fences raised, which takes a round trip.
#[tokio::test(start_paused = true)]
async fn vote_that_comes_later_has_the_fence_of_the_hold_if_its_server_knows_no_larger_one() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    process.set(2, State::Down);
    let held = process.acquire().await;
    sleep(3 * SECOND).await;
    process.set(2, NEAR);
    sleep(10 * SECOND).await;
    assert_eq!(fences(&held), [held.fence; 3]);
    held.release().await.unwrap();
}

/// Otherwise a majority with that server must have its fences raised, which takes a round trip.
#[tokio::test(start_paused = true)]
async fn vote_that_comes_after_the_release_gives_the_next_holder_the_same_fence() {
    let servers = Servers::new(3);
    let (first, second) = (servers.process(1), servers.process(2));
    first.set(2, State::Replies(SECOND));
    let held = first.acquire().await;
    let waiter = second.waits();
    sleep(SECOND / 2).await;
    held.release().await.unwrap();
    let next = waiter.await.unwrap();
    sleep(SECOND).await;
    assert_eq!(fences(&next), [next.fence; 3]);
    next.release().await.unwrap();
}

/// Race: A server is away when the others hear of the release, and hears of it later.
#[tokio::test(start_paused = true)]
async fn server_that_hears_of_the_release_later_gives_the_next_holder_the_same_fence() {
    let servers = Servers::new(3);
    let (first, second) = (servers.process(1), servers.process(2));
    // It has a vote there that it does not know of.
    first.set(2, State::Replies(SECOND));
    let held = first.acquire().await;
    let waiter = second.waits();
    sleep(SECOND / 2).await;
    first.set(2, State::Down);
    held.release().await.unwrap();
    let next = waiter.await.unwrap();
    sleep(SECOND / 2).await;
    assert_eq!(fences(&next), [next.fence; 2]);
    first.set(2, NEAR);
    sleep(SECOND).await;
    assert_eq!(fences(&next), [next.fence; 3]);
    next.release().await.unwrap();
}

/// Race: All servers lose their data while a caller waits. Holders that began after it had asked had larger
/// fences than those of the time when it asked.
#[tokio::test(start_paused = true)]
async fn caller_that_waits_while_the_servers_lose_their_data_gets_a_fence_larger_than_those_before() {
    let servers = Servers::new(3);
    let [first, second, third] = [1, 2, 3].map(|number| servers.process(number));
    let held = first.acquire().await;
    let next = second.waits();
    sleep(MS).await;
    let last = third.waits();
    sleep(5 * SECOND).await;
    held.release().await.unwrap();
    let next = next.await.unwrap();
    assert!(!last.is_finished());
    for server in &servers.0 {
        server.flush();
    }
    let last = last.await.unwrap();
    assert!(last.fence > next.fence, "{last:?} after {next:?}");
    sleep(60 * SECOND).await;
    assert!(next.votes().end_if_over().is_err());
    last.release().await.unwrap();
}
