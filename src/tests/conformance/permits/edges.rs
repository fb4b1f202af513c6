//! Cases that random calls never or rarely reach.

use super::*;
use crate::protocol::{Contended, Grant, Mode, ReleaseOutcome, Renewed};
use crate::types::permits::MOST_PERMITS;

const SECOND_US: u64 = 1_000_000;

/// A request of this client for `weight` permits of `capacity`.
fn request(client: usize, n: u64, weight: u32, capacity: u32) -> RequestId {
    let client = super::client(client);
    RequestId::with_permits(&client, Duration::from_secs(5), n, weight, capacity)
}

impl World<'_> {
    fn acquisition(&self, request: &RequestId) -> Acquire {
        Acquire {
            keys: self.keys.clone(),
            request: request.clone(),
            mode: Mode::Ask,
            lease: Duration::from_secs(30),
            not_after: Arc::new(ServerTime::MAX),
            ticket: None,
            floor: None,
        }
    }

    fn releasing(&self, grant: &Grant, what: ReleaseWhat) -> Release {
        Release {
            keys: self.keys.clone(),
            request: grant.request.clone(),
            what,
            floor: None,
        }
    }

    fn keeping(&self, grant: &Grant) -> Release {
        let what = ReleaseWhat::Keep {
            fence: grant.fence,
            at_least: Duration::from_secs(20),
            until: ServerTime::MAX,
        };
        self.releasing(grant, what)
    }

    fn inspection(&self) -> Inspect {
        Inspect {
            keys: self.keys.clone(),
            request: RequestId::new(&client(0), Duration::ZERO, 1, None),
        }
    }

    /// The server's reply, without the rules.
    fn ask_in<O: Operation>(
        &mut self,
        trouble: Option<Trouble>,
        call: &O,
        way: PubSubMode,
    ) -> Result<O::Reply, String> {
        let script_call = call.script_call(way, Declared::All);
        let reply = self.setting.scripts.call_in(trouble, script_call, self.now_us);
        reply.map(|reply| call.read(&reply).unwrap().1)
    }

    fn ask<O: Operation>(&mut self, call: &O) -> O::Reply {
        self.ask_in(None, call, PubSubMode::Plain).unwrap()
    }

    fn grant(&mut self, request: &RequestId) -> Grant {
        let call = self.acquisition(request);
        match self.ask(&call) {
            Acquired::Granted { grant, .. } => grant,
            other => panic!("{request}: {other:?}"),
        }
    }

    fn queue(&mut self, request: &RequestId) -> Contended {
        self.now_us += 1;
        let call = self.acquisition(request);
        match self.ask(&call) {
            Acquired::Contended(contended) => contended,
            other => panic!("{request}: {other:?}"),
        }
    }

    fn listen(&mut self, client: usize) {
        let channel = self.keys.channel_of(&self.clients[client]);
        self.setting.scripts.command(&["SUBSCRIBE", &channel]);
        self.setting.scripts.send();
    }

    fn tell(&mut self, command: &[&str]) {
        self.setting.scripts.command(command);
        self.setting.scripts.send();
    }

    fn snapshot(&mut self) -> Snapshot {
        self.setting.scripts.queue_snapshot(&self.keys);
        self.setting.scripts.send().remove(0)
    }

    /// The messages since the last snapshot: the requests that they grant, or the message itself.
    fn told(&mut self) -> Vec<Vec<String>> {
        let messages = self.snapshot().messages.into_iter();
        let words = messages.map(|(_, text)| text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        words
            .map(|words| match words.len() {
                1 => words,
                _ => words[1..].chunks(4).map(|grant| grant[2].clone()).collect(),
            })
            .collect()
    }
}

fn texts(requests: &[&RequestId]) -> Vec<String> {
    requests
        .iter()
        .map(|request| request.as_str().to_owned())
        .collect()
}

