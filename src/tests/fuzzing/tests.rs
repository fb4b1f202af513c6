//! The short form: what scripts really answer and publish, with parts of it changed at random; and any text
//! at all.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::protocol::script::{Declared, PubSubMode, ScriptCall};
use crate::protocol::{CallKind, Priority};

/// What the fuzzer begins with: one of each kind.
fn seeds(target: &str) -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/seeds")
        .join(target);
    let files = fs::read_dir(dir).unwrap();
    files
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect()
}

/// One of the seeds with some of its parts replaced, left out or doubled.
fn changed(target: &str, separators: &'static [char]) -> impl Strategy<Value = String> + use<> {
    let part = prop_oneof![
        3 => Just(None),
        1 => any::<i64>().prop_map(|number| Some(format!("{number} "))),
        1 => any::<u64>().prop_map(|number| Some(number.to_string())),
        1 => any::<String>().prop_map(Some),
        1 => Just(Some(String::new())),
        1 => Just(Some("- ".to_owned())),
        1 => Just(Some("= ".to_owned())),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), part), 0..4);
    (prop::sample::select(seeds(target)), changes).prop_map(move |(seed, changes)| {
        let mut parts: Vec<&str> = seed.split_inclusive(separators).collect();
        for (at, new) in &changes {
            let at = at.index(parts.len().max(1));
            match new {
                Some(new) if at < parts.len() => parts[at] = new,
                Some(new) => parts.push(new),
                None if at < parts.len() => {
                    parts.remove(at);
                }
                None => {}
            }
        }
        parts.concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn no_reply_is_misread(text in changed("reply", &['\n', ' '])) {
        reply(&text);
    }

    #[test]
    fn no_push_is_misread(text in prop_oneof![changed("push", &[' ', ':']), any::<String>()]) {
        push(&text);
    }

    #[test]
    fn frames_are_read_alike_in_whatever_parts_they_come(
        text in prop_oneof![changed("frames", &['\n']), any::<String>()]
    ) {
        frames(text.as_bytes());
    }

    #[test]
    fn no_request_is_misread(text in prop_oneof![changed("request", &[':']), any::<String>()]) {
        request(&text);
    }
}

/// The seeds are what they say: nothing above would fail if all of them were refused.
#[test]
fn seeds_of_script_replies_are_understood() {
    for seed in seeds("reply") {
        assert!(seed.split(' ').any(|word| word == "="), "{seed}");
        reply(&seed);
    }
    assert_eq!(
        seeds("push").iter().filter_map(|push| Push::parse(push)).count(),
        5
    );
    assert_eq!(
        seeds("request")
            .iter()
            .filter_map(|text| RequestId::from_wire(text))
            .count(),
        5
    );
}

#[test]
#[should_panic(expected = "a reply to another request")]
fn reader_of_another_requests_reply_is_detected() {
    #[derive(Clone, Debug)]
    struct Credulous;

    impl Operation for Credulous {
        type Reply = ();
        const KIND: CallKind = CallKind::Other;

        fn key(&self) -> &'static str {
            unreachable!("nothing is sent")
        }

        fn priority(&self) -> Priority {
            unreachable!("nothing is sent")
        }

        fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
            unreachable!("nothing is sent")
        }

        fn read(&self, _: &str) -> Result<(ServerTime, ()), ReplyError> {
            Ok((ServerTime::default(), ()))
        }
    }
    let another = format!("1 {}", OWN.replace(":7:", ":8:"));
    read_again(&Credulous, &another, |(), _| (1, 0, vec![]));
}
