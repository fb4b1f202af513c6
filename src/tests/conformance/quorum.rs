//! Calls of a quorum: floors, looks, and tickets that are later than the server's time.

use std::time::Duration;

use super::edges::acquisition;
use super::step::MAX_AHEAD_US;
use super::world::{Setting, World};
use crate::protocol::Operation;
use crate::protocol::RESERVED;
use crate::protocol::ids::ClientId;
use crate::protocol::script::{Declared, ReplyError};
use crate::protocol::{
    Acquire, Acquired, Contended, Grant, Look, Looked, Release, ReleaseOutcome, ReleaseWhat, Renew, Renewed,
    Withdraw,
};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;

/// The fence that is `us` away from the server's time.
fn fence_at(world: &World<'_>, us: i64) -> Fence {
    Fence::new(world.now_us.checked_add_signed(us).unwrap()).unwrap()
}

/// An acquire of this request, with this floor.
fn call(world: &World<'_>, request: usize, floor: Fence) -> Acquire {
    Acquire {
        floor: Some(floor),
        ..acquisition(world, &world.requests[request].clone())
    }
}

fn granted(world: &mut World<'_>, request: usize, floor: Fence) -> Grant {
    let call = call(world, request, floor);
    match world.ask(&call) {
        Acquired::Granted { grant, .. } => grant,
        other => panic!("{other:?}"),
    }
}

fn queued(world: &mut World<'_>, call: &Acquire) -> Contended {
    match world.ask(call) {
        Acquired::Contended(contended) => contended,
        other => panic!("{other:?}"),
    }
}

fn release(world: &World<'_>, grant: &Grant, floor: Fence) -> Release {
    Release {
        keys: world.keys[0].clone(),
        request: grant.request.clone(),
        what: ReleaseWhat::Grant(grant.fence),
        floor: Some(floor),
    }
}

fn withdraw(world: &World<'_>, grant: &Grant, floor: Fence) -> Withdraw {
    Withdraw {
        keys: world.keys[0].clone(),
        requests: vec![grant.request.clone()],
        floor: Some(floor),
    }
}

/// The fence of the last push.
fn pushed_fence(world: &mut World<'_>) -> Fence {
    let messages = world.snapshot().messages;
    let (_, message) = messages.last().expect("a push");
    let fence = message.split(' ').nth(1).expect("a fence").parse().unwrap();
    Fence::new(fence).unwrap()
}

/// Makes a request wait, with a subscription.
fn waits(world: &mut World<'_>, request: usize, floor: Fence) {
    let call = call(world, request, floor);
    queued(world, &call);
    let channel = world.keys[0].channel_of(&ClientId::from_number(request as u128 + 1));
    world.command(&["SUBSCRIBE", &channel]);
}

#[test]
fn servers_whose_clocks_differ_grant_one_fence_by_a_floor() {
    let mut setting = Setting::start();
    let (mut fences, mut floor) = (Vec::new(), None);
    for us in [0, 3_000_000] {
        let mut world = World::new(&mut setting);
        let floor = *floor.get_or_insert(fence_at(&world, 1_000_000));
        world.now_us += us;
        let later = Fence::new(floor.get() + 1_000_000).unwrap();
        let mut of_server = Vec::new();
        // The first acquire finds no lock, and the last one finds a free lock.
        let grant = granted(&mut world, 0, floor);
        of_server.push(grant.fence);
        waits(&mut world, 1, later);
        let release = release(&world, &grant, later);
        assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
        of_server.push(pushed_fence(&mut world));
        waits(&mut world, 2, later);
        // A withdrawal hands over too, and here the lock's last fence is above the floor.
        let second = Grant {
            request: world.requests[1].clone(),
            ..grant
        };
        let withdraw = withdraw(&world, &second, floor);
        world.ask(&withdraw);
        of_server.push(pushed_fence(&mut world));
        let third = Grant {
            request: world.requests[2].clone(),
            fence: of_server[2],
            ..second
        };
        let release = self::release(&world, &third, floor);
        assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
        let latest = Fence::new(later.get() + 1_000_000).unwrap();
        of_server.push(granted(&mut world, 0, latest).fence);
        assert_eq!(of_server[..2], [floor, later]);
        assert_eq!(of_server[2].get(), later.get() + 1);
        assert_eq!(of_server[3], latest);
        fences.push(of_server);
    }
    assert_eq!(fences[0], fences[1]);
}

#[test]
fn floor_of_a_withdrawal_tells_what_its_own_hold_has_used() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let floor = fence_at(&world, 0);
    let grant = granted(&mut world, 0, floor);
    let above = Fence::new(grant.fence.get() + 2).unwrap();
    let withdraw = withdraw(&world, &grant, above);
    world.ask(&withdraw);
    // Nobody is queued, so the lock itself remembers it.
    assert_eq!(granted(&mut world, 0, floor).fence, above);
}

