//! Checks what `docs/operations.md` says about security, against the scripts and on servers: the rights that
//! a user needs, what a user can do with them, and what happens when one of them is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use fairlock::diagnose::{self, Finding, Subject};
use fairlock::spin::SpinLock;
use fairlock::{Error, HoldEnd, LockManager, Owner, Result};
use fairlock_testkit::{Client, Resp, Server, eventually};
use futures_util::TryStreamExt;

const OPERATIONS: &str = include_str!("../../docs/operations.md");
const SECOND: Duration = Duration::from_secs(1);

/// Commands that the scripts call only in a cluster. Servers before 7.0 do not know these rights, so they
/// have their own line in the README.
const OF_A_CLUSTER: [&str; 2] = ["spublish", "pubsub|shardnumsub"];

/// The user that the page recommends, as the words of `ACL SETUSER …`.
fn advised_user() -> Vec<&'static str> {
    let line = OPERATIONS.lines().find(|line| line.starts_with("ACL SETUSER"));
    line.expect("the page advises a user").split(' ').collect()
}

fn advised_commands() -> BTreeSet<&'static str> {
    let words = advised_user();
    words.iter().filter_map(|word| word.strip_prefix('+')).collect()
}

/// The commands that a script names, in quotes and capitals, each with its subcommand if it has one.
fn called_by(script: &str) -> BTreeSet<String> {
    const OPTIONS: [&str; 5] = ["LT", "CH", "NX", "COUNT", "WITHSCORES"];
    let lines = script.lines().filter(|line| !line.starts_with("--"));
    let quoted = lines.flat_map(|line| line.split('\'').skip(1).step_by(2));
    let is_command = |word: &&str| {
        word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase()) && !OPTIONS.contains(word)
    };
    let right = |word: &str| match word {
        "NUMSUB" | "SHARDNUMSUB" => format!("pubsub|{}", word.to_lowercase()),
        word => word.to_lowercase(),
    };
    let words = quoted.filter(is_command).filter(|word| *word != "PUBSUB");
    words.map(right).collect()
}

fn commands_of_scripts() -> BTreeSet<String> {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let entries = [lua.clone(), lua.join("lib")].map(|dir| fs::read_dir(dir).expect("the scripts"));
    let files = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("a file").path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
        .flat_map(|path| called_by(&fs::read_to_string(path).expect("a script")))
        .collect()
}

/// The rights that are looked at when a server is examined.
async fn tried_rights(server: &Server) -> BTreeSet<String> {
    // As any call, it can be spawned.
    let url = server.url();
    let diagnosed = tokio::spawn(async move { diagnose::server(LockManager::builder(), &url).await });
    let findings = diagnosed.await.unwrap().unwrap();
    let right = |finding: Finding| match finding.subject {
        Subject::Right(right) => Some(right),
        _ => None,
    };
    let mut rights: BTreeSet<String> = findings.into_iter().filter_map(right).collect();
    // Newer servers alone know it, so the page's line is without it.
    rights.remove("+client|setinfo");
    rights
}

#[tokio::test]
async fn the_advised_rights_are_those_that_an_examination_tries() {
    let server = Server::start().await;
    let advised = advised_user()
        .into_iter()
        .filter(|word| word.starts_with(['+', '~', '&']));
    let advised: BTreeSet<String> = advised.map(str::to_owned).collect();
    assert_eq!(advised, tried_rights(&server).await);
}

#[test]
fn the_advised_rights_include_what_the_scripts_need() {
    let mut needed = commands_of_scripts();
    assert!(
        needed.contains("zpopmin") && needed.contains("pubsub|numsub"),
        "{needed:?}"
    );
    for command in OF_A_CLUSTER {
        assert!(needed.remove(command), "{command}");
    }
    let advised: BTreeSet<String> = advised_commands().into_iter().map(str::to_owned).collect();
    assert!(needed.is_subset(&advised), "{needed:?}");
}

/// Creates the recommended user again, without the right that `but` names.
async fn advise(server: &Server, but: Option<&str>) {
    let words = advised_user();
    let name = words[2];
    let rights = words[3..].iter().filter(|word| Some(**word) != but).copied();
    let words: Vec<&str> = ["ACL", "SETUSER", name, "reset"]
        .into_iter()
        .chain(rights)
        .collect();
    server.set_user(&words).await;
}

