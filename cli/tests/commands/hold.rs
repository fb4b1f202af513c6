//! A lock for a script.

use std::process::Stdio;

use fairlock_testkit::{Server, name};
use nix::sys::signal::Signal;

use crate::scene::{LIMIT, Running, end_of, fairlock, is_free, lock, run};

#[tokio::test]
async fn hold_prints_its_fence_and_lasts_until_the_end_of_stdin() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let mut running = Running::start(fairlock(&server.url(), &["hold", &name]).stdin(Stdio::piped()));
    let fence = running.line().await;
    let holder = lock.status().await.unwrap().holder.unwrap();
    assert_eq!(fence, holder.fence.to_string());
    running.tell("what is said does not matter\n").await;
    running.close_stdin();
    assert_eq!(running.ended().await.code, Some(0));
    assert!(is_free(&lock).await);
}

#[tokio::test]
async fn hold_in_the_background_lasts_until_a_signal() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // Its stdin is /dev/null.
        let mut running = Running::start(&mut fairlock(&server.url(), &["hold", &name]));
        running.line().await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert!(lock.status().await.unwrap().holder.is_some());
        running.signal(signal);
        assert_eq!(running.ended().await.code, Some(0));
        assert!(is_free(&lock).await);
    }
}

#[tokio::test]
async fn hold_that_is_lost_ends_with_a_status_of_its_own() {
    let server = Server::shared().await;
    let name = name();
    let mut running = Running::start(&mut fairlock(&server.url(), &["hold", "--lease", "1", &name]));
    let fence = running.line().await;
    assert_eq!(run(&["release", &name, "--fence", &fence]).await.code, Some(0));
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(76), "{ended:?}");
    assert!(ended.err.contains("taken away"), "{ended:?}");
}

#[tokio::test]
async fn a_lock_stays_taken_for_at_least_as_long_as_it_should() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    // As a crontab does, on several machines at about the same time.
    let crontab = ["run", "-n", "-E", "0", "--at-least", "2", &name, "echo", "done"];
    let began = tokio::time::Instant::now();
    let first = run(&crontab).await;
    assert_eq!((first.code, &*first.out), (Some(0), "done\n"), "{first:?}");
    let late = run(&crontab).await;
    assert_eq!((late.code, &*late.out), (Some(0), ""), "{late:?}");
    let shown = run(&["status", &name]).await;
    assert!(shown.out.contains(": kept by "), "{shown:?}");
    let shown = run(&["status", "--json", &name]).await;
    assert!(shown.out.contains("\"kept\":true"), "{shown:?}");

    let next = lock.acquire().await.unwrap();
    assert!(began.elapsed() >= std::time::Duration::from_secs(2));
    next.release().await.unwrap();
}

/// Otherwise one machine without the program would keep all others from the work.
#[tokio::test]
async fn a_command_that_cannot_be_started_keeps_no_lock_taken() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let ended = run(&["run", "--at-least", "1h", &name, "/no/such/program"]).await;
    assert_eq!(ended.code, Some(127), "{ended:?}");
    assert!(is_free(&lock).await);

    // The lock of an outer `run` is left alone.
    let script = r#""$FAIRLOCK" run --at-least 1h "$NAME" /no/such/program; "$FAIRLOCK" status "$NAME""#;
    let mut nested = fairlock(&server.url(), &["run", &name, "sh", "-c", script]);
    let ended = end_of(nested.env("NAME", &name)).await;
    assert!(ended.out.contains(": held by "), "{ended:?}");
    assert!(is_free(&lock).await);
}

#[tokio::test]
async fn hold_whose_fence_cannot_be_written_ends_and_leaves_no_lock() {
    let server = Server::shared().await;
    let name = name();
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        eprintln!("skipped: no /dev/full");
        return;
    };
    let mut command = fairlock(&server.url(), &["hold", "--at-least", "1h", &name]);
    let child = command.stdout(full).spawn().unwrap();
    let output = tokio::time::timeout(LIMIT, child.wait_with_output()).await;
    let output = output.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
    assert!(is_free(&lock(server, &name).await).await);
}
