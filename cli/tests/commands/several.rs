//! Several locks that are taken together.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlock_testkit::{Server, eventually, name};
use nix::sys::signal::Signal;

use crate::scene::{
    LIMIT, Running, SECOND, end_of, events, fairlock, is_free, kinds, lock, run, until_waiting,
};

/// Two names, the smaller one first.
fn names() -> [String; 2] {
    let mut names = [name(), name()];
    names.sort();
    names
}

async fn fence(server: &Server, name: &str) -> u64 {
    let holder = lock(server, name).await.status().await.unwrap().holder;
    holder.unwrap().fence.get()
}

/// Ends the hold of this lock by the command, as an operator would.
async fn take_away(server: &Server, name: &str) {
    let fence = fence(server, name).await.to_string();
    let ended = run(&["release", name, "--fence", &fence]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[track_caller]
fn names_of<'a>(events: &'a [serde_json::Value], kind: &str) -> Vec<&'a str> {
    let of_kind = events.iter().filter(|event| event["event"] == kind);
    let mut names: Vec<&str> = of_kind.map(|event| event["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn all_are_held_while_the_command_runs_and_free_when_it_has_ended() {
    let server = Server::shared().await;
    let [a, b] = names();
    // In any order.
    for (first, second) in [(&a, &b), (&b, &a)] {
        let script = "echo $FAIRLOCK_HELD $FAIRLOCK_NAME $FAIRLOCK_FENCE; read line; exit 3";
        let args = ["run", "--also", second, first, "-c", script];
        let mut running = Running::start(fairlock(&server.url(), &args).stdin(Stdio::piped()));
        let said = running.line().await;
        let fences = [fence(server, first).await, fence(server, second).await];
        assert_eq!(said, format!("1 {first} {} {}", fences[0], fences[1]));
        for name in [&a, &b] {
            let ended = run(&["run", "-n", name, "echo", "ran"]).await;
            assert_eq!((ended.code, &*ended.out), (Some(75), ""), "{ended:?}");
        }
        running.tell("\n").await;
        assert_eq!(running.ended().await.code, Some(3));
        assert!(is_free(&lock(server, &a).await).await && is_free(&lock(server, &b).await).await);
    }
}

#[tokio::test]
async fn fences_come_in_the_order_of_the_arguments() {
    let server = Server::shared().await;
    let [a, b] = names();
    let c = name();
    // One name may come twice, and its lock is taken once.
    let script =
        format!("echo $FAIRLOCK_FENCE; for name in {c} {a} {b} {a}; do $FAIRLOCK status --json $name; done");
    let args = ["run", "--also", &a, &c, "--also", &b, "--also", &a, "-c", &script];
    let ended = run(&args).await;
    let fences: Vec<&str> = ended.out.lines().next().unwrap().split(' ').collect();
    let shown = events(&ended.out);
    let shown = shown.iter().map(|shown| &shown["holder"]);
    assert!(shown.clone().all(|holder| holder["holds"] == 1), "{ended:?}");
    let shown: Vec<String> = shown.map(|holder| holder["fence"].to_string()).collect();
    assert_eq!(
        (fences.len(), fences),
        (4, shown.iter().map(String::as_str).collect())
    );

    let mut holding = fairlock(&server.url(), &["hold", "--also", &a, &b]);
    let mut holding = Running::start(holding.stdin(Stdio::piped()));
    let fences = [
        fence_once_held(server, &b).await,
        fence_once_held(server, &a).await,
    ];
    holding.expect(&format!("{} {}", fences[0], fences[1])).await;
    holding.close_stdin();
    assert_eq!(holding.ended().await.code, Some(0));
    assert!(is_free(&lock(server, &a).await).await && is_free(&lock(server, &b).await).await);
}

async fn fence_once_held(server: &Server, name: &str) -> u64 {
    let lock = lock(server, name).await;
    eventually("it is held", LIMIT, async || {
        lock.status().await.unwrap().holder.is_some()
    })
    .await;
    fence(server, name).await
}

#[tokio::test]
async fn each_lock_has_its_own_events() {
    let server = Server::shared().await;
    let [a, b] = names();
    let lock = lock(server, &b).await;
    let guard = lock.acquire().await.unwrap();
    let args = ["run", "--json", "--also", &a, &b, "true"];
    let running = Running::start(&mut fairlock(&server.url(), &args));
    until_waiting(&lock, 1).await;
    tokio::time::sleep(SECOND + SECOND / 2).await;
    guard.release().await.unwrap();
    let ended = running.ended().await;
    let events = events(&ended.err);
    let expected = [
        "waiting",
        "acquired",
        "acquired",
        "child_exited",
        "released",
        "released",
    ];
    assert_eq!((ended.code, kinds(&events)), (Some(0), expected.to_vec()));
    assert_eq!(names_of(&events, "waiting"), [&b]);
    assert_eq!(names_of(&events, "acquired"), [&a, &b]);
    assert_eq!(names_of(&events, "child_exited"), [&b]);
    assert_eq!(names_of(&events, "released"), [&a, &b]);

    let ended = run(&["run", "-v", "--also", &a, &b, "true"]).await;
    for name in [a, b] {
        for what in ["acquired", "released"] {
            assert!(ended.err.contains(&format!("{what} {name} after")), "{ended:?}");
        }
    }
}

#[tokio::test]
async fn lock_that_is_busy_is_named_and_the_others_are_given_back() {
    let server = Server::shared().await;
    let [a, b] = names();
    for (busy, other) in [(&a, &b), (&b, &a)] {
        let guard = lock(server, busy).await.acquire().await.unwrap();
        for args in [&["-n"][..], &["-w", "300ms", "-E", "9"]] {
            let args = [&["run"], args, &["--also", &a, &b, "echo", "ran"]].concat();
            let ended = run(&args).await;
            let code = if args.contains(&"-E") { 9 } else { 75 };
            assert_eq!((ended.code, &*ended.out), (Some(code), ""), "{ended:?}");
            assert!(ended.err.contains(&format!("{busy} is busy")), "{ended:?}");
            assert!(is_free(&lock(server, other).await).await);
        }
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn one_bound_counts_for_all_waits() {
    let server = Server::shared().await;
    let [a, b] = names();
    let (first, second) = (lock(server, &a).await, lock(server, &b).await);
    let guard = first.acquire().await.unwrap();
    let _busy = second.acquire().await.unwrap();
    let began = Instant::now();
    let args = ["run", "-w", "6", "--also", &a, &b, "echo", "ran"];
    let running = Running::start(&mut fairlock(&server.url(), &args));
    until_waiting(&first, 1).await;
    tokio::time::sleep((4 * SECOND).saturating_sub(began.elapsed())).await;
    guard.release().await.unwrap();
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.out), (Some(75), ""), "{ended:?}");
    assert!(ended.err.contains(&format!("{b} is busy")), "{ended:?}");
    let took = began.elapsed();
    assert!((6 * SECOND..9 * SECOND).contains(&took), "{took:?}");
    assert!(is_free(&first).await);
}

#[tokio::test]
async fn locks_are_taken_in_the_order_of_their_names() {
    let server = Server::shared().await;
    let [a, b] = names();
    let first = lock(server, &a).await;
    let guard = first.acquire().await.unwrap();
    let running = [[&a, &b], [&b, &a]].map(|[one, other]| {
        let script = format!("$FAIRLOCK status --json {one} {other}");
        let args = ["run", "--also", one, other, "-c", &script];
        Running::start(&mut fairlock(&server.url(), &args))
    });
    until_waiting(&first, 2).await;
    // None of them has the other one before.
    assert!(is_free(&lock(server, &b).await).await);
    guard.release().await.unwrap();
    for running in running {
        let ended = running.ended().await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let shown = events(&ended.out);
        assert_eq!(
            shown[0]["holder"]["label"], shown[1]["holder"]["label"],
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn loss_of_one_of_them_ends_the_command_and_frees_the_others() {
    let server = Server::shared().await;
    let [a, b] = names();
    for (lost, other) in [(&a, &b), (&b, &a)] {
        let script = "trap 'echo terminated; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        for json in [true, false] {
            let mut command = fairlock(&server.url(), &["run", "--lease", "1", "--also", &a, &b]);
            command.args(json.then_some("--json")).args(["-c", script]);
            let mut running = Running::start(&mut command);
            running.expect("ready").await;
            take_away(server, lost).await;
            let ended = running.ended().await;
            assert_eq!((ended.code, &*ended.out), (Some(76), "terminated\n"), "{ended:?}");
            if json {
                let events = events(&ended.err);
                let expected = ["acquired", "acquired", "lost", "child_exited"];
                assert_eq!(kinds(&events), expected, "{ended:?}");
                assert_eq!(names_of(&events, "lost"), [lost]);
            } else {
                assert!(
                    ended.err.contains(lost) && !ended.err.contains(other),
                    "{ended:?}"
                );
            }
            assert!(is_free(&lock(server, other).await).await);
        }
    }
}

#[tokio::test]
async fn loss_of_one_of_them_ends_the_wait_for_the_others() {
    let server = Server::shared().await;
    let [a, b] = names();
    let second = lock(server, &b).await;
    let _guard = second.acquire().await.unwrap();
    let args = ["run", "--lease", "1", "-E", "0", "--also", &a, &b, "echo", "ran"];
    let running = Running::start(&mut fairlock(&server.url(), &args));
    until_waiting(&second, 1).await;
    take_away(server, &a).await;
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.out), (Some(76), ""), "{ended:?}");
    assert!(
        ended.err.contains(&a) && ended.err.contains("taken away"),
        "{ended:?}"
    );
    assert_eq!(second.status().await.unwrap().waiting, 0);
}

#[tokio::test]
async fn longest_hold_counts_from_each_grant() {
    let server = Server::shared().await;
    let [a, b] = names();
    let second = lock(server, &b).await;
    let guard = second.acquire().await.unwrap();
    let args = [
        "run",
        "--json",
        "--max-hold",
        "8",
        "--kill-after",
        "1",
        "--also",
        &a,
        &b,
        "sleep",
        "60",
    ];
    let running = Running::start(&mut fairlock(&server.url(), &args));
    until_waiting(&second, 1).await;
    tokio::time::sleep(3 * SECOND).await;
    guard.release().await.unwrap();
    let handed_over = Instant::now();
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(76), "{ended:?}");
    // By the grant of the second lock alone, these would be 7 seconds.
    let took = handed_over.elapsed();
    assert!(took < Duration::from_millis(6500), "{took:?}");
    let events = events(&ended.err);
    assert_eq!(names_of(&events, "lost"), [&a], "{ended:?}");
}

#[tokio::test]
async fn process_that_is_killed_keeps_none_longer_than_its_lease() {
    let server = Server::shared().await;
    let [a, b] = names();
    let args = [
        "run",
        "--lease",
        "2",
        "--also",
        &a,
        &b,
        "-c",
        "echo ready; exec sleep 60",
    ];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    running.expect("ready").await;
    running.signal(Signal::SIGKILL);
    for name in [&a, &b] {
        let wait = lock(server, name).await.acquire_timeout(LIMIT).await;
        wait.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn command_that_cannot_be_started_keeps_none_of_them() {
    let server = Server::shared().await;
    let [a, b] = names();
    let ended = run(&["run", "--at-least", "1h", "--also", &a, &b, "/no/such/program"]).await;
    assert_eq!(ended.code, Some(127), "{ended:?}");
    assert!(is_free(&lock(server, &a).await).await && is_free(&lock(server, &b).await).await);
}

/// A job of several locks runs on another machine, or at another time, if one of them is busy.
#[tokio::test]
async fn locks_of_which_one_is_busy_are_not_kept() {
    let server = Server::shared().await;
    let [a, b] = names();
    let held = lock(server, &b).await.acquire().await.unwrap();
    for wait in [&["-n"][..], &["-w", "0.1"]] {
        let command = ["--at-least", "1h", "--also", &a, &b, "true"];
        let ended = run(&[&["run"], wait, &command].concat()).await;
        assert_eq!(ended.code, Some(75), "{ended:?}");
        assert!(is_free(&lock(server, &a).await).await, "{wait:?}");
    }
    let args = ["run", "--at-least", "1h", "--also", &a, &b, "true"];
    let waiting = Running::start(&mut fairlock(&server.url(), &args));
    until_waiting(&lock(server, &b).await, 1).await;
    waiting.signal(Signal::SIGTERM);
    let ended = waiting.ended().await;
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(is_free(&lock(server, &a).await).await);
    held.release().await.unwrap();
}

#[tokio::test]
async fn nested_run_joins_those_that_are_held_and_takes_the_others() {
    let [a, b] = names();
    let c = name();
    let inner = "echo $FAIRLOCK_FENCE; $FAIRLOCK run -n --also $3 $2 -c 'echo $FAIRLOCK_FENCE'; echo $?";
    let script = format!(
        "echo $FAIRLOCK_FENCE; for name in {a} {b} {c}; do $FAIRLOCK holds $name; echo $?; done; \
         $FAIRLOCK run -n --also {c} {b} -- sh -c '{}' sh {a} {b} {c}",
        inner.replace('\'', "'\\''")
    );
    let ended = run(&["run", "--also", &a, &b, "-c", &script]).await;
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!((ended.code, lines.len()), (Some(0), 7), "{ended:?}");
    assert_eq!(lines[1..4], ["0", "0", "1"], "{ended:?}");
    let of_b = lines[0].split(' ').next();
    assert_eq!(lines[4].split(' ').next(), of_b, "{ended:?}");
    // The innermost one joins a hold of each of the two above.
    assert_eq!((lines[5], lines[6]), (lines[4], "0"), "{ended:?}");
}

#[tokio::test]
async fn locks_of_a_quorum_are_taken_together_too() {
    let servers = Server::shared_quorum().await;
    let urls = servers.each_ref().map(Server::url).join(",");
    let [a, b] = names();
    let script = format!(
        "echo $FAIRLOCK_FENCE; $FAIRLOCK status --durable --exit-code {a} {b} >/dev/null && echo held; \
         for name in {a} {b} other; do $FAIRLOCK holds --durable $name; echo $?; done; \
         $FAIRLOCK run --durable -n {a} true"
    );
    let args = ["run", "--durable", "--also", &a, &b, "-c", &script];
    let ended = end_of(&mut fairlock(&urls, &args)).await;
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(ended.code, Some(75), "{ended:?}");
    assert_eq!(lines[0].split(' ').count(), 2, "{ended:?}");
    assert_eq!(lines[1..], ["held", "0", "0", "1"], "{ended:?}");
}
