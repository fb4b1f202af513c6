//! A command that runs the command again.

use fairlock_testkit::{Server, name};

use crate::scene::{end_of, fairlock, run};

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
