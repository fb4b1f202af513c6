//! The promises of semaphores and read/write locks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::world::*;
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::rules::Rules;
use crate::protocol::rules::permits::Permits;
use crate::protocol::{Acquire, Acquired, Grant, Mode, Push, ReleaseOutcome, ReleaseWhat, Renewed, Shrink};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;
use crate::types::permits::{MOST_PERMITS, MOST_SLOTS};
use crate::types::status::Kind;

const ALL: u32 = MOST_PERMITS;
/// No hold has this fence.
const NO_FENCE: u64 = 7;

/// Request `n` of a client, for `weight` of `capacity` permits.
fn asks(client: u128, n: u64, weight: u32, capacity: u32) -> RequestId {
    let window = Duration::from_millis(CLAIM_MS);
    RequestId::with_permits(&ClientId::from_number(client), window, n, weight, capacity)
}

/// One of two permits, for a client.
fn one(client: u128) -> RequestId {
    asks(client, 1, 1, 2)
}

fn reader(client: u128, n: u64) -> RequestId {
    asks(client, n, 1, ALL)
}

fn writer(client: u128, n: u64) -> RequestId {
    asks(client, n, ALL, ALL)
}

fn semaphore() -> World {
    World::of_kind(Kind::Semaphore)
}

impl World {
    fn permits(&mut self) -> &mut Permits {
        self.rules.permits(&self.keys.lock)
    }

    fn in_use(&mut self) -> u64 {
        self.inspect().in_use
    }

    /// The requests that hold permits, in the order of their ends.
    fn holders(&mut self) -> Vec<RequestId> {
        let holders = self.inspect().holders.into_iter();
        holders
            .map(|holder| RequestId::from_wire(holder.owner.as_str()).unwrap())
            .collect()
    }

    fn shrink(&mut self, grant: &Grant, permits: u32) -> ReleaseOutcome {
        let call = Shrink {
            keys: self.keys.clone(),
            request: grant.request.clone(),
            fence: grant.fence,
            permits,
        };
        self.now_us += 1;
        self.run(&call).outcome
    }

    /// Keeps the permits of a hold taken for so long.
    fn keep(&mut self, grant: &Grant, ms: u64) -> ReleaseOutcome {
        let what = ReleaseWhat::Keep {
            fence: grant.fence,
            at_least: Duration::from_millis(ms),
            until: ServerTime::MAX,
        };
        self.release(&grant.request, what)
    }

    /// The requests of each message since the last call.
    fn told(&mut self) -> Vec<Vec<RequestId>> {
        let pushes = std::mem::take(&mut self.wires.pushes).into_iter();
        pushes
            .map(|push| match push {
                Push::Granted(grants) => grants.into_iter().map(|grant| grant.request).collect(),
                Push::Kept | Push::Wanted(_) => Vec::new(),
            })
            .collect()
    }
}

#[test]
fn permits_are_given_out_in_the_order_of_the_requests() {
    let mut world = semaphore();
    let mut held: Vec<_> = (1..=2).map(|client| world.grant(&one(client))).collect();
    for (ahead, client) in (3..=9).enumerate() {
        let contended = world.queue(&one(client));
        assert_eq!((contended.ahead, contended.enqueued), (ahead as u64, true));
        world.now_us += 1;
    }
    for client in 3..=9 {
        let ended = held.remove(0);
        assert_eq!(world.give(&ended), ReleaseOutcome::Released);
        assert_eq!(world.told(), [[one(client)]]);
        let next = world.permits().grant_of(&one(client)).unwrap();
        assert!(next.pushed && held.iter().all(|other| other.fence < next.fence));
        assert_eq!(next.deadline, world.in_ms(CLAIM_MS));
        held.push(next);
        assert_eq!(world.in_use(), 2);
    }
}

#[test]
fn one_release_of_many_permits_lets_in_as_many_as_fit() {
    let mut world = semaphore();
    let big = world.grant(&asks(1, 1, 3, 3));
    for client in 2..=6 {
        world.queue(&asks(client, 1, 1, 3));
    }
    world.give(&big);
    assert_eq!(world.told().len(), 3);
    assert_eq!((world.in_use(), world.inspect().waiting), (3, 2));
}

#[test]
fn each_request_counts_by_its_own_capacity() {
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 1, 1));
    world.grant(&asks(2, 1, 1, 2));
    assert_eq!(world.queue(&asks(3, 1, 1, 2)).ahead, 0);
    world.grant(&asks(4, 1, 1, 3));
    world.give(&first);
    assert_eq!(world.told(), Vec::<Vec<_>>::new(), "2 of 2 are in use");
}

