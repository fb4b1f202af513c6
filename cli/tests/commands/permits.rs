//! Semaphores and read/write locks.

use std::process::Stdio;

use fairlock::{Fence, Kind, Listed};
use fairlock_testkit::{Server, eventually, free_port, name};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::scene::{LIMIT, Running, SECOND, client, end_of, events, fairlock, program, run, until_queued};

const SEMAPHORE: &[&str] = &["--of", "10"];
const READER: &[&str] = &["--shared"];
const WRITER: &[&str] = &["--exclusive"];

/// Holds it until its stdin is closed. Returns the fence too.
async fn hold(server: &Server, options: &[&str], name: &str) -> (Running, String) {
    let args = [&["hold", "--label", "holder"], options, &[name]].concat();
    let mut running = Running::start(fairlock(&server.url(), &args).stdin(Stdio::piped()));
    let fence = running.line().await;
    assert!(
        fence.parse::<u64>().is_ok(),
        "{fence} {:?}",
        running.ended().await
    );
    (running, fence)
}

async fn give_back(mut holding: Running) {
    holding.close_stdin();
    assert_eq!(holding.ended().await.code, Some(0));
}

/// The status of a command that does not wait.
async fn attempt(options: &[&str], name: &str) -> Option<i32> {
    let ended = run(&[&["run", "-n"], options, &[name, "true"]].concat()).await;
    let is_busy = ended.err.contains(&format!("{name} is busy"));
    assert_eq!(is_busy, ended.code == Some(75), "{ended:?}");
    ended.code
}

#[tokio::test]
async fn no_more_commands_run_at_a_time_than_the_semaphore_has_permits() {
    let server = Server::shared().await;
    let name = name();
    let (first, _) = hold(server, &["--of", "2"], &name).await;
    let script = "echo $FAIRLOCK_HELD $FAIRLOCK_NAME $FAIRLOCK_FENCE $FAIRLOCK_SLOT; read line; exit 3";
    let args = ["run", "--of", "2", &name, "-c", script];
    let mut second = Running::start(fairlock(&server.url(), &args).stdin(Stdio::piped()));
    let said = second.line().await;
    let status = client(server).await.semaphore(&name, 2).status().await.unwrap();
    let mut fences: Vec<Fence> = status.holders.iter().map(|holder| holder.fence).collect();
    fences.sort_unstable();
    assert_eq!(said, format!("1 {name} {} 1", fences[1]));
    assert_eq!((fences.len(), status.permits_in_use), (2, 2));

    assert_eq!(attempt(&["--of", "2"], &name).await, Some(75));
    // The capacity is the caller's.
    assert_eq!(attempt(&["--of", "3"], &name).await, Some(0));
    second.tell("\n").await;
    assert_eq!(second.ended().await.code, Some(3));
    assert_eq!(attempt(&["--of", "2"], &name).await, Some(0));
    give_back(first).await;
}

#[tokio::test]
async fn a_command_may_take_several_permits() {
    let server = Server::shared().await;
    let name = name();
    let (three, _) = hold(server, &["--permits", "3", "--of", "4"], &name).await;
    for (options, code) in [
        (&["--permits", "2", "--of", "4"][..], 75),
        (&["--permits", "1", "--of", "4"], 0),
        (&["--of", "4"], 0),
    ] {
        assert_eq!(attempt(options, &name).await, Some(code), "{options:?}");
    }
    give_back(three).await;
    assert_eq!(attempt(&["--permits", "4", "--of", "4"], &name).await, Some(0));
}

#[tokio::test]
async fn readers_run_together_and_a_writer_alone() {
    let server = Server::shared().await;
    let name = name();
    let (one, _) = hold(server, READER, &name).await;
    let (other, _) = hold(server, &["-s"], &name).await;
    assert_eq!(attempt(WRITER, &name).await, Some(75));
    assert_eq!(attempt(READER, &name).await, Some(0));

    // A writer comes before the readers that ask later.
    let args = ["run", "-x", &name, "echo", "written"];
    let writer = Running::start(&mut fairlock(&server.url(), &args));
    let rw_lock = client(server).await.rw_lock(&name);
    until_queued(async || rw_lock.status().await, 1).await;
    assert_eq!(attempt(READER, &name).await, Some(75));
    give_back(one).await;
    give_back(other).await;
    let ended = writer.ended().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "written\n"), "{ended:?}");

    let (writer, _) = hold(server, &["-e"], &name).await;
    assert_eq!(attempt(READER, &name).await, Some(75));
    assert_eq!(attempt(WRITER, &name).await, Some(75));
    give_back(writer).await;
}

