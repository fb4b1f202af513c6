//! Compares the scripts' binding blocks with the arguments that are sent, and checks the use of constants.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::{Keys, RateKeys, label_key};
use crate::protocol::label::Label;
use crate::protocol::{
    Acquire, GetLabel, Inspect, Look, Mode, Operation, Priority, Rate, RateAsk, RateCaller, Release,
    ReleaseWhat, Renew, SetLabel, SpinAcquire, SpinRelease, Withdraw,
};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;
use crate::types::owner::Owner;
use crate::types::status::Kind;

fn renewal(keys: &Arc<Keys>, request: &RequestId, on_demand: bool) -> Renew {
    Renew {
        keys: Arc::clone(keys),
        request: request.clone(),
        fence: Fence::new(1_700_000_000_000_000).unwrap(),
        lease: Duration::from_secs(30),
        cap: ServerTime::MAX,
        on_demand,
    }
}

fn invoked(operation: &impl Operation) -> (ScriptCall, Priority) {
    let script_call = operation.script_call(PubSubMode::Plain, Declared::All);
    (script_call, operation.priority())
}

/// Calls of a request, with all arguments. Only for locks there is a floor.
fn acquire(keys: &Arc<Keys>, request: &RequestId, floor: Option<Fence>) -> Acquire {
    Acquire {
        keys: keys.clone(),
        request: request.clone(),
        mode: Mode::Ask,
        lease: Duration::from_secs(30),
        not_after: Arc::new(ServerTime::MAX),
        ticket: Some(Ticket(1)),
        floor,
    }
}

fn release(keys: &Arc<Keys>, request: &RequestId, floor: Option<Fence>) -> Release {
    Release {
        keys: keys.clone(),
        request: request.clone(),
        what: ReleaseWhat::Keep {
            fence: Fence::new(1_700_000_000_000_000).unwrap(),
            at_least: Duration::from_secs(30),
            until: ServerTime::MAX,
        },
        floor,
    }
}

fn withdraw(keys: &Arc<Keys>, request: &RequestId, floor: Option<Fence>) -> Withdraw {
    Withdraw {
        keys: keys.clone(),
        requests: vec![request.clone()],
        floor,
    }
}

fn inspect(keys: &Arc<Keys>, request: &RequestId) -> Inspect {
    Inspect {
        keys: keys.clone(),
        request: request.clone(),
    }
}

/// A call of each script, and its priority.
fn invocations() -> Vec<(ScriptCall, Priority)> {
    let keys = Arc::new(Keys::new("fairlock", "orders:42").unwrap());
    let owner = Owner::named("me");
    let client = ClientId::from_number(1);
    let (lease, fence) = (Duration::from_secs(30), Fence::new(1_700_000_000_000_000));
    let request = RequestId::new(&client, Duration::from_secs(5), 1, Some(&owner));
    let of_permits = RequestId::with_permits(&client, Duration::from_secs(5), 1, 2, 10);
    let permits = Arc::new(Keys::of_kind(Kind::Semaphore, "fairlock", "orders:42").unwrap());
    let renew = renewal(&keys, &request, false);
    vec![
        invoked(&acquire(&keys, &request, fence)),
        invoked(&release(&keys, &request, fence)),
        invoked(&withdraw(&keys, &request, fence)),
        invoked(&renew),
        invoked(&Look {
            renew,
            floor: fence.unwrap(),
            ticket: Ticket(1),
        }),
        invoked(&inspect(&keys, &request)),
        invoked(&SetLabel {
            key: label_key("fairlock", &client),
            label: Label::new("web-7").unwrap(),
            kept: lease,
            client,
        }),
        invoked(&SpinAcquire {
            keys: keys.clone(),
            owner: owner.clone(),
            request: Uuid::nil(),
            lease,
        }),
        invoked(&SpinRelease { keys, owner }),
        invoked(&acquire(&permits, &of_permits, None)),
        invoked(&release(&permits, &of_permits, None)),
        invoked(&withdraw(&permits, &of_permits, None)),
        invoked(&renewal(&permits, &of_permits, false)),
        invoked(&inspect(&permits, &of_permits)),
        invoked(&RateAsk {
            keys: Arc::new(RateKeys::new("fairlock", "orders:42").unwrap()),
            waitlist: "w".into(),
            waits: true,
            rate: Rate {
                interval: 20_000,
                burst: 0,
            },
            window: 20_000,
            callers: vec![RateCaller { age: 0, cost: 1 }],
        }),
    ]
}