#[test]
fn a_larger_capacity_overtakes_until_as_many_permits_were_granted_over_the_first() {
    let mut world = semaphore();
    let [first, second] = [1, 2].map(|client| world.grant(&asks(client, 1, 1, 2)));
    world.queue(&asks(3, 1, 1, 2));
    let mut held: Vec<_> = (4..=5)
        .map(|client| world.grant(&asks(client, 1, 1, 4)))
        .collect();
    for client in [6, 7] {
        let wide = asks(client, 1, 1, 4);
        world.queue(&wide);
        world.give(&held.remove(0));
        assert_eq!(world.told(), [[wide.clone()]]);
        held.push(world.permits().grant_of(&wide).unwrap());
    }
    // Four permits were granted over it.
    world.queue(&asks(8, 1, 1, 4));
    world.give(&held.remove(0));
    assert_eq!(world.contended(&asks(9, 1, 1, 4), Mode::Try).ahead, 2);
    world.give(&first);
    assert_eq!((world.told(), world.in_use()), (Vec::<Vec<_>>::new(), 2));
    world.give(&second);
    assert_eq!(world.told(), [[asks(3, 1, 1, 2)], [asks(8, 1, 1, 4)]]);
    // The count starts again for the next first request.
    world.queue(&asks(10, 1, 1, 2));
    world.grant(&asks(11, 1, 1, 4));
}

#[test]
fn a_request_that_collects_permits_is_not_overtaken() {
    let mut world = semaphore();
    world.grant(&asks(1, 1, 1, 2));
    world.queue(&asks(2, 1, 2, 2));
    assert_eq!(world.queue(&asks(3, 1, 1, 9)).ahead, 1, "one of two is free");
}

#[test]
fn one_large_request_does_not_overtake_beyond_its_capacity() {
    let mut world = semaphore();
    world.grant(&asks(1, 1, 1, 1));
    world.queue(&asks(2, 1, 1, 1));
    let wide = world.grant(&asks(3, 1, 3, 5));
    world.give(&wide);
    assert_eq!(world.queue(&asks(4, 1, 3, 5)).ahead, 1, "3 and 3 are more than 5");
}

#[test]
fn a_call_steps_over_sixty_four_full_requests() {
    for (full, overtakes) in [(64, true), (65, false)] {
        let mut world = semaphore();
        world.grant(&asks(1, 1, 1, 1));
        for n in 1..=full {
            world.queue(&asks(2, n, 1, 1));
        }
        world.ask(&world.call(&asks(3, 1, 1, 2), Mode::Ask));
        assert_eq!(world.in_use() == 2, overtakes, "{full}");
    }
}

#[test]
fn an_unreachable_request_with_a_smaller_capacity_keeps_nobody_out() {
    for mode in [Mode::Try, Mode::Ask] {
        let mut world = semaphore();
        world.grant(&asks(1, 1, 3, 3));
        for n in 1..=99 {
            world.queue(&asks(2, n, 1, 2));
        }
        world.wires.uncounted.insert(world.channel_of(2));
        let granted = world.acquire(&asks(3, 1, 1, 4), mode);
        assert!(matches!(granted, Acquired::Granted { .. }), "{granted:?}");
        assert_eq!(world.inspect().waiting, 0);
        assert_eq!(world.permits().overtaken, None, "the dead are not overtaken");
    }
    // A release finds it too.
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 1, 3));
    world.grant(&asks(2, 1, 2, 3));
    world.queue(&asks(3, 1, 1, 2));
    world.queue(&asks(4, 1, 1, 3));
    world.wires.uncounted.insert(world.channel_of(3));
    world.give(&first);
    assert_eq!(world.told(), [[asks(4, 1, 1, 3)]]);
    assert_eq!(world.inspect().waiting, 0);
}

#[test]
fn a_big_request_blocks_those_behind_it() {
    let mut world = semaphore();
    let (first, second) = (world.grant(&asks(1, 1, 1, 3)), world.grant(&asks(2, 1, 1, 3)));
    world.queue(&asks(3, 1, 3, 3));
    world.queue(&asks(4, 1, 1, 3));
    world.give(&first);
    assert_eq!(
        world.told(),
        Vec::<Vec<_>>::new(),
        "permits stay free for the head"
    );
    world.give(&second);
    assert_eq!(world.told(), [[asks(3, 1, 3, 3)]]);
}