#[test]
fn permits_of_a_refused_message_go_to_the_next_requests() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[2]));
    (0..2).for_each(|client| world.listen(client));
    let held = world.grant(&request(0, 1, 2, 2));
    // The caller may publish to the first client only.
    let refused = request(1, 2, 2, 2);
    let next = [3, 4].map(|n| request(0, n, 1, 2));
    for waiting in [&refused, &next[0], &next[1]] {
        world.queue(waiting);
    }
    world.told();
    let release = world.releasing(&held, ReleaseWhat::Grant(held.fence));
    let released = world
        .ask_in(Some(Trouble::NoPublish), &release, PubSubMode::Plain)
        .unwrap();
    assert_eq!(
        (released.outcome, released.denied, released.more),
        (ReleaseOutcome::Released, true, false)
    );
    assert_eq!(
        world.told(),
        [texts(&[&next[0], &next[1]])],
        "both grants in one message"
    );
    let inspected = world.ask(&world.inspection());
    assert_eq!((inspected.in_use, inspected.waiting), (2, 0));
    // It comes back when its client asks again, and behind them.
    assert!(world.queue(&refused).enqueued);
}

#[test]
fn fence_of_a_refused_message_is_never_used() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[1]));
    world.listen(1);
    let held = world.grant(&request(0, 1, 1, 1));
    world.queue(&request(1, 2, 1, 1));
    let release = world.releasing(&held, ReleaseWhat::Grant(held.fence));
    world
        .ask_in(Some(Trouble::NoPublish), &release, PubSubMode::Plain)
        .unwrap();
    // In the same microsecond.
    let next = world.grant(&request(0, 3, 1, 1));
    assert_eq!(next.fence.get(), world.now_us + 1);
}

#[test]
fn a_lost_hold_leaves_no_timer_once_a_grant_to_its_request_is_refused() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[1]));
    world.listen(1);
    let (lost, other) = (request(1, 1, 1, 1), request(0, 2, 1, 1));
    world.grant(&lost);
    world.tell(&["DEL", &world.keys.lock.clone()]);
    let mut short = world.acquisition(&other);
    short.lease = Duration::from_secs(1);
    world.ask(&short);
    world.queue(&lost);
    world.now_us += 2 * SECOND_US;
    world
        .ask_in(Some(Trouble::NoPublish), &short, PubSubMode::Plain)
        .unwrap();
    let timers = format!("return {{redis.call('ZCARD', '{}') .. ''}}", world.keys.timers);
    assert_eq!(world.setting.scripts.evaluate(&timers), ["1"]);
}

#[test]
fn permits_stay_taken_though_the_message_to_the_same_client_is_refused() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[2]));
    world.listen(1);
    let kept = world.grant(&request(1, 1, 1, 2));
    let mut short = world.acquisition(&request(0, 2, 1, 2));
    short.lease = Duration::from_secs(1);
    world.ask(&short);
    world.queue(&request(1, 3, 1, 2));
    // One hold is over, so the request in the queue gets permits, but cannot be told.
    world.now_us += 2 * SECOND_US;
    let keep = world.keeping(&kept);
    let released = world
        .ask_in(Some(Trouble::NoPublish), &keep, PubSubMode::Plain)
        .unwrap();
    assert!(released.denied);
    let inspected = world.ask(&world.inspection());
    assert_eq!((inspected.in_use, inspected.waiting), (1, 0));
    assert!(inspected.holders[0].kept);
}

