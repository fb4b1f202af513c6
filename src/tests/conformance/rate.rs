//! The turns of rate limits: the script against the rules, in random orders of calls and clocks.

use std::sync::Arc;

use fastrand::Rng;

use super::model::PubSub;
use super::server::Scripts;
use crate::protocol::ids::ClientId;
use crate::protocol::keys::RateKeys;
use crate::protocol::rules::{ByRules, Now, Rules, Run};
use crate::protocol::script::Declared;
use crate::protocol::script::PubSubMode;
use crate::protocol::{Operation, Rate, RateAsk, RateCaller, RateLook};
use crate::time::server_time::ServerTime;

const MS: u64 = 1000;
const START: u64 = 1_800_000_000_000_000;

fn by_rules<O: ByRules>(rules: &mut Rules, call: &O, us: u64) -> O::Reply {
    let run = Run {
        now: Now { us, ms: us / 1000 },
        not_after: ServerTime::MAX,
        channels: &mut PubSub::default(),
    };
    call.by_rules(rules, run)
}

fn by_script<O: Operation>(scripts: &mut Scripts, call: &O, us: u64) -> O::Reply {
    let script_call = call.script_call(PubSubMode::Plain, Declared::All);
    let reply = scripts.call_in(None, script_call, us).expect("a reply");
    call.read(&reply).expect("words").1
}

/// Some callers of several waitlists came at the same time.
fn random(rng: &mut Rng, keys: &Arc<RateKeys>, us: u64) -> RateAsk {
    let interval = [20, 100, 700][rng.usize(..3)] * MS;
    let burst = [0, 3][rng.usize(..2)] * interval;
    let count = rng.usize(..5);
    let grain = 100 * MS;
    let mut ages: Vec<_> = (0..count).map(|_| us % grain + rng.u64(..20) * grain).collect();
    ages.sort_unstable_by(|one, other| other.cmp(one));
    let callers = ages.into_iter().map(|age| RateCaller {
        age,
        cost: if rng.u8(..4) == 0 { 5 } else { 1 },
    });
    let callers = callers.collect();
    RateAsk {
        keys: Arc::clone(keys),
        waitlist: format!("waitlist-{}", rng.u8(..20)).into(),
        waits: rng.u8(..6) > 0,
        rate: Rate { interval, burst },
        window: [0, 20, 200][rng.usize(..3)] * MS,
        callers,
    }
}

#[test]
fn random_calls_for_turns_end_as_the_rules_say() {
    let mut scripts = Scripts::start(100, &ClientId::from_number(1));
    let keys = Arc::new(RateKeys::new("fairlock", "a").unwrap());
    let (mut given, mut passed_over, mut behind) = (0, 0, 0);
    for seed in 0..50 {
        scripts.reset();
        let (mut rng, mut rules, mut us) = (Rng::with_seed(seed), Rules::new(100), START);
        for step in 0..150 {
            us += match rng.u8(..12) {
                0 => 0,
                1 => rng.u64(..6000) * MS,
                _ => rng.u64(..60) * MS + rng.u64(..1000),
            };
            if rng.u8(..60) == 0 {
                us -= 100_000 * MS;
            }
            let ask = random(&mut rng, &keys, us);
            let look = RateLook {
                keys: Arc::clone(&keys),
                by: ClientId::from_number(2),
                rate: ask.rate,
            };
            let shown = by_script(&mut scripts, &look, us);
            assert_eq!(shown, by_rules(&mut rules, &look, us), "seed {seed}, step {step}");
            let before = rules.rates.get(&keys.rate).map_or(0, |turns| turns.queue.len());
            let expected = by_rules(&mut rules, &ask, us);
            let turns = &rules.rates[&keys.rate];
            given += expected.waits.len();
            behind += usize::from(expected.ahead > 0);
            passed_over += usize::from(turns.queue.len() + 1 < before);
            let asked = by_script(&mut scripts, &ask, us);
            assert_eq!(asked, expected, "seed {seed}, step {step}: {ask:?} at {us}");
        }
    }
    assert!(
        given > 1000 && behind > 100 && passed_over > 10,
        "{given} {behind} {passed_over}"
    );
}

