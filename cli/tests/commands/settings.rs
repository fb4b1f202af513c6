//! Arguments, environment, and what is wrong with them.

use fairlock_testkit::{Server, TempDir, free_port, name};
use serde_json::Value;

use crate::scene::{Ended, Running, SECOND, end_of, fairlock, lock, run};

/// An address where nobody answers. What is wrong without a server must not wait for one.
fn nobody() -> String {
    format!("redis://127.0.0.1:{}", free_port())
}

async fn alone(args: &[&str]) -> Ended {
    end_of(&mut fairlock(&nobody(), args)).await
}

#[tokio::test]
async fn bad_input_is_refused_with_the_allowed_values_before_anything_is_sent() {
    for (args, words) in [
        (&["run", "-w", "soon", "a", "true"][..], &["soon", "500ms"][..]),
        (&["run", "-w", "-1", "a", "true"], &["-1", "500ms"]),
        (&["run", "--lease", "1w", "a", "true"], &["1w", "2m"]),
        (&["run", "--lease", "1ms", "a", "true"], &["lease 1ms", "100ms"]),
        (
            &["run", "--max-hold", "1s", "--at-least", "2s", "a", "true"],
            &["at_least 2s", "max_hold, 1s"],
        ),
        (
            &["run", "--max-hold", "1ms", "a", "true"],
            &["max_hold 1ms", "100ms"],
        ),
        (
            &["run", "--kill-after", "30", "a", "true"],
            &["--kill-after 30.0s", "less than the lease"],
        ),
        (&["run", "--signal", "TREM", "a", "true"], &["TREM", "TERM"]),
        (
            &["run", "--on-lost", "nothing", "a", "true"],
            &["nothing", "warn"],
        ),
        (&["run", "-E", "256", "a", "true"], &["256", "255"]),
        (&["run", "-n", "-w", "1", "a", "true"], &["--nonblock", "--wait"]),
        (&["run", "a{b", "true"], &["a{b"]),
        (&["run", "--also", "a{b", "a", "true"], &["a{b"]),
        (&["run", "--also", "", "a", "true"], &["lock name \"\""]),
        (
            &["hold", "--also", "b", "--lease", "1ms", "a"],
            &["lease 1ms", "100ms"],
        ),
        (&["run", "--label", "two words", "a", "true"], &["two words"]),
        (
            &["run", "--password-file", "/no/such/file", "a", "true"],
            &["/no/such/file"],
        ),
        (&["run", "a"], &["no command to run"]),
        (&["run"], &["NAME"]),
        (&["lock"], &["lock"]),
        (&["status"], &["NAME"]),
        (&["status", "a", "b}"], &["b}"]),
        (&["release", "", "--fence", "1"], &["name"]),
    ] {
        let ended = alone(args).await;
        assert_eq!((ended.code, &*ended.out), (Some(64), ""), "{args:?} {ended:?}");
        for word in words {
            assert!(ended.err.contains(word), "{args:?} {ended:?}");
        }
    }
}

/// Nobody answers at these addresses.
#[tokio::test]
async fn a_lock_of_a_quorum_cannot_be_kept_after_its_release() {
    let urls = [(); 3].map(|()| nobody()).join(",");
    for args in [
        &["run", "--at-least", "50s", "a", "true"][..],
        &["hold", "--at-least", "50s", "a"],
    ] {
        let ended = end_of(&mut fairlock(&urls, args)).await;
        assert_eq!((ended.code, &*ended.out), (Some(64), ""), "{args:?} {ended:?}");
        let words = "at_least: must not be set in a quorum; keep the guard for that long";
        assert!(ended.err.contains(words), "{args:?} {ended:?}");
    }
}

#[tokio::test]
async fn options_of_flock_alone_are_answered_with_a_sentence() {
    for (args, words) in [
        (&["run", "-F", "a", "true"][..], "renews the lease"),
        (&["run", "-o", "a", "true"], "nothing to close"),
        (&["run", "-u", "9"], "given back when CMD ends"),
        (&["run", "9"], "a file descriptor cannot hold this lock"),
    ] {
        let ended = alone(args).await;
        assert_eq!(ended.code, Some(64), "{args:?} {ended:?}");
        assert!(ended.err.contains(words), "{args:?} {ended:?}");
    }
}

#[tokio::test]
async fn help_and_version_are_no_errors() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let ended = alone(args).await;
        assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{args:?}");
        assert!(ended.out.contains("fairlock"), "{ended:?}");
    }
    assert_eq!(alone(&[]).await.code, Some(64));
}

