//! Tests of these helpers: the faults that they claim to cause must really happen.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Client, History, Process, Proxy, Resp, Server, TempDir, eventually, free_port};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn no_unused_port_is_given_out_twice() {
    let ports: BTreeSet<u16> = (0..300).map(|_| free_port()).collect();
    assert_eq!(ports.len(), 300);
}

#[tokio::test]
async fn a_server_starts_answers_restarts_and_leaves_nothing() {
    let server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start()
        .await;
    let (first, dir) = (server.pid(), server.dir().to_owned());
    assert_eq!(server.command(&["SET", "a", "1"]).await.text(), "OK");
    server.kill();
    assert!(Client::connect(server.port()).await.is_err());
    server.restart().await;
    assert_ne!(server.pid(), first);
    assert_eq!(server.command(&["GET", "a"]).await.int(), 1);
    assert_eq!(server.keys("").await, ["a"]);
    assert_eq!(server.calls().await["get"], 1);
    let port = server.port();
    drop(server);
    assert!(Client::connect(port).await.is_err());
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_paused_server_is_silent_until_it_is_resumed() {
    let server = Server::start().await;
    let mut client = server.client().await;
    server.pause();
    client.send(&["PING"]).await.unwrap();
    assert!(tokio::time::timeout(SECOND / 10, client.read()).await.is_err());
    server.resume();
    assert_eq!(client.read().await.unwrap().text(), "PONG");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_has_the_clock_that_it_was_given_in_scripts_too() {
    let server = Server::builder().clock(-1000).start().await;
    for words in [&["TIME"][..], &["EVAL", "return redis.call('TIME')", "0"]] {
        let time: u64 = server.command(words).await.texts()[0].parse().unwrap();
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!((990..=1010).contains(&(now - time)), "{time} at {now}");
    }
}

#[tokio::test]
async fn replies_of_every_kind_are_read() {
    let server = Server::shared().await;
    let key = crate::prefix();
    let mut client = server.client().await;
    assert!(client.command(&["GET", &key]).await.unwrap().is_nil());
    assert_eq!(
        client.command(&["HSET", &key, "f", "v", "g", ""]).await.unwrap(),
        Resp::Int(2)
    );
    assert_eq!(client.command(&["HGETALL", &key]).await.unwrap().map()["f"], "v");
    assert!(client.command(&["GET", &key]).await.unwrap().is_error());
    assert_eq!(
        client.command(&["SUBSCRIBE", &key]).await.unwrap().array().len(),
        3
    );
    server.command(&["PUBLISH", &key, "hello"]).await;
    assert_eq!(
        client.message(SECOND).await,
        Some((key.clone(), "hello".to_owned()))
    );
}

#[tokio::test]
async fn a_proxy_delays_and_counts() {
    let server = Server::shared().await;
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port()).await.unwrap();
    proxy.delay(Duration::from_millis(30));
    let start = Instant::now();
    client.command(&["PING"]).await.unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(60),
        "{:?}",
        start.elapsed()
    );
    proxy.heal();
    client.command(&["ping"]).await.unwrap();
    assert_eq!(
        (
            proxy.count("PING"),
            proxy.commands(),
            proxy.accepted(),
            proxy.open()
        ),
        (2, 2, 1, 1)
    );
    assert_eq!((proxy.bytes_up(), proxy.bytes_down()), (28, 14));
}

/// This takes many rounds, because a change and the bytes sent right after it seldom reach the proxy
/// together.
#[tokio::test]
async fn proxy_setting_applies_to_everything_sent_afterwards() {
    let server = Server::shared().await;
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port()).await.unwrap();
    for _ in 0..200 {
        proxy.delay(Duration::from_millis(2));
        let start = Instant::now();
        client.command(&["PING"]).await.unwrap();
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(4), "{took:?}");
        proxy.heal();
        client.command(&["PING"]).await.unwrap();
    }
}

#[tokio::test]
async fn a_proxy_freezes_cuts_refuses_and_swallows() {
    let server = Server::shared().await;
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port()).await.unwrap();

    proxy.freeze();
    client.send(&["PING"]).await.unwrap();
    assert!(tokio::time::timeout(SECOND / 10, client.read()).await.is_err());
    proxy.thaw();
    assert_eq!(client.read().await.unwrap().text(), "PONG");

    proxy.freeze_open();
    client.send(&["PING"]).await.unwrap();
    let mut other = Client::connect(proxy.port()).await.unwrap();
    assert_eq!(other.command(&["PING"]).await.unwrap().text(), "PONG");
    proxy.thaw();
    assert_eq!(client.read().await.unwrap().text(), "PONG");

    proxy.cut();
    assert!(client.command(&["PING"]).await.is_err());
    proxy.refuse();
    eventually("refused", SECOND, async || {
        Client::connect(proxy.port()).await.is_err()
    })
    .await;
    proxy.heal();
    eventually("accepted", SECOND, async || {
        Client::connect(proxy.port()).await.is_ok()
    })
    .await;

    let mut client = Client::connect(proxy.port()).await.unwrap();
    client.command(&["PING"]).await.unwrap();
    proxy.black_hole();
    client.send(&["PING"]).await.unwrap();
    assert!(tokio::time::timeout(SECOND / 10, client.read()).await.is_err());
    proxy.heal();
    assert!(client.read().await.is_err());
}

