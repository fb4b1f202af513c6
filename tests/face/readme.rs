//! What the README and the pages in `docs` show: the first example, the figures, and the keys of a lock.

const README: &str = include_str!("../../README.md");

/// The crate's documentation begins with the same program, and both are run as documentation tests.
#[test]
fn the_example_is_the_one_that_is_tested() {
    let docs = include_str!("../../src/lib.rs").lines();
    let docs: Vec<&str> = docs.map_while(|line| line.strip_prefix("//!")).collect();
    let docs: Vec<&str> = docs
        .iter()
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect();
    let block = |text: &str, begin: &str| -> String {
        let rest = text.split_once(begin).expect("an example").1;
        rest.split("```").next().unwrap().to_owned()
    };
    assert_eq!(block(README, "```rust\n"), block(&docs.join("\n"), "```\n"));
}

#[test]
fn the_readme_is_short() {
    assert!(README.lines().count() <= 250);
    assert!(README.len() <= 10_000, "{} bytes", README.len());
}

/// Figures are written to the record by the command that measures them. Other pages quote it.
#[test]
fn figures_are_those_of_the_record() {
    let record = include_str!("../../benches/measured/peers.md");
    let rows = |page: &'static str| page.lines().filter(|line| line.starts_with("| "));
    let published: Vec<&str> = rows(record).collect();
    let is_published = |row: &&str| published.iter().any(|line| name_of(line) == name_of(row));
    let quoted: Vec<&str> = rows(include_str!("../../docs/comparison.md"))
        .filter(is_published)
        .collect();
    assert!(quoted.len() >= 8, "{quoted:?}");
    for row in quoted {
        assert!(published.contains(&row), "not in the record: {row}");
    }

    let row = published.iter().find(|row| name_of(row) == "fairlock").unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let (hand_offs, longest_wait) = (cells[5], cells[8]);
    let of_256 = |line: &&str| line.starts_with("fairlock ") && line.split_whitespace().nth(1) == Some("256");
    let text = include_str!("../../benches/measured/peers.txt");
    let line = text.lines().find(of_256).unwrap();
    let commands = line.split_whitespace().nth(4).unwrap();
    for figure in [hand_offs, longest_wait, commands] {
        assert!(
            README.contains(&format!("**{figure}**")),
            "not in the README: {figure}"
        );
    }
}

/// The first cell of a table's row.
fn name_of(row: &str) -> &str {
    row.split('|').nth(1).unwrap_or_default().trim()
}

#[cfg(all(unix, feature = "redis"))]
mod on_a_server {
    use std::time::Duration;

    use fairlock::LockManager;
    use fairlock::spin::SpinLock;
    use fairlock_testkit::Server;

    const OPERATIONS: &str = include_str!("../../docs/operations.md");
    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn every_key_is_documented_and_has_a_ttl() {
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

        let permits = locks.semaphore("orders:42", 1);
        let _permit = permits.acquire().await.unwrap();
        let waiting_too = tokio::spawn(permits.acquire());

        let mut channels = Vec::new();
        fairlock_testkit::eventually("both are subscribed", 5 * SECOND, async || {
            channels = server
                .command(&["PUBSUB", "CHANNELS", "*:unlock:{*"])
                .await
                .texts();
            channels.len() == 1 && permits.status().await.unwrap().waiting == 1
        })
        .await;
        let client = channels[0].strip_prefix("fairlock:unlock:{orders:42}:");
        let client = client.expect("a channel of the lock");
        for key in server.keys("").await {
            // The page says once that a semaphore's queue is kept as that of a lock.
            let shown = key.replace("queue:semaphore:", "queue:");
            let documented = format!("| `{}` |", shown.replace(client, "<client>"));
            assert!(OPERATIONS.contains(&documented), "{key}");
            assert!(server.command(&["PTTL", &key]).await.int() > 0, "{key}");
        }
        assert_eq!(server.command(&["DBSIZE"]).await.int(), 7);
        waiting.abort();
        waiting_too.abort();
    }
}
