//! A command that runs in one of several places at a time.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlock_testkit::{Server, eventually, free_port, name};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::scene::{LIMIT, Running, SECOND, fairlock, is_free, lock, program, run, until_waiting};

/// Says under which fence it leads, and goes on until it is stopped.
const LEADER: &str = "echo $FAIRLOCK_FENCE; exec sleep 600";

fn fence(line: &str) -> u64 {
    line.parse()
        .unwrap_or_else(|_| panic!("{line:?} instead of a fence"))
}

#[tokio::test]
async fn one_leads_and_the_next_one_does_when_it_is_gone() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let start = || {
        Running::start(&mut fairlock(
            &server.url(),
            &["lead", "--lease", "2", &name, "-c", LEADER],
        ))
    };
    let mut first = start();
    let mut last = fence(&first.line().await);
    let mut second = start();
    until_waiting(&lock, 1).await;
    // Asked to end, it resigns at once. Its command ends by the same signal.
    first.signal(Signal::SIGTERM);
    assert_eq!(first.ended().await.code, Some(143));
    let next = fence(&second.line().await);
    assert!(next > last);
    last = next;
    // Killed, it is followed when its lease is over.
    let mut third = start();
    until_waiting(&lock, 1).await;
    second.signal(Signal::SIGKILL);
    assert!(fence(&third.line().await) > last);
    third.signal(Signal::SIGINT);
    assert_eq!(third.ended().await.code, Some(130));
    assert!(is_free(&lock).await);
}

#[tokio::test]
async fn lead_campaigns_again_after_cmd_fails_and_ends_after_it_succeeds() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let file = std::env::temp_dir().join(&name);
    // Without a terminal, the status of a command that was interrupted is that of a failure.
    let work = format!(
        "echo $FAIRLOCK_FENCE; echo x >> '{0}'; test $(wc -l < '{0}') -ge 3 || exit 130",
        file.display()
    );
    let ended = run(&["lead", &name, "-c", &work]).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let fences: Vec<u64> = ended.out.lines().map(fence).collect();
    assert!(fences.len() == 3 && fences.is_sorted(), "{fences:?}");
    assert!(is_free(&lock).await);
    let ended = run(&["lead", &name, "no-such-program-anywhere"]).await;
    assert_eq!(ended.code, Some(127), "{ended:?}");
}

/// Race: A process starts in the middle of a failover, and its URL leads to a replica.
#[tokio::test]
async fn lead_waits_for_a_replica_to_become_the_primary() {
    let server = Server::builder().config("replicaof", "127.0.0.1 1").start().await;
    let name = name();
    let mut running = Running::start(&mut fairlock(&server.url(), &["lead", &name, "-c", LEADER]));
    let asked = async || server.info("stats").await["total_connections_received"] != "0";
    eventually("the replica is asked", LIMIT, asked).await;
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    fence(&running.line().await);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

#[tokio::test]
async fn its_command_is_stopped_when_the_lead_is_taken_away_and_it_campaigns_again() {
    let server = Server::shared().await;
    let name = name();
    let mut running = Running::start(&mut fairlock(
        &server.url(),
        &["lead", "--lease", "2", &name, "-c", LEADER],
    ));
    let first = running.line().await;
    assert_eq!(run(&["release", &name, "--fence", &first]).await.code, Some(0));
    assert!(fence(&running.line().await) > fence(&first));
    running.signal(Signal::SIGTERM);
    let ended = running.ended().await;
    assert!(ended.err.contains("taken away"), "{ended:?}");
}

#[tokio::test]
async fn lead_goes_on_while_no_server_answers_and_ends_at_a_signal() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let running = Running::start(&mut fairlock(&url, &["lead", &name(), "true"]));
    // One attempt to connect takes 10 s.
    tokio::time::sleep(11 * SECOND).await;
    running.signal(Signal::SIGTERM);
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(ended.err.contains("server unavailable"), "{ended:?}");
}

#[tokio::test]
async fn options_without_meaning_for_a_leader_are_refused() {
    for (args, word) in [
        (&["lead", "-n", "a", "true"][..], "--nonblock"),
        (&["lead", "-w", "1", "a", "true"], "--wait"),
        (&["lead", "--at-least", "1", "a", "true"], "--at-least"),
        (&["lead", "-E", "0", "a", "true"], "--conflict-exit-code"),
        (&["lead", "--on-lost", "warn", "a", "true"], "--on-lost"),
        (&["lead", "--also", "b", "a", "true"], "--also"),
        (&["lead", "--http", "4040", "a", "true"], "4040"),
        (&["lead", "a"], "fairlock lead a CMD"),
        (&["lead", "--http", "127.0.0.1:0", "-s", "a"], "--shared"),
        (&["lead", "-x", "a", "true"], "--exclusive"),
        (&["lead", "--permits", "1", "--of", "2", "a", "true"], "--permits"),
        (&["lead", "--of", "2", "a", "true"], "--of"),
        (&["lead", "a{", "true"], "braces"),
    ] {
        let ended = run(args).await;
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert!(ended.err.contains(word), "{word}: {ended:?}");
    }
}