#[test]
fn a_try_is_never_queued_and_never_overtakes() {
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 2, 3));
    world.queue(&asks(2, 1, 3, 3));
    let busy = world.contended(&asks(3, 1, 1, 3), Mode::Try);
    assert_eq!((busy.ticket, busy.ahead, busy.enqueued), (None, 1, false));
    world.withdraw(&[asks(2, 1, 3, 3)]);
    let taken = world.acquire(&asks(3, 1, 1, 3), Mode::Try);
    assert!(matches!(taken, Acquired::Granted { .. }), "{taken:?}");
    assert_eq!(world.contended(&asks(4, 1, 1, 3), Mode::Try).ahead, 0);
    world.give(&first);
    assert_eq!(world.inspect().waiting, 0);
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let mut world = World::of_kind(Kind::ReadWrite);
    let readers: Vec<_> = (1..=5).map(|client| world.grant(&reader(client, 1))).collect();
    world.queue(&writer(6, 1));
    for reading in &readers {
        assert_eq!(world.told(), Vec::<Vec<_>>::new());
        world.give(reading);
    }
    assert_eq!(world.told(), [[writer(6, 1)]]);
    assert_eq!(world.holders(), [writer(6, 1)]);
    assert!(matches!(
        world.acquire(&reader(7, 1), Mode::Try),
        Acquired::Contended(_)
    ));
}

#[test]
fn one_release_lets_in_all_readers_up_to_the_next_writer_with_one_message_each_client() {
    let mut world = World::of_kind(Kind::ReadWrite);
    let writing = world.grant(&writer(1, 1));
    for request in [
        reader(2, 1),
        reader(3, 1),
        reader(2, 2),
        writer(3, 2),
        reader(2, 3),
    ] {
        world.ask(&world.call(&request, Mode::Ask));
    }
    world.give(&writing);
    assert_eq!(
        world.told(),
        [vec![reader(2, 1), reader(2, 2)], vec![reader(3, 1)]]
    );
    let fences: BTreeSet<_> = world
        .inspect()
        .holders
        .iter()
        .map(|holder| holder.fence)
        .collect();
    assert_eq!(fences.len(), 3, "each reader has its own");
    assert_eq!(world.inspect().waiting, 2);
}

#[test]
fn an_unreachable_writer_does_not_keep_readers_out() {
    let mut world = World::of_kind(Kind::ReadWrite);
    let first = world.grant(&reader(1, 1));
    world.queue(&writer(2, 1));
    world.queue(&reader(3, 1));
    world.wires.uncounted.insert(world.channel_of(2));
    let next = world.acquire(&reader(4, 1), Mode::Ask);
    assert!(matches!(next, Acquired::Granted { .. }), "{next:?}");
    assert_eq!(world.told(), [[reader(3, 1)]]);
    // It comes back with its ticket.
    world.wires.uncounted.clear();
    world.queue(&writer(2, 1));
    world.give(&first);
    assert_eq!(world.inspect().waiting, 1);
}

#[test]
fn an_unreachable_head_waits_while_no_permit_is_free() {
    let mut world = semaphore();
    world.grant(&asks(1, 1, 2, 2));
    world.queue(&one(2));
    world.wires.uncounted.insert(world.channel_of(2));
    assert_eq!(world.queue(&one(3)).ahead, 1);
}

#[test]
fn a_shrunk_hold_lets_readers_in_and_keeps_its_fence() {
    let mut world = World::of_kind(Kind::ReadWrite);
    let writing = world.grant(&writer(1, 1));
    for request in [reader(2, 1), writer(3, 1), reader(4, 1)] {
        world.ask(&world.call(&request, Mode::Ask));
    }
    let other = Grant {
        fence: Fence::new(NO_FENCE).unwrap(),
        ..writing.clone()
    };
    assert_eq!(world.shrink(&other, 1), ReleaseOutcome::Taken);
    for _ in 0..2 {
        assert_eq!(world.shrink(&writing, 1), ReleaseOutcome::Released);
        assert_eq!(
            world.shrink(&writing, 2),
            ReleaseOutcome::Released,
            "it does not grow"
        );
    }
    assert_eq!(world.told(), [[reader(2, 1)]]);
    assert_eq!(world.in_use(), 2);
    let holders = world.inspect().holders;
    let shrunk = holders
        .iter()
        .find(|holder| holder.fence == writing.fence)
        .unwrap();
    assert_eq!((shrunk.permits, shrunk.of), (1, ALL));
    // From now on the weight of the hold counts, and not that of the request.
    assert_eq!(world.give(&writing), ReleaseOutcome::Released);
    assert_eq!(world.in_use(), 1);
}