async fn server_with_the_advised_user() -> (Server, String) {
    let server = Server::start().await;
    advise(&server, None).await;
    let url = server.url_as("locks", "secret");
    (server, url)
}

/// What the server has refused since its ACL log was last reset.
async fn denials(server: &Server) -> Vec<Resp> {
    server.command(&["ACL", "LOG"]).await.array().to_vec()
}

/// Whether a waiter has asked once more, as it does once its subscription is confirmed.
async fn has_asked_again(server: &Server) -> bool {
    server.calls().await.get("zadd").is_some_and(|calls| *calls >= 2)
}

/// Everything that a user does with locks: every call, a pushed hand-over, several holds of one owner, and
/// the end of a subscription. Returns how many hand-overs of locks were pushed.
async fn everything(server: &Server, url: &str) -> Result<u64> {
    let client = || LockManager::builder().claim_window(SECOND).connect(url);
    let (one, other) = (client().await?, client().await?);
    let (lock, same) = (one.lock("a"), other.lock("a"));
    let refused = async || !denials(server).await.is_empty();

    let first = lock.acquire().await?;
    assert!(matches!(same.try_acquire().await, Err(Error::Busy { .. })));
    assert!(matches!(
        same.acquire_timeout(Duration::ZERO).await,
        Err(Error::Timeout { .. } | Error::Refused(_))
    ));
    server.command(&["CONFIG", "RESETSTAT"]).await;
    let waiting = tokio::spawn(same.acquire_timeout(10 * SECOND));
    eventually("a waiter is queued, and listens", 10 * SECOND, async || {
        waiting.is_finished() || has_asked_again(server).await || refused().await
    })
    .await;
    lock.status().await?;
    one.list("*").try_collect::<Vec<_>>().await?;
    first.renew().await?;
    first.release().await?;
    let second = waiting.await.expect("no panic")?;
    assert!(lock.force_release(second.fence()).await?);
    drop(second);
    let handed_over = other.stats().handed_over;

    let nested = one.lock("b").owner(&Owner::named("me"));
    let outer = nested.acquire().await?;
    let (inner, innermost) = (nested.acquire().await?, nested.acquire().await?);
    innermost.release().await?;
    assert!(nested.force_release(inner.fence()).await?);
    drop((outer, inner));

    permits(server, &one, &other).await?;

    let spin = SpinLock::new(&one, "a");
    for _ in 0..2 {
        assert!(spin.try_lock(SECOND, SECOND).await?);
    }
    spin.unlock().await?;
    spin.unlock().await?;

    // A closed client ends its subscriptions, but keeps running until its last guard is released.
    let last = same.acquire().await?;
    assert!(other.close().await.is_err());
    eventually("unsubscribed", 10 * SECOND, async || {
        let channels = server.command(&["PUBSUB", "CHANNELS"]).await;
        channels.array().is_empty() || refused().await
    })
    .await;
    last.release().await?;
    Ok(handed_over)
}

/// Everything that a user does with semaphores and read/write locks.
async fn permits(server: &Server, one: &LockManager, other: &LockManager) -> Result<()> {
    let semaphore = one.semaphore("a", 3);
    let two = semaphore.clone().permits(2);
    let stuck = two.acquire().await?;
    let waits = other.semaphore("a", 3).permits(2);
    assert!(matches!(waits.try_acquire().await, Err(Error::Busy { .. })));
    let waiting = tokio::spawn(waits.acquire_timeout(10 * SECOND));
    eventually("a waiter is queued", 10 * SECOND, async || {
        waiting.is_finished()
            || semaphore
                .status()
                .await
                .map_or(true, |status| status.waiting == 1)
    })
    .await;
    stuck.renew().await?;
    assert!(semaphore.force_release(stuck.fence()).await?);
    drop(stuck);
    waiting.await.expect("no panic")?.release().await?;
    let limited = semaphore.at_least(SECOND / 10);
    limited.with(async |_| ()).await?;
    // A lease that nobody renews is found to be over, by a client that is closed in the end.
    let ending = two.lease(SECOND / 5).auto_renew(false).acquire().await?;
    ending.lost().await;
    let rest = other.semaphore("a", 2).permits(2).acquire().await?;
    rest.release().await?;

    let writing = one.rw_lock("a").write().acquire().await?;
    let waiting = tokio::spawn(other.rw_lock("a").read().acquire_timeout(10 * SECOND));
    // The next call makes the timers again.
    server.command(&["DEL", "fairlock:timers:rw:{a}"]).await;
    let reading = writing.downgrade().await?;
    waiting.await.expect("no panic")?.release().await?;
    reading.release().await?;

    let limits = [one, other].map(|locks| locks.rate_limit("a", 20, SECOND));
    let turns = limits
        .iter()
        .cycle()
        .take(6)
        .map(|limit| limit.acquire_timeout(10 * SECOND));
    futures_util::future::try_join_all(turns).await?;
    one.list_all("*").await?;
    Ok(())
}