/// Those who know `flock` expect that it is otherwise, so the help says it.
#[tokio::test]
async fn the_kinds_of_one_name_do_not_exclude_each_other() {
    let server = Server::shared().await;
    let name = name();
    let kinds = [&[][..], SEMAPHORE, READER, WRITER];
    for held in [&[][..], &["--permits", "10", "--of", "10"], WRITER] {
        let (holding, _) = hold(server, held, &name).await;
        let mut codes = Vec::new();
        for options in kinds {
            codes.push(attempt(options, &name).await.unwrap());
        }
        let expected = match held {
            [] => [75, 0, 0, 0],
            [_] => [0, 0, 75, 75],
            _ => [0, 75, 0, 0],
        };
        assert_eq!(codes, expected, "{held:?}");
        give_back(holding).await;
    }
    for command in ["run", "hold", "holds"] {
        let help = run(&[command, "-h"]).await.out;
        let mut lines = help.lines().skip_while(|line| !line.contains("--shared"));
        let first = [lines.next(), lines.next()]
            .map(Option::unwrap_or_default)
            .concat();
        assert!(first.contains("NAME without -s or -x is another lock"), "{help}");
    }
}

#[tokio::test]
async fn options_of_the_kind_count_for_each_lock() {
    let server = Server::shared().await;
    let (a, b) = (name(), name());
    let (both, fences) = hold_all(server, READER, &[&a, &b]).await;
    assert_eq!(fences.split(' ').count(), 2, "{fences}");
    for name in [&a, &b] {
        assert_eq!(attempt(READER, name).await, Some(0));
        assert_eq!(attempt(WRITER, name).await, Some(75));
    }
    give_back(both).await;
}

async fn hold_all(server: &Server, options: &[&str], names: &[&str; 2]) -> (Running, String) {
    let args = [&["hold"], options, &["--also", names[0], names[1]]].concat();
    let mut running = Running::start(fairlock(&server.url(), &args).stdin(Stdio::piped()));
    let fences = running.line().await;
    (running, fences)
}

#[tokio::test]
async fn permits_are_kept_as_a_lock_is_but_not_for_a_command_that_cannot_be_started() {
    let name = name();
    let limited = |command| ["run", "-n", "--of", "2", "--at-least", "10m", &name, command];
    assert_eq!(run(&limited("no-such-program-anywhere")).await.code, Some(127));
    for (command, code) in [("true", 0), ("false", 1), ("true", 75)] {
        assert_eq!(run(&limited(command)).await.code, Some(code));
    }
    let ended = run(&["status", &name]).await;
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines[0], format!("{name}: 2 of 2 permits in use, 0 waiting"));
    assert!(
        lines[1].starts_with("  1 of 2 permits (slot 0) kept by "),
        "{ended:?}"
    );
}

/// `status` lists 100 holders.
#[tokio::test]
async fn a_permit_beside_more_than_are_listed_is_not_kept_for_a_command_that_cannot_be_started() {
    let server = Server::shared().await;
    let name = name();
    let semaphore = client(server).await.semaphore(&name, 150);
    let held = futures_util::future::join_all((0..105).map(|_| semaphore.acquire())).await;
    let ended = run(&[
        "run",
        "--of",
        "150",
        "--at-least",
        "1h",
        &name,
        "/no/such/program",
    ])
    .await;
    assert_eq!(ended.code, Some(127), "{ended:?}");
    assert_eq!(semaphore.status().await.unwrap().permits_in_use, 105);
    drop(held);
}

