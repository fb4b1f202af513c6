//! Waiting for a lock, and what is said of it.

use std::time::Instant;

use fairlock_testkit::{Server, TempDir, name};

use crate::scene::{
    Running, SECOND, end_of, events, fairlock, is_free, kinds, lock, program, run, until_waiting,
};

#[tokio::test]
async fn lock_that_is_not_acquired_gives_the_status_of_choice() {
    let server = Server::shared().await;
    let name = name();
    let guard = lock(server, &name).await.acquire().await.unwrap();
    for (args, code) in [
        (&["-n"][..], 75),
        (&["--try", "-E", "1"], 1),
        (&["-n", "-E", "0"], 0),
        (&["-w", "0"], 75),
        (&["--timeout", "300ms", "-E", "9"], 9),
    ] {
        let args = [&["run"], args, &[&name, "echo", "ran"]].concat();
        let ended = run(&args).await;
        assert_eq!((ended.code, &*ended.out), (Some(code), ""), "{args:?} {ended:?}");
        let busy = format!("{name} is busy; its lease ends in ");
        assert!(ended.err.contains(&busy), "{ended:?}");
    }
    let ended = run(&["run", "-q", "-n", &name, "echo", "ran"]).await;
    assert_eq!((ended.code, &*ended.err), (Some(75), ""));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn lock_of_a_server_that_takes_no_writes_is_not_called_busy() {
    let server = Server::builder()
        .config("min-replicas-to-write", "1")
        .start()
        .await;
    let name = name();
    let args = ["run", "-w", "300ms", &name, "echo", "ran"];
    let ended = end_of(&mut fairlock(&server.url(), &args)).await;
    assert_eq!((ended.code, &*ended.out), (Some(69), ""), "{ended:?}");
    assert!(
        ended.err.starts_with("fairlock: server unavailable: NOREPLICAS"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn waiter_has_the_lock_when_its_turn_comes() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let guard = lock.acquire().await.unwrap();
    let running = Running::start(&mut fairlock(
        &server.url(),
        &["run", "-w", "1m", &name, "echo", "ran"],
    ));
    until_waiting(&lock, 1).await;
    guard.release().await.unwrap();
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "ran\n"), "{ended:?}");
    assert!(is_free(&lock).await);
}

#[tokio::test]
async fn command_begins_with_a_whole_lease_after_a_hand_over() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let guard = lock.acquire().await.unwrap();
    let script = "$FAIRLOCK status --json $FAIRLOCK_NAME";
    let running = Running::start(&mut fairlock(&server.url(), &["run", &name, "-c", script]));
    until_waiting(&lock, 1).await;
    guard.release().await.unwrap();
    let ended = running.ended().await;
    let shown = events(&ended.out);
    assert!(
        shown[0]["holder"]["ttl_ms"].as_u64().unwrap() > 15_000,
        "{ended:?}"
    );
}

#[tokio::test]
async fn waiter_says_once_who_is_in_front_unless_it_is_quiet() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let _guard = lock.acquire().await.unwrap();
    let began = Instant::now();
    let run = async |flag: &str| run(&["run", "-w", "3", flag, &name, "true"]).await;
    let (told, quiet) = tokio::join!(run("-v"), run("-q"));
    assert!(began.elapsed() >= 3 * SECOND);
    let of_waiting = |line: &&str| line.contains("waiting for");
    let lines: Vec<&str> = told.err.lines().filter(of_waiting).collect();
    assert_eq!(lines.len(), 1, "{told:?}");
    assert!(lines[0].contains("held by rival for "), "{told:?}");
    assert_eq!(quiet.err, "");
}

#[tokio::test]
async fn every_event_is_an_object_on_a_line() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let guard = lock.acquire().await.unwrap();
    let in_front = guard.fence().get();
    let running = Running::start(&mut fairlock(
        &server.url(),
        &["run", "--json", &name, "-c", "exit 3"],
    ));
    tokio::time::sleep(SECOND + SECOND / 2).await;
    guard.release().await.unwrap();
    let ended = running.ended().await;
    let events = events(&ended.err);
    let expected = ["waiting", "acquired", "child_exited", "released"];
    assert_eq!(
        (ended.code, kinds(&events)),
        (Some(3), expected.to_vec()),
        "{ended:?}"
    );
    assert!(events.iter().all(|event| event["name"] == *name), "{ended:?}");
    assert_eq!(events[0]["holder"]["label"], "rival");
    assert_eq!(events[0]["holder"]["fence"], in_front);
    assert!(events[1]["fence"].as_u64().unwrap() > in_front);
    assert!(events[1]["waited_ms"].as_u64().unwrap() >= 1000);
    assert_eq!(events[2]["code"], 3);
    assert_eq!(events[3]["fence"], events[1]["fence"]);
}

#[tokio::test]
async fn events_go_to_a_file_descriptor_of_choice() {
    let url = Server::shared().await.url();
    let folder = TempDir::create();
    let file = folder.path().join("events");
    let script = r#"exec "$FAIRLOCK" run --status-fd 7 "$1" -c 'kill -TERM $$' 7>"$2""#;
    let mut shell = program("/bin/sh", &url);
    shell.args(["-c", script, "sh", &name()]).arg(&file);
    let ended = end_of(&mut shell).await;
    assert_eq!((ended.code, &*ended.out, &*ended.err), (Some(143), "", ""));
    let events = events(&std::fs::read_to_string(&file).unwrap());
    assert_eq!(kinds(&events), ["acquired", "child_exited", "released"]);
    assert_eq!(events[1]["signal"], "SIGTERM");

    let ended = run(&["run", "--status-fd", "77", &name(), "true"]).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.err.contains("--status-fd 77"), "{ended:?}");
}

/// Race: The server takes no writes for a while, and answers who holds the lock all the same.
#[tokio::test]
async fn waiter_of_a_server_that_takes_no_writes_does_not_say_that_its_turn_is_near() {
    let server = Server::builder()
        .config("min-replicas-to-write", "1")
        .start()
        .await;
    let script = r#"exec "$FAIRLOCK" run -w 3 "$1" true 2>&1"#;
    let mut running = Running::start(program("sh", &server.url()).args(["-c", script, "sh", &name()]));
    let said = running.line().await;
    assert!(said.contains("has not taken the request yet"), "{said}");
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.out.contains("NOREPLICAS"), "{ended:?}");
}
