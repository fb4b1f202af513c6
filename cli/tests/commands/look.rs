//! What an operator sees and does.

use std::time::Duration;

use fairlock_testkit::{Server, free_port, name};
use serde_json::Value;

use crate::scene::{Running, end_of, fairlock, lock, run, until_waiting};

#[tokio::test]
async fn status_shows_who_holds_and_how_many_wait() {
    let server = Server::shared().await;
    let (name, free) = (name(), name());
    let lock = lock(server, &name).await;
    let guard = lock.acquire().await.unwrap();
    let waiter = tokio::spawn(lock.acquire());
    until_waiting(&lock, 1).await;

    let ended = run(&["status", &name, &free]).await;
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(
        lines[0].starts_with(&format!("{name}: held by rival for ")),
        "{ended:?}"
    );
    assert!(
        lines[0].contains(&format!("fence {}, ", guard.fence())),
        "{ended:?}"
    );
    assert!(lines[0].contains(", 1 waiting for up to "), "{ended:?}");
    assert_eq!(lines[1], format!("{free}: free, 0 waiting"));

    let ended = run(&["status", "--json", &name]).await;
    let shown: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&shown["name"], &shown["held"]), (&name.into(), &true.into()));
    assert_eq!(
        (&shown["waiting"], &shown["holder"]["holds"]),
        (&1.into(), &1.into())
    );
    assert!(shown["longest_wait_ms"].as_u64().unwrap() < 60_000, "{ended:?}");
    let holder = &shown["holder"];
    assert_eq!(holder["owner"], guard.owner().as_str());
    assert_eq!(
        (&holder["label"], &holder["fence"]),
        (&"rival".into(), &guard.fence().get().into())
    );
    assert!(
        (1..=30_000).contains(&holder["ttl_ms"].as_u64().unwrap()),
        "{ended:?}"
    );
    waiter.abort();
}

#[tokio::test]
async fn a_lock_that_may_be_retained_is_shown_as_such() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await.retain(Duration::from_secs(5));
    let guard = lock.acquire().await.unwrap();
    for command in ["status", "list"] {
        let ended = run(&[command, &name]).await;
        assert!(
            ended.out.contains(": held or retained by rival for "),
            "{ended:?}"
        );
    }
    let ended = run(&["status", "--json", &name]).await;
    let shown: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(shown["holder"]["retains"], true);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn status_tells_a_free_lock_by_its_exit_status_if_asked() {
    let server = Server::shared().await;
    let (held, free) = (name(), name());
    let _guard = lock(server, &held).await.acquire().await.unwrap();
    assert_eq!(run(&["status", &free]).await.code, Some(0));
    assert_eq!(run(&["status", "--exit-code", &held]).await.code, Some(0));
    assert_eq!(run(&["status", "--exit-code", &held, &free]).await.code, Some(1));
}

#[tokio::test]
async fn list_shows_the_locks_that_match() {
    let server = Server::shared().await;
    let (one, other) = (name(), name());
    let _one = lock(server, &one).await.acquire().await.unwrap();
    let _other = lock(server, &other).await.acquire().await.unwrap();
    let ended = run(&["list", &format!("{}*", &one[..one.len() - 1])]).await;
    assert_eq!((ended.code, ended.out.lines().count()), (Some(0), 1), "{ended:?}");
    assert!(
        ended.out.starts_with(&format!("{one}: held by rival")),
        "{ended:?}"
    );
    let ended = run(&["list", "--json"]).await;
    let names = ended
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].clone());
    let names: Vec<Value> = names.collect();
    assert!(
        names.contains(&one.into()) && names.contains(&other.into()),
        "{names:?}"
    );
}

#[tokio::test]
async fn watch_shows_a_lock_whenever_it_changes() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let args = ["watch", "--interval", "50ms", "--json", &name];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    let mut shown = async || serde_json::from_str::<Value>(&running.line().await).unwrap();
    assert_eq!(shown().await["held"], false);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(shown().await["holder"]["fence"], guard.fence().get());
    guard.release().await.unwrap();
    assert_eq!(shown().await["held"], false);
}