#[tokio::test]
async fn the_advised_user_can_do_everything() {
    let (server, url) = server_with_the_advised_user().await;
    assert_eq!(everything(&server, &url).await.unwrap(), 1);
    assert_eq!(denials(&server).await, []);
}

#[tokio::test]
async fn the_advised_user_has_no_right_that_it_does_not_need() {
    let (server, url) = server_with_the_advised_user().await;
    let rights = advised_user()
        .into_iter()
        .filter(|word| word.starts_with(['+', '~', '&']));
    for right in rights {
        advise(&server, Some(right)).await;
        server.command(&["ACL", "LOG", "RESET"]).await;
        server.command(&["FLUSHALL"]).await;
        let outcome = everything(&server, &url).await;
        if right == "+ping" {
            // A connection without calls is tested every 5 s.
            let idle = LockManager::connect(&url).await.unwrap();
            tokio::time::sleep(6 * SECOND).await;
            drop(idle);
        }
        let denied = denials(&server).await;
        assert!(!denied.is_empty(), "{right} is not needed: {outcome:?}");
        if let Err(error) = outcome {
            assert!(matches!(error, Error::Refused(_)), "without {right}: {error:?}");
        }
    }
}

#[tokio::test]
async fn the_advised_user_reaches_nothing_but_locks() {
    let (server, url) = server_with_the_advised_user().await;
    server.command(&["SET", "order:1", "paid"]).await;
    let mut attacker = as_advised_user(&server).await;
    for words in [
        &["GET", "order:1"][..],
        &["DEL", "order:1"],
        &["PUBLISH", "orders", "paid"],
        &["SUBSCRIBE", "orders"],
        &["KEYS", "*"],
        &["FLUSHALL"],
        &["CONFIG", "GET", "*"],
        &["EVAL", "return 1", "0"],
        &["ACL", "LIST"],
    ] {
        let said = attacker.command(words).await.unwrap();
        assert!(
            matches!(&said, Resp::Error(text) if text.starts_with("NOPERM")),
            "{words:?}: {said:?}"
        );
    }
    // The user can do it neither with its own script nor with a prefix.
    let script = "return redis.call('DEL', KEYS[1])";
    let sha = attacker.command(&["SCRIPT", "LOAD", script]).await.unwrap();
    let said = attacker
        .command(&["EVALSHA", sha.text(), "1", "order:1"])
        .await
        .unwrap();
    assert!(said.is_error(), "{said:?}");
    let elsewhere = LockManager::builder()
        .prefix("order")
        .connect(&url)
        .await
        .unwrap();
    let refused = elsewhere.lock("1").acquire().await.unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
    assert_eq!(server.command(&["GET", "order:1"]).await.text(), "paid");
}

async fn as_advised_user(server: &Server) -> Client {
    let mut client = server.client().await;
    let reply = client.command(&["AUTH", "locks", "secret"]).await.unwrap();
    assert_eq!(reply.text(), "OK");
    client
}