#[test]
fn calls_outside_of_a_quorum_bring_no_argument_of_one() {
    let keys = Arc::new(Keys::new("fairlock", "a").unwrap());
    let request = RequestId::new(&ClientId::from_number(1), Duration::from_secs(5), 1, None);
    let fence = Fence::new(1_700_000_000_000_000).unwrap();
    let mut acquire = Acquire {
        keys: keys.clone(),
        request: request.clone(),
        mode: Mode::Ask,
        lease: Duration::from_secs(30),
        not_after: Arc::new(ServerTime::MAX),
        ticket: None,
        floor: None,
    };
    let mut release = Release {
        keys: keys.clone(),
        request: request.clone(),
        what: ReleaseWhat::Grant(fence),
        floor: None,
    };
    let mut withdraw = Withdraw {
        keys,
        requests: vec![request.clone()],
        floor: None,
    };
    let words = |call: ScriptCall| call.keys_and_args().1.join(" ");
    let of_acquire = |call: &Acquire| words(call.script_call(PubSubMode::Plain, Declared::All));
    let of_release = |call: &Release| words(call.script_call(PubSubMode::Plain, Declared::All));
    let of_withdraw = |call: &Withdraw| words(call.script_call(PubSubMode::Plain, Declared::All));
    let asked = format!("{request} ask 0000030000 0000000000000 pfairlock:unlock:{{a}}:");
    let released = format!("{request} grant 1700000000000000 pfairlock:unlock:{{a}}:");
    let withdrawn = format!("{request} pfairlock:unlock:{{a}}:");
    assert_eq!(of_acquire(&acquire), asked);
    assert_eq!(of_release(&release), released);
    assert_eq!(of_withdraw(&withdraw), withdrawn);
    acquire.ticket = Some(Ticket(7));
    assert_eq!(of_acquire(&acquire), format!("{asked} 7"));

    // In a quorum the floor follows, at one place whether there is a ticket or not.
    let floor = Some(Fence::new(900_000_000_000_000).unwrap());
    (acquire.floor, release.floor, withdraw.floor) = (floor, floor, floor);
    assert_eq!(of_acquire(&acquire), format!("{asked} 7 0900000000000000"));
    acquire.ticket = None;
    assert_eq!(of_acquire(&acquire), format!("{asked}  0900000000000000"));
    assert_eq!(of_release(&release), format!("{released} 0900000000000000"));
    assert_eq!(of_withdraw(&withdraw), format!("{withdrawn} 0900000000000000"));

    // The last fence that turns have used follows the floor, and what keeps the lock taken follows that.
    let last = fence.next();
    release.what = ReleaseWhat::Turns { first: fence, last };
    let floored = format!("{released} 0900000000000000");
    assert_eq!(of_release(&release), format!("{floored} 1700000000000001"));
    release.floor = None;
    assert_eq!(of_release(&release), format!("{released}  1700000000000001"));
    release.what = ReleaseWhat::Keep {
        fence,
        at_least: Duration::from_secs(50),
        until: ServerTime::from_ms(1_700_000_050_000),
    };
    let kept = released.replace("grant", "keep");
    let kept = format!("{kept}  1700000000000000 50000 1700000050000");
    assert_eq!(of_release(&release), kept);
}

/// The text in the brackets of each `<array>[..]` in these lines.
fn indices(lines: &[&str], array: &str) -> Vec<String> {
    let opening = format!("{array}[");
    let after = lines.iter().flat_map(|line| line.split(&opening).skip(1));
    after
        .map(|rest| rest.split(']').next().unwrap().to_owned())
        .collect()
}