#[tokio::test]
async fn bad_numbers_and_combinations_are_refused_before_a_server_is_asked() {
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    for (options, words) in [
        (&["--permits", "3"][..], &["--of <N>"][..]),
        (&["--of", "0"], &["capacity 0", "from 1 to 99999"]),
        (&["--of", "100000"], &["capacity 100000", "from 1 to 99999"]),
        (&["--of", "-1"], &["-1", "from 1 to 99999"]),
        (&["--of", "many"], &["many", "from 1 to 99999"]),
        (
            &["--permits", "0", "--of", "10"],
            &["permits 0", "from 1 to the capacity, 10"],
        ),
        (
            &["--permits", "11", "--of", "10"],
            &["permits 11", "from 1 to the capacity, 10"],
        ),
        (&["--permits", "4294967296", "--of", "10"], &["4294967296"]),
        (&["--shared", "--exclusive"], &["--shared", "--exclusive"]),
        (&["--shared", "--of", "10"], &["--shared", "--of"]),
        (&["--exclusive", "--permits", "3"], &["--exclusive", "--permits"]),
    ] {
        for args in [&["run", "a", "true"][..], &["hold", "a"], &["holds", "a"]] {
            let args = [&args[..1], options, &args[1..]].concat();
            let ended = end_of(&mut fairlock(&nobody, &args)).await;
            assert_eq!((ended.code, &*ended.out), (Some(64), ""), "{args:?} {ended:?}");
            for word in words {
                assert!(ended.err.contains(word), "{args:?} {ended:?}");
            }
        }
    }
    let quorum = [(); 3].map(|()| nobody.clone()).join(",");
    for (args, words) in [
        (
            &["run", "--of", "10", "a", "true"][..],
            "semaphore: must not be used in a quorum",
        ),
        (
            &["run", "-s", "a", "true"],
            "read/write lock: must not be used in a quorum",
        ),
        (
            &["hold", "-x", "a"],
            "read/write lock: must not be used in a quorum",
        ),
        (
            &["status", "--kind", "semaphore", "a"],
            "must not be used in a quorum",
        ),
        (
            &["watch", "--kind", "read-write", "a"],
            "must not be used in a quorum",
        ),
        (
            &["status", "--kind", "mutex", "a"],
            "[possible values: lock, semaphore, read-write]",
        ),
    ] {
        let ended = end_of(&mut fairlock(&quorum, args)).await;
        assert_eq!((ended.code, &*ended.out), (Some(64), ""), "{args:?} {ended:?}");
        assert!(ended.err.contains(words), "{args:?} {ended:?}");
    }
}

#[tokio::test]
async fn who_waits_is_told_how_much_is_in_use() {
    let server = Server::shared().await;
    let locks = client(server).await;
    let name = name();
    let permits = locks.semaphore(&name, 4).permits(3).acquire().await.unwrap();
    let writer = locks.rw_lock(&name).write().acquire().await.unwrap();
    for (options, words) in [
        (
            &["--permits", "2", "--of", "4"][..],
            "3 of 4 permits in use, 1 waiting",
        ),
        (READER, "a writer, held by rival for "),
    ] {
        let args = [&["run", "-w", "3"], options, &[&name, "true"]].concat();
        let ended = run(&args).await;
        assert_eq!(ended.code, Some(75), "{ended:?}");
        assert!(
            ended.err.contains(&format!("waiting for {name}: {words}")),
            "{ended:?}"
        );
    }
    let args = ["run", "--json", "-n", "--of", "4", &name, "true"];
    let ended = run(&args).await;
    let events = events(&ended.err);
    assert_eq!(
        (&events[0]["event"], &events[0]["name"]),
        (&json!("acquired"), &json!(name))
    );
    permits.release().await.unwrap();
    writer.release().await.unwrap();
}

/// What is said, with `T` for each time, and `N` for each fence.
async fn shown(args: &[&str]) -> Vec<String> {
    let ended = run(args).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let word = |word: &str| {
        let bare = word.trim_end_matches(',');
        let is_time = bare.starts_with(|c: char| c.is_ascii_digit()) && bare.ends_with('s');
        let is_fence = bare.len() > 10 && bare.parse::<u64>().is_ok();
        let shown = match (is_time, is_fence) {
            (true, _) => "T",
            (_, true) => "N",
            _ => bare,
        };
        format!("{shown}{}", &word[bare.len()..])
    };
    let words = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    ended.out.lines().map(words).collect()
}

