//! What the README says of rights on the server, held against the scripts and against a server.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const README: &str = include_str!("../README.md");

/// Rights that the client needs for itself rather than for its scripts.
const OF_THE_CLIENT: [&str; 9] = [
    "evalsha",
    "script|load",
    "subscribe",
    "unsubscribe",
    "hello",
    "auth",
    "ping",
    "info",
    "client|id",
];

/// The user that the README advises, as `ACL SETUSER …`.
fn advised_user() -> &'static str {
    README
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"))
        .expect("the README advises a user")
}

fn advised_commands() -> BTreeSet<String> {
    advised_user()
        .split(' ')
        .filter_map(|word| word.strip_prefix('+'))
        .map(str::to_owned)
        .collect()
}

/// The commands in `redis.call('NAME', …)` and `redis.pcall`, with the subcommand of those that have one.
fn called_by(script: &str) -> BTreeSet<String> {
    let calls = script
        .match_indices("call('")
        .map(|(at, call)| &script[at + call.len()..]);
    let name = |rest: &str| {
        let mut words = rest.split('\'');
        let command = words.next().unwrap_or_default().to_lowercase();
        let subcommand = words.nth(1).unwrap_or_default().to_lowercase();
        if command == "pubsub" {
            format!("{command}|{subcommand}")
        } else {
            command
        }
    };
    calls.map(name).collect()
}

#[test]
fn the_advised_rights_are_those_that_the_scripts_need() {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let entries = [lua.clone(), lua.join("lib")].map(|dir| fs::read_dir(dir).expect("the scripts"));
    let files = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("a file").path());
    let mut needed: BTreeSet<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
        .flat_map(|path| called_by(&fs::read_to_string(path).expect("a script")))
        .collect();
    assert!(
        needed.contains("zpopmin") && needed.contains("pubsub|numsub"),
        "{needed:?}"
    );
    needed.extend(OF_THE_CLIENT.map(str::to_owned));
    assert_eq!(advised_commands(), needed);
}
