//! Calls of a quorum: floors, and tickets that are later than the server's time.

use super::edges::acquisition;
use super::step::MAX_AHEAD_US;
use super::world::{Setting, World};
use crate::fence::Fence;
use crate::store::ids::ClientId;
use crate::store::redis::script::{Declared, Operation, ReplyError};
use crate::store::{Acquire, Acquired, Contended, Grant, Release, ReleaseOutcome, ReleaseWhat, Withdraw};
use crate::time::server_time::Ticket;

/// The fence that is so far from the server's time.
fn fence_at(world: &World<'_>, us: i64) -> Fence {
    Fence::new(world.now_us.checked_add_signed(us).unwrap()).unwrap()
}

/// A call for the request of that number.
fn call(world: &World<'_>, request: usize, floor: Fence) -> Acquire {
    Acquire {
        floor: Some(floor),
        ..acquisition(world, &world.requests[request].clone())
    }
}

fn granted(world: &mut World<'_>, request: usize, floor: Fence) -> Grant {
    let call = call(world, request, floor);
    match world.ask(&call) {
        Acquired::Granted(grant) => grant,
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

/// The fence of the lock's last push.
fn pushed_fence(world: &mut World<'_>) -> Fence {
    let messages = world.seen().messages;
    let (_, message) = messages.last().expect("a push");
    let fence = message.split(' ').nth(1).expect("a fence").parse().unwrap();
    Fence::new(fence).unwrap()
}

/// Has a request wait, with a presence record and a subscription.
fn waits(world: &mut World<'_>, request: usize, floor: Fence) {
    let call = call(world, request, floor);
    queued(world, &call);
    let channel = world.keys[0].channel_of(&ClientId::from_number(request as u128 + 1));
    world.tell(&["SUBSCRIBE", &channel]);
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
        // The first acquire finds no lock, and the last one a lock that is free.
        let grant = granted(&mut world, 0, floor);
        of_server.push(grant.fence);
        waits(&mut world, 1, later);
        let release = release(&world, &grant, later);
        assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
        of_server.push(pushed_fence(&mut world));
        waits(&mut world, 2, later);
        // A withdrawal hands over too, and the last fence is the larger one here.
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
fn floor_of_more_than_a_day_ahead_is_refused_and_nothing_is_done() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let too_far = fence_at(&world, MAX_AHEAD_US + 1);
    let call = call(&world, 0, too_far);
    assert!(is_behind(&mut world, &call));
    assert_eq!(world.seen().data[0], "", "a lock");

    let floor = fence_at(&world, 0);
    let grant = granted(&mut world, 0, floor);
    waits(&mut world, 1, floor);
    let before = world.seen().data;
    let (release, withdraw) = (
        release(&world, &grant, too_far),
        withdraw(&world, &grant, too_far),
    );
    assert!(is_behind(&mut world, &call));
    assert!(is_behind(&mut world, &release));
    assert!(is_behind(&mut world, &withdraw));
    let after = world.seen();
    assert_eq!((after.data, after.messages), (before, vec![]));

    // A day is not too far.
    let farthest = fence_at(&world, MAX_AHEAD_US);
    let release = self::release(&world, &grant, farthest);
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
    assert_eq!(pushed_fence(&mut world), farthest);
}

/// Whether the server finds its clock to be too far behind.
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
    let [_, queue, ..] = world.seen().data;
    let order = [2, 3, 1].map(|n| format!("{} {}", world.requests[n], tickets[n - 1].0));
    assert_eq!(queue, order.join(" "));
    // Outside of a quorum it counts as now.
    let single = Acquire {
        ticket: Some(tickets[0]),
        ..acquisition(&world, &world.requests[4].clone())
    };
    assert_eq!(queued(&mut world, &single).ticket, Some(Ticket(world.now_us)));
}