#[tokio::test]
async fn status_and_list_show_each_kind_that_is_in_use_and_its_holders_below() {
    let server = Server::shared().await;
    let locks = client(server).await;
    let name = name();
    let free = [format!("{name}: free, 0 waiting")];
    assert_eq!(shown(&["status", &name]).await, free);

    let semaphore = locks.semaphore(&name, 10);
    let three = semaphore
        .clone()
        .permits(3)
        .lease(20 * SECOND)
        .acquire()
        .await
        .unwrap();
    let four = locks.semaphore(&name, 12).permits(4).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.semaphore(&name, 10).permits(4).acquire());
    until_queued(async || semaphore.status().await, 1).await;
    let of_semaphore = [
        format!("{name}: 7 of 12 permits in use, 1 waiting for up to T"),
        "  3 of 10 permits held by rival for T, fence N, T left".to_owned(),
        "  4 of 12 permits held by rival for T, fence N, T left".to_owned(),
    ];
    let readers = (
        locks.rw_lock(&name).read().acquire().await.unwrap(),
        locks.rw_lock(&name).read().acquire().await.unwrap(),
    );
    let reader = "  held by rival for T, fence N, T left".to_owned();
    let of_readers = [
        format!("{name}: 2 readers, 0 waiting"),
        reader.clone(),
        reader.clone(),
    ];
    let both = [&of_semaphore[..], &of_readers[..]].concat();
    assert_eq!(shown(&["status", &name]).await, both);
    let ended = run(&["status", &name]).await;
    let hint = format!("{name} is in use as several kinds, which do not exclude each other");
    assert!(ended.err.contains(&hint), "{ended:?}");
    assert_eq!(
        shown(&["status", "--kind", "semaphore", &name]).await,
        of_semaphore
    );
    assert_eq!(
        shown(&["status", "--kind", "read-write", &name]).await,
        of_readers
    );
    assert_eq!(shown(&["status", "--kind", "lock", &name]).await, free);
    let listed = shown(&["list", &name]).await;
    assert_eq!(listed.len(), both.len(), "{listed:?}");
    assert!(both.iter().all(|line| listed.contains(line)), "{listed:?}");
    assert_eq!(shown(&["list", "--kind", "read-write", &name]).await, of_readers);

    let lock = locks.lock(&name).acquire().await.unwrap();
    let of_lock = [format!("{name}: held by rival for T, fence N, T left, 0 waiting")];
    assert_eq!(shown(&["status", &name]).await, [&of_lock[..], &both].concat());
    assert_eq!(run(&["status", "--exit-code", &name]).await.code, Some(0));
    lock.release().await.unwrap();
    assert_eq!(run(&["status", "--exit-code", &name]).await.code, Some(0));
    let exit_code = ["status", "--exit-code", "--kind", "lock", &name];
    assert_eq!(run(&exit_code).await.code, Some(1));

    waiter.abort();
    three.release().await.unwrap();
    four.release().await.unwrap();
    readers.0.release().await.unwrap();
    let one = [format!("{name}: 1 reader, 0 waiting"), reader];
    assert_eq!(shown(&["status", &name]).await, one);
    readers.1.release().await.unwrap();
    let writer = locks.rw_lock(&name).write().acquire().await.unwrap();
    let of_writer = [format!(
        "{name}: a writer, held by rival for T, fence N, T left, 0 waiting"
    )];
    assert_eq!(shown(&["status", &name]).await, of_writer);
    writer.release().await.unwrap();
}

#[tokio::test]
async fn more_holders_than_are_shown_are_counted() {
    let server = Server::shared().await;
    let locks = client(server).await;
    let name = name();
    let mut guards = Vec::new();
    for number in 0..103 {
        // Holds that end in the same millisecond have no order.
        let read = locks.rw_lock(&name).lease((300 + number) * SECOND).read();
        guards.push(read.acquire().await.unwrap());
    }
    let lines = shown(&["status", &name]).await;
    assert_eq!(lines[0], format!("{name}: 103 readers, 0 waiting"));
    assert_eq!(
        (lines.len(), &*lines[101]),
        (102, "  and 3 more readers, whose holds end later")
    );
    let script = "$FAIRLOCK holds -s $FAIRLOCK_NAME; echo $?";
    let ended = run(&["run", "--lease", "10m", "-s", &name, "-c", script]).await;
    assert_eq!(ended.out, "69\n", "{ended:?}");
    assert!(ended.err.contains("has more holders than"), "{ended:?}");
    // One that is not shown can be ended all the same.
    let fence = guards.last().unwrap().fence().to_string();
    let status = locks.rw_lock(&name).status().await.unwrap();
    assert!(
        status
            .holders
            .iter()
            .all(|holder| holder.fence.to_string() != fence)
    );
    assert_eq!(run(&["release", &name, "--fence", &fence]).await.code, Some(0));
    assert_eq!(
        shown(&["status", &name]).await[0],
        format!("{name}: 102 readers, 0 waiting")
    );
}

