//! Signals to the command, and what its end does to CMD.

use std::time::Duration;

use fairlock_testkit::{Server, name};
use nix::sys::signal::{SigSet, Signal};
use tokio::process::Command;

use crate::scene::{Running, fairlock, is_free, lock, program, run, until_waiting};

/// Says when it is ready. A shell that stayed would block signals for the moment in which it starts a
/// program, and a signal of that moment would end only the shell.
const SLEEPER: &str = "echo ready; exec sleep 60";
/// Says when it is ready, and when it gets the signal $1. So does the shell within it.
const GROUP: &str = r#"
trap 'echo outer' "$1"
sh -c 'trap "echo inner; exit" "$1"; echo ready; while :; do sleep 0.05; done' sh "$1"
exit 5
"#;

/// Sends this signal to the command. CMD and what it started must get that one, and end as they want to.
async fn all_of_the_group_get(passed_on: &str, signal: &str) {
    let server = Server::shared().await;
    let name = name();
    let args = ["run", &name, "sh", "-c", GROUP, "sh", passed_on];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    running.expect("ready").await;
    running.send(signal);
    running.expect("inner").await;
    running.expect("outer").await;
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(5), "{signal}: {ended:?}");
    assert!(is_free(&lock(server, &name).await).await);
}

#[tokio::test]
async fn every_signal_that_would_end_it_goes_to_the_commands_group() {
    for signal in ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"] {
        all_of_the_group_get(signal, signal).await;
    }
}

#[tokio::test]
async fn command_that_a_passed_signal_ends_gives_its_number() {
    let server = Server::shared().await;
    let mut running = Running::start(&mut fairlock(&server.url(), &["run", &name(), "-c", SLEEPER]));
    running.expect("ready").await;
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

#[tokio::test]
async fn command_that_a_real_time_signal_ends_gives_its_number() {
    let ended = run(&["run", &name(), "-c", "kill -34 $$"]).await;
    assert_eq!(ended.code, Some(162), "{ended:?}");
}

/// A signal that only ends a process by default, as that of a timer, must not leave CMD alone and the lock to
/// its lease.
#[tokio::test]
async fn no_signal_ends_it_without_its_command_and_its_lock() {
    for signal in ["ALRM", "PROF", "XCPU", "34", "64"] {
        all_of_the_group_get("TERM", signal).await;
    }
}

/// A log rotation asks CMD for something. It does not ask a leader to end.
#[tokio::test]
async fn leader_whose_command_fails_after_a_signal_of_its_own_campaigns_again() {
    let server = Server::shared().await;
    let script = "trap 'echo rotated; exit 1' USR1; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::start(&mut fairlock(&server.url(), &["lead", &name(), "-c", script]));
    for _ in 0..2 {
        running.expect("ready").await;
        running.send("USR1");
        running.expect("rotated").await;
    }
    running.expect("ready").await;
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

/// A process that reads its signals from a file descriptor leaves them blocked.
#[tokio::test]
async fn signals_that_were_blocked_from_the_beginning_are_heard() {
    let server = Server::shared().await;
    let mut command = fairlock(&server.url(), &["run", &name(), "-c", SLEEPER]);
    block_all_signals(&mut command);
    let mut running = Running::start(&mut command);
    running.expect("ready").await;
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

#[allow(unsafe_code)]
fn block_all_signals(command: &mut Command) {
    // SAFETY: the closure makes one system call, takes no lock, and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(SigSet::all().thread_block()?));
    }
}

#[tokio::test]
async fn ignored_signal_stays_ignored() {
    let server = Server::shared().await;
    let script = "echo ready; while :; do sleep 0.05; done";
    let mut shell = program("/bin/sh", &server.url());
    shell.args([
        "-c",
        r#"trap "" HUP; exec "$FAIRLOCK" run "$1" -c "$2""#,
        "sh",
        &name(),
        script,
    ]);
    let mut running = Running::start(&mut shell);
    running.expect("ready").await;
    running.signal(Signal::SIGHUP);
    tokio::time::sleep(Duration::from_millis(300)).await;
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().await.code, Some(143));
}

#[tokio::test]
async fn signal_ends_a_wait_at_once_and_leaves_no_place_in_the_queue() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let guard = lock.acquire().await.unwrap();
    for (signal, code) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
    ] {
        for command in [&["run", &name, "echo", "ran"][..], &["hold", &name]] {
            let running = Running::start(&mut fairlock(&server.url(), command));
            until_waiting(&lock, 1).await;
            running.signal(signal);
            let ended = running.ended().await;
            assert_eq!((ended.code, &*ended.out), (Some(code), ""), "{ended:?}");
            assert_eq!(lock.status().await.unwrap().waiting, 0);
        }
    }
    guard.release().await.unwrap();
}

/// The system tells CMD. Nothing that the command itself could do would work.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn command_is_terminated_when_its_parent_is_killed() {
    let server = Server::shared().await;
    let script = "trap 'echo terminated; exit' TERM; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::start(&mut fairlock(&server.url(), &["run", &name(), "-c", script]));
    running.expect("ready").await;
    running.signal(Signal::SIGKILL);
    running.expect("terminated").await;
    running.expect("").await;
}