#[tokio::test]
async fn help_shows_no_value_of_the_environment() {
    let mut command = fairlock("redis://:hidden@h", &["run", "--help"]);
    let hidden = ["FAIRLOCK_PREFIX", "FAIRLOCK_PASSWORD_FILE", "FAIRLOCK_PASSWORD"];
    let ended = end_of(command.envs(hidden.map(|name| (name, "hidden")))).await;
    assert!(
        ended.out.contains("FAIRLOCK_PREFIX") && !ended.out.contains("hidden"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn without_a_server_it_says_how_to_get_one() {
    let ended = end_of(&mut fairlock("", &["run", &name(), "true"])).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    for word in ["--url", "FAIRLOCK_URL", "redis-server"] {
        assert!(ended.err.contains(word), "{ended:?}");
    }
}

#[tokio::test]
async fn server_is_that_of_the_arguments_else_of_the_environment_in_order() {
    let url = Server::shared().await.url();
    let wrong = "wrong://";
    for (flag, own, redis, valkey) in [
        (Some(&*url), wrong, wrong, wrong),
        (None, &url, wrong, wrong),
        (None, "", &url, wrong),
        (None, "", "", &url),
    ] {
        let mut command = fairlock(own, &["run"]);
        command.env("REDIS_URL", redis).env("VALKEY_URL", valkey);
        command.args(flag.into_iter().flat_map(|url| ["--url", url]));
        let ended = end_of(command.args([&name(), "true"])).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[tokio::test]
async fn no_server_and_a_server_that_refuses_are_told_apart() {
    let server = Server::builder().config("requirepass", "secret/1").start().await;
    let url = server.url();
    let folder = TempDir::create();
    let file = folder.path().join("password");
    std::fs::write(&file, "wrong").unwrap();
    let (free, other) = (name(), name());
    let args = ["run", "--password-file", file.to_str().unwrap(), &other, "true"];
    // The file may be about to change.
    let mut with_file = fairlock(&url, &args);
    let away = ["run", "-E", "0", &free, "true"];
    let (ended, refused) = tokio::join!(alone(&away), end_of(&mut with_file));
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.err.contains("server unavailable"), "{ended:?}");
    assert_eq!(refused.code, Some(69), "{refused:?}");
    let said = &refused.err;
    assert!(
        said.contains("WRONGPASS") && !said.contains("wrong"),
        "{refused:?}"
    );

    let ended = end_of(&mut fairlock(&url, &["run", "-E", "0", &name(), "true"])).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    let mut command = fairlock(&url, &["run", &name(), "true"]);
    let ended = end_of(command.env("FAIRLOCK_PASSWORD", "wrong")).await;
    assert_eq!(ended.code, Some(77), "{ended:?}");
    assert!(!ended.err.contains("wrong"), "{ended:?}");

    let mut command = fairlock(&url, &["run", &name(), "true"]);
    let ended = end_of(command.env("FAIRLOCK_PASSWORD", "secret/1")).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    std::fs::write(&file, "secret/1\n").unwrap();
    assert_eq!(end_of(&mut fairlock(&url, &args)).await.code, Some(0));
    let mut command = fairlock(&url, &["status", "a"]);
    assert_eq!(
        end_of(command.env("FAIRLOCK_PASSWORD_FILE", &file)).await.code,
        Some(0)
    );
}

#[tokio::test]
async fn prefix_and_lease_come_from_the_environment_too() {
    let url = Server::shared().await.url();
    let name = name();
    let script = "$FAIRLOCK status --exit-code $FAIRLOCK_NAME; FAIRLOCK_PREFIX=other \
                  $FAIRLOCK status --exit-code $FAIRLOCK_NAME";
    let mut command = fairlock(&url, &["run", &name, "-c", script]);
    let ended = end_of(command.env("FAIRLOCK_PREFIX", "cli").env("FAIRLOCK_LEASE", "2m")).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains(", 1m5"), "{ended:?}");
    let mut command = fairlock(&url, &["run", &name, "true"]);
    let ended = end_of(command.env("FAIRLOCK_LEASE", "long")).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.err.contains("long"), "{ended:?}");
}

#[tokio::test]
async fn shorter_longest_lease_of_a_quorum_is_the_lease_of_its_locks() {
    let servers = Server::shared_quorum().await;
    let urls = servers.each_ref().map(Server::url).join(",");
    let name = name();
    let quorum = ["--durable", "--longest-lease", "10s"];
    let script = format!("$FAIRLOCK status {} --json {name}", quorum.join(" "));
    let args = [&["run"], &quorum[..], &[&name, "-c", &script]].concat();
    let ended = end_of(&mut fairlock(&urls, &args)).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let status: Value = serde_json::from_str(&ended.out).unwrap();
    let left = status["holder"]["ttl_ms"].as_u64().unwrap();
    assert!((1..=10_000).contains(&left), "{ended:?}");

    let args = [&["run"], &quorum[..], &["--kill-after", "10", &name, "true"]].concat();
    let ended = end_of(&mut fairlock(&urls, &args)).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.err.contains("less than the lease"), "{ended:?}");
}

#[tokio::test]
async fn variables_that_are_set_and_empty_are_as_not_set() {
    let empty = ["LEASE", "PREFIX", "PASSWORD", "PASSWORD_FILE", "OWNER", "HELD"];
    let mut command = fairlock(&Server::shared().await.url(), &["run", &name(), "true"]);
    command.envs(empty.map(|name| (format!("FAIRLOCK_{name}"), "")));
    let ended = end_of(&mut command).await;
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{ended:?}");
}

#[tokio::test]
async fn a_password_may_have_a_mark_before_it_and_an_end_of_line_behind_it() {
    let server = Server::builder().config("requirepass", "secret/1").start().await;
    let folder = TempDir::create();
    let file = folder.path().join("password");
    for text in ["secret/1", "secret/1\n", "secret/1\r\n", "\u{feff}secret/1\r\n"] {
        std::fs::write(&file, text).unwrap();
        for (variable, value) in [("PASSWORD", text), ("PASSWORD_FILE", file.to_str().unwrap())] {
            let mut command = fairlock(&server.url(), &["run", &name(), "true"]);
            let ended = end_of(command.env(format!("FAIRLOCK_{variable}"), value)).await;
            assert_eq!(ended.code, Some(0), "{variable} {text:?} {ended:?}");
        }
    }
}

/// Race: A secret that is mounted as a file changes, and a connection breaks.
#[tokio::test]
async fn a_password_file_is_read_at_each_dial() {
    let server = Server::builder().config("requirepass", "old").start().await;
    let folder = TempDir::create();
    let file = folder.path().join("password");
    std::fs::write(&file, "old").unwrap();
    let name = name();
    let password = file.to_str().unwrap();
    let script = "echo in; read line; echo out";
    let args = [
        "run",
        "--lease",
        "2",
        "--password-file",
        password,
        &name,
        "-c",
        script,
    ];
    let mut running = fairlock(&server.url(), &args);
    let mut running = Running::start(running.stdin(std::process::Stdio::piped()));
    running.expect("in").await;
    let mut admin = server.client().await;
    std::fs::write(&file, "new").unwrap();
    for words in [
        &["AUTH", "old"][..],
        &["CONFIG", "SET", "requirepass", "new"],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["CLIENT", "KILL", "TYPE", "pubsub"],
    ] {
        admin.command(words).await.unwrap();
    }
    // Longer than the lease.
    tokio::time::sleep(3 * SECOND).await;
    running.tell("\n").await;
    running.expect("out").await;
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Race: A server is there, and cannot give the lock.
#[tokio::test]
async fn only_a_busy_lock_is_forgiven() {
    let server = Server::shared().await;
    let busy = name();
    let guard = lock(server, &busy).await.acquire().await.unwrap();
    let args = ["run", "-w", "0.1", "-q", "-E", "0", &busy, "echo", "ran"];
    let ended = run(&args).await;
    assert_eq!(
        (ended.code, &*ended.out, &*ended.err),
        (Some(0), "", ""),
        "{ended:?}"
    );
    guard.release().await.unwrap();

    let node = Server::builder().config("cluster-enabled", "yes").start().await;
    let replica = Server::builder().config("replicaof", "127.0.0.1 1").start().await;
    for (server, code) in [(&node, 77), (&replica, 69)] {
        let mut command = fairlock(
            &server.url(),
            &["run", "-w", "5", "-q", "-E", "0", &name(), "echo", "ran"],
        );
        let ended = end_of(&mut command).await;
        assert_eq!((ended.code, &*ended.out), (Some(code), ""), "{ended:?}");
        assert!(!ended.err.is_empty(), "{ended:?}");
    }
}
