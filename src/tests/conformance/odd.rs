//! Cases outside the rules: keys of another type, and the shard channels of a cluster.

use super::edges::acquisition;
use super::step::Trouble;
use super::world::{Setting, World};
use crate::protocol::ids::ClientId;
use crate::protocol::script::PubSubMode;
use crate::protocol::{Acquire, Acquired, Grant, Inspect, Release, ReleaseOutcome, ReleaseWhat};

/// Two requests of the same owner, by different clients.
const FIRST: usize = 4;
const SECOND: usize = 8;

/// An acquire of this request.
fn call(world: &World<'_>, request: usize) -> Acquire {
    acquisition(world, &world.requests[request].clone())
}

fn granted(world: &mut World<'_>, request: usize) -> Grant {
    let call = call(world, request);
    match world.ask(&call) {
        Acquired::Granted { grant, .. } => grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn queue_key_of_another_type_is_noticed_before_an_owner_has_another_hold() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    granted(&mut world, FIRST);
    let queue = world.keys[0].queue.clone();
    let [before, ..] = world.snapshot().data;
    world.command(&["SET", &queue, "mine"]);
    let second = call(&world, SECOND);
    let refused = world.ask_in(None, &second, PubSubMode::Plain).unwrap_err();
    assert!(refused.contains("WRONGTYPE"), "{refused}");
    world.command(&["DEL", &queue]);
    let [after, ..] = world.snapshot().data;
    assert_eq!(after, before, "nothing was written");
    let (keys, request) = (world.keys[0].clone(), world.requests[FIRST].clone());
    let holding = world.ask(&Inspect { keys, request }).holders.remove(0);
    assert_eq!(holding.holds, 1);
}

#[test]
fn release_reports_a_denied_shard_push_and_succeeds() {
    let mut setting = Setting::start();
    let has_shard_channels = has_shard_channels(&mut setting);
    let mut world = World::new(&mut setting);
    let grant = granted(&mut world, 0);
    // The user may not publish to the second client. Servers before 7.0 refuse this because they do not know
    // the command.
    let waits = call(&world, 1);
    assert!(matches!(world.ask(&waits), Acquired::Contended(_)));
    if has_shard_channels {
        let channel = world.keys[0].channel_of(&ClientId::from_number(2));
        world.command(&["SSUBSCRIBE", &channel]);
    }
    let release = Release {
        keys: world.keys[0].clone(),
        request: grant.request,
        what: ReleaseWhat::Grant(grant.fence),
        floor: None,
    };
    let released = world.ask_in(Some(Trouble::NoPublish), &release, PubSubMode::Sharded);
    let released = released.unwrap();
    assert_eq!(released.outcome, ReleaseOutcome::Released);
    assert!(released.denied);
}

/// Whether the server has shard channels.
fn has_shard_channels(setting: &mut Setting) -> bool {
    let known = "return {redis.pcall('PUBSUB', 'SHARDNUMSUB').err and 'no' or 'yes'}";
    let has = setting.scripts.evaluate(known) == ["yes"];
    if !has {
        println!("skipped: the server has no shard channels");
    }
    has
}

#[test]
fn clients_need_not_listen_for_hand_over_in_a_newly_moved_slot() {
    let mut setting = Setting::start();
    if !has_shard_channels(&mut setting) {
        return;
    }
    for (way, is_handed_over) in [(PubSubMode::Sharded, false), (PubSubMode::Migrating, true)] {
        let mut world = World::new(&mut setting);
        let grant = granted(&mut world, 0);
        // Its client has no subscription on this server yet.
        let waits = call(&world, 1);
        assert!(matches!(world.ask(&waits), Acquired::Contended(_)));
        let (keys, request) = (world.keys[0].clone(), grant.request);
        let release = Release {
            keys: keys.clone(),
            request: request.clone(),
            what: ReleaseWhat::Grant(grant.fence),
            floor: None,
        };
        let released = world.ask_by(&release, way);
        assert_eq!(
            (released.outcome, released.denied),
            (ReleaseOutcome::Released, false)
        );
        let holder = world.ask(&Inspect { keys, request }).holders.pop();
        assert_eq!(holder.is_some(), is_handed_over, "{way:?}: {holder:?}");
    }
}

#[test]
fn most_calls_take_a_fast_path() {
    let mut setting = Setting::start();
    let ways = [
        (PubSubMode::Plain, "SUBSCRIBE"),
        (PubSubMode::Sharded, "SSUBSCRIBE"),
    ];
    let known = if has_shard_channels(&mut setting) { 2 } else { 1 };
    for (way, subscribe) in &ways[..known] {
        let mut world = World::new(&mut setting);
        let calls = [0, 1, 2].map(|request| call(&world, request));
        let keys = world.keys[0].clone();
        let release = |grant: &Grant, what| Release {
            keys: keys.clone(),
            request: grant.request.clone(),
            what,
            floor: None,
        };
        let grant = granted(&mut world, 0);
        let released = world.ask_fast(&release(&grant, ReleaseWhat::Grant(grant.fence)), *way);
        assert_eq!(released.unwrap().outcome, ReleaseOutcome::Released);
        world.now_us += 1_000_000;
        let Some(Acquired::Granted { grant, .. }) = world.ask_fast(&calls[0], *way) else {
            panic!("it is free");
        };
        let (first, last) = (grant.fence, grant.fence.plus(3));
        let released = world.ask_fast(&release(&grant, ReleaseWhat::Turns { first, last }), *way);
        assert_eq!(released.unwrap().outcome, ReleaseOutcome::Released);

        let grant = granted(&mut world, 0);
        assert!(matches!(world.ask(&calls[1]), Acquired::Contended(_)));
        let queued = world.ask_fast(&calls[2], *way);
        assert!(matches!(queued, Some(Acquired::Contended(told)) if told.enqueued && told.ahead == 1));
        let release = release(&grant, ReleaseWhat::Grant(grant.fence));
        world.command(&[subscribe, &keys.channel_of(&ClientId::from_number(2))]);
        let released = world.ask_fast(&release, *way);
        assert_eq!(released.unwrap().outcome, ReleaseOutcome::Released);
        assert_eq!(world.snapshot().messages.len(), 1);
        let request = world.requests[1].clone();
        let holder = world.ask(&Inspect { keys, request }).holders.pop().unwrap();
        assert_eq!(holder.client, ClientId::from_number(2));
    }
}

/// The first one to come to a queue that was emptied finds a summary that does not rule out waiters.
#[test]
fn a_queue_that_was_emptied_and_filled_again_has_a_time_to_live() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let grant = granted(&mut world, 0);
    let [waits, comes] = [1, 2].map(|request| call(&world, request));
    assert!(matches!(world.ask(&waits), Acquired::Contended(_)));
    let channel = world.keys[0].channel_of(&ClientId::from_number(2));
    world.command(&["SUBSCRIBE", &channel]);
    let release = Release {
        keys: world.keys[0].clone(),
        request: grant.request,
        what: ReleaseWhat::Grant(grant.fence),
        floor: None,
    };
    world.ask(&release);
    let queued = world.ask_fast(&comes, PubSubMode::Plain);
    assert!(matches!(queued, Some(Acquired::Contended(told)) if told.ahead == 0));
    let [_, queue, _] = world.snapshot().kept_ms;
    assert!(queue >= 60_000, "{queue} ms");
}
