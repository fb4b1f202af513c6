//! Compares the scripts' binding blocks with the arguments that are sent.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::fence::Fence;
use crate::owner::Owner;
use crate::store::ids::{ClientId, RequestId};
use crate::store::keys::Keys;
use crate::store::{Acquire, Inspect, Mode, Release, ReleaseWhat, Renew, SpinAcquire, SpinRelease, Withdraw};
use crate::time::server_time::{ServerTime, Ticket};

fn invocations() -> Vec<ScriptCall> {
    let keys = Arc::new(Keys::new("fairlock", "orders:42").unwrap());
    let owner = Owner::named("me");
    let request = RequestId::new(&ClientId::from_number(1), Duration::from_secs(5), 1, Some(&owner));
    let fence = Fence::new(1_700_000_000_000_000).unwrap();
    let lease = Duration::from_secs(30);
    vec![
        Acquire {
            keys: keys.clone(),
            request: request.clone(),
            mode: Mode::Wait,
            lease,
            not_after: Arc::new(ServerTime::MAX),
            ticket: Some(Ticket(1)),
            heartbeat: lease,
        }
        .script_call(PubSubMode::Plain, Declared::All),
        Release {
            keys: keys.clone(),
            request: request.clone(),
            what: ReleaseWhat::Grant(fence),
        }
        .script_call(PubSubMode::Plain, Declared::All),
        Withdraw {
            keys: keys.clone(),
            requests: vec![request.clone()],
        }
        .script_call(PubSubMode::Plain, Declared::All),
        Renew {
            keys: keys.clone(),
            request: request.clone(),
            fence,
            lease,
            cap: ServerTime::MAX,
        }
        .script_call(PubSubMode::Plain, Declared::All),
        Inspect {
            keys: keys.clone(),
            request,
        }
        .script_call(PubSubMode::Plain, Declared::All),
        SpinAcquire {
            keys: keys.clone(),
            owner: owner.clone(),
            request: Uuid::nil(),
            lease,
        }
        .script_call(PubSubMode::Plain, Declared::All),
        SpinRelease { keys, owner }.script_call(PubSubMode::Plain, Declared::All),
    ]
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
    for script_call in invocations() {
        let Script { name, text, .. } = script_call.script;
        let (comments, code): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.trim_start().starts_with("--"));
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
    for Script { name, text, .. } in ALL {
        let named = |line: &str| line.contains("KEYS[") || line.contains("ARGV[");
        let first = text.lines().position(named).unwrap();
        let block: Vec<_> = text
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
        let outside = text.lines().skip(first + block.len()).find(|line| named(line));
        assert_eq!(outside, None, "{name}");
    }
}

#[test]
fn every_script_has_an_operation() {
    let called: Vec<_> = invocations()
        .iter()
        .map(|script_call| script_call.script.name)
        .collect();
    let all: Vec<_> = ALL.iter().map(|script| script.name).collect();
    assert_eq!(called, all);
}

#[test]
fn poll_is_never_a_call_for_the_lock_alone() {
    for (mode, goes_alone) in [
        (Mode::Try, true),
        (Mode::Wait, true),
        (Mode::Register, true),
        (Mode::Poll, false),
    ] {
        let call = Acquire {
            keys: Arc::new(Keys::new("fairlock", "a").unwrap()),
            request: RequestId::new(&ClientId::from_number(1), Duration::from_secs(5), 1, None),
            mode,
            lease: Duration::from_secs(30),
            not_after: Arc::new(ServerTime::MAX),
            ticket: None,
            heartbeat: Duration::from_secs(15),
        };
        assert_eq!(call.goes_alone(), goes_alone, "{mode:?}");
    }
}
