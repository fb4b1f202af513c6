//! What `check` finds at servers, and what it leaves there.

use std::collections::BTreeSet;
use std::time::Duration;

use fairlock_testkit::{Authority, Cluster, Sentinels, Server, TempDir, eventually, free_port};
use serde_json::Value;

use crate::scene::{Ended, LIMIT, end_of, fairlock};

const OPERATIONS: &str = include_str!("../../../docs/operations.md");

async fn check(url: &str, args: &[&str]) -> Ended {
    let mut command = fairlock(url, &["check", "--json"]);
    end_of(command.args(args)).await
}

fn findings(ended: &Ended) -> Vec<Value> {
    let lines = ended.out.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The findings about this subject: their verdicts and texts.
fn about(ended: &Ended, subject: &str) -> Vec<(String, String)> {
    let found = findings(ended);
    let found = found.iter().filter(|finding| finding["subject"] == subject);
    let word = |finding: &Value, key| finding[key].as_str().unwrap().to_owned();
    found
        .map(|finding| (word(finding, "verdict"), word(finding, "text")))
        .collect()
}

#[track_caller]
fn assert_one(ended: &Ended, subject: &str, verdict: &str, words: &str) {
    match &about(ended, subject)[..] {
        [(found, text)] => assert!(found == verdict && text.contains(words), "{subject}: {ended:?}"),
        _ => panic!("{subject}: {ended:?}"),
    }
}

/// The rights that are missing.
fn missing(ended: &Ended) -> BTreeSet<String> {
    let is_missing = |finding: &Value| finding["text"].as_str().unwrap().starts_with("missing");
    let found = findings(ended).into_iter().filter(is_missing);
    found
        .map(|finding| finding["right"].as_str().unwrap().to_owned())
        .collect()
}

fn advised(line: usize) -> Vec<&'static str> {
    let mut lines = OPERATIONS.lines().filter(|line| line.starts_with("ACL SETUSER"));
    lines.nth(line).unwrap().split(' ').collect()
}

fn is_right(word: &&str) -> bool {
    word.starts_with(['+', '~', '&'])
}

/// Whether the server has this version of Redis or a later one, or what came of it.
async fn is_from(server: &Server, major: u32, minor: u32) -> bool {
    let info = server.info("server").await;
    let mut parts = info["redis_version"]
        .split('.')
        .map(|part| part.parse::<u32>().unwrap());
    (parts.next().unwrap(), parts.next().unwrap()) >= (major, minor)
}

/// Gives the server the user of the page, without some of the rights.
async fn advise(server: &Server, but: &[&str]) -> String {
    let words = advised(0);
    let rights = words[3..].iter().filter(|word| !but.contains(word)).copied();
    let mut words: Vec<_> = ["ACL", "SETUSER", "locks", "reset"]
        .into_iter()
        .chain(rights)
        .collect();
    if is_from(server, 7, 2).await {
        words.push("+client|setinfo");
    }
    server.set_user(&words).await;
    server.url_as("locks", "secret")
}