#[tokio::test]
async fn names_are_data_and_never_commands() {
    let server = Server::start().await;
    server.command(&["SET", "order:1", "paid"]).await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    for name in [
        "a\r\nFLUSHALL\r\n",
        "*1\r\n$8\r\nFLUSHALL\r\n",
        "') redis.call('FLUSHALL') --",
        "a]] redis.call('FLUSHALL') --",
        "*",
        "a:queue",
        "queue:a",
        "a 1 2 3",
        "\u{0}",
    ] {
        let (lock, owner) = (locks.lock(name), Owner::named(name));
        let guard = lock.owner(&owner).acquire().await.unwrap();
        let key = format!("fairlock:{{{name}}}");
        let summary = server.lock_summary(&key).await;
        assert!(summary.request.ends_with(owner.as_str()), "{summary}");
        assert_eq!(
            locks.lock(name).status().await.unwrap().holder.unwrap().owner,
            owner
        );
        guard.release().await.unwrap();
    }
    assert_eq!(server.command(&["GET", "order:1"]).await.text(), "paid");
}

/// As the page says, a user that may use locks can also break them. This test shows how soon a client
/// notices.
#[tokio::test]
async fn a_forged_grant_is_found_out_before_its_claim_window_is_over() {
    let (server, url) = server_with_the_advised_user().await;
    let (one, other) = (
        LockManager::connect(&url).await.unwrap(),
        LockManager::connect(&url).await.unwrap(),
    );
    let guard = one.lock("a").acquire().await.unwrap();
    let lock = other.lock("a");
    let waiting = tokio::spawn(lock.acquire());
    eventually("a waiter is queued and listens", 10 * SECOND, async || {
        let channels = server.command(&["PUBSUB", "CHANNELS"]).await;
        lock.status().await.unwrap().waiting == 1 && channels.array().len() == 1
    })
    .await;

    let mut attacker = as_advised_user(&server).await;
    let first = attacker
        .command(&["ZPOPMIN", "fairlock:queue:{a}"])
        .await
        .unwrap()
        .texts();
    let (request, client) = (&first[0], &first[0][..32]);
    let channel = format!("fairlock:unlock:{{a}}:{client}");
    let time = server.command(&["TIME"]).await.texts();
    let now_ms = time[0].parse::<u64>().unwrap() * 1000;
    let mut forge = async |deadline: u64| {
        let push = format!("1 {} {deadline} {request}", guard.fence().get() + 1);
        let reached = attacker.command(&["PUBLISH", &channel, &push]).await.unwrap();
        assert_eq!(reached.int(), 1);
    };
    // No script would send such a deadline, so the push only makes the client ask. That call queues the
    // waiter again.
    forge(now_ms + 60_000).await;
    eventually("the waiter is queued again", 10 * SECOND, async || {
        lock.status().await.unwrap().waiting == 1
    })
    .await;
    assert!(!waiting.is_finished());
    forge(now_ms + 4_000).await;

    let forged = waiting.await.unwrap().unwrap();
    let lost = tokio::time::timeout(5 * SECOND, forged.lost()).await;
    assert_eq!(lost.expect("no later than a claim window"), HoldEnd::Taken);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// A newer client may send such a push. This version cannot parse it, and asks at once instead of waiting for
/// its timer.
#[tokio::test]
async fn a_push_that_cannot_be_read_is_a_reason_to_ask() {
    let server = Server::start().await;
    let url = server.url();
    let (one, other) = (
        LockManager::connect(&url).await.unwrap(),
        LockManager::connect(&url).await.unwrap(),
    );
    let guard = one.lock("a").acquire().await.unwrap();
    let lock = other.lock("a");
    let waiting = tokio::spawn(lock.acquire());
    let channels = async || server.command(&["PUBSUB", "CHANNELS"]).await.texts();
    eventually("a waiter listens and has asked", 10 * SECOND, async || {
        lock.status().await.unwrap().waiting == 1
            && has_asked_again(&server).await
            && channels().await.len() == 1
    })
    .await;
    // As on a server that has lost the lock, no message reaches the waiter.
    server.command(&["DEL", "fairlock:{a}"]).await;
    for unreadable in ["4 1 1 a", "", "1", "1 0 0 a"] {
        server
            .command(&["PUBLISH", &channels().await[0], unreadable])
            .await;
    }
    let granted = tokio::time::timeout(2 * SECOND, waiting).await;
    let granted = granted.expect("sooner than by its timer").unwrap().unwrap();
    assert!(granted.fence() > guard.fence());
}