#[test]
fn every_script_binds_and_explains_what_it_is_sent_once_and_in_order() {
    for (script_call, _) in invocations() {
        let Script { name, source, .. } = script_call.script;
        let (comments, code): (Vec<_>, Vec<_>) = source
            .lines()
            .partition(|line| line.trim_start().starts_with("--"));
        let (keys, args) = script_call.keys_and_args();
        for (array, sent) in [("KEYS", keys.len()), ("ARGV", args.len())] {
            let expected: Vec<_> = (1..=sent).map(|n| n.to_string()).collect();
            assert_eq!(
                indices(&comments, array),
                expected,
                "{array} in the comments of {name}"
            );
            assert_eq!(indices(&code, array), expected, "{array} in the code of {name}");
        }
    }
}

#[test]
fn keys_and_arguments_are_named_in_one_block_alone() {
    for Script { name, source, .. } in ALL {
        let named = |line: &str| line.contains("KEYS[") || line.contains("ARGV[");
        let first = source.lines().position(named).unwrap();
        let block: Vec<_> = source
            .lines()
            .skip(first)
            .take_while(|line| !line.is_empty())
            .collect();
        for line in &block {
            let in_place = ["-- KEYS[", "-- ARGV[", "--          ", "local "];
            assert!(
                in_place.iter().any(|start| line.starts_with(start)),
                "{name}: {line}"
            );
        }
        let outside = source.lines().skip(first + block.len()).find(|line| named(line));
        assert_eq!(outside, None, "{name}");
    }
}

/// The code of a line without comments and strings.
fn code(line: &str) -> String {
    let mut quote = None;
    let mut is_code = |c: char| match quote {
        Some(opening) => {
            quote = quote.filter(|_| c != opening);
            false
        }
        None => {
            quote = ['\'', '"'].into_iter().find(|opening| c == *opening);
            quote.is_none()
        }
    };
    let code: String = line.chars().filter(|c| is_code(*c)).collect();
    code.split("--").next().unwrap().to_owned()
}