#[tokio::test]
async fn json_has_what_the_library_tells() {
    let server = Server::shared().await;
    let locks = client(server).await;
    let name = name();
    let guard = locks.semaphore(&name, 10).permits(3).acquire().await.unwrap();
    for command in ["status", "list"] {
        let ended = run(&[command, "--json", &name]).await;
        let mut shown: Value = serde_json::from_str(&ended.out).unwrap();
        for pointer in ["/holder", "/holders/0"] {
            let holder = shown.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
            let times = ["held_for_ms", "ttl_ms"].map(|time| holder.remove(time).unwrap());
            assert!(times.iter().all(Value::is_u64), "{times:?}");
        }
        let holder = json!({
            "label": "rival", "owner": guard.owner().as_str(), "fence": guard.fence().get(), "holds": 1,
            "kept": false, "retains": false, "permits": 3, "capacity": 10, "slot": null, "writes": false,
        });
        let expected = json!({
            "name": name, "kind": "semaphore", "held": true, "holder": holder, "holders": [holder],
            "permits_in_use": 3, "capacity": 10, "readers": 0, "writer": false,
            "waiting": 0, "longest_wait_ms": null,
        });
        assert_eq!(shown, expected);
        // Programs read it as the library has it.
        let read: Listed = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(
            (read.status.holders[0].fence, read.kind),
            (guard.fence(), Kind::Semaphore)
        );
    }
    let ended = run(&["status", "--json", "--kind", "read-write", &name]).await;
    let shown: Value = serde_json::from_str(&ended.out).unwrap();
    let expected = json!({
        "name": name, "kind": "read_write", "held": false, "holder": null, "holders": [],
        "permits_in_use": 0, "capacity": null, "readers": 0, "writer": false,
        "waiting": 0, "longest_wait_ms": null,
    });
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn watch_tells_of_each_kind_when_it_changes() {
    let server = Server::shared().await;
    let locks = client(server).await;
    let name = name();
    let args = ["watch", "--interval", "50ms", "--json", &name];
    let mut watch = Running::start(&mut fairlock(&server.url(), &args));
    let mut told = async || {
        let line: Value = serde_json::from_str(&watch.line().await).unwrap();
        let kind = line["kind"].as_str().unwrap().to_owned();
        let in_use = ["permits_in_use", "readers"].map(|count| line[count].as_u64().unwrap());
        (kind, in_use[0] + in_use[1])
    };
    assert_eq!(told().await, ("lock".to_owned(), 0));
    let reader = locks.rw_lock(&name).read().acquire().await.unwrap();
    assert_eq!(told().await, ("read_write".to_owned(), 1));
    let permits = locks.semaphore(&name, 10).permits(3).acquire().await.unwrap();
    assert_eq!(told().await, ("semaphore".to_owned(), 3));
    reader.release().await.unwrap();
    assert_eq!(told().await, ("read_write".to_owned(), 0));

    // What is in use at the first look is all that is told of.
    let mut later = Running::start(&mut fairlock(&server.url(), &args[..]));
    let first: Value = serde_json::from_str(&later.line().await).unwrap();
    assert_eq!(first["kind"], "semaphore");
    permits.release().await.unwrap();
    let then: Value = serde_json::from_str(&later.line().await).unwrap();
    assert_eq!(
        (&then["kind"], &then["held"]),
        (&json!("semaphore"), &json!(false))
    );
}

#[tokio::test]
async fn release_ends_the_one_hold_with_that_fence() {
    let server = Server::shared().await;
    let locks = client(server).await;
    let name = name();
    let semaphore = locks.semaphore(&name, 10);
    let (one, other) = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let writer = locks.rw_lock(&name).write().acquire().await.unwrap();
    let release = async |fence: Fence, more: &[&str]| {
        let fence = fence.to_string();
        let args = [&["release", &name, "--fence", &fence], more].concat();
        run(&args).await.code
    };
    assert_eq!(release(one.fence(), &["--kind", "lock"]).await, Some(1));
    assert_eq!(release(one.fence(), &[]).await, Some(0));
    let status = semaphore.status().await.unwrap();
    assert_eq!(
        (status.permits_in_use, status.holders[0].fence),
        (1, other.fence())
    );
    assert_eq!(release(one.fence(), &[]).await, Some(1));
    assert_eq!(release(writer.fence(), &["--kind", "read-write"]).await, Some(0));
    let status = locks.rw_lock(&name).status().await.unwrap();
    assert!(status.holder.is_none(), "{status:?}");
}

/// A fence is a time in microseconds, so two kinds may give out the same one.
#[tokio::test]
async fn release_refuses_a_fence_of_two_kinds() {
    let server = Server::shared().await;
    let name = name();
    let locks = client(server).await;
    let guard = locks.semaphore(&name, 10).acquire().await.unwrap();
    for keys in ["", "timers:"] {
        let key = |kind: &str| format!("fairlock:{keys}{kind}:{{{name}}}");
        server.command(&["COPY", &key("semaphore"), &key("rw")]).await;
    }
    let fence = guard.fence().to_string();
    let ended = run(&["release", &name, "--fence", &fence]).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.err.contains("choose one by --kind"), "{ended:?}");
    let release = ["release", &name, "--fence", &fence, "--kind", "read-write"];
    assert_eq!(run(&release).await.code, Some(0));
    let kinds: Vec<Kind> = (locks.list_all(&name).await.unwrap().iter())
        .map(|listed| listed.kind)
        .collect();
    assert_eq!(kinds, [Kind::Semaphore]);
}

