//! What becomes of CMD when its lock is lost.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use fairlock_testkit::{Server, TempDir, name};

use crate::scene::{FAIRLOCK, Running, SECOND, end_of, events, fairlock, kinds, lock, program, run};

/// Says that it is ready, and writes to the file $1 again and again. SIGTERM does not end it.
const STUBBORN: &str = r#"
trap 'echo terminated' TERM
echo ready
while :; do : >"$1"; sleep 0.02; done
"#;

/// Ends the hold of this lock by the command, as an operator would.
async fn take_away(server: &Server, name: &str) {
    let holder = lock(server, name).await.status().await.unwrap().holder.unwrap();
    let ended = run(&["release", name, "--fence", &holder.fence.to_string()]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[tokio::test]
async fn command_is_terminated_when_its_lock_is_taken_away() {
    let server = Server::shared().await;
    let name = name();
    let script = "trap 'echo terminated; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let args = ["run", "--json", "--lease", "1", &name, "-c", script];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    running.expect("ready").await;
    take_away(server, &name).await;
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.out), (Some(76), "terminated\n"), "{ended:?}");
    let events = events(&ended.err);
    assert_eq!(kinds(&events), ["acquired", "lost", "child_exited"]);
    assert_eq!(events[1]["reason"], "taken");
}

#[tokio::test]
async fn command_that_goes_on_is_killed_after_the_time_of_choice() {
    let server = Server::shared().await;
    let folder = TempDir::create();
    let file = folder.path().join("beat");
    let name = name();
    let args = [
        "run",
        "--lease",
        "1",
        "--kill-after",
        "700ms",
        &name,
        "sh",
        "-c",
        STUBBORN,
        "sh",
    ];
    let mut running = Running::start(fairlock(&server.url(), &args).arg(&file));
    running.expect("ready").await;
    take_away(server, &name).await;
    running.expect("terminated").await;
    let terminated = Instant::now();
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(76), "{ended:?}");
    assert!(terminated.elapsed() >= Duration::from_millis(500));
    assert!(ended.err.contains("taken away"), "{ended:?}");
}

#[tokio::test]
async fn signal_of_choice_comes_first() {
    let server = Server::shared().await;
    let name = name();
    let script = "trap 'echo interrupted; exit' INT; echo ready; while :; do sleep 0.05; done";
    let args = ["run", "--lease", "1", "--signal", "INT", &name, "-c", script];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    running.expect("ready").await;
    take_away(server, &name).await;
    let ended = running.ended().await;
    assert_eq!(
        (ended.code, &*ended.out),
        (Some(76), "interrupted\n"),
        "{ended:?}"
    );
}

/// The server ends the lease no later than one lease after it stopped to answer.
#[tokio::test]
async fn command_is_dead_before_the_lease_is_over_that_could_not_be_renewed() {
    let server = Server::start().await;
    let folder = TempDir::create();
    let file = folder.path().join("beat");
    let lease = 3 * SECOND;
    // The shell in between ends at once, and what is stubborn is only in its group.
    let script = r#"sh -c "$STUBBORN" sh "$BEAT"; exit 1"#;
    let mut command = fairlock(
        &server.url(),
        &["run", "--json", "--lease", "3", &name(), "-c", script],
    );
    let mut running = Running::start(command.env("STUBBORN", STUBBORN).env("BEAT", &file));
    running.expect("ready").await;
    server.pause();
    let paused = SystemTime::now();
    running.expect("terminated").await;
    let ended = running.ended().await;
    server.resume();
    assert_eq!(ended.code, Some(76), "{ended:?}");
    assert_eq!(events(&ended.err)[1]["reason"], "in_doubt", "{ended:?}");
    let last_beat = std::fs::metadata(&file).unwrap().modified().unwrap();
    assert!(last_beat <= paused + lease, "{last_beat:?} {paused:?}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), last_beat);
}

#[tokio::test]
async fn lease_that_is_renewed_stops_nothing() {
    let ended = run(&[
        "run",
        "--lease",
        "1",
        "--kill-after",
        "900ms",
        &name(),
        "sleep",
        "3",
    ])
    .await;
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
}

#[tokio::test]
async fn hold_ends_at_its_longest_time_and_the_command_before_it() {
    let server = Server::shared().await;
    let name = name();
    let began = Instant::now();
    let args = [
        "run",
        "--json",
        "--max-hold",
        "2",
        "--kill-after",
        "1",
        &name,
        "sleep",
        "60",
    ];
    let ended = end_of(&mut fairlock(&server.url(), &args)).await;
    assert_eq!(ended.code, Some(76), "{ended:?}");
    assert!(began.elapsed() >= SECOND, "{:?}", began.elapsed());
    let events = events(&ended.err);
    assert_eq!(events[1]["reason"], "max_hold", "{ended:?}");
    assert_eq!(events[2]["signal"], "SIGTERM", "{ended:?}");
}

#[tokio::test]
async fn warning_leaves_the_command_alone() {
    let server = Server::shared().await;
    let name = name();
    let script = "trap 'echo terminated' TERM; echo ready; sleep 2; exit 4";
    let args = ["run", "--lease", "1", "--on-lost", "warn", &name, "-c", script];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    running.expect("ready").await;
    take_away(server, &name).await;
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.out), (Some(4), ""), "{ended:?}");
    assert!(ended.err.contains("taken away"), "{ended:?}");
}

/// It was stopped for longer than its lease: another holder may be at work, so there is no time to clean up.
#[tokio::test]
async fn command_is_killed_at_once_when_the_lease_is_over_already() {
    let server = Server::shared().await;
    let name = name();
    let script = "trap 'echo terminated' TERM; echo ready; while :; do sleep 0.05; done";
    let args = ["run", "--json", "--lease", "1", &name, "-c", script];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    running.expect("ready").await;
    running.signal(nix::sys::signal::Signal::SIGSTOP);
    let next = lock(server, &name).await.acquire().await.unwrap();
    running.signal(nix::sys::signal::Signal::SIGCONT);
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.out), (Some(76), ""), "{ended:?}");
    assert_eq!(events(&ended.err)[2]["signal"], "SIGKILL", "{ended:?}");
    next.release().await.unwrap();
}

/// Race: The job has used up the processes of its user, and a connection breaks.
#[tokio::test]
async fn a_process_that_can_start_no_thread_leaves_its_command_alone() {
    let server = Server::start().await;
    let url = server.url().replace("127.0.0.1", "localhost");
    // The limit does not count for root.
    let user = ["--reuid", "54321", "--regid", "54321", "--clear-groups"];
    let mut probe = std::process::Command::new("setpriv");
    let works = probe.args(user).args([FAIRLOCK, "--version"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: `setpriv` cannot change the user here");
        return;
    }
    let mut command = program("setpriv", &url);
    let script = "echo in; read line; echo out";
    let args = [FAIRLOCK, "run", &name(), "-c", script];
    let mut running = Running::start(command.args(user).args(args).stdin(Stdio::piped()));
    running.expect("in").await;
    let pid = running.pid().to_string();
    let limit = |processes: &str| {
        let mut limit = std::process::Command::new("setpriv");
        let limit = limit.args(user).args(["prlimit", "--pid", &pid, processes]);
        assert!(limit.status().unwrap().success());
    };
    limit("--nproc=1:");
    server.kill_clients().await;
    tokio::time::sleep(SECOND).await;
    limit("--nproc=1000:");
    running.tell("\n").await;
    running.expect("out").await;
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{ended:?}");
}
