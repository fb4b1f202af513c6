use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::world::*;
use crate::protocol::keys::Keys;
use crate::protocol::rules::Rules;
use crate::protocol::rules::lock::MAX_HOLDS;
use crate::protocol::{
    Acquire, Acquired, Grant, Mode, Push, RESERVED, ReleaseOutcome, ReleaseWhat, Renewed, SpinAcquire,
    SpinAcquired, SpinRelease, SpinReleased,
};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;
use crate::types::owner::Owner;

#[test]
fn first_come_first_served() {
    let mut world = World::new();
    let mut holder = world.grant(&request(1));
    let waiters: Vec<_> = (2..10).map(request).collect();
    for (ahead, waiter) in waiters.iter().enumerate() {
        assert_eq!(world.queue(waiter).ahead, ahead as u64);
    }
    for waiter in &waiters {
        assert_eq!(world.give(&holder), ReleaseOutcome::Released);
        let pushed = world.pushed();
        assert_eq!(&pushed.request, waiter);
        assert!(pushed.fence > holder.fence);
        assert_eq!(pushed.deadline, world.in_ms(CLAIM_MS));
        holder = pushed;
    }
    assert_eq!(
        world.wires.pushes.len(),
        waiters.len(),
        "each is sent one push, and no other client is"
    );
}

#[test]
fn an_owner_holds_as_often_as_it_may_and_no_more() {
    let mut world = World::new();
    for n in 0..MAX_HOLDS as u64 {
        world.grant(&owned(1, n));
    }
    let one_more = owned(1, MAX_HOLDS as u64);
    assert_eq!(world.acquire(&one_more, Mode::Ask), Acquired::Full);
    world.withdraw(&[owned(1, 0)]);
    world.grant(&one_more);
}

#[test]
fn only_an_unclaimed_lease_makes_its_client_count_as_dead() {
    // The grant came in the reply to its own call, was pushed and claimed, or was pushed and never claimed.
    for (is_pushed, is_claimed) in [(false, false), (true, true), (true, false)] {
        let mut world = World::new();
        let mut grant = world.grant(&request(1));
        if is_pushed {
            world.queue(&request(2));
            world.give(&grant);
            grant = world.pushed();
        }
        if is_claimed {
            world.renew(&grant, CLAIM_MS, ServerTime::MAX);
        }
        let (client, left_ms) = (
            if is_pushed { 2 } else { 1 },
            if is_pushed { CLAIM_MS } else { LEASE_MS },
        );
        world.pass(left_ms - 2_000);
        // Another request of the same client, and then one of another client.
        let own_grant = nth(client, 7);
        world.queue(&own_grant);
        world.queue(&request(3));
        world.pass(2_000);
        world.acquire(&request(3), Mode::Ask);
        let next = world.inspect().holders.remove(0).owner;
        let is_passed_over = next.as_str() != own_grant.as_str();
        assert_eq!(
            is_passed_over,
            is_pushed && !is_claimed,
            "{is_pushed} {is_claimed}"
        );
    }
}