#[tokio::test]
async fn a_loss_of_a_permit_stops_the_command() {
    let server = Server::shared().await;
    let name = name();
    let args = [
        "run",
        "--lease",
        "1",
        "--of",
        "2",
        &name,
        "-c",
        "echo $FAIRLOCK_FENCE; exec sleep 60",
    ];
    let mut running = Running::start(&mut fairlock(&server.url(), &args));
    let fence = running.line().await;
    assert_eq!(run(&["release", &name, "--fence", &fence]).await.code, Some(0));
    assert_eq!(running.ended().await.code, Some(76));
}

#[tokio::test]
async fn holds_asks_for_as_much_as_run_would_take() {
    let script = |name: &str| {
        let asked = [
            "",
            "--shared",
            "--exclusive",
            "--of 10",
            "--permits 3 --of 10",
            "--permits 4 --of 10",
        ];
        let asks = asked.map(|options| format!("$FAIRLOCK holds {options} {name} && echo '[{options}]'"));
        asks.join("; ") + "; true"
    };
    for (options, expected) in [
        (&[][..], "[]"),
        (READER, "[--shared]"),
        (WRITER, "[--shared] [--exclusive]"),
        (SEMAPHORE, "[--of 10]"),
        (
            &["--permits", "3", "--of", "10"],
            "[--of 10] [--permits 3 --of 10]",
        ),
    ] {
        let name = name();
        let script = script(&name);
        let ended = run(&[&["run"], options, &[&name, "-c", &script]].concat()).await;
        let said: Vec<&str> = ended.out.lines().collect();
        assert_eq!(said.join(" "), expected, "{options:?} {ended:?}");
    }
}

/// None of these has an owner, so a nested run would wait for what it runs under.
#[tokio::test]
async fn a_nested_run_takes_permits_of_its_own() {
    let server = Server::shared().await;
    let name = name();
    let script = format!(
        "$FAIRLOCK run -nq --of 2 {name} $FAIRLOCK run -nq --of 2 {name} true; echo $?; \
         $FAIRLOCK run -nq --shared {name} $FAIRLOCK run -nq --exclusive {name} true; echo $?; \
         $FAIRLOCK run -nq {name} $FAIRLOCK run -nq {name} $FAIRLOCK holds --of 2 {name}; echo $?"
    );
    let ended = run(&["run", "--of", "2", &name, "-c", &script]).await;
    assert_eq!(ended.out, "75\n75\n0\n", "{ended:?}");

    // What it leaves behind holds nothing.
    let left = run(&["run", "--of", "2", &name, "-c", "echo $FAIRLOCK_OWNER"])
        .await
        .out;
    let mut command = program(crate::scene::FAIRLOCK, &server.url());
    command.args(["holds", "--of", "2", &name]);
    command
        .env("FAIRLOCK_HELD", "1")
        .env("FAIRLOCK_OWNER", left.trim());
    assert_eq!(end_of(&mut command).await.code, Some(1));
}