#[tokio::test]
async fn check_finds_nothing_wrong_with_the_advised_user_and_leaves_nothing() {
    let server = Server::start().await;
    let url = advise(&server, &[]).await;
    let clients = async || server.command(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    let before = clients().await.text().lines().count();
    let ended = check(&url, &[]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let wrong = findings(&ended);
    let wrong: Vec<_> = wrong
        .iter()
        .filter(|finding| finding["verdict"] != "ok")
        .collect();
    let [wrong] = wrong[..] else { panic!("{wrong:?}") };
    assert_eq!(wrong["subject"], "persistence", "it has none");

    assert_eq!(server.command(&["DBSIZE"]).await.int(), 0);
    assert_eq!(server.command(&["ACL", "LOG"]).await.array(), []);
    assert_eq!(server.info("memory").await["number_of_cached_scripts"], "0");
    eventually("the connections are closed", LIMIT, async || {
        // A client of this test may have been on its way out before.
        clients().await.text().lines().count() <= before
    })
    .await;
    let said = end_of(&mut fairlock(&url, &["check", "--quiet"])).await;
    assert_eq!(
        (said.code, said.out.lines().count(), &*said.err),
        (Some(0), 1, "")
    );
}

#[tokio::test]
async fn check_names_each_right_that_is_missing() {
    let server = Server::start().await;
    for right in advised(0).into_iter().filter(is_right) {
        let url = advise(&server, &[right]).await;
        let ended = check(&url, &[]).await;
        let spared = ["+info", "+ping", "+scan"].contains(&right);
        assert_eq!(
            ended.code,
            Some(if spared { 0 } else { 77 }),
            "{right}: {ended:?}"
        );
        assert_eq!(missing(&ended), BTreeSet::from([right.to_owned()]), "{ended:?}");
    }
    // What one right would clean up must not be written by another.
    let but = ["&fairlock:*", "+del", "+info", "+pexpire", "+zpopmin", "+zrem"];
    let url = advise(&server, &but).await;
    let ended = check(&url, &[]).await;
    assert_eq!(missing(&ended).len(), but.len(), "{ended:?}");
    for subject in ["version", "eviction", "persistence", "replicas"] {
        assert_one(&ended, subject, "warning", "cannot be read without +info");
    }
    assert_eq!(server.command(&["DBSIZE"]).await.int(), 0);
}

#[tokio::test]
async fn check_goes_by_the_prefix() {
    let server = Server::start().await;
    let url = advise(&server, &[]).await;
    let ended = check(&url, &["--prefix", "shop"]).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    assert_eq!(
        missing(&ended),
        BTreeSet::from(["~shop:*".to_owned(), "&shop:*".to_owned()])
    );
    // A pattern that has a lock's own key alone is not enough.
    let url = advise(&server, &["~fairlock:*"]).await;
    server
        .set_user(&["ACL", "SETUSER", "locks", "~fairlock:{*"])
        .await;
    let ended = check(&url, &[]).await;
    assert_eq!(missing(&ended), BTreeSet::from(["~fairlock:*".to_owned()]));
}

#[tokio::test]
async fn check_tries_the_right_to_wait_for_replicas_if_asked() {
    let server = Server::start().await;
    let url = advise(&server, &[]).await;
    let ended = check(&url, &["--replicas", "1"]).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    assert_eq!(missing(&ended), BTreeSet::from(["+wait".to_owned()]));
    assert_one(&ended, "replicas", "unavailable", "1 must confirm");
    let ended = check(&server.url(), &["--replicas", "1"]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
}

#[tokio::test]
async fn warnings_count_only_if_asked() {
    let server = Server::builder()
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .await;
    let ended = check(&server.url(), &[]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_one(&ended, "eviction", "warning", "noeviction");
    assert_eq!(check(&server.url(), &["--strict"]).await.code, Some(1));
    let said = end_of(&mut fairlock(&server.url(), &["check", "-q"])).await;
    assert_eq!(said.out.lines().count(), 2, "{said:?}");
    assert!(
        said.out
            .starts_with(&format!("warning 127.0.0.1:{}: eviction: ", server.port())),
        "{said:?}"
    );
}

#[tokio::test]
async fn check_says_what_a_restart_forgets() {
    for (appendfsync, words) in [("always", "forgets no lock"), ("everysec", "the last seconds")] {
        let server = Server::builder()
            .config("appendonly", "yes")
            .config("appendfsync", appendfsync)
            .start()
            .await;
        let ended = check(&server.url(), &[]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_one(&ended, "persistence", "ok", words);
        let ended = check(&advise(&server, &[]).await, &[]).await;
        assert_one(&ended, "persistence", "ok", "cannot be read without +config|get");
    }
}

#[tokio::test]
async fn a_server_that_forgets_locks_is_no_strict_success() {
    let server = Server::shared().await;
    let ended = check(&server.url(), &["--strict"]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_one(&ended, "persistence", "warning", "a restart forgets locks");
}

#[tokio::test]
async fn servers_of_a_quorum_that_depend_on_each_other_are_refused() {
    let server = Server::shared().await;
    let same = [server.url(), server.url().replace("127.0.0.1", "localhost")];
    let [a, b, _] = Server::shared_quorum().await.each_ref().map(Server::url);
    let ended = check(&[&same[0], &same[1], &a].map(String::as_str).join(","), &[]).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    assert!(ended.out.contains("is also that of"), "{ended:?}");

    let node = Server::builder().config("cluster-enabled", "yes").start().await;
    let ended = check(&[&a, &b, &node.url()].map(String::as_str).join(","), &[]).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    assert!(ended.out.contains("a node of a cluster"), "{ended:?}");
}

#[tokio::test]
async fn check_tells_of_a_server_that_takes_no_writes() {
    let server = Server::builder()
        .config("min-replicas-to-write", "1")
        .start()
        .await;
    let ended = check(&server.url(), &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_one(&ended, "writes", "unavailable", "NOREPLICAS");
    assert!(missing(&ended).is_empty(), "{ended:?}");

    let port = server.port().to_string();
    let replica = Server::builder()
        .config("replicaof", &format!("127.0.0.1 {port}"))
        .start()
        .await;
    let ended = check(&replica.url(), &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_one(&ended, "connection", "unavailable", "this server is a replica");
}

#[tokio::test]
async fn check_tells_of_a_server_that_stops_answering_midway() {
    let server = Server::start().await;
    // What only reads is answered.
    server.command(&["CLIENT", "PAUSE", "600000", "WRITE"]).await;
    let ended = check(&server.url(), &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_one(&ended, "connection", "ok", "answers");
    assert_one(&ended, "writes", "unavailable", "no reply");
    assert!(missing(&ended).is_empty(), "{ended:?}");
}

#[tokio::test]
async fn check_tells_of_a_clock_that_is_wrong() {
    let server = Server::builder().clock(3600).start().await;
    let ended = check(&server.url(), &[]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    match &about(&ended, "clock")[..] {
        [(verdict, text)] => assert!(
            verdict == "warning" && (text.starts_with("3600.") || text.starts_with("3599.")),
            "{ended:?}"
        ),
        _ => panic!("{ended:?}"),
    }
    let server = Server::builder().clock(-1_790_000_000).start().await;
    let ended = check(&server.url(), &[]).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    assert_one(&ended, "clock", "refused", "before September 2001");
}

#[tokio::test]
async fn no_answer_and_a_wrong_password_are_told_apart() {
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let ended = check(&nobody, &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_one(&ended, "connection", "unavailable", "refused");
    assert_eq!(findings(&ended).len(), 1, "{ended:?}");

    let server = Server::builder().config("requirepass", "right").start().await;
    for url in [server.url(), server.url_as("default", "wrong-one")] {
        let ended = check(&url, &[]).await;
        assert_eq!(ended.code, Some(77), "{ended:?}");
        assert_eq!(findings(&ended).len(), 1, "{ended:?}");
        assert!(
            !ended.out.contains("wrong-one") && !ended.err.contains("wrong-one"),
            "{ended:?}"
        );
    }
    assert_eq!(check("wrong://", &[]).await.code, Some(64));
    assert_eq!(check(&format!("{nobody},{nobody}"), &[]).await.code, Some(64));
}

#[tokio::test]
async fn check_goes_by_tls() {
    if !Server::has_tls() {
        return;
    }
    let authority = Authority::generate();
    let server = Server::builder().tls(&authority).start().await;
    let folder = TempDir::create();
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|file| folder.path().join(file));
    let (certificate, private) = authority.certify(&["client"]);
    std::fs::write(&ca, authority.pem()).unwrap();
    std::fs::write(&cert, certificate).unwrap();
    std::fs::write(&key, private).unwrap();
    let url = format!("rediss://127.0.0.1:{}", server.tls_port().unwrap());
    let [ca, cert, key] = [&ca, &cert, &key].map(|path| path.to_str().unwrap());
    let ended = check(&url, &["--ca", ca, "--cert", cert, "--key", key]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Without the authority, the certificate is not trusted.
    let ended = check(&url, &[]).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    assert_one(&ended, "connection", "refused", "TLS");
}

#[tokio::test]
async fn each_server_of_a_quorum_is_checked() {
    let servers = [Server::start().await, Server::start().await];
    if !is_from(&servers[0], 7, 0).await {
        let urls = format!(
            "{},{},{}",
            servers[0].url(),
            servers[1].url(),
            servers[0].url().replace("127.0.0.1", "localhost")
        );
        let ended = check(&urls, &[]).await;
        assert_eq!(ended.code, Some(77), "{ended:?}");
        return;
    }
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let urls = format!("{},{},{nobody}", servers[0].url(), advise(&servers[1], &[]).await);
    let ended = check(&urls, &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_eq!(missing(&ended), BTreeSet::new());
    let verdicts = |ended: &Ended, subject| {
        let verdicts = about(ended, subject).into_iter().map(|(verdict, _)| verdict);
        verdicts.collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&ended, "connection"), ["ok", "ok", "unavailable"]);
    // They started recently.
    assert_eq!(verdicts(&ended, "version"), ["unavailable", "unavailable"]);
    let ended = check(&urls, &["--durable"]).await;
    assert_eq!(verdicts(&ended, "version"), ["ok", "ok"]);
    assert_eq!(verdicts(&ended, "persistence"), ["warning", "warning"]);
}

#[tokio::test]
async fn each_master_of_a_cluster_is_checked() {
    let cluster = Cluster::start().await;
    let mut has_shards = false;
    for server in &cluster.servers {
        advise(server, &[]).await;
        has_shards = is_from(server, 7, 0).await;
        let mut words = advised(1);
        if !has_shards {
            words.retain(|word| !["+spublish", "+ssubscribe", "+sunsubscribe"].contains(word));
        }
        server.set_user(&words).await;
    }
    let url = cluster.url().replace("://", "://locks:secret@");
    let ended = check(&url, &[]).await;
    assert_eq!(missing(&ended), BTreeSet::new(), "{ended:?}");
    assert_one(&ended, "cluster", "ok", "all slots");
    assert_eq!(about(&ended, "connection").len(), 3, "{ended:?}");
    let rights = findings(&ended);
    let rights: BTreeSet<&str> = rights
        .iter()
        .filter_map(|finding| finding["right"].as_str())
        .collect();
    let page = advised(1).into_iter().filter(is_right);
    for right in page.filter(|right| has_shards || !right.starts_with("+s")) {
        if right != "+pubsub|shardnumsub" || has_shards {
            assert!(rights.contains(right), "{right}: {ended:?}");
        }
    }

    let least = |replicas| ["CONFIG", "SET", "min-replicas-to-write", replicas];
    cluster.servers[1].command(&least("2")).await;
    let ended = check(&url, &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    let writes = about(&ended, "writes");
    let short = writes.iter().filter(|(verdict, _)| verdict == "unavailable");
    assert_eq!((writes.len(), short.count()), (3, 1), "{ended:?}");
    cluster.servers[1].command(&least("0")).await;

    let right = if has_shards { "-ssubscribe" } else { "-asking" };
    cluster.servers[1]
        .set_user(&["ACL", "SETUSER", "locks", right])
        .await;
    let ended = check(&url, &[]).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    assert_eq!(missing(&ended), BTreeSet::from([right.replace('-', "+")]));
    let there = format!("127.0.0.1:{}", cluster.servers[1].port());
    let found = findings(&ended);
    let refused = found
        .iter()
        .find(|finding| finding["verdict"] == "refused")
        .unwrap();
    assert_eq!(refused["server"], *there, "{ended:?}");

    let owner = &cluster.servers[Cluster::first_owner(0)];
    owner.command(&["CLUSTER", "DELSLOTS", "0"]).await;
    let url = format!("redis-cluster://127.0.0.1:{}", owner.port());
    let ended = check(&url, &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_one(&ended, "cluster", "unavailable", "1 of 16384 slots have no owner");
    // One of the masters may still be unaware of it.
    assert!(
        about(&ended, "writes")
            .iter()
            .any(|(verdict, text)| verdict == "unavailable" && text.contains("CLUSTERDOWN")),
        "{ended:?}"
    );
}

#[tokio::test]
async fn each_sentinel_is_checked_and_then_the_primary() {
    let group = Sentinels::start().await;
    let ended = check(&group.url(), &[]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let sentinels = about(&ended, "sentinel");
    assert!(
        sentinels.len() == 3 && sentinels.iter().all(|(verdict, _)| verdict == "ok"),
        "{ended:?}"
    );
    assert_one(&ended, "replicas", "ok", "2 connected");
    group.sentinels[0].kill();
    for replica in &group.servers[1..] {
        replica.kill();
    }
    eventually("the replicas are missed", LIMIT, async || {
        group.servers[0].info("replication").await["connected_slaves"] == "0"
    })
    .await;
    let ended = check(&group.url(), &[]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let warned = about(&ended, "sentinel")
        .into_iter()
        .filter(|(verdict, _)| verdict == "warning");
    assert_eq!(warned.count(), 1, "{ended:?}");
    assert_one(&ended, "replicas", "warning", "none connected");
    for sentinel in &group.sentinels {
        sentinel.kill();
    }
    let ended = check(&group.url(), &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_eq!(about(&ended, "sentinel").len(), 3, "{ended:?}");
}

/// A server that answers nothing costs a few seconds, not for ever.
#[tokio::test]
async fn silent_server_is_given_up() {
    let server = Server::start().await;
    server.pause();
    let began = std::time::Instant::now();
    let ended = check(&server.url(), &[]).await;
    server.resume();
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}