/// Race: A client that listens at a replica receives a push, although it was not counted and was skipped.
#[test]
fn client_listening_at_a_replica_is_passed_over_without_a_push() {
    let mut world = World::new();
    let holder = world.grant(&request(1));
    world.queue(&request(2));
    world.queue(&request(3));
    world.wires.uncounted.insert(world.channel_of(2));
    assert_eq!(world.give(&holder), ReleaseOutcome::Released);
    let told: Vec<_> = world
        .wires
        .pushes
        .iter()
        .map(|push| match push {
            Push::Granted(grants) => grants[0].request.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [request(3)]);
}

#[test]
fn fence_of_a_refused_message_is_not_used_again() {
    let mut world = World::new();
    let holder = world.grant(&request(1));
    world.queue(&request(2));
    world.queue(&request(3));
    world.wires.denied.insert(world.channel_of(2));
    world.give(&holder);
    assert_eq!(world.pushed().request, request(3));
    // The first one was refused.
    assert_eq!(world.pushed().fence.get(), holder.fence.get() + 2);
}

#[test]
fn a_try_never_overtakes_and_is_never_queued() {
    let mut world = World::new();
    world.grant(&request(1));
    world.queue(&request(2));
    let told = world.contended(&request(3), Mode::Try);
    assert_eq!((told.ahead, told.ticket), (1, None));
    world.pass(LEASE_MS);
    // The first client in the queue cannot be reached, and no other request is queued.
    world.wires.uncounted.insert(world.channel_of(2));
    world.acquire(&request(4), Mode::Try);
    assert_eq!(world.inspect().holders[0].owner.as_str(), request(4).as_str());

    let mut world = World::new();
    world.grant(&request(1));
    world.pass(LEASE_MS - 1_000);
    world.queue(&request(2));
    world.pass(1_000);
    assert_eq!(world.contended(&request(3), Mode::Try).ahead, 1);
    assert_eq!(world.pushed().request, request(2));
}

#[test]
fn an_owner_holds_several_times_under_one_fence_and_each_hold_ends_by_itself() {
    let mut world = World::new();
    let outer = world.grant(&owned(1, 1));
    world.queue(&request(3));
    world.pass(10_000);
    let inner = world.grant(&owned(2, 1));
    assert_eq!(inner.fence, outer.fence);
    assert_eq!(inner.deadline, world.in_ms(LEASE_MS));
    assert_eq!(world.inspect().holders[0].holds, 2);
    world.pass(LEASE_MS - 10_000);
    assert_eq!(world.inspect().holders[0].holds, 1);
    assert_eq!(world.renew(&outer, LEASE_MS, ServerTime::MAX), Renewed::Expired);
    assert_eq!(world.give(&outer), ReleaseOutcome::Expired);
    let again = world.grant(&owned(1, 2));
    assert_eq!(again.fence, outer.fence);
    assert_eq!(world.give(&inner), ReleaseOutcome::OneFewer);
    assert_eq!(world.wires.pushes.len(), 0);
    assert_eq!(world.give(&again), ReleaseOutcome::Released);
}

#[test]
fn the_same_request_asked_again_has_the_same_grant() {
    let mut world = World::new();
    let first = world.grant(&request(1));
    world.pass(100);
    assert_eq!(world.grant(&request(1)), first);
    let queued = world.queue(&request(2));
    let again = world.queue(&request(2));
    assert_eq!(again.ticket, queued.ticket);
    assert_eq!((queued.enqueued, again.enqueued), (true, false));
}

#[test]
fn nothing_changes_a_lock_that_is_kept() {
    let mut world = World::new();
    let holder = world.grant(&request(1));
    let until = world.time().after(Duration::from_millis(LEASE_MS / 2));
    let keep = ReleaseWhat::Keep {
        fence: holder.fence,
        at_least: Duration::from_millis(LEASE_MS),
        until,
    };
    world.queue(&request(2));
    assert_eq!(world.release(&holder.request, keep), ReleaseOutcome::Released);
    assert_eq!(world.wires.pushes, [Push::Kept]);
    // All calls of the former holder that may run late, and a repeated release.
    assert_eq!(world.renew(&holder, LEASE_MS, ServerTime::MAX), Renewed::Expired);
    assert_eq!(world.give(&holder), ReleaseOutcome::Expired);
    assert_eq!(world.wires.pushes.len(), 1);
    world.withdraw(std::slice::from_ref(&holder.request));
    assert_eq!(world.release(&holder.request, keep), ReleaseOutcome::Released);
    assert_eq!(
        world.wires.pushes,
        [Push::Kept, Push::Kept, Push::Kept],
        "an earlier withdrawal or release may have been incomplete"
    );
    let kept = world.inspect().holders.remove(0);
    assert!(kept.kept && kept.deadline == until && kept.fence == holder.fence);

    world.pass(LEASE_MS / 2);
    let next = world.grant(&request(2));
    assert!(next.fence > holder.fence);
    assert_eq!(world.release(&holder.request, keep), ReleaseOutcome::Taken);
}

#[test]
fn the_first_waiter_that_can_be_reached_is_told_that_a_lock_is_kept() {
    let mut world = World::new();
    let holder = world.grant(&request(1));
    for client in 2..=5 {
        world.queue(&request(client));
    }
    for client in [2, 3] {
        world.wires.uncounted.insert(world.channel_of(client));
    }
    let keep = ReleaseWhat::Keep {
        fence: holder.fence,
        at_least: Duration::from_millis(LEASE_MS / 2),
        until: ServerTime::MAX,
    };
    world.release(&holder.request, keep);
    assert_eq!(world.wires.told, [world.channel_of(4)]);
    assert_eq!(world.inspect().waiting, 2, "the others have left the queue");
    // A withdrawal of the first one tells the next.
    world.withdraw(&[request(4)]);
    assert_eq!(world.wires.told, [4, 5].map(|client| world.channel_of(client)));
    assert_eq!(world.wires.pushes, [Push::Kept, Push::Kept]);
    world.pass(LEASE_MS / 2);
    world.grant(&request(5));
}

#[test]
fn waiters_of_a_kept_lock_that_cannot_be_reached_are_removed_by_several_calls() {
    let mut world = World::new();
    world.rules = Rules::new(2);
    let holder = world.grant(&request(1));
    for client in 2..=7 {
        world.queue(&request(client));
    }
    let keep = ReleaseWhat::Keep {
        fence: holder.fence,
        at_least: Duration::from_millis(LEASE_MS / 2),
        until: ServerTime::MAX,
    };
    world.release(&holder.request, keep);
    for client in 3..=6 {
        world.wires.uncounted.insert(world.channel_of(client));
    }
    let mut calls = 1;
    while world.withdraw(&[request(2)]).more {
        calls += 1;
    }
    assert_eq!((calls, world.inspect().waiting), (3, 1));
    assert_eq!(world.wires.told, [2, 7].map(|client| world.channel_of(client)));
}

#[test]
fn a_late_give_back_does_not_free_a_newer_grant() {
    let mut world = World::new();
    let first = world.grant(&request(1));
    world.queue(&request(2));
    world.give(&first);
    let late = world.pushed();
    world.pass(CLAIM_MS);
    let newer = world.grant(&request(2));
    assert!(newer.fence > late.fence);
    assert_eq!(world.give(&late), ReleaseOutcome::Taken);
    assert_eq!(world.give(&newer), ReleaseOutcome::Released);
    assert_eq!(world.give(&newer), ReleaseOutcome::Taken);
}

#[test]
fn a_withdrawal_leaves_nothing_of_its_requests() {
    let mut world = World::new();
    world.grant(&nth(1, 1));
    for waiter in [nth(1, 2), request(2), nth(1, 3), request(3)] {
        world.queue(&waiter);
    }
    world.withdraw(&[request(2)]);
    assert_eq!(world.inspect().waiting, 3);
    // One of the requests holds, one is unknown, and one is named twice.
    world.withdraw(&[nth(1, 4), nth(1, 1), nth(1, 3), nth(1, 2), nth(1, 2)]);
    assert_eq!(world.pushed().request, request(3));
    assert_eq!(world.inspect().waiting, 0);
}

#[test]
fn a_forced_release_ends_all_holds_under_its_fence_and_no_others() {
    let mut world = World::new();
    let first = world.grant(&owned(1, 1));
    world.grant(&owned(2, 1));
    world.queue(&request(3));
    let other = Fence::new(first.fence.get() + 1).unwrap();
    assert_eq!(
        world.release(
            &request(9),
            ReleaseWhat::Force {
                fence: other,
                from: 0
            }
        ),
        ReleaseOutcome::Taken
    );
    assert_eq!(
        world.release(
            &request(9),
            ReleaseWhat::Force {
                fence: first.fence,
                from: 0
            }
        ),
        ReleaseOutcome::Released
    );
    assert_eq!(world.pushed().request, request(3));
    assert_eq!(
        world.release(
            &request(9),
            ReleaseWhat::Force {
                fence: first.fence,
                from: 0
            }
        ),
        ReleaseOutcome::Taken
    );
}

#[test]
fn a_renewal_never_revives_never_shortens_and_keeps_to_its_cap() {
    let mut world = World::new();
    let grant = world.grant(&request(1));
    let until = |time| Renewed::Until(time);
    assert_eq!(world.renew(&grant, 1_000, ServerTime::MAX), until(grant.deadline));
    world.pass(1_000);
    assert_eq!(
        world.renew(&grant, LEASE_MS, world.in_ms(29_500)),
        until(world.in_ms(29_500))
    );
    assert_eq!(
        world.renew(&grant, LEASE_MS, world.in_ms(100)),
        until(world.in_ms(29_500))
    );
    world.pass(29_500);
    assert_eq!(world.renew(&grant, LEASE_MS, ServerTime::MAX), Renewed::Expired);
    assert_eq!(world.inspect().holders, []);
    world.grant(&request(2));
    assert_eq!(world.renew(&grant, LEASE_MS, ServerTime::MAX), Renewed::Taken);
}

#[test]
fn the_first_renewal_claims_a_pushed_grant() {
    let mut world = World::new();
    let first = world.grant(&request(1));
    world.queue(&request(2));
    world.give(&first);
    let pushed = world.pushed();
    assert!(world.grant(&request(2)).pushed);
    let full = world.in_ms(LEASE_MS);
    assert_eq!(
        world.renew(&pushed, LEASE_MS, ServerTime::MAX),
        Renewed::Until(full)
    );
    assert!(!world.grant(&request(2)).pushed);
}

#[test]
fn a_deadline_far_ahead_is_a_clock_set_back() {
    let mut world = World::new();
    world.grant(&request(1));
    world.now_us -= 3_600_000_000;
    let told = world.queue(&request(2));
    assert_eq!(told.ttl, Duration::from_millis(LEASE_MS));
}

#[test]
fn fences_increase_though_the_clock_is_set_back() {
    let mut world = World::new();
    let first = world.grant(&request(1));
    world.give(&first);
    world.now_us -= 1_000_000;
    let second = world.grant(&request(2));
    assert_eq!(second.fence.get(), first.fence.get() + 1);
}

#[test]
fn unreachable_request_is_passed_over_and_comes_back_with_its_ticket() {
    let mut world = World::new();
    let first = world.grant(&request(1));
    let ticket = world.queue(&request(2)).ticket;
    world.queue(&request(3));
    world.queue(&request(4));
    world.wires.uncounted.insert(world.channel_of(2));
    world.give(&first);
    assert_eq!(world.pushed().request, request(3));
    let mut call = world.call(&request(2), Mode::Ask);
    call.ticket = ticket;
    world.wires.uncounted.clear();
    let Acquired::Contended(back) = world.ask(&call) else {
        panic!("it is queued again");
    };
    assert_eq!(back.ticket, ticket);
    let second = world.pushed();
    world.give(&second);
    assert_eq!(world.pushed().request, request(2));
}

#[test]
fn a_ticket_of_the_future_counts_as_now() {
    let mut world = World::new();
    world.grant(&request(1));
    let mut call = world.call(&request(2), Mode::Ask);
    call.ticket = Some(Ticket(world.now_us + 1_000_000));
    assert!(
        matches!(world.run(&call), Acquired::Contended(told) if told.ticket == Some(Ticket(world.now_us)))
    );
}

#[test]
fn late_call_does_nothing() {
    let mut world = World::new();
    let mut call = world.call(&request(1), Mode::Ask);
    call.not_after = Arc::new(world.time());
    world.pass(1);
    assert_eq!(world.run(&call), Acquired::ExpiredCall);
    assert_eq!(world.inspect().holders, []);
    // But the reply reports a grant that exists already.
    let grant = world.grant(&request(1));
    let was_queued = false;
    assert_eq!(world.run(&call), Acquired::Granted { grant, was_queued });
}

#[test]
fn a_client_is_told_of_a_grant_to_another_of_its_requests() {
    let mut world = World::new();
    let first = world.grant(&request(1));
    world.queue(&nth(2, 1));
    world.queue(&nth(2, 2));
    world.give(&first);
    let told = world.contended(&nth(2, 2), Mode::Poll);
    assert_eq!(told.own_grant, Some(world.pushed()));
    assert_eq!(world.queue(&request(3)).own_grant, None);
}

#[test]
fn client_of_an_unclaimed_lease_is_passed_over_with_all_its_requests() {
    let mut world = World::new();
    let first = world.grant(&request(1));
    world.queue(&nth(2, 1));
    world.queue(&nth(2, 2));
    world.queue(&request(3));
    world.give(&first);
    assert_eq!(world.pushed().request, nth(2, 1));
    world.pass(CLAIM_MS);
    world.queue(&request(4));
    assert_eq!(
        world.pushed().request,
        request(3),
        "the other request of the frozen client is skipped"
    );
}

#[test]
fn sweep_drops_expired_locks() {
    let mut world = World::new();
    for n in 0..10_000 {
        world.keys = Arc::new(Keys::new("fairlock", &format!("order:{n}")).unwrap());
        let grant = world.grant(&request(1));
        world.give(&grant);
        world.pass(1_000);
        world.rules.sweep(world.now());
    }
    assert!(world.rules.locks.len() < 2_000, "{}", world.rules.locks.len());
}

#[test]
fn sweep_keeps_held_locks() {
    let mut world = World::new();
    let keys = world.keys.clone();
    let lease = Duration::from_secs(600);
    let call = Acquire {
        lease,
        ..world.call(&request(1), Mode::Ask)
    };
    assert!(matches!(world.run(&call), Acquired::Granted { .. }));
    let owner = Owner::named("me");
    let spin = SpinAcquire {
        keys: keys.clone(),
        owner: owner.clone(),
        request: Uuid::new_v4(),
        lease,
    };
    assert_eq!(world.run(&spin), SpinAcquired::Held(1));
    // A waiter's entries are kept for a shorter time than the holder's.
    world.queue(&request(2));
    world.pass(300_000);
    for n in 0..2_000 {
        world.keys = Arc::new(Keys::new("fairlock", &format!("order:{n}")).unwrap());
        world.grant(&request(1));
        world.rules.sweep(world.now());
    }
    world.keys = keys.clone();
    world.contended(&request(3), Mode::Try);
    let release = SpinRelease { keys, owner };
    assert_eq!(world.run(&release), SpinReleased::Left(0));
}

#[test]
fn the_spin_lock_is_counted_and_ends_with_its_lease() {
    let mut world = World::new();
    let (me, other) = (Owner::named("me"), Owner::named("other"));
    let lease = Duration::from_secs(1);
    let acquire = |world: &mut World, owner: &Owner| {
        let call = SpinAcquire {
            keys: world.keys.clone(),
            owner: owner.clone(),
            request: Uuid::new_v4(),
            lease,
        };
        world.run(&call)
    };
    let release = |world: &mut World, owner: &Owner| {
        let call = SpinRelease {
            keys: world.keys.clone(),
            owner: owner.clone(),
        };
        world.run(&call)
    };
    assert_eq!(acquire(&mut world, &me), SpinAcquired::Held(1));
    assert_eq!(acquire(&mut world, &me), SpinAcquired::Held(2));
    assert_eq!(acquire(&mut world, &other), SpinAcquired::Busy);
    assert_eq!(release(&mut world, &other), SpinReleased::NotHeld);
    assert_eq!(release(&mut world, &me), SpinReleased::Left(1));
    assert_eq!(release(&mut world, &me), SpinReleased::Left(0));
    assert_eq!(acquire(&mut world, &other), SpinAcquired::Held(1));
    world.pass(1_000);
    assert_eq!(release(&mut world, &other), SpinReleased::NotHeld);
    assert_eq!(acquire(&mut world, &me), SpinAcquired::Held(1));
}

/// A world whose clock was set back by an hour. So the next fence follows the last one, not the clock.
fn set_back() -> World {
    let mut world = World::new();
    let grant = world.grant(&request(7));
    world.give(&grant);
    world.now_us -= 3_600_000_000;
    world
}

#[test]
fn no_fence_that_a_hold_reserved_is_granted_again_unless_the_hold_tells_its_last_one() {
    type Ending = fn(&mut World, &Grant);
    let told: [(Ending, u64); 4] = [
        (
            |world, grant| assert_eq!(world.give(grant), ReleaseOutcome::Released),
            1,
        ),
        (
            |world, grant| assert_eq!(world.end_turns(grant, 3), ReleaseOutcome::Released),
            4,
        ),
        // Its time is over, and nobody has had the lock since.
        (
            |world, grant| {
                world.pass(LEASE_MS);
                assert_eq!(world.end_turns(grant, 3), ReleaseOutcome::Released);
            },
            4,
        ),
        // No guard has had it.
        (
            |world, grant| {
                world.withdraw(std::slice::from_ref(&grant.request));
            },
            1,
        ),
    ];
    let not_told: [(Ending, u64); 2] = [
        (|world, _| world.pass(LEASE_MS), RESERVED + 1),
        (
            |world, grant| {
                let outcome = world.release(
                    &request(8),
                    ReleaseWhat::Force {
                        fence: grant.fence,
                        from: 0,
                    },
                );
                assert_eq!(outcome, ReleaseOutcome::Released);
            },
            RESERVED + 1,
        ),
    ];
    for (ending, further) in told.into_iter().chain(not_told) {
        let mut world = set_back();
        let grant = world.grant(&request(1));
        ending(&mut world, &grant);
        assert_eq!(world.grant(&request(9)).fence.get(), grant.fence.get() + further);
    }
}

#[test]
fn a_hand_over_gives_the_fence_after_the_last_one_that_the_hold_used() {
    let mut world = set_back();
    let grant = world.grant(&request(1));
    world.queue(&request(2));
    world.end_turns(&grant, 3);
    let pushed = world.pushed();
    assert_eq!(pushed.fence.get(), grant.fence.get() + 4);
    // A renewal, and a release that is repeated or late, name a hold that is over.
    assert_eq!(world.end_turns(&grant, 3), ReleaseOutcome::Taken);
    assert_eq!(world.give(&grant), ReleaseOutcome::Taken);
    assert_eq!(world.renew(&grant, LEASE_MS, ServerTime::MAX), Renewed::Taken);
    assert_eq!(
        world.inspect().holders.first().map(|holder| holder.fence),
        Some(pushed.fence)
    );
}

#[test]
fn a_release_of_turns_that_is_repeated_changes_nothing() {
    let mut world = set_back();
    let grant = world.grant(&request(1));
    assert_eq!(world.end_turns(&grant, 3), ReleaseOutcome::Released);
    assert_eq!(world.end_turns(&grant, 5), ReleaseOutcome::Taken);
    assert_eq!(world.grant(&request(9)).fence.get(), grant.fence.get() + 4);
}