#[tokio::test]
async fn a_signal_ends_a_wait_for_permits_without_a_trace() {
    let server = Server::shared().await;
    let locks = client(server).await;
    let name = name();
    let _all = locks.semaphore(&name, 1).acquire().await.unwrap();
    let args = ["run", "--of", "1", &name, "true"];
    let waiting = Running::start(&mut fairlock(&server.url(), &args));
    let one = locks.semaphore(&name, 1);
    until_queued(async || one.status().await, 1).await;
    waiting.signal(Signal::SIGTERM);
    assert_eq!(waiting.ended().await.code, Some(143));
    eventually("nobody waits", LIMIT, async || {
        locks.semaphore(&name, 1).status().await.unwrap().waiting == 0
    })
    .await;
}

#[tokio::test]
async fn commands_begin_at_the_rate_and_hold_nothing() {
    let server = Server::shared().await;
    let name = name();
    let began = std::time::Instant::now();
    for _ in 0..3 {
        let ended = run(&[
            "run",
            "--rate",
            "10/s",
            &name,
            "-c",
            "echo ${FAIRLOCK_HELD-none}; exit 3",
        ])
        .await;
        assert_eq!((ended.code, &*ended.out), (Some(3), "none\n"), "{ended:?}");
    }
    assert!(began.elapsed() >= SECOND / 5, "{:?}", began.elapsed());
    let locks = client(server).await;
    assert!(locks.list_all(&name).await.unwrap().is_empty());

    let slow = ["run", "--rate", "1/10m", &name, "true"];
    assert_eq!(
        run(&slow).await.code,
        Some(0),
        "at the distance of the last caller"
    );
    for bound in [&["-n"][..], &["-w", "200ms"], &["-n", "-q", "-E", "9"]] {
        let ended = run(&[&slow[..3], bound, &slow[3..]].concat()).await;
        let is_quiet = bound.contains(&"-q");
        assert_eq!(ended.code, Some(if is_quiet { 9 } else { 75 }), "{ended:?}");
        assert_eq!(ended.err.is_empty(), is_quiet, "{ended:?}");
    }
    let waiting = Running::start(&mut fairlock(&server.url(), &slow));
    let status = ["status", "--rate", "1/10m", &name];
    eventually("it waits", LIMIT, async || {
        let shown = run(&status).await;
        let next = format!("{name}: the next may begin in 9m");
        assert!(shown.out.starts_with(&next), "{shown:?}");
        shown.out.ends_with(", 1 waiting\n")
    })
    .await;
    waiting.signal(Signal::SIGTERM);
    assert_eq!(waiting.ended().await.code, Some(143));
    let shown = run(&[&status[..], &["--burst", "2", "--json"]].concat()).await;
    let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!((&shown["name"], &shown["available"]), (&json!(name), &json!(2)));
    assert_eq!(shown["next_turn_ms"], json!(0));
}

#[tokio::test]
async fn a_rate_that_cannot_be_is_refused_before_a_server_is_asked() {
    for (options, said) in [
        (
            &["--rate", "0/s"][..],
            "rate limit of 0 within 1s: must be from 1",
        ),
        (
            &["--rate", "50"],
            "must be a number of turns and a time, as in 50/s",
        ),
        (&["--rate", "5/s", "--cost", "6"], "cost 6: must be from 1"),
        (&["--rate", "5/s", "--of", "3"], "cannot be used with"),
        (&["--burst", "5"], "--rate"),
    ] {
        let port = free_port().to_string();
        let url = format!("redis://127.0.0.1:{port}");
        let args = [&["run"], options, &["a", "true"]].concat();
        let ended = end_of(&mut fairlock(&url, &args)).await;
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert!(ended.err.contains(said), "{ended:?}");
    }
}