/// Within any window of a period, however the calls come.
#[test]
fn no_period_has_more_turns_than_its_limit_and_burst() {
    let keys = Arc::new(RateKeys::new("fairlock", "a").unwrap());
    for seed in 0..200 {
        let (mut rng, mut rules, mut us) = (Rng::with_seed(seed), Rules::new(100), START);
        let (turns, burst) = (rng.u64(1..=20), rng.u64(..=5));
        let period = rng.u64(10..=2000) * MS;
        let interval = period.div_ceil(turns);
        let mut begun = Vec::new();
        for _ in 0..300 {
            us += rng.u64(..2 * interval);
            let mut ask = random(&mut rng, &keys, us);
            ask.rate = Rate {
                interval,
                burst: burst * interval,
            };
            for caller in &mut ask.callers {
                caller.cost = caller.cost.min(u32::try_from(turns + burst).unwrap());
            }
            let asked = by_rules(&mut rules, &ask, us);
            for (wait, caller) in asked.waits.iter().zip(&ask.callers) {
                let at = us + u64::try_from(wait.as_micros()).unwrap();
                begun.extend((0..caller.cost).map(|_| at));
            }
        }
        assert!(begun.is_sorted(), "seed {seed}: turns come in order");
        for (first, at) in begun.iter().enumerate() {
            let within = begun[first..].iter().take_while(|other| **other < at + period);
            let within = within.count() as u64;
            assert!(
                within <= turns + burst,
                "seed {seed}: {within} of {turns} and {burst}"
            );
        }
    }
}

/// Asks when the rules say so, for one caller, until it has its turn. Returns when that begins.
fn turn_of(rules: &mut Rules, ask: &RateAsk, came: u64, mut us: u64) -> u64 {
    loop {
        let caller = RateCaller {
            age: us - came,
            cost: 1,
        };
        let ask = RateAsk {
            callers: vec![caller],
            ..ask.clone()
        };
        let asked = by_rules(rules, &ask, us);
        if let Some(wait) = asked.waits.first() {
            return us + u64::try_from(wait.as_micros()).unwrap();
        }
        us += u64::try_from(asked.again.as_micros()).unwrap() + 1;
    }
}

/// Race: Waitlists are first that do not ask any more, or that may ask much later than the others.
#[test]
fn waitlists_that_do_not_ask_hold_up_no_turn_however_rare_turns_are() {
    let keys = Arc::new(RateKeys::new("fairlock", "a").unwrap());
    for (interval, slow) in [(4000, 4000), (100, 60_000), (20, 20)] {
        let mut rules = Rules::new(100);
        let ask = |waitlist: u64, interval: u64, age: u64| RateAsk {
            keys: Arc::clone(&keys),
            waitlist: format!("waitlist-{waitlist}").into(),
            waits: true,
            rate: Rate {
                interval: interval * MS,
                burst: 0,
            },
            window: 20 * MS,
            callers: vec![RateCaller { age, cost: 1 }],
        };
        by_rules(&mut rules, &ask(0, interval, 0), START);
        for waitlist in 1..4 {
            by_rules(&mut rules, &ask(waitlist, slow, 0), START + waitlist * 5 * MS);
        }
        let came = START + 30 * MS;
        let begins = turn_of(&mut rules, &ask(4, interval, 0), came, came);
        let latest = START + interval * MS + 400 * MS;
        assert!(begins <= latest, "{interval}: {} ms", (begins - START) / MS);
    }
}

/// Also where only tries come, which otherwise write nothing without a turn.
#[test]
fn a_clock_that_is_set_back_keeps_the_distance_to_the_next_turn() {
    let mut scripts = Scripts::start(100, &ClientId::from_number(1));
    let keys = Arc::new(RateKeys::new("fairlock", "a").unwrap());
    let ask = |waits: bool| RateAsk {
        keys: Arc::clone(&keys),
        waitlist: "waitlist".into(),
        waits,
        rate: Rate {
            interval: 1000 * MS,
            burst: 0,
        },
        window: 0,
        callers: vec![RateCaller { age: 0, cost: 1 }],
    };
    let hour = 3_600_000 * MS;
    let mut rules = Rules::new(100);
    for (waits, at, wait) in [
        (true, START, Some(0)),
        (false, START - hour + 300 * MS, None),
        (false, START - hour + 1200 * MS, None),
        (false, START - hour + 1301 * MS, Some(0)),
        (true, START - hour + 1302 * MS, None),
        (true, START - 2 * hour, None),
    ] {
        let asked = by_script(&mut scripts, &ask(waits), at);
        assert_eq!(asked, by_rules(&mut rules, &ask(waits), at));
        let begins = asked.waits.first().map(std::time::Duration::as_micros);
        assert_eq!(begins, wait, "{}", at / MS);
    }
}
