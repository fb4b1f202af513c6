//! The README's example, and the keys of a lock that it lists.

const README: &str = include_str!("../../README.md");

/// The crate's documentation has the same example. It is compiled and run there.
#[test]
fn the_example_is_the_one_that_is_tested() {
    let crate_docs = include_str!("../../src/lib.rs");
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

#[cfg(all(unix, feature = "redis"))]
mod on_a_server {
    use std::time::Duration;

    use fairlock::LockManager;
    use fairlock::spin::SpinLock;
    use fairlock_testkit::Server;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn every_key_that_the_readme_names_is_there_and_has_a_ttl() {
        let server = Server::start().await;
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let lock = locks.lock("orders:42");
        let _guard = lock.acquire().await.unwrap();
        let waiting = tokio::spawn(lock.acquire());
        fairlock_testkit::eventually("one waits", 5 * SECOND, async || {
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