#[tokio::test]
async fn release_ends_only_the_hold_that_was_shown() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let guard = lock.acquire().await.unwrap();
    let fence = guard.fence().get();
    let ended = run(&["release", &name, "--fence", &(fence - 1).to_string()]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("is not held under fence"), "{ended:?}");
    assert!(lock.status().await.unwrap().holder.is_some());
    assert_eq!(
        run(&["release", &name, "--fence", &fence.to_string()]).await.code,
        Some(0)
    );
    assert!(lock.status().await.unwrap().holder.is_none());
    assert_eq!(run(&["release", &name]).await.code, Some(64));
    assert_eq!(run(&["release", &name, "--fence", "0"]).await.code, Some(64));
}

/// A terminal would take them for orders, and a reader of the output for lines.
#[tokio::test]
async fn control_characters_of_a_name_are_not_shown() {
    let server = Server::shared().await;
    let base = name();
    let odd = format!("{base}\u{1b}[2J\nother: free");
    let _guard = lock(server, &odd).await.acquire().await.unwrap();
    let shown = format!("{base}\u{fffd}[2J\u{fffd}other: free");
    for args in [&["status", &odd][..], &["list", &format!("{base}*")]] {
        let ended = run(args).await;
        assert_eq!(ended.out.lines().count(), 1, "{ended:?}");
        assert!(
            ended.out.starts_with(&format!("{shown}: held by rival")),
            "{ended:?}"
        );
    }
    let ended = run(&["run", "-n", &odd, "true"]).await;
    assert!(
        ended.err.starts_with(&format!("fairlock: {shown} is busy")),
        "{ended:?}"
    );
    let ended = run(&["status", "--json", &odd]).await;
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["name"], odd.as_str());
}

#[tokio::test]
async fn a_wrong_pattern_or_interval_is_refused_before_a_server_is_asked() {
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    for (args, words) in [
        (&["list", ""][..], "must not be empty"),
        (
            &["watch", "--interval", "0", "a"],
            "--interval 0ms: must be at least 10ms",
        ),
    ] {
        let ended = end_of(&mut fairlock(&nowhere, args)).await;
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert!(ended.err.contains(words), "{ended:?}");
    }
}

#[tokio::test]
async fn watch_tells_that_a_lock_is_kept() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await.at_least(Duration::from_secs(600));
    let guard = lock.acquire().await.unwrap();
    let args = ["watch", "--interval", "50ms", "--json", &name];
    let mut watch = Running::start(&mut fairlock(&server.url(), &args));
    let mut kept =
        async || serde_json::from_str::<Value>(&watch.line().await).unwrap()["holder"]["kept"].clone();
    assert_eq!(kept().await, false);
    guard.release().await.unwrap();
    assert_eq!(kept().await, true);
}

#[tokio::test]
async fn a_pattern_in_the_place_of_a_name_is_answered_with_a_hint() {
    let (pattern, fence) = (format!("{}:*", name()), "1790000000000000");
    for (args, code) in [
        (&["status", &pattern][..], 0),
        (&["release", &pattern, "--fence", fence], 1),
        (&["run", &pattern, "true"], 0),
    ] {
        let ended = run(args).await;
        let hint = format!("`fairlock list '{pattern}'`");
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.err.contains(&hint), "{args:?} {ended:?}");
    }
    assert_eq!(run(&["run", "-q", &pattern, "true"]).await.err, "");
}

#[tokio::test]
async fn where_nothing_is_held_it_is_said_which_server_and_prefix_that_is() {
    let url = Server::shared().await.url();
    let with_login = url.replace("redis://", "redis://default:hidden@");
    let name = name();
    for args in [
        &["status", "--prefix", "other", &name][..],
        &["list", "--prefix", "other"],
    ] {
        let ended = end_of(&mut fairlock(&with_login, args)).await;
        assert_eq!(
            ended.err,
            format!("fairlock: looked at {url}, prefix other\n"),
            "{ended:?}"
        );
    }
    for args in [&["status", "--json", &name][..], &["list", "--json", &name]] {
        assert_eq!(run(args).await.err, "");
    }
}