/// It ran out, and may have used all of its fences.
#[test]
fn floor_of_a_withdrawal_tells_nothing_of_another_hold() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let floor = fence_at(&world, 0);
    let short = Acquire {
        lease: Duration::from_secs(1),
        ..call(&world, 0, floor)
    };
    let Acquired::Granted { grant, .. } = world.ask(&short) else {
        panic!("the lock is free");
    };
    waits(&mut world, 1, floor);
    world.now_us += 2_000_000;
    let other = Grant {
        request: world.requests[0].clone(),
        ..grant
    };
    let withdraw = withdraw(&world, &other, Fence::new(grant.fence.get() + 2).unwrap());
    world.ask(&withdraw);
    assert_eq!(pushed_fence(&mut world).get(), grant.fence.get() + RESERVED + 1);
}

#[test]
fn floor_of_more_than_a_day_ahead_is_refused_and_nothing_is_done() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let too_far = fence_at(&world, MAX_AHEAD_US + 1);
    let call = call(&world, 0, too_far);
    assert!(is_behind(&mut world, &call));
    assert_eq!(world.snapshot().data[0], "", "a lock");

    let floor = fence_at(&world, 0);
    let grant = granted(&mut world, 0, floor);
    waits(&mut world, 1, floor);
    let before = world.snapshot().data;
    let (release, withdraw) = (
        release(&world, &grant, too_far),
        withdraw(&world, &grant, too_far),
    );
    assert!(is_behind(&mut world, &call));
    assert!(is_behind(&mut world, &release));
    assert!(is_behind(&mut world, &withdraw));
    let after = world.snapshot();
    assert_eq!((after.data, after.messages), (before, vec![]));

    // A floor of exactly a day ahead is accepted.
    let farthest = fence_at(&world, MAX_AHEAD_US);
    let release = self::release(&world, &grant, farthest);
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
    assert_eq!(pushed_fence(&mut world), farthest);
}

/// Whether the server replies that its clock is too far behind.
fn is_behind<O: Operation>(world: &mut World<'_>, call: &O) -> bool {
    world.try_ask(call, Declared::All).err() == Some(ReplyError::ClockBehind)
}

#[test]
fn ticket_of_a_quorum_counts_though_it_is_later_than_the_servers_time() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let floor = fence_at(&world, 0);
    granted(&mut world, 0, floor);
    let tickets = [3_000_000, 1_000_000, 2_000_000].map(|us| Ticket(world.now_us + us));
    for (request, ticket) in [1, 2, 3].into_iter().zip(tickets) {
        let call = Acquire {
            ticket: Some(ticket),
            ..call(&world, request, floor)
        };
        assert_eq!(queued(&mut world, &call).ticket, Some(ticket));
    }
    let [_, queue, ..] = world.snapshot().data;
    let order = [2, 3, 1].map(|n| format!("{} {}", world.requests[n], tickets[n - 1].0));
    assert_eq!(queue, order.join(" "));
    // Without a floor, such a ticket counts as now.
    let single = Acquire {
        ticket: Some(tickets[0]),
        ..acquisition(&world, &world.requests[4].clone())
    };
    assert_eq!(queued(&mut world, &single).ticket, Some(Ticket(world.now_us)));
}

fn look(world: &World<'_>, grant: &Grant, floor: Fence, ticket: u64) -> Look {
    Look {
        renew: Renew {
            keys: world.keys[0].clone(),
            request: grant.request.clone(),
            fence: grant.fence,
            lease: Duration::from_secs(30),
            cap: ServerTime::MAX,
            on_demand: false,
        },
        floor,
        ticket: Ticket(ticket),
    }
}

/// The expected reply to a look at a hold that lasts for 30 s from now.
fn held(world: &World<'_>, fence: Fence, earlier: bool) -> Looked {
    Looked {
        renewed: Renewed::Until(ServerTime::from_ms(world.now_us / 1000 + 30_000)),
        fence,
        earlier,
    }
}

/// Race: The reply to a look that raised the fence of a hold is lost.
#[test]
fn look_raises_a_fence_once_and_lowers_none() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let [first, second, third] = [0, 1_000, 2_000].map(|us| fence_at(&world, us));
    let grant = granted(&mut world, 0, first);
    // The second round stands for a retry after a lost reply.
    for _ in 0..2 {
        world.now_us += 1_000_000;
        let look = look(&world, &grant, second, world.now_us);
        assert_eq!(world.ask(&look), held(&world, second, false));
    }
    // The former fence alone does not find the hold.
    let looked = world.ask(&look(&world, &grant, first, world.now_us));
    assert_eq!((looked.renewed, looked.fence), (Renewed::Taken, first));
    let looked = world.ask(&look(&world, &grant, third, world.now_us));
    assert_eq!((looked.renewed, looked.fence), (Renewed::Taken, first));
    // All other calls see the new fence, and the next fence is larger.
    let raised = Grant {
        fence: second,
        ..grant
    };
    assert_eq!(
        world.ask(&look(&world, &raised, first, world.now_us)),
        held(&world, second, false)
    );
    waits(&mut world, 1, first);
    let release = release(&world, &raised, first);
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
    assert_eq!(pushed_fence(&mut world).get(), second.get() + 1);
}

