//! A command under a lock.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use fairlock_testkit::{Server, TempDir, name};

use crate::scene::{Running, end_of, fairlock, is_free, lock, run};

#[tokio::test]
async fn stdin_is_passed_and_stdout_is_the_commands_alone() {
    let url = Server::shared().await.url();
    let name = name();
    let mut command = fairlock(&url, &["run", "-v", &name, "cat"]);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    running.tell("one\ntwo\n").await;
    running.close_stdin();
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "one\ntwo\n"));
    assert!(
        ended.err.contains(&format!("fairlock: acquired {name}")),
        "{ended:?}"
    );
    assert!(
        ended.err.contains(&format!("fairlock: released {name}")),
        "{ended:?}"
    );
}

#[tokio::test]
async fn arguments_reach_the_command_as_they_are_and_a_shell_only_if_asked() {
    let ended = run(&["run", &name(), "echo", "$HOME; *", "-n", "--", "-c"]).await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "$HOME; * -n -- -c\n"));
    let ended = run(&["run", &name(), "-c", "echo $((1 + 2)) | cat"]).await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "3\n"));
}

#[tokio::test]
async fn exit_status_is_the_commands_own() {
    assert_eq!(run(&["run", &name(), "true"]).await.code, Some(0));
    assert_eq!(run(&["run", &name(), "-c", "exit 7"]).await.code, Some(7));
    assert_eq!(run(&["run", &name(), "-c", "exit 255"]).await.code, Some(255));
    assert_eq!(
        run(&["run", &name(), "-c", "kill -KILL $$"]).await.code,
        Some(137)
    );
}

#[tokio::test]
async fn command_that_cannot_be_run_is_told_from_one_that_is_not_there_and_frees_the_lock() {
    let server = Server::shared().await;
    let name = name();
    let folder = TempDir::create();
    let file = folder.path().join("no-program");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let ended = run(&["run", &name, file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(126), "{ended:?}");
    assert!(ended.err.contains("no-program"), "{ended:?}");
    let ended = run(&["run", &name, "no-such-program-anywhere"]).await;
    assert_eq!(ended.code, Some(127), "{ended:?}");
    assert!(is_free(&lock(server, &name).await).await);
}

#[tokio::test]
async fn command_knows_its_lock_which_is_held_until_it_ends() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let script = "echo $FAIRLOCK_HELD $FAIRLOCK_NAME $FAIRLOCK_FENCE; read line";
    let mut command = fairlock(&server.url(), &["run", &name, "-c", script]);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let said = running.line().await;
    let holder = lock.status().await.unwrap().holder.unwrap();
    assert_eq!(said, format!("1 {name} {}", holder.fence));
    let label = holder.label.unwrap();
    assert!(
        label.rsplit_once(':').unwrap().1.parse::<u32>().is_ok(),
        "{label}"
    );
    running.tell("\n").await;
    assert_eq!(running.ended().await.code, Some(0));
    assert!(is_free(&lock).await);
}

#[tokio::test]
async fn label_of_the_command_line_is_what_others_see() {
    let server = Server::shared().await;
    let name = name();
    let script = "$FAIRLOCK status $FAIRLOCK_NAME";
    let mut command = fairlock(
        &server.url(),
        &["run", "--label", "deploy-7", &name, "-c", script],
    );
    let ended = end_of(&mut command).await;
    assert!(ended.out.contains("held by deploy-7 for"), "{ended:?}");
}