#[test]
fn kept_permits_stay_taken_and_the_first_waiter_is_told() {
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 2, 3));
    world.queue(&asks(2, 1, 2, 3));
    assert_eq!(world.keep(&first, 700), ReleaseOutcome::Released);
    assert_eq!(world.wires.pushes, [Push::Kept]);
    // The first call may have been incomplete.
    assert_eq!(world.keep(&first, 700), ReleaseOutcome::Released);
    assert_eq!(world.wires.pushes, [Push::Kept, Push::Kept]);
    let kept = world.inspect().holders.remove(0);
    assert_eq!((kept.kept, kept.fence, kept.permits), (true, first.fence, 2));
    assert_eq!(kept.deadline, world.in_ms(700));
    // No call names the hold that keeps them taken.
    assert_eq!(world.give(&first), ReleaseOutcome::Taken);
    assert_eq!(world.renew(&first, LEASE_MS, ServerTime::MAX), Renewed::Taken);
    world.withdraw(std::slice::from_ref(&first.request));
    assert_eq!(world.in_use(), 2);
    world.pass(700);
    let granted = world.acquire(&asks(2, 1, 2, 3), Mode::Ask);
    assert!(
        matches!(granted, Acquired::Granted { was_queued: true, .. }),
        "{granted:?}"
    );
}

#[test]
fn who_becomes_the_first_waiter_is_told_that_permits_are_kept() {
    let mut world = semaphore();
    let (first, second) = (world.grant(&asks(1, 1, 1, 3)), world.grant(&asks(2, 1, 1, 3)));
    for request in [asks(3, 1, 2, 3), asks(4, 1, 2, 3), asks(5, 1, 2, 3)] {
        world.ask(&world.call(&request, Mode::Ask));
    }
    world.keep(&first, 700);
    world.withdraw(&[asks(5, 1, 2, 3)]);
    assert_eq!(world.wires.pushes, [Push::Kept, Push::Kept]);
    world.give(&second);
    assert_eq!(world.told(), [vec![], vec![], vec![asks(3, 1, 2, 3)], vec![]]);
    // Nobody is told when it is over.
    world.pass(700);
    world.withdraw(&[asks(3, 1, 2, 3)]);
    assert_eq!(world.told(), [[asks(4, 1, 2, 3)]]);
}

#[test]
fn the_first_waiter_that_can_be_reached_is_told_that_permits_are_kept() {
    let mut world = semaphore();
    let [first, second] = [1, 2].map(|client| world.grant(&one(client)));
    for client in 3..=6 {
        world.queue(&one(client));
    }
    for client in [3, 5] {
        world.wires.uncounted.insert(world.channel_of(client));
    }
    world.keep(&first, 700);
    assert_eq!(world.wires.told, [world.channel_of(4)]);
    assert_eq!(world.inspect().waiting, 3, "the one before it has left the queue");
    // When it has its permit, so does the next one.
    world.give(&second);
    assert_eq!(world.told(), [vec![], vec![one(4)], vec![]]);
    assert_eq!(world.wires.told.last(), Some(&world.channel_of(6)));
    assert_eq!(world.inspect().waiting, 1);
}

#[test]
fn waiters_for_kept_permits_that_cannot_be_reached_are_removed_by_several_calls() {
    let mut world = semaphore();
    world.rules = Rules::new(2);
    let whole = asks(1, 1, 2, 2);
    let first = world.grant(&whole);
    for client in 2..=7 {
        world.queue(&one(client));
    }
    world.keep(&first, 700);
    for client in 3..=6 {
        world.wires.uncounted.insert(world.channel_of(client));
    }
    let mut calls = 1;
    while world.withdraw(&[one(2)]).more {
        calls += 1;
    }
    assert_eq!((calls, world.inspect().waiting), (2, 1));
    assert_eq!(world.wires.told, [2, 7].map(|client| world.channel_of(client)));
}

#[test]
fn keeping_permits_for_no_time_gives_them_back() {
    let mut world = semaphore();
    let first = world.grant(&one(1));
    assert_eq!(world.keep(&first, 0), ReleaseOutcome::Released);
    assert_eq!((world.in_use(), world.told().len()), (0, 0));
    assert_eq!(world.keep(&first, 700), ReleaseOutcome::Taken);
}

#[test]
fn a_release_ends_the_hold_with_its_fence_and_no_other() {
    let mut world = semaphore();
    let (first, second) = (world.grant(&one(1)), world.grant(&one(2)));
    let wrong = ReleaseWhat::Grant(second.fence);
    assert_eq!(world.release(&first.request, wrong), ReleaseOutcome::Taken);
    assert_eq!(world.give(&first), ReleaseOutcome::Released);
    assert_eq!(world.give(&first), ReleaseOutcome::Taken);
    assert_eq!(world.holders(), [one(2)]);
}