#[test]
fn full_server_takes_permits_back_and_gives_them_to_those_that_wait_alone() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[5]));
    world.listen(1);
    let held: Vec<_> = (0..5).map(|n| world.grant(&request(0, n, 1, 6))).collect();
    let large = world.grant(&request(0, 5, 3, 8));
    for n in 10..16 {
        world.queue(&request(1, n, 1, 6));
    }
    world.told();
    let before = world.snapshot().data;
    let full = Some(Trouble::Full);
    for mode in [Mode::Ask, Mode::Ask] {
        let call = Acquire {
            mode,
            ..world.acquisition(&request(0, 20, 1, 6))
        };
        let refused = world.ask_in(full, &call, PubSubMode::Plain).unwrap_err();
        assert!(refused.contains("OOM"), "{refused}");
    }
    assert_eq!(world.snapshot().data, before, "nothing was done");

    let renew = Renew {
        keys: world.keys.clone(),
        request: held[0].request.clone(),
        fence: held[0].fence,
        lease: Duration::from_secs(60),
        cap: ServerTime::MAX,
        on_demand: false,
    };
    let renewed = world.ask_in(full, &renew, PubSubMode::Plain).unwrap();
    assert!(matches!(renewed, Renewed::Until(_)));
    let shrink = Shrink {
        keys: world.keys.clone(),
        request: large.request.clone(),
        fence: large.fence,
        permits: 1,
    };
    let shrunk = world.ask_in(full, &shrink, PubSubMode::Plain).unwrap();
    assert_eq!(shrunk.outcome, ReleaseOutcome::Released);
    assert_eq!(world.told(), [] as [Vec<String>; 0], "6 of 6 are in use");
    let timers = world.keys.timers.clone();
    world.tell(&["DEL", &timers]);
    let release = world.releasing(&held[1], ReleaseWhat::Grant(held[1].fence));
    world.ask_in(full, &release, PubSubMode::Plain).unwrap();
    assert_eq!(world.told(), [texts(&[&request(1, 10, 1, 6)])]);
    let keep = world.keeping(&held[2]);
    world.ask_in(full, &keep, PubSubMode::Plain).unwrap();
    assert_eq!(world.told(), [["2"]]);
    let withdraw = Withdraw {
        keys: world.keys.clone(),
        requests: vec![held[3].request.clone(), request(1, 11, 1, 6)],
        floor: None,
    };
    world.ask_in(full, &withdraw, PubSubMode::Plain).unwrap();
    let told = [texts(&[&request(1, 12, 1, 6)]), vec!["2".to_owned()]];
    assert_eq!(world.told(), told);
    let inspected = world
        .ask_in(full, &world.inspection(), PubSubMode::Plain)
        .unwrap();
    assert_eq!((inspected.in_use, inspected.waiting), (6, 3));
}

/// A timer of a hold that was renewed is early. The script that finds it due writes another one.
#[test]
fn full_server_corrects_timers_for_a_release() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[2]));
    let held = [1, 2].map(|n| world.grant(&request(0, n, 1, 2)));
    world.now_us += 20 * SECOND_US;
    for grant in &held {
        let renew = Renew {
            keys: world.keys.clone(),
            request: grant.request.clone(),
            fence: grant.fence,
            lease: Duration::from_secs(30),
            cap: ServerTime::MAX,
            on_demand: false,
        };
        world.ask(&renew);
    }
    world.now_us += 20 * SECOND_US;
    let release = world.releasing(&held[0], ReleaseWhat::Grant(held[0].fence));
    let released = world
        .ask_in(Some(Trouble::Full), &release, PubSubMode::Plain)
        .unwrap();
    assert_eq!(released.outcome, ReleaseOutcome::Released);
    assert_eq!(world.ask(&world.inspection()).in_use, 1);
}

/// Race: More holds end at once than one call may drop, and somebody wants all permits.
#[test]
fn many_holds_that_end_at_once_are_dropped_by_several_calls() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::ReadWrite);
    let most = MOST_PERMITS;
    for n in 0..10 {
        world.grant(&request(0, n, 1, most));
    }
    world.now_us += 40 * SECOND_US;
    let writer = world.acquisition(&request(1, 20, most, most));
    let mut calls = 1;
    while world.ask(&writer) == Acquired::Incomplete {
        calls += 1;
    }
    assert_eq!(calls, 4, "with a bound of 3");
    assert_eq!(world.ask(&world.inspection()).in_use, u64::from(most));
}

/// So many holds are added to tables, and not to lists. That leaves no trace in the data.
#[test]
fn many_readers_are_let_in_at_once() {
    let mut setting = Setting::bounded(400);
    let mut world = World::new(&mut setting, Capacities::ReadWrite);
    (0..2).for_each(|client| world.step(&Step::Subscribe { client }));
    let writing = world.acquisition(&request(0, 100, MOST_PERMITS, MOST_PERMITS));
    world.make(writing.clone(), None);
    for n in 0..70 {
        world.now_us += 1;
        let reading = world.acquisition(&request(n % 2, n as u64, 1, MOST_PERMITS));
        world.make(reading, None);
    }
    let fence = world.permits().holds[&writing.request].fence;
    let what = ReleaseWhat::Grant(Fence::new(fence).unwrap());
    let release = Release {
        keys: writing.keys,
        request: writing.request,
        what,
        floor: None,
    };
    world.make(release, None);
    assert_eq!((world.permits().used, world.permits().holds.len()), (70, 70));
    world.check();
}