#[test]
fn look_at_a_hold_that_is_gone_raises_nothing() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let [first, second] = [0, 1_000].map(|us| fence_at(&world, us));
    let grant = granted(&mut world, 0, first);
    let before = world.snapshot().data;
    world.now_us += 30_000_000;
    let look = look(&world, &grant, second, world.now_us);
    assert_eq!(world.ask(&look).renewed, Renewed::Expired);
    assert_eq!(world.snapshot().data, before);
    // Another request is granted with the very fence to which the former hold is to be raised.
    granted(&mut world, 1, second);
    let before = world.snapshot().data;
    assert_eq!(world.ask(&look).renewed, Renewed::Taken);
    assert_eq!(world.snapshot().data, before);
}

#[test]
fn look_raises_no_fence_by_more_than_a_day_ahead() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let [now, farthest, too_far] = [0, MAX_AHEAD_US, MAX_AHEAD_US + 1].map(|us| fence_at(&world, us));
    let grant = granted(&mut world, 0, now);
    let before = world.snapshot().data;
    let refused = look(&world, &grant, too_far, world.now_us);
    assert!(is_behind(&mut world, &refused));
    assert_eq!(world.snapshot().data, before);
    let raised = Grant {
        fence: farthest,
        ..grant.clone()
    };
    let look_far = look(&world, &grant, farthest, world.now_us);
    assert_eq!(world.ask(&look_far), held(&world, farthest, false));
    // After the clock was set back, the hold has a fence too far ahead. It is renewed like any other.
    world.now_us -= 5_000_000;
    let looked = world.ask(&look(&world, &raised, farthest, world.now_us));
    assert!(matches!(looked.renewed, Renewed::Until(_)), "{looked:?}");
    assert_eq!(looked.fence, farthest);
}

#[test]
fn look_tells_of_an_earlier_ticket_at_the_head_of_the_queue() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let floor = fence_at(&world, 0);
    // The second client holds. One request each of the second and the third client waits.
    let grant = granted(&mut world, 1, floor);
    let ticket = world.now_us + 1_000;
    for (request, us) in [(4, 0), (2, 7)] {
        let call = Acquire {
            ticket: Some(Ticket(ticket + us)),
            ..call(&world, request, floor)
        };
        queued(&mut world, &call);
    }
    // Of two requests of one client with one ticket, neither is earlier.
    for (own, earlier) in [(ticket - 1, false), (ticket, false), (ticket + 1, true)] {
        let look = look(&world, &grant, floor, own);
        assert_eq!(world.ask(&look), held(&world, floor, earlier), "{own}");
    }
    // Of two clients with one ticket, the one with the smaller id is earlier.
    let [first, third] = [0, 2].map(|n| world.requests[n].clone());
    for (request, earlier) in [(first, true), (third, false)] {
        let mut world = World::new(&mut setting);
        let grant = granted(&mut world, 1, floor);
        let call = Acquire {
            ticket: Some(Ticket(ticket)),
            floor: Some(floor),
            ..acquisition(&world, &request)
        };
        queued(&mut world, &call);
        let look = look(&world, &grant, floor, ticket);
        assert_eq!(world.ask(&look), held(&world, floor, earlier), "{request}");
    }
}

#[test]
fn look_finds_an_empty_queue_behind_a_lock_that_others_waited_for() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let floor = fence_at(&world, 0);
    let grant = granted(&mut world, 0, floor);
    waits(&mut world, 1, floor);
    let second = Grant {
        request: world.requests[1].clone(),
        ..grant
    };
    world.ask(&withdraw(&world, &second, floor));
    let look = look(&world, &grant, floor, world.now_us + 1_000_000);
    assert_eq!(world.ask(&look), held(&world, floor, false));
}

/// All holds of an owner share one fence, so a call for one of them does not change it.
#[test]
fn look_at_one_of_several_holds_raises_nothing() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let [first, second] = [0, 1_000].map(|us| fence_at(&world, us));
    let grant = granted(&mut world, 4, first);
    assert_eq!(granted(&mut world, 8, first).fence, first);
    let look = look(&world, &grant, second, world.now_us);
    assert_eq!(world.ask(&look), held(&world, first, false));
}