#[test]
fn a_forced_release_ends_whichever_hold_has_the_fence() {
    let mut world = semaphore();
    let (first, second) = (world.grant(&one(1)), world.grant(&one(2)));
    world.queue(&one(3));
    let force = ReleaseWhat::Force {
        fence: second.fence,
        from: 0,
    };
    assert_eq!(world.release(&one(99), force), ReleaseOutcome::Released);
    assert_eq!(world.release(&one(99), force), ReleaseOutcome::Taken);
    assert_eq!(world.told(), [[one(3)]]);
    assert_eq!(world.renew(&second, LEASE_MS, ServerTime::MAX), Renewed::Taken);
    let lasts = world.renew(&first, LEASE_MS, ServerTime::MAX);
    assert!(matches!(lasts, Renewed::Until(_)), "{lasts:?}");
}

#[test]
fn the_permits_of_a_lost_hold_go_on_and_the_others_stay() {
    let mut world = semaphore();
    let lost = world.grant(&one(1));
    world.pass(1_000);
    let lasts = world.grant(&one(2));
    let contended = world.queue(&one(3));
    assert_eq!(contended.ttl, Duration::from_millis(LEASE_MS - 1_000));
    assert_eq!((contended.own_grant, contended.ticket.is_some()), (None, true));
    world.pass(LEASE_MS - 2_000);
    world.queue(&one(3));
    world.pass(1_000);
    world.acquire(&one(4), Mode::Ask);
    assert_eq!(world.told(), [[one(3)]]);
    assert_eq!(world.renew(&lost, LEASE_MS, ServerTime::MAX), Renewed::Taken);
    let renewed = world.renew(&lasts, LEASE_MS, ServerTime::MAX);
    assert_eq!(renewed, Renewed::Until(world.in_ms(LEASE_MS)));
}

#[test]
fn the_time_to_wait_lasts_until_the_first_hold_ends_also_after_renewals() {
    let mut world = semaphore();
    let first = world.grant(&one(1));
    world.pass(1_000);
    world.grant(&one(2));
    world.pass(1_000);
    world.renew(&first, LEASE_MS, ServerTime::MAX);
    assert_eq!(world.queue(&one(3)).ttl, Duration::from_millis(LEASE_MS - 1_000));
    assert_eq!(world.holders(), [one(2), one(1)]);
}

#[test]
fn a_renewal_never_goes_beyond_its_cap_and_never_shortens() {
    let mut world = semaphore();
    let first = world.grant(&one(1));
    let until = Renewed::Until(first.deadline);
    assert_eq!(world.renew(&first, 1_000, ServerTime::MAX), until);
    assert_eq!(world.renew(&first, 2 * LEASE_MS, world.in_ms(LEASE_MS + 5)), {
        Renewed::Until(world.in_ms(LEASE_MS + 5))
    });
}

#[test]
fn after_the_clock_was_set_back_a_hold_lasts_one_lease_at_most() {
    for is_renewed in [false, true] {
        let mut world = semaphore();
        let grants = [1, 2].map(|client| world.grant(&one(client)));
        world.now_us -= 3_600_000_000;
        if is_renewed {
            let renewed = world.renew(&grants[0], LEASE_MS, ServerTime::MAX);
            assert_eq!(renewed, Renewed::Until(world.in_ms(LEASE_MS)));
            // The clock passes the time of the last write, but the timers are still late.
            world.pass(1);
        }
        let left_ms = LEASE_MS - u64::from(is_renewed);
        assert_eq!(world.queue(&one(3)).ttl, Duration::from_millis(left_ms));
        world.pass(LEASE_MS);
        let next = world.grant(&one(3));
        assert!(grants.iter().all(|grant| grant.fence < next.fence));
        assert_eq!(world.holders(), [one(3)]);
    }
}

#[test]
fn a_refused_message_voids_the_grants_of_its_client_alone() {
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 4, 4));
    let [refused, told, big] = [asks(2, 1, 1, 4), asks(3, 1, 1, 4), asks(3, 2, 2, 4)];
    for request in [&refused, &told, &asks(2, 2, 1, 4), &big, &asks(4, 1, 1, 4)] {
        world.ask(&world.call(request, Mode::Ask));
    }
    world.wires.denied.insert(world.channel_of(2));
    world.give(&first);
    // The permits of the refused client are free again, and go to the next requests.
    assert_eq!(world.told(), [vec![told], vec![big], vec![asks(4, 1, 1, 4)]]);
    assert_eq!((world.in_use(), world.inspect().waiting), (4, 0));
    let mut fences: Vec<_> = world
        .inspect()
        .holders
        .iter()
        .map(|holder| holder.fence.get())
        .collect();
    fences.sort_unstable();
    let start = world.now_us;
    assert_eq!(
        fences,
        [start + 1, start + 3, start + 4],
        "two fences are not used again"
    );
}