/// A call reads the queue in parts, and looks only so far for a larger capacity. The rules agree.
#[test]
fn a_larger_capacity_overtakes_as_many_full_requests_as_a_call_looks_at() {
    for (full, overtakes) in [(64, true), (65, false)] {
        let mut setting = Setting::bounded(400);
        let mut world = World::new(&mut setting, Capacities::Of(&[1]));
        (0..3).for_each(|client| world.step(&Step::Subscribe { client }));
        let held = world.acquisition(&request(0, 0, 2, 2));
        world.make(held.clone(), None);
        for n in 0..full {
            world.now_us += 1;
            let narrow = world.acquisition(&request(1, n, 1, 1));
            world.make(narrow, None);
        }
        world.now_us += 1;
        let wide = world.acquisition(&request(2, 0, 1, 3));
        world.make(wide, None);
        assert_eq!(world.permits().used == 3, overtakes, "{full}");
        // All of them are dead.
        world.step(&Step::Unsubscribe { client: 1 });
        world.now_us += 1;
        let next = world.acquisition(&request(0, 1, 1, 3));
        world.make(next, None);
        assert_eq!((world.permits().used, world.permits().queue.len()), (3, 1));
        let release = Release {
            keys: held.keys.clone(),
            what: ReleaseWhat::Grant(Fence::new(world.permits().holds[&held.request].fence).unwrap()),
            request: held.request,
            floor: None,
        };
        world.make(release, None);
        assert_eq!(world.permits().queue.len(), 0);
        world.check();
    }
}

/// More calls than any of these tests needs.
const MANY_CALLS: u32 = 100;

/// Asks until the call is complete. Returns the number of calls, too.
fn complete(world: &mut World<'_>, call: &Acquire) -> (u32, Acquired) {
    for calls in 1..MANY_CALLS {
        match world.ask(call) {
            Acquired::Incomplete => {}
            answer => return (calls, answer),
        }
    }
    panic!("incomplete after {MANY_CALLS} calls");
}

/// Race: The timers of very many holds are made again. Calls do that in parts, and meanwhile no permit is
/// given out twice.
#[test]
fn timers_of_many_holds_are_made_again_in_parts() {
    const HOLDS: u32 = 1_000;
    let mut setting = Setting::bounded(100);
    for is_set_back in [false, true] {
        let mut world = World::new(&mut setting, Capacities::Of(&[HOLDS]));
        for n in 0..HOLDS {
            world.now_us += 1;
            let call = world.acquisition(&request(0, n.into(), 1, HOLDS));
            world.make(call, None);
        }
        if is_set_back {
            world.now_us -= 3_600 * SECOND_US;
        } else {
            world.delete(Key::Timers);
        }
        world.check();
        let waits = world.acquisition(&request(1, 9, 1, HOLDS));
        let (calls, answer) = complete(&mut world, &waits);
        assert!((3..=20).contains(&calls), "{calls} calls");
        assert!(matches!(answer, Acquired::Contended(_)), "{answer:?}");
        // All is as if one call had made them again.
        let now = world.now();
        waits.execute(&mut world.rules, now, &mut world.pub_sub);
        world.expect(None);
        world.check();
        let inspected = world.ask(&world.inspection());
        assert_eq!((inspected.in_use, inspected.waiting), (HOLDS.into(), 1));
        assert!(inspected.holders[0].deadline <= world.time_at(30_000));
    }
}

/// Race: The clock is set back again while the timers are made again.
#[test]
fn no_hold_lasts_longer_than_its_lease_after_the_clock_was_set_back_twice() {
    const HOLDS: u32 = 1_000;
    let mut setting = Setting::bounded(100);
    let mut world = World::new(&mut setting, Capacities::Of(&[HOLDS]));
    for n in 0..HOLDS {
        world.now_us += 1;
        world.grant(&request(0, n.into(), 1, HOLDS));
    }
    let waits = world.acquisition(&request(1, 9, HOLDS, HOLDS));
    world.now_us -= 3_600 * SECOND_US;
    for _ in 0..2 {
        assert_eq!(world.ask(&waits), Acquired::Incomplete);
    }
    world.now_us -= 3_600 * SECOND_US;
    let (_, answer) = complete(&mut world, &waits);
    assert!(matches!(answer, Acquired::Contended(_)), "{answer:?}");
    world.now_us += 31 * SECOND_US;
    let (_, answer) = complete(&mut world, &waits);
    assert!(matches!(answer, Acquired::Granted { .. }), "{answer:?}");
}