/// A grant waits for a process that was stopped. When that goes on, the lead is gone before it has begun.
#[tokio::test]
async fn lead_campaigns_again_if_the_lead_is_taken_away_before_cmd_begins() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let guard = lock.acquire().await.unwrap();
    let mut running = Running::start(&mut fairlock(&server.url(), &["lead", &name, "-c", LEADER]));
    // A client that does not listen yet would be passed over.
    let channels = format!("fairlock:unlock:{{{name}}}:*");
    let listens = async || {
        !server
            .command(&["PUBSUB", "CHANNELS", &channels])
            .await
            .array()
            .is_empty()
    };
    eventually("it listens", LIMIT, listens).await;
    until_waiting(&lock, 1).await;
    running.signal(Signal::SIGSTOP);
    guard.release().await.unwrap();
    let granted = lock.status().await.unwrap().holder.expect("handed over").fence;
    assert!(lock.force_release(granted).await.unwrap());
    running.signal(Signal::SIGCONT);
    assert!(fence(&running.line().await) > granted.get());
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

/// The status and the body of the answer, or nothing while nobody listens.
async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    get_at("127.0.0.1", port, path).await
}

async fn get_at(host: &str, port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect((host, port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

async fn leader(port: u16) -> Option<Value> {
    let (status, body) = get(port, "/leader").await?;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).ok()
}

#[tokio::test]
async fn programs_beside_it_ask_over_http_who_leads() {
    let server = Server::shared().await;
    let (name, ports) = (name(), [free_port(), free_port()]);
    let start = |port: u16, label: &str| {
        let http = format!("127.0.0.1:{port}");
        let args = ["lead", "--lease", "2", "--label", label, "--http", &http, &name];
        Running::start(&mut fairlock(&server.url(), &args))
    };
    let leads = async |port, label: &str| {
        let seen = async || {
            let Some(seen) = leader(port).await else {
                return false;
            };
            seen["leading"] == true
                && seen["leader"]["label"] == label
                && seen["leader"]["fence"] == seen["fence"]
        };
        eventually("it leads", LIMIT, seen).await;
    };
    let first = start(ports[0], "one");
    leads(ports[0], "one").await;
    let second = start(ports[1], "two");
    let follows = async || {
        let Some(seen) = leader(ports[1]).await else {
            return false;
        };
        seen["leading"] == false && seen["fence"].is_null() && seen["leader"]["label"] == "one"
    };
    eventually("it follows", LIMIT, follows).await;
    assert_eq!(get(ports[1], "/healthz").await.unwrap(), (200, "ok\n".to_owned()));
    let (status, metrics) = get(ports[0], "/metrics").await.unwrap();
    assert_eq!(status, 200);
    assert!(metrics.contains("fairlock_guards_held{"), "{metrics}");
    let is_histogram = metrics.contains("_bucket{");
    assert!(is_histogram, "the dashboard reads no summaries: {metrics}");
    assert_eq!(get(ports[0], "/").await.unwrap().0, 404);

    first.signal(Signal::SIGTERM);
    assert_eq!(first.ended().await.code, Some(143));
    leads(ports[1], "two").await;
    second.signal(Signal::SIGTERM);
    assert_eq!(second.ended().await.code, Some(143));
}

#[tokio::test]
async fn programs_ask_at_every_address_if_none_is_named() {
    let server = Server::shared().await;
    let port = free_port();
    let args = ["lead", "--http", &format!(":{port}"), &name()];
    let running = Running::start(&mut fairlock(&server.url(), &args));
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    for host in ["127.0.0.1", "::1"] {
        if host == "::1" && !has_ipv6 {
            eprintln!("skipped: no IPv6");
            continue;
        }
        let answers = async || {
            let answer = get_at(host, port, "/leader").await;
            answer.is_some_and(|(status, _)| status == 200)
        };
        eventually(&format!("it answers at {host}"), LIMIT, answers).await;
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

/// Connections that were there before the stop are the first to be looked at after it.
#[tokio::test]
async fn a_leader_that_was_stopped_for_longer_than_its_lease_does_not_say_that_it_leads() {
    let server = Server::shared().await;
    for _ in 0..3 {
        let (name, port) = (name(), free_port());
        let lock = lock(server, &name).await;
        let http = format!("127.0.0.1:{port}");
        let args = ["lead", "--lease", "1", "--http", &http, &name];
        let running = Running::start(&mut fairlock(&server.url(), &args));
        let leads = async || leader(port).await.is_some_and(|seen| seen["leading"] == true);
        eventually("it leads", LIMIT, leads).await;
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        // It has accepted those that came before this one.
        assert!(leads().await);
        running.signal(Signal::SIGSTOP);
        let guard = lock.acquire().await.unwrap();
        for client in &mut clients {
            client.write_all(ASK).await.unwrap();
        }
        running.signal(Signal::SIGCONT);
        for client in &mut clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains("\"leading\":false,\"fence\":null"), "{answer}");
        }
        guard.release().await.unwrap();
        running.signal(Signal::SIGTERM);
        assert_eq!(running.ended().await.code, Some(143));
    }
}

const ASK: &[u8] = b"GET /leader HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn status_page_reports_no_lead_while_cmd_cleans_up_after_a_loss() {
    let server = Server::shared().await;
    let (name, port) = (name(), free_port());
    let http = format!("127.0.0.1:{port}");
    let work = "trap 'echo told' TERM; echo $FAIRLOCK_FENCE; while :; do sleep 0.1; done";
    let args = [
        "lead",
        "--lease",
        "6",
        "--kill-after",
        "5",
        "--http",
        &http,
        &name,
        "-c",
        work,
    ];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    let fence = running.line().await;
    assert_eq!(leader(port).await.unwrap()["fence"].to_string(), fence);
    assert_eq!(run(&["release", &name, "--fence", &fence]).await.code, Some(0));
    running.expect("told").await;
    let seen = leader(port).await.unwrap();
    assert_eq!(
        (&seen["leading"], &seen["fence"]),
        (&Value::Bool(false), &Value::Null)
    );
    // Its command ends by no other signal.
    running.signal(Signal::SIGKILL);
}

/// Its renewals are done on the same thread.
#[tokio::test]
async fn a_flood_of_requests_on_a_connection_is_answered_once() {
    let server = Server::shared().await;
    let (name, port) = (name(), free_port());
    let http = format!("127.0.0.1:{port}");
    let running = Running::start(&mut fairlock(&server.url(), &["lead", "--http", &http, &name]));
    let leads = async || leader(port).await.is_some_and(|seen| seen["leading"] == true);
    eventually("it leads", LIMIT, leads).await;
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    client.write_all(&ASK.repeat(10)).await.unwrap();
    let mut answers = Vec::new();
    // The connection ends, or is reset because of what was not read.
    while client.read_buf(&mut answers).await.is_ok_and(|read| read > 0) {}
    let answers = String::from_utf8(answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 1, "{answers}");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

/// File descriptors are needed for the server and for the command.
#[tokio::test]
async fn clients_that_send_nothing_do_not_keep_the_leader_from_its_work() {
    let server = Server::shared().await;
    let (name, port) = (name(), free_port());
    let http = format!("127.0.0.1:{port}");
    let work = "echo $FAIRLOCK_FENCE; read line && exit 1; exec sleep 600";
    let start = format!("ulimit -n 128; exec $FAIRLOCK lead --http {http} {name} -c '{work}'");
    let mut command = program("/bin/sh", &server.url());
    let mut running = Running::start(command.args(["-c", &start]).stdin(Stdio::piped()));
    let first = fence(&running.line().await);
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    tokio::time::sleep(SECOND / 2).await;
    running.tell("\n").await;
    assert!(fence(&running.line().await) > first);
    drop(idle);
    assert_eq!(get(port, "/healthz").await.unwrap().0, 200);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

#[tokio::test]
async fn health_says_that_no_server_answers() {
    let port = free_port();
    let url = format!("redis://127.0.0.1:{}", free_port());
    let http = format!("127.0.0.1:{port}");
    let running = Running::start(&mut fairlock(&url, &["lead", "--http", &http, &name()]));
    let is_ill = async || {
        get(port, "/healthz")
            .await
            .is_some_and(|(status, _)| status == 503)
    };
    eventually("it says so", LIMIT, is_ill).await;
    assert_eq!(leader(port).await.unwrap()["leader"], Value::Null);
    tokio::time::sleep(Duration::from_millis(100)).await;
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

/// The error of the look itself takes as long as a call is repeated, which is 10 s.
#[tokio::test]
async fn server_that_hangs_is_told_of_before_calls_to_it_fail() {
    let server = Server::start().await;
    let (name, port) = (name(), free_port());
    let http = format!("127.0.0.1:{port}");
    let args = ["lead", "--lease", "2", "--http", &http, &name];
    let running = Running::start(&mut fairlock(&server.url(), &args));
    let knows = async || {
        let seen = leader(port).await;
        seen.is_some_and(|seen| seen["leading"] == true && seen["leader"]["fence"] == seen["fence"])
    };
    eventually("it leads", LIMIT, knows).await;
    server.pause();
    let began = Instant::now();
    let is_unknown = async || leader(port).await.is_some_and(|seen| seen["leader"].is_null());
    eventually("nobody knows who leads", LIMIT, is_unknown).await;
    assert!(began.elapsed() < 9 * SECOND, "{:?}", began.elapsed());
    assert_eq!(get(port, "/healthz").await.unwrap().0, 503);
    server.resume();
    eventually("it leads again", LIMIT, knows).await;
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}