#[test]
fn a_permit_has_the_smallest_free_slot_until_its_hold_ends() {
    let mut world = semaphore();
    let grants: Vec<_> = (0..4).map(|client| world.grant(&asks(client, 1, 1, 4))).collect();
    let slots = |grants: &[Grant]| grants.iter().map(|grant| grant.slot).collect::<Vec<_>>();
    assert_eq!(slots(&grants), [Some(0), Some(1), Some(2), Some(3)]);
    world.queue(&asks(4, 1, 1, 4));
    world.renew(&grants[3], LEASE_MS, ServerTime::MAX);
    world.give(&grants[2]);
    world.give(&grants[1]);
    // The waiter was told its slot, and a call that is repeated returns it.
    let told = world.grant(&asks(4, 1, 1, 4));
    assert_eq!((told.slot, told.pushed), (Some(2), true));
    assert_eq!(world.wires.pushes, [Push::Granted(vec![told])]);
    assert_eq!(world.grant(&asks(3, 1, 1, 4)).slot, Some(3));
    assert_eq!(world.grant(&asks(5, 1, 1, 4)).slot, Some(1));
    let mut shown: Vec<_> = world.inspect().holders.iter().map(|holder| holder.slot).collect();
    shown.sort_unstable();
    assert_eq!(shown, [Some(0), Some(1), Some(2), Some(3)]);
}

#[test]
fn a_slot_is_below_the_capacity_of_its_own_caller() {
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 1, 3));
    let _second = world.grant(&asks(2, 1, 1, 3));
    let third = world.grant(&asks(3, 1, 1, 3));
    world.give(&first);
    world.queue(&asks(4, 1, 1, 2));
    world.give(&third);
    assert_eq!(world.grant(&asks(4, 1, 1, 2)).slot, Some(0));
}

#[test]
fn several_permits_a_reader_and_a_large_capacity_have_no_slot() {
    let mut world = semaphore();
    assert_eq!(world.grant(&asks(1, 1, 2, 1_000)).slot, None);
    assert_eq!(world.grant(&asks(2, 1, 1, 1_001)).slot, None);
    assert_eq!(world.grant(&asks(3, 1, 1, 1_000)).slot, Some(0));
    let several = world.grant(&asks(4, 1, 2, 1_000));
    world.shrink(&several, 1);
    assert_eq!(
        world.grant(&several.request).slot,
        None,
        "it had none when it was granted"
    );
    assert_eq!(world.grant(&reader(5, 1)).slot, None);
}

#[test]
fn a_kept_permit_keeps_its_slot_and_a_refused_grant_gives_it_back() {
    let mut world = semaphore();
    let (first, second) = (world.grant(&one(1)), world.grant(&one(2)));
    for client in [3, 4] {
        world.ask(&world.call(&one(client), Mode::Ask));
    }
    world.keep(&first, 700);
    assert_eq!(world.inspect().holders[0].slot, Some(0));
    world.wires.denied.insert(world.channel_of(3));
    world.give(&second);
    let told = world.grant(&one(4));
    assert_eq!((told.slot, told.pushed), (Some(1), true));
}

#[test]
fn a_refused_message_does_not_lose_permits_that_are_kept() {
    let mut world = semaphore();
    let first = world.grant(&one(1));
    for request in [asks(3, 1, 2, 2), asks(1, 2, 1, 2)] {
        world.ask(&world.call(&request, Mode::Ask));
    }
    // The head does not fit and cannot be reached. The next request may not be told.
    world.wires.uncounted.insert(world.channel_of(3));
    world.wires.denied.insert(world.channel_of(1));
    assert_eq!(world.keep(&first, 700), ReleaseOutcome::Released);
    assert_eq!(world.holders(), [first.request.kept()]);
    assert_eq!((world.in_use(), world.inspect().waiting), (1, 0));
}

#[test]
fn holds_that_end_at_once_beyond_the_bound_are_ended_by_several_calls() {
    let mut world = semaphore();
    world.rules = Rules::new(3);
    for client in 1..=10 {
        world.grant(&asks(client, 1, 1, 10));
    }
    world.pass(LEASE_MS);
    let mut calls = 1;
    let waits = world.call(&asks(11, 1, 10, 10), Mode::Ask);
    while world.ask(&waits) == Acquired::Incomplete {
        calls += 1;
    }
    assert_eq!((calls, world.in_use()), (4, 10));
}