/// Race: A server becomes the primary while the timers are made again. Its cursors are others.
#[test]
fn a_hold_that_was_passed_over_gets_its_timer_all_the_same() {
    const HOLDS: u32 = 1_000;
    let mut setting = Setting::bounded(100);
    let mut world = World::new(&mut setting, Capacities::Of(&[HOLDS]));
    let lock = world.keys.lock.clone();
    for n in 0..HOLDS {
        world.now_us += 1;
        world.grant(&request(0, n.into(), 1, HOLDS));
    }
    world.tell(&["DEL", &world.keys.timers.clone()]);
    let waits = world.acquisition(&request(1, 9, HOLDS, HOLDS));
    assert_eq!(world.ask(&waits), Acquired::Incomplete);
    let read = format!("return {{redis.call('HGET', '{lock}', 'place')}}");
    let place = world.setting.scripts.evaluate(&read).remove(0);
    for _ in 0..2 {
        assert_eq!(world.ask(&waits), Acquired::Incomplete);
    }
    let later = world.setting.scripts.evaluate(&read).remove(0);
    assert_ne!(later, place);
    // The next calls go on behind the holds whose timers are gone.
    world.tell(&["DEL", &world.keys.timers.clone()]);
    world.tell(&["HSET", &lock, "place", &later]);
    let (_, answer) = complete(&mut world, &waits);
    assert!(matches!(answer, Acquired::Contended(_)), "{answer:?}");
    world.now_us += 40 * SECOND_US;
    let (_, answer) = complete(&mut world, &waits);
    assert!(matches!(answer, Acquired::Granted { .. }), "{answer:?}");
}

#[test]
fn a_forced_release_finds_one_of_many_holds() {
    const HOLDS: u32 = 1_000;
    let mut setting = Setting::bounded(100);
    let mut world = World::new(&mut setting, Capacities::Of(&[HOLDS]));
    let held: Vec<_> = (0..HOLDS)
        .map(|n| {
            world.now_us += 1;
            world.grant(&request(0, n.into(), 1, HOLDS))
        })
        .collect();
    let mut calls = 0;
    for grant in [&held[0], &held[500], &held[999], &held[500]] {
        let (fence, mut from, mut released) = (grant.fence, Some(0), false);
        while let Some(place) = from {
            let what = ReleaseWhat::Force { fence, from: place };
            let mut release = world.releasing(grant, what);
            release.request = request(1, 1, 1, 1);
            let reply = world.ask(&release);
            assert!(!released && !reply.more);
            released = reply.outcome == ReleaseOutcome::Released;
            from = reply.searched;
            calls += 1;
            assert!(calls < MANY_CALLS);
        }
        let again = world.ask(&world.releasing(grant, ReleaseWhat::Grant(fence)));
        assert_eq!(again.outcome, ReleaseOutcome::Taken);
    }
    assert!(calls > 4, "{calls} calls");
    assert_eq!(world.ask(&world.inspection()).in_use, 997);
}

#[test]
fn no_more_than_a_hundred_clients_are_noted_absent() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[1]));
    let held = world.grant(&request(0, 1, 1, 1));
    for client in 1..=102 {
        let channel = world.keys.channel_of(&super::super::world::client(client));
        world.tell(&["SUBSCRIBE", &channel]);
        world.queue(&request(client, 2, 1, 1));
    }
    world.ask(&world.releasing(&held, ReleaseWhat::Grant(held.fence)));
    for _ in 1..=101 {
        world.now_us += 5 * SECOND_US;
        world.ask(&world.acquisition(&request(0, 1, 1, 1)));
    }
    let absent: String = (2..=101)
        .rev()
        .map(|n| format!("{} ", super::super::world::client(n)))
        .collect();
    let data = world.snapshot().data;
    assert!(data[0].contains(&format!("absent={absent},")), "{data:?}");
}