/// The names in capitals that the code of a line uses.
fn names(line: &str) -> BTreeSet<String> {
    code(line)
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn constants_are_replaced_by_their_values() {
    let source = "\
local FREE = '0'
local FENCE, FENCE_END = 30, 45 -- digits

-- µ, the FREE
return string.sub(line, FENCE, FENCE_END + 1) == FREE or FREES
";
    let text = "
-- µ, the '0'
return string.sub(line, 30, 45 + 1) == '0' or FREES
";
    assert_eq!(inlined(source), text);
}

#[test]
fn every_constant_is_defined_once_and_replaced() {
    for script in ALL {
        let mut defined = BTreeSet::new();
        for (name, _) in script.source.lines().filter_map(texts::constants).flatten() {
            assert!(defined.insert(name), "{}: {name} is defined twice", script.name);
        }
        for line in script.text().lines() {
            let mut left = names(line);
            left.remove("KEYS");
            left.remove("ARGV");
            assert!(left.is_empty(), "{}: {line}", script.name);
        }
    }
}

#[test]
fn every_constant_is_used() {
    let (mut defined, mut used) = (BTreeSet::new(), BTreeSet::new());
    for script in ALL {
        let (definitions, rest): (Vec<_>, Vec<_>) = script
            .source
            .lines()
            .partition(|line| texts::constants(line).is_some());
        let names: BTreeSet<_> = rest.into_iter().flat_map(names).collect();
        let constants: BTreeSet<_> = definitions
            .into_iter()
            .filter_map(texts::constants)
            .flatten()
            .collect();
        used.extend(
            constants
                .iter()
                .filter(|(name, _)| names.contains(*name))
                .copied(),
        );
        defined.extend(constants);
    }
    assert_eq!(defined, used);
}

#[test]
fn positions_have_names() {
    for Script { name, source, .. } in ALL {
        for line in source.lines() {
            let code = code(line);
            let calls = code.split("string.sub(").skip(1);
            let arguments = calls.filter_map(|rest| rest.split(')').next());
            for position in arguments.flat_map(|arguments| arguments.split(", ").skip(1)) {
                let first = position.trim_start_matches('-').chars().next().unwrap();
                assert!(first.is_ascii_alphabetic(), "{name}: {position} in {line}");
            }
        }
    }
}

#[test]
fn lines_are_short() {
    for Script { name, source, .. } in ALL {
        let long = source.lines().find(|line| line.chars().count() > 110);
        assert_eq!(long, None, "{name}");
    }
}

#[test]
fn every_script_has_an_operation() {
    let called: Vec<_> = invocations()
        .iter()
        .map(|(script_call, _)| script_call.script.name)
        .collect();
    let all: Vec<_> = ALL.iter().map(|script| script.name).collect();
    assert_eq!(called, all);
}

/// The background makes renewals and looks when holds need them, and sets a label once in a while. A program
/// can make all other calls as often as it likes.
#[test]
fn only_calls_that_a_client_makes_by_itself_pass_the_window() {
    let (keys, client) = (Keys::new("fairlock", "a").unwrap(), ClientId::from_number(1));
    let request = RequestId::new(&client, Duration::from_secs(5), 1, None);
    let on_demand = renewal(&Arc::new(keys), &request, true);
    let others = [
        ("label, read", GetLabel::of("fairlock", &client).priority()),
        ("renew, on demand", on_demand.priority()),
    ];
    let named = |(call, priority): (ScriptCall, Priority)| (call.script.name, priority);
    let priorities: Vec<_> = invocations().into_iter().map(named).chain(others).collect();
    assert_eq!(
        priorities,
        [
            ("acquire", Priority::Ask),
            ("release", Priority::End),
            ("withdraw", Priority::End),
            ("renew", Priority::Keep),
            ("look", Priority::Keep),
            ("inspect", Priority::Ask),
            ("label", Priority::Keep),
            ("spin_acquire", Priority::Ask),
            ("spin_release", Priority::End),
            ("permits_acquire", Priority::Return),
            ("permits_release", Priority::End),
            ("permits_withdraw", Priority::End),
            ("permits_renew", Priority::Keep),
            ("permits_inspect", Priority::Ask),
            ("rate_ask", Priority::Ask),
            ("label, read", Priority::Ask),
            ("renew, on demand", Priority::End),
        ]
    );
}

#[test]
fn poll_is_never_a_call_for_the_lock_alone() {
    let keys = Arc::new(Keys::new("fairlock", "a").unwrap());
    let request = RequestId::new(&ClientId::from_number(1), Duration::from_secs(5), 1, None);
    for (mode, goes_alone) in [
        (Mode::Try, true),
        (Mode::Ask, true),
        (Mode::Ask, true),
        (Mode::Poll, false),
    ] {
        let call = Acquire {
            mode,
            ..acquire(&keys, &request, None)
        };
        assert_eq!(call.goes_alone(), goes_alone, "{mode:?}");
    }
}

/// A slot that moves never stops a renewal.
#[test]
fn of_the_calls_for_permits_a_renewal_alone_can_declare_one_key() {
    let request = RequestId::with_permits(&ClientId::from_number(1), Duration::from_secs(5), 1, 2, 10);
    for (kind, of_a_lock) in [
        (Kind::Lock, true),
        (Kind::Semaphore, false),
        (Kind::ReadWrite, false),
    ] {
        let keys = Arc::new(Keys::of_kind(kind, "fairlock", "a").unwrap());
        let alone = [
            acquire(&keys, &request, None).goes_alone(),
            release(&keys, &request, None).goes_alone(),
            withdraw(&keys, &request, None).goes_alone(),
            inspect(&keys, &request).goes_alone(),
        ];
        assert_eq!(alone, [of_a_lock; 4], "{kind:?}");
        let renewal = renewal(&keys, &request, false);
        assert_eq!(renewal.goes_alone(), !of_a_lock);
        for declared in [Declared::All, Declared::LockAlone] {
            let call = renewal.script_call(PubSubMode::Plain, declared);
            let is_alone = of_a_lock || declared == Declared::LockAlone;
            let expected: &[&str] = match is_alone {
                true => &[&keys.lock],
                false => &[&keys.lock, &keys.timers],
            };
            assert_eq!(call.keys_and_args().0, expected, "{kind:?}");
        }
    }
}