#[test]
fn unreachable_requests_beyond_the_bound_are_removed_by_several_calls() {
    let mut world = semaphore();
    world.rules = Rules::new(3);
    let first = world.grant(&asks(1, 1, 2, 2));
    for client in 2..=8 {
        world.queue(&one(client));
        world.wires.uncounted.insert(world.channel_of(client));
    }
    world.queue(&one(9));
    world.give(&first);
    let mut calls = 1;
    let waits = world.call(&one(10), Mode::Ask);
    while world.ask(&waits) == Acquired::Incomplete {
        calls += 1;
    }
    // Three of the seven went with the release, three with the first call, and one with the second.
    assert_eq!((calls, world.told()), (2, vec![vec![one(9)]]));
    assert_eq!(world.in_use(), 2);
}

#[test]
fn a_repeated_call_returns_the_hold_and_gives_out_what_is_free() {
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 1, 2));
    world.grant(&asks(2, 1, 1, 2));
    world.pass(1_000);
    world.renew(&first, LEASE_MS, ServerTime::MAX);
    world.pass(LEASE_MS - 2_000);
    world.queue(&one(3));
    world.pass(1_000);
    let again = world.grant(&first.request);
    assert_eq!((again.fence, again.pushed), (first.fence, false));
    assert_eq!(world.told(), [[one(3)]]);
    // The call of a client that was told of a grant returns it.
    assert!(world.grant(&one(3)).pushed);
}

#[test]
fn a_late_call_does_nothing_new() {
    let mut world = semaphore();
    let mut call = world.call(&one(1), Mode::Ask);
    call.not_after = Arc::new(world.time());
    world.pass(1);
    assert_eq!(world.run(&call), Acquired::ExpiredCall);
    assert_eq!(world.in_use(), 0);
    let grant = world.grant(&one(1));
    let was_queued = false;
    assert_eq!(world.run(&call), Acquired::Granted { grant, was_queued });
}

#[test]
fn a_request_comes_back_to_its_place() {
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 2, 2));
    let place = world.queue(&one(2)).ticket;
    world.pass(1);
    world.queue(&one(3));
    world.withdraw(&[one(2)]);
    let again = Acquire {
        ticket: place,
        ..world.call(&one(2), Mode::Ask)
    };
    let Acquired::Contended(contended) = world.ask(&again) else {
        panic!("it is held");
    };
    assert_eq!((contended.ticket, contended.ahead), (place, 1));
    world.give(&first);
    assert_eq!(world.told(), [[one(2)], [one(3)]]);
}

#[test]
fn the_client_of_an_unclaimed_grant_is_passed_over() {
    let mut world = semaphore();
    let first = world.grant(&asks(1, 1, 2, 2));
    for request in [asks(2, 1, 2, 2), asks(2, 2, 1, 2), one(3)] {
        world.ask(&world.call(&request, Mode::Ask));
    }
    world.give(&first);
    assert_eq!(world.told(), [[asks(2, 1, 2, 2)]]);
    world.pass(CLAIM_MS);
    world.queue(&asks(4, 1, 2, 2));
    assert_eq!(world.told(), [[one(3)]]);
}

#[test]
fn an_inspection_lists_a_hundred_holds_in_the_order_of_their_ends() {
    let mut world = semaphore();
    for client in 1..=120 {
        world.grant(&asks(client, 1, 2, 500));
        world.pass(1);
    }
    let expected: Vec<_> = (1..=100).map(|client| asks(client, 1, 2, 500)).collect();
    assert_eq!(world.holders(), expected);
    let inspected = world.inspect();
    assert_eq!(
        (inspected.in_use, inspected.waiting, inspected.first),
        (240, 0, None)
    );
    let first = &inspected.holders[0];
    assert_eq!((first.permits, first.of, first.holds), (2, 500, 1));
    let ticket = Ticket(world.now_us);
    world.queue(&asks(121, 1, 500, 500));
    assert_eq!(world.inspect().first, Some(ticket));
}

#[test]
fn names_of_different_kinds_share_nothing() {
    let mut world = semaphore();
    world.grant(&one(1));
    for kind in [Kind::ReadWrite, Kind::Lock] {
        world.keys = Arc::new(Keys::of_kind(kind, "fairlock", "orders:42").unwrap());
        assert_eq!(world.inspect().in_use, 0);
    }
    assert_eq!(world.rules.permits.len(), 2);
}

#[test]
fn sweep_drops_expired_permits_and_keeps_held_ones() {
    let mut world = semaphore();
    let keys = world.keys.clone();
    let held = Acquire {
        lease: Duration::from_secs(86_400),
        ..world.call(&one(1), Mode::Ask)
    };
    world.run(&held);
    for n in 0..5_000 {
        let name = format!("order:{n}");
        world.keys = Arc::new(Keys::of_kind(Kind::Semaphore, "fairlock", &name).unwrap());
        world.grant(&one(1));
        world.pass(1_000);
        world.rules.sweep(world.now());
    }
    let kept = world.rules.permits.len();
    assert!(kept < 2_000, "{kept}");
    world.keys = keys;
    assert_eq!(world.in_use(), 1);
}