/// Nodes hold a permit for as long as they live, and nobody else comes for a long time.
#[test]
fn renewals_keep_the_timers() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[2]));
    let held = world.grant(&request(0, 1, 1, 2));
    let timers = world.keys.timers.clone();
    for (declared, is_kept) in [(Declared::All, true), (Declared::LockAlone, false)] {
        world.tell(&["PEXPIRE", &timers, "5000"]);
        let renew = Renew {
            keys: world.keys.clone(),
            request: held.request.clone(),
            fence: held.fence,
            lease: Duration::from_secs(30),
            cap: ServerTime::MAX,
            on_demand: false,
        };
        let script_call = renew.script_call(PubSubMode::Plain, declared);
        let reply = world.setting.scripts.call_in(None, script_call, world.now_us);
        assert!(matches!(
            renew.read(&reply.unwrap()).unwrap().1,
            Renewed::Until(_)
        ));
        let [lock_ms, _, timers_ms] = world.snapshot().kept_ms;
        assert!(lock_ms > 80_000, "{lock_ms}");
        assert_eq!(timers_ms > 80_000, is_kept, "{timers_ms}");
    }
}

#[test]
fn status_lists_a_hundred_holds_that_end_first() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::ReadWrite);
    for n in 0..120 {
        world.now_us += 1_000;
        let mut call = world.acquisition(&request(0, n, 2, 400));
        call.lease = Duration::from_millis(30_000 - n * 2);
        world.ask(&call);
    }
    let inspected = world.ask(&world.inspection());
    assert_eq!((inspected.in_use, inspected.holders.len()), (240, 100));
    let ends: Vec<_> = inspected.holders.iter().map(|holder| holder.deadline).collect();
    assert!(ends.is_sorted());
    let first = &inspected.holders[0];
    assert_eq!((first.permits, first.of, first.kept), (2, 400, false));
    assert_eq!(first.owner.as_str(), request(0, 119, 2, 400).as_str());
}

/// A program that limits a rate keeps each permit taken for a while, and its waiters know the times only if
/// they are told.
#[test]
fn client_of_the_first_request_is_told_of_permits_that_come_back_by_time() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[2]));
    (0..4).for_each(|client| world.listen(client));
    let [first, second] = [1, 2].map(|n| world.grant(&request(0, n, 1, 2)));
    let waiting = [1, 2, 3].map(|client| request(client, 9, 1, 2));
    for waits in &waiting {
        world.queue(waits);
    }
    world.told();
    let keep = world.keeping(&first);
    world.ask(&keep);
    let [(channel, text)] = &world.snapshot().messages[..] else {
        panic!("one message");
    };
    assert_eq!(**channel, *world.keys.channel_of(&world.clients[1]));
    assert_eq!(text, "2");
    assert_eq!(world.queue(&waiting[0]).ttl, Duration::from_secs(20));
    // The next request becomes the first. Nobody releases the permits for which it waits.
    let release = world.releasing(&second, ReleaseWhat::Grant(second.fence));
    world.ask(&release);
    assert_eq!(world.told(), [texts(&[&waiting[0]]), vec!["2".to_owned()]]);
    let withdraw = Withdraw {
        keys: world.keys.clone(),
        requests: vec![waiting[1].clone()],
        floor: None,
    };
    for _ in 0..2 {
        world.ask(&withdraw);
        assert_eq!(world.told(), [["2"]], "an earlier call may have been incomplete");
    }
}

#[test]
fn keys_of_another_type_are_noticed_before_anything_is_done() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[2]));
    let (timers, queue) = (world.keys.timers.clone(), world.keys.queue.clone());
    let call = world.acquisition(&request(0, 1, 1, 2));
    world.tell(&["SET", &timers, "mine"]);
    let refused = world.ask_in(None, &call, PubSubMode::Plain).unwrap_err();
    assert!(refused.contains("WRONGTYPE"), "{refused}");
    world.tell(&["DEL", &timers]);
    assert_eq!(world.snapshot().data[0], "");

    let held = world.grant(&request(0, 1, 1, 2));
    let before = world.snapshot().data;
    world.tell(&["SET", &queue, "mine"]);
    let release = world.releasing(&held, ReleaseWhat::Grant(held.fence));
    let refused = world.ask_in(None, &release, PubSubMode::Plain).unwrap_err();
    assert!(refused.contains("WRONGTYPE"), "{refused}");
    world.tell(&["DEL", &queue]);
    assert_eq!(world.snapshot().data, before);
}

