//! What the README says of rights on the server, held against the scripts and against a server.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[cfg(unix)]
mod support;

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

/// The crate's documentation has the same example, where it is compiled and run.
#[test]
fn the_example_is_the_one_that_is_tested() {
    let crate_docs = include_str!("../src/lib.rs");
    let tested = |line: &str| {
        crate_docs
            .lines()
            .any(|doc| doc.trim_start_matches("//! ") == line)
    };
    let example = README
        .split("```rust\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("an example");
    let connect = |line: &&str| !line.is_empty() && !line.starts_with("let locks = ");
    for line in example.lines().filter(connect) {
        assert!(tested(line), "not in the example of src/lib.rs: {line}");
    }
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

#[cfg(all(unix, feature = "redis"))]
mod on_a_server {
    use std::time::Duration;

    use fairlock::LockManager;
    use fairlock::spin::SpinLock;

    use super::support::{self, Server};

    const SECOND: Duration = Duration::from_secs(1);

    async fn server_with_the_advised_user() -> Server {
        let server = Server::start().await;
        let words: Vec<&str> = super::advised_user().split(' ').collect();
        assert_eq!(server.command(&words).await.text(), "OK");
        server
    }

    /// How often the server refused something.
    async fn denials(server: &Server) -> usize {
        server.command(&["ACL", "LOG"]).await.array().len()
    }

    #[tokio::test]
    async fn the_advised_user_can_do_everything() {
        let server = server_with_the_advised_user().await;
        let url = server.url_as("locks", "secret");
        let (one, other) = (
            LockManager::connect(&url).await.unwrap(),
            LockManager::connect(&url).await.unwrap(),
        );

        let name = support::name();
        let (lock, same) = (one.lock(&name), other.lock(&name));
        let first = lock.acquire().await.unwrap();
        assert!(same.try_acquire().await.unwrap().acquired().is_none());
        let waiting = tokio::spawn(same.acquire_timeout(10 * SECOND));
        support::eventually("one waits", 5 * SECOND, async || {
            lock.status().await.unwrap().waiting == 1
        })
        .await;
        first.renew().await.unwrap();
        first.release().await.unwrap();
        let second = waiting.await.unwrap().unwrap();
        assert!(lock.force_release(second.fence()).await.unwrap());
        lock.acquire_timeout(SECOND)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();

        let spin = SpinLock::new(&one, &name);
        assert!(spin.try_lock(SECOND, SECOND).await.unwrap());
        spin.unlock().await.unwrap();

        assert_eq!(
            denials(&server).await,
            0,
            "{:?}",
            server.command(&["ACL", "LOG"]).await
        );
    }

    #[tokio::test]
    async fn every_key_that_the_readme_names_is_there_and_has_a_ttl() {
        let server = Server::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let lock = locks.lock("orders:42");
        let _guard = lock.acquire().await.unwrap();
        let waiting = tokio::spawn(lock.acquire());
        support::eventually("one waits", 5 * SECOND, async || {
            lock.status().await.unwrap().waiting == 1
        })
        .await;
        let spin = SpinLock::new(&locks, "orders:42");
        assert!(spin.try_lock(SECOND, SECOND).await.unwrap());

        for key in server.keys("").await {
            assert!(super::README.contains(&format!("| `{key}` |")), "{key}");
            assert!(server.command(&["PTTL", &key]).await.int() > 0, "{key}");
        }
        assert_eq!(server.command(&["DBSIZE"]).await.int(), 4);
        let channels = server.command(&["PUBSUB", "CHANNELS"]).await.texts();
        assert!(
            channels[0].starts_with("fairlock:unlock:{orders:42}:"),
            "{channels:?}"
        );
        waiting.abort();
    }
}