/// Checks what must be true after each call.
fn check(world: &mut World, fences: &mut BTreeMap<u64, RequestId>, is_handed_over: bool) {
    let keys = world.keys.clone();
    let uncounted = world.wires.uncounted.clone();
    let permits = world.permits();
    let used: u32 = permits.holds.values().map(|hold| hold.weight).sum();
    assert_eq!(permits.used, used);
    let largest = permits.holds.keys().map(RequestId::capacity).max();
    assert!(used <= largest.unwrap_or_default(), "{used} are in use");
    assert_eq!(permits.timers.len(), permits.holds.len());
    let mut slots = BTreeSet::new();
    for (request, hold) in &permits.holds {
        let is_new = hold
            .slot
            .is_none_or(|slot| slot < request.capacity() && slots.insert(slot));
        assert!(is_new, "{request} has the slot {:?}", hold.slot);
        let has_one = request.weight() == 1 && request.capacity() <= MOST_SLOTS;
        assert_eq!(hold.slot.is_some(), has_one, "{request}");
        let timer = permits.timers.ticket(request).unwrap();
        assert!(timer <= hold.deadline, "the timer of {request} is late");
        // A hold that keeps permits taken has the fence of the hold before.
        let number = request.number();
        let of_fence = fences.entry(hold.fence).or_insert_with(|| request.clone());
        assert_eq!(of_fence.number(), number, "two requests have one fence");
    }
    if let Some((_, head)) = permits.queue.order.first().filter(|_| is_handed_over) {
        let channel = format!("{}{}", keys.channel, head.client());
        let is_reachable = !permits.absent.has(head.client()) && !uncounted.contains(&channel);
        let fits = used + head.weight() <= head.capacity();
        assert!(!(is_reachable && fits), "{head} fits, and waits");
    }
}

#[test]
fn capacity_is_never_exceeded_and_nothing_is_left_behind() {
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut world = semaphore();
        let capacities: &[u32] = [&[1][..], &[3], &[2, 5], &[ALL]].choose(&mut random).unwrap();
        let (mut live, mut fences) = (Vec::new(), BTreeMap::new());
        for n in 0..600 {
            world.pass(random.random_range(0..400));
            let pick = |random: &mut SmallRng, live: &[RequestId]| live.choose(random).cloned();
            let mut is_handed_over = true;
            match random.random_range(0..12) {
                0..5 => {
                    let capacity = *capacities.choose(&mut random).unwrap();
                    let weight = match capacity {
                        ALL if random.random_bool(0.7) => 1,
                        ALL => ALL,
                        _ => random.random_range(1..=capacity),
                    };
                    let request = asks(random.random_range(1..5), n, weight, capacity);
                    let modes = [Mode::Try, Mode::Ask, Mode::Ask, Mode::Poll];
                    world.ask(&world.call(&request, *modes.choose(&mut random).unwrap()));
                    live.push(request);
                }
                5..9 => {
                    let held: Vec<_> = world.permits().holds.keys().cloned().collect();
                    let Some(request) = pick(&mut random, &held) else {
                        continue;
                    };
                    let grant = world.permits().grant_of(&request).unwrap();
                    match random.random_range(0..4) {
                        0 if !request.is_kept() => drop(world.keep(&grant, 500)),
                        1 => drop(world.shrink(&grant, 1)),
                        2 => {
                            world.renew(&grant, LEASE_MS, ServerTime::MAX);
                            is_handed_over = false;
                        }
                        _ => drop(world.give(&grant)),
                    }
                }
                9 => {
                    let Some(request) = pick(&mut random, &live) else {
                        continue;
                    };
                    world.withdraw(&[request]);
                }
                10 => {
                    let channel = world.channel_of(random.random_range(1..5));
                    let wires = &mut world.wires;
                    match random.random_bool(0.5) {
                        true => wires.uncounted.insert(channel),
                        false => wires.denied.insert(channel),
                    };
                    is_handed_over = false;
                }
                _ => {
                    (world.wires.uncounted, world.wires.denied) = Default::default();
                    is_handed_over = false;
                }
            }
            check(&mut world, &mut fences, is_handed_over);
        }
        world.pass(2 * LEASE_MS);
        world.withdraw(&live);
        let permits = world.permits();
        assert_eq!(
            (permits.used, permits.holds.len(), permits.queue.len()),
            (0, 0, 0)
        );
        assert_eq!(permits.timers.len(), 0);
    }
}