#[test]
fn queue_lives_for_a_minute_after_its_first_request_and_each_poll() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[1]));
    world.grant(&request(0, 1, 1, 1));
    let mut waits = world.acquisition(&request(1, 2, 1, 1));
    for mode in [Mode::Ask, Mode::Poll] {
        waits.mode = mode;
        world.ask(&waits);
        let [_, queue_ms, _] = world.snapshot().kept_ms;
        assert!((60_000..=80_000).contains(&queue_ms), "{mode:?}: {queue_ms}");
        let queue = world.keys.queue.clone();
        world.tell(&["PEXPIRE", &queue, "5000"]);
        world.queue(&request(1, 3, 1, 1));
    }
}

#[test]
fn newer_format_is_left_alone() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting, Capacities::Of(&[1]));
    let held = world.grant(&request(0, 1, 1, 1));
    let lock = world.keys.lock.clone();
    world.tell(&["HSET", &lock, "permits", "b 1"]);
    let before = world.snapshot().data;
    let renew = Renew {
        keys: world.keys.clone(),
        request: held.request.clone(),
        fence: held.fence,
        lease: Duration::from_secs(30),
        cap: ServerTime::MAX,
        on_demand: false,
    };
    let withdraw = Withdraw {
        keys: world.keys.clone(),
        requests: vec![held.request.clone()],
        floor: None,
    };
    let acquire = world.acquisition(&request(0, 2, 1, 1));
    let release = world.releasing(&held, ReleaseWhat::Grant(held.fence));
    let inspect = world.inspection();
    let answers = [
        world.try_ask(&acquire),
        world.try_ask(&release),
        world.try_ask(&withdraw),
        world.try_ask(&renew),
        world.try_ask(&inspect),
    ];
    assert_eq!(answers, [const { Some(ReplyError::NewerFormat) }; 5]);
    assert_eq!(world.snapshot().data, before);
}

impl World<'_> {
    /// Why the client does not accept the server's reply.
    fn try_ask<O: Operation>(&mut self, call: &O) -> Option<ReplyError> {
        let script_call = call.script_call(PubSubMode::Plain, Declared::All);
        let reply = self.setting.scripts.call_in(None, script_call, self.now_us);
        call.read(&reply.unwrap()).err()
    }
}

#[test]
fn waiters_in_a_cluster_are_told_on_shard_channels() {
    let mut setting = Setting::start();
    let known = "return {redis.pcall('PUBSUB', 'SHARDNUMSUB').err and 'no' or 'yes'}";
    if setting.scripts.evaluate(known) != ["yes"] {
        return println!("skipped: the server has no shard channels");
    }
    for (way, is_handed_over) in [
        (PubSubMode::Sharded, false),
        (PubSubMode::Migrating, true),
        (PubSubMode::Uncounted, true),
    ] {
        let mut world = World::new(&mut setting, Capacities::Of(&[1]));
        let held = world.grant(&request(0, 1, 1, 1));
        // This client has no subscription on this server.
        let waits = world.acquisition(&request(1, 2, 1, 1));
        world.ask(&waits);
        let release = world.releasing(&held, ReleaseWhat::Grant(held.fence));
        let released = world.ask_in(None, &release, way).unwrap();
        assert_eq!(
            (released.outcome, released.denied),
            (ReleaseOutcome::Released, false)
        );
        let in_use = world.ask(&world.inspection()).in_use;
        assert_eq!(in_use == 1, is_handed_over, "{way:?}");
    }
    for way in [PubSubMode::Sharded, PubSubMode::Migrating] {
        let mut world = World::new(&mut setting, Capacities::Of(&[1]));
        let held = world.grant(&request(0, 1, 1, 1));
        let waits = world.acquisition(&request(1, 2, 1, 1));
        world.ask(&waits);
        let channel = world.keys.channel_of(&world.clients[1]);
        world.tell(&["SSUBSCRIBE", &channel]);
        let release = world.releasing(&held, ReleaseWhat::Grant(held.fence));
        let released = world.ask_in(Some(Trouble::NoPublish), &release, way).unwrap();
        assert!(released.denied);
        let held = world.grant(&request(0, 3, 1, 1));
        world.queue(&waits.request);
        let release = world.releasing(&held, ReleaseWhat::Grant(held.fence));
        world.ask_in(None, &release, way).unwrap();
        assert_eq!(world.told(), [texts(&[&waits.request])]);
    }
}