#[tokio::test]
async fn a_lost_reply_is_that_of_a_command_that_ran() {
    let server = Server::shared().await;
    let proxy = Proxy::start(server.port());
    let key = crate::prefix();
    let mut client = Client::connect(proxy.port()).await.unwrap();
    let count = ["EVAL", "return redis.call('INCR', KEYS[1])", "1", &key];
    proxy.lose_reply(2);
    client.command(&["PING"]).await.unwrap();
    assert_eq!(client.command(&count).await.unwrap().int(), 1);
    assert!(client.command(&count).await.is_err());
    assert_eq!(server.command(&["GET", &key]).await.int(), 2);
    assert_eq!(proxy.lost_replies(), 1);
}

#[tokio::test]
async fn stranded_commands_run_when_their_connection_is_long_gone() {
    let server = Server::shared().await;
    let proxy = Proxy::start(server.port());
    let key = crate::prefix();
    let mut client = Client::connect(proxy.port()).await.unwrap();
    client.command(&["PING"]).await.unwrap();
    proxy.freeze_open();
    client.send(&["INCR", &key]).await.unwrap();
    tokio::time::sleep(SECOND / 20).await;
    proxy.strand();
    assert!(client.read().await.is_err());
    assert!(server.command(&["GET", &key]).await.is_nil());
    proxy.thaw();
    eventually("it ran", SECOND, async || {
        server.command(&["GET", &key]).await == Resp::Text("1".into())
    })
    .await;
}

#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn part_echo() {
    let Some(mut role) = crate::role() else { return };
    let history = History::in_file(role.arg("history"));
    let entry = history.asks("part");
    entry.granted(role.number("fence"));
    role.say("ready");
    let heard = role.heard().await;
    entry.released();
    role.say(&format!("heard {heard}"));
}

#[tokio::test]
async fn process_sends_and_receives_lines_and_can_be_stopped_and_killed() {
    let dir = TempDir::create();
    let path = dir.path().join("history");
    let args = [("history", path.to_str().unwrap()), ("fence", "7")];
    let mut part = Process::spawn("tests::part_echo", &args);
    part.expect("ready").await;
    part.stop();
    part.tell("you");
    assert_eq!(part.line_within(SECOND / 10).await, None);
    part.cont();
    part.expect("heard you").await;
    part.ended().await;

    let mut part = Process::spawn("tests::part_echo", &args);
    part.expect("ready").await;
    let (history, pid) = (History::in_file(&path), part.pid());
    part.kill();
    assert_eq!(history.grants()[1].released_ns, None);
    history.died(pid);
    assert!(history.grants()[1].released_ns.is_some());
    history.assert_no_overlap();
    assert_eq!(history.grants()[0].fence, Some(7));
}

#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn part_with_servers() {
    let Some(mut role) = crate::role() else { return };
    let (own, shared) = (Server::start().await, Server::shared().await);
    for server in [&own, shared] {
        role.say(&format!("{} {}", server.port(), server.dir().display()));
    }
    role.heard().await;
}

#[tokio::test]
async fn servers_do_not_outlive_a_killed_test_process() {
    let mut part = Process::spawn("tests::part_with_servers", &[]);
    let lines = [part.line().await, part.line().await];
    part.kill();
    for line in lines {
        let (port, dir) = line.split_once(' ').unwrap();
        let port = port.parse().unwrap();
        let gone = async || Client::connect(port).await.is_err() && !Path::new(dir).exists();
        eventually("the server and its directory are gone", 5 * SECOND, gone).await;
    }
}

#[test]
fn history_shows_order_and_fences() {
    let history = History::default();
    let (a, b) = (history.asks("a"), history.asks("b b"));
    a.granted(1);
    a.released();
    b.granted(2);
    history.assert_no_overlap();
    history.assert_order(["a", "b b"]);
    history.assert_first_come_first_served();
    history.assert_fences_increase();
}

#[test]
#[should_panic(expected = "two holders at once")]
fn history_detects_two_holders_at_once() {
    let history = History::default();
    let (a, b) = (history.asks("a"), history.asks("b"));
    a.granted(1);
    b.granted(2);
    a.released();
    history.assert_no_overlap();
}

#[test]
#[should_panic(expected = "overtaken")]
fn history_detects_an_overtaker() {
    let history = History::default();
    let (a, b) = (history.asks("a"), history.asks("b"));
    b.granted(1);
    b.released();
    a.granted(2);
    history.assert_first_come_first_served();
}

#[test]
fn line_of_a_history_that_is_being_written_is_left_out() {
    let dir = TempDir::create();
    let path = dir.path().join("history");
    std::fs::write(&path, "1.0 asked 5 - a\n1.0 granted 7 9 a\n1.1 asked 33373885").unwrap();
    let holds = History::in_file(&path).holds();
    assert_eq!((holds.len(), holds[0].granted_ns), (1, Some(7)));
}
