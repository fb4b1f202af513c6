//! A command that runs the command again.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use fairlock_testkit::{Server, TempDir, name};

use crate::scene::{Ended, Running, end_of, fairlock, is_free, lock, program, run};

/// What CMD of a run of this lock finds in its environment.
async fn inherited(server: &Server, command: &str, name: &str) -> Vec<(String, String)> {
    let script = "env | grep ^FAIRLOCK_";
    let ended = end_of(&mut fairlock(&server.url(), &[command, name, "-c", script])).await;
    let words = ended.out.lines().filter_map(|line| line.split_once('='));
    let words = words.filter(|(name, _)| *name != "FAIRLOCK_URL");
    words
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[tokio::test]
async fn nested_run_of_the_same_lock_re_enters_with_others_in_between() {
    let (a, b) = (name(), name());
    let script = format!(
        "echo $FAIRLOCK_FENCE; $FAIRLOCK run -n {b} $FAIRLOCK run -n {a} -c 'echo $FAIRLOCK_FENCE'; echo $?"
    );
    let ended = run(&["run", &a, "-c", &script]).await;
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.len(), 3, "{ended:?}");
    assert_eq!((lines[0], lines[2]), (lines[1], "0"), "{ended:?}");
}

#[tokio::test]
async fn other_locks_of_a_nested_run_exclude_each_other() {
    let (a, b) = (name(), name());
    // The innermost run knows what one beside the run of `b` would know.
    let script = format!(
        "OUTER=$FAIRLOCK_OWNER $FAIRLOCK run {b} -c 'FAIRLOCK_OWNER=$OUTER $FAIRLOCK run -n {b} true'"
    );
    let ended = run(&["run", &a, "-c", &script]).await;
    assert_eq!(ended.code, Some(75), "{ended:?}");
}

#[tokio::test]
async fn owner_counts_only_within_a_run() {
    let server = Server::shared().await;
    let name = name();
    let script = format!("FAIRLOCK_HELD= $FAIRLOCK run -n {name} true");
    let ended = end_of(&mut fairlock(&server.url(), &["run", &name, "-c", &script])).await;
    assert_eq!(ended.code, Some(75), "{ended:?}");
}

#[tokio::test]
async fn several_urls_are_a_quorum_where_no_run_re_enters() {
    let servers = Server::shared_quorum().await;
    let urls = servers.each_ref().map(Server::url);
    let name = name();
    let list = urls.join(",");
    let script = format!("echo in; $FAIRLOCK run --durable -n {name} true");
    let ended = end_of(&mut fairlock(&list, &["run", "--durable", &name, "-c", &script])).await;
    assert_eq!((ended.code, &*ended.out), (Some(75), "in\n"), "{ended:?}");

    let flags: Vec<&str> = urls.iter().flat_map(|url| ["--url", url]).collect();
    let args = [&["status"], &flags[..], &["--durable", &name]].concat();
    let ended = end_of(&mut fairlock("", &args)).await;
    assert_eq!(ended.out, format!("{name}: free, 0 waiting\n"), "{ended:?}");

    let ended = end_of(&mut fairlock(&urls[..2].join(","), &["status", &name])).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.err.contains("must have 3, 5, 7 or 9"), "{ended:?}");
}

/// Race: A process that CMD has left behind starts commands when the hold is over.
#[tokio::test]
async fn what_a_finished_run_leaves_behind_takes_the_lock_as_anybody_else() {
    let server = Server::shared().await;
    let name = name();
    let left = inherited(server, "run", &name).await;
    assert!(left.iter().any(|(name, _)| name == "FAIRLOCK_OWNER"), "{left:?}");
    let command = |args: &[&str]| {
        let mut command = fairlock(&server.url(), args);
        command.envs(left.clone());
        command
    };
    let script = "echo in; read line; $FAIRLOCK run -n $FAIRLOCK_NAME echo nested";
    let mut first = command(&["run", &name, "-c", script]);
    let mut first = Running::start(first.stdin(Stdio::piped()));
    first.expect("in").await;
    let second = end_of(&mut command(&["run", "-n", &name, "echo", "overlap"])).await;
    assert_eq!((second.code, &*second.out), (Some(75), ""), "{second:?}");
    first.tell("\n").await;
    first.expect("nested").await;
    assert_eq!(first.ended().await.code, Some(0));
    assert!(is_free(&lock(server, &name).await).await);
}

#[tokio::test]
async fn holds_is_true_within_the_hold_alone() {
    let server = Server::shared().await;
    for command in ["run", "lead"] {
        let (name, other) = (name(), name());
        let script = format!(
            "$FAIRLOCK holds {name} && echo held; $FAIRLOCK holds {other} || echo other; \
             $FAIRLOCK holds --prefix other {name} || echo elsewhere"
        );
        let ended = end_of(&mut fairlock(&server.url(), &[command, &name, "-c", &script])).await;
        assert_eq!(ended.out, "held\nother\nelsewhere\n", "{ended:?}");

        let left = inherited(server, command, &name).await;
        let after = async |expected| {
            let Ended { code, out, err } =
                end_of(fairlock(&server.url(), &["holds", &name]).envs(left.clone())).await;
            assert_eq!((code, &*out, &*err), (expected, "", ""), "{command}");
        };
        after(Some(1)).await;
        // Another hold of the same lock.
        let guard = lock(server, &name).await.acquire().await.unwrap();
        after(Some(1)).await;
        guard.release().await.unwrap();
    }
    assert_eq!(run(&["holds", &name()]).await.code, Some(1));
}

#[tokio::test]
async fn a_script_that_asks_takes_its_own_lock_once() {
    let server = Server::shared().await;
    let (name, directory) = (name(), TempDir::create());
    let path = directory.path().join("script");
    let script = format!(
        "#!/bin/sh\n\"$FAIRLOCK\" holds {name} || exec \"$FAIRLOCK\" run {name} -- \"$0\" \"$@\"\n\
         \"$FAIRLOCK\" status --exit-code {name} >/dev/null && echo \"under the lock: $1\"\n"
    );
    std::fs::write(&path, script).unwrap();
    let path = path.to_str().unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    let left = inherited(server, "run", &name).await;
    for left in [Vec::new(), left] {
        let mut command = program(path, &server.url());
        let ended = end_of(command.arg("once").envs(left)).await;
        assert_eq!(
            (ended.code, &*ended.out),
            (Some(0), "under the lock: once\n"),
            "{ended:?}"
        );
    }
}
