//! `top` on a real terminal.

use fairlock::LockManager;
use fairlock_testkit::{Proxy, Server, eventually, prefix};
use nix::sys::signal::Signal;

use crate::pty::Pty;
use crate::scene::{FAIRLOCK, LIMIT, end_of, fairlock, until_waiting};

const SIZE: (u16, u16) = (12, 110);

fn start(url: &str, prefix: &str, more: &[&str]) -> Option<Pty> {
    let mut args = vec!["top", "--interval", "100ms", "--prefix", prefix];
    args.extend(more);
    let pty = Pty::start(FAIRLOCK, &args, url, SIZE)?;
    pty.read();
    Some(pty)
}

async fn client(url: &str, prefix: &str) -> LockManager {
    let builder = LockManager::builder().label("rival").prefix(prefix);
    builder.connect(url).await.unwrap()
}

/// The words of the lock's line.
fn words(pty: &Pty, name: &str) -> Vec<String> {
    let line = pty.line_with(name).unwrap_or_default();
    line.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn top_shows_who_holds_and_waits_as_it_changes() {
    let url = Server::shared().await.url();
    let prefix = prefix();
    let locks = client(&url, &prefix).await;
    let Some(mut pty) = start(&url, &prefix, &[]) else {
        return;
    };
    pty.until("it is there", |screen| screen.contains("0 locks, 0 waiting"))
        .await;
    let quiet = locks.lock("a-quiet-one").acquire().await.unwrap();
    let busy = locks.lock("busy");
    let first = busy.acquire().await.unwrap();
    let waiters: Vec<_> = (0..2).map(|_| tokio::spawn(busy.acquire())).collect();
    until_waiting(&busy, 2).await;
    pty.until("two wait", |screen| screen.contains("2 locks, 2 waiting"))
        .await;
    let shown = words(&pty, "busy");
    assert_eq!(shown[1..4], ["lock", "2", "rival"], "{shown:?}");
    assert_eq!(shown.last(), Some(&first.fence().to_string()));
    // The lock with most waiters is above the other one.
    let screen = pty.screen();
    assert!(screen.find("busy") < screen.find("a-quiet-one"), "{screen}");
    pty.type_in("n");
    pty.until("names are in their order", |screen| {
        screen.find("busy") > screen.find("a-quiet-one")
    })
    .await;

    first.release().await.unwrap();
    pty.until("one waits", |screen| screen.contains("2 locks, 1 waiting"))
        .await;
    eventually("a change was counted", LIMIT, async || {
        let shown = words(&pty, "busy");
        shown.iter().any(|word| word.starts_with('≥') && word != "≥0.0")
    })
    .await;
    quiet.release().await.unwrap();
    pty.until("it is gone", |screen| screen.contains("1 locks, 1 waiting"))
        .await;

    pty.resize((5, 20));
    pty.until("it is small", |screen| {
        let lines: Vec<&str> = screen.lines().collect();
        lines.get(1).is_some_and(|line| line.trim_end().ends_with("WAIT")) && screen.contains("busy")
    })
    .await;
    pty.resize((24, 120));
    pty.until("it is large", |screen| screen.contains("FENCE")).await;
    pty.type_in("q");
    assert_eq!(pty.code().await, Some(0));
    eventually("the terminal is clean", LIMIT, async || pty.is_clean()).await;
    for waiter in waiters {
        waiter.abort();
    }
}

#[tokio::test]
async fn top_shows_each_kind_by_itself() {
    let url = Server::shared().await.url();
    let prefix = prefix();
    let locks = client(&url, &prefix).await;
    let Some(mut pty) = start(&url, &prefix, &[]) else {
        return;
    };
    let permits = locks.semaphore("api", 10).permits(7).acquire().await.unwrap();
    let writer = locks.rw_lock("config").write().acquire().await.unwrap();
    pty.until("both are there", |screen| {
        screen.contains("7 of 10 permits in use") && screen.contains("a writer: rival")
    })
    .await;
    let (_lock, _one) = (
        locks.lock("api").acquire().await.unwrap(),
        locks.semaphore("api", 10).acquire().await.unwrap(),
    );
    let _reading = writer.downgrade().await.unwrap();
    pty.until("they have changed", |screen| {
        screen.contains("3 locks, 0 waiting")
            && screen.contains("8 of 10 permits in use")
            && screen.contains("1 reader ")
    })
    .await;
    permits.release().await.unwrap();
    pty.until("one permit is left", |screen| {
        screen.contains("1 of 10 permits in use")
    })
    .await;
    pty.type_in("q");
    assert_eq!(pty.code().await, Some(0));
}

#[tokio::test]
async fn top_gives_the_terminal_back_at_a_signal_and_at_ctrl_c() {
    let url = Server::shared().await.url();
    for (signal, code) in [
        (Some(Signal::SIGTERM), 143),
        (Some(Signal::SIGHUP), 129),
        (None, 0),
    ] {
        let Some(mut pty) = start(&url, &prefix(), &[]) else {
            return;
        };
        pty.until("it is there", |screen| screen.contains("0 locks"))
            .await;
        assert!(!pty.is_clean());
        match signal {
            Some(signal) => pty.signal(signal),
            None => pty.type_in("\u{3}"),
        }
        assert_eq!(pty.code().await, Some(code));
        eventually("the terminal is clean", LIMIT, async || pty.is_clean()).await;
    }
}

#[tokio::test]
async fn top_goes_on_when_a_lost_server_is_back() {
    let server = Server::start().await;
    let network = Proxy::start(server.port());
    let prefix = prefix();
    let _guard = client(&server.url(), &prefix)
        .await
        .lock("stays")
        .acquire()
        .await
        .unwrap();
    let Some(mut pty) = start(&network.url(), &prefix, &["stay*"]) else {
        return;
    };
    pty.until("it is there", |screen| screen.contains("stays")).await;
    network.freeze();
    pty.until("it says that there is no answer", |screen| {
        screen.contains("no answer for")
    })
    .await;
    assert!(pty.screen().contains("stays"), "{}", pty.screen());
    network.thaw();
    pty.until("it goes on", |screen| {
        !screen.contains("no answer") && screen.contains("stays")
    })
    .await;
    network.refuse();
    network.cut();
    pty.until("it says why", |screen| screen.contains("server unavailable"))
        .await;
    assert!(pty.screen().contains("stays"), "{}", pty.screen());
    network.heal();
    pty.until("it goes on", |screen| {
        !screen.contains("server unavailable") && screen.contains("stays")
    })
    .await;
    pty.type_in("q");
    assert_eq!(pty.code().await, Some(0));
}

#[tokio::test]
async fn top_scrolls_through_more_locks_than_fit() {
    let url = Server::shared().await.url();
    let prefix = prefix();
    let locks = client(&url, &prefix).await;
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(locks.lock(format!("lock-{number:02}")).acquire().await.unwrap());
    }
    let Some(pty) = start(&url, &prefix, &[]) else {
        return;
    };
    pty.until("all are found", |screen| {
        screen.contains("20 locks") && screen.contains("lock-00")
    })
    .await;
    assert!(!pty.screen().contains("lock-19"));
    for (keys, there, gone) in [
        ("\u{1b}[6~", "lock-17", "lock-00"),
        ("\u{1b}[F", "lock-19", "lock-00"),
        ("\u{1b}[A", "lock-10", "lock-19"),
        ("\u{1b}[H", "lock-00", "lock-19"),
        ("\u{1b}[B", "lock-09", "lock-00"),
    ] {
        pty.type_in(keys);
        pty.until(&format!("{there} is shown after {keys:?}"), |screen| {
            screen.contains(there) && !screen.contains(gone)
        })
        .await;
    }
}

#[tokio::test]
async fn top_ends_if_the_server_refuses_to_list() {
    let server = Server::start().await;
    server
        .set_user(&["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-scan"])
        .await;
    let Some(mut pty) = start(&server.url_as("u", "p"), &prefix(), &[]) else {
        return;
    };
    assert_eq!(pty.code().await, Some(77));
    pty.until("it says why", |screen| screen.contains("scan")).await;
    assert!(pty.is_clean());
}

#[tokio::test]
async fn top_without_a_terminal_names_what_programs_can_use() {
    let url = Server::shared().await.url();
    let ended = end_of(&mut fairlock(&url, &["top"])).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    for words in ["list --json", "watch"] {
        assert!(ended.err.contains(words), "{ended:?}");
    }
    assert_eq!(ended.out, "");
    let Some(mut pty) = Pty::start(FAIRLOCK, &["top", "--interval", "1ms"], &url, SIZE) else {
        return;
    };
    pty.read();
    assert_eq!(pty.code().await, Some(64));
    pty.until("it says what is allowed", |screen| {
        screen.contains("at least 100ms")
    })
    .await;
}

#[tokio::test]
async fn top_of_a_quorum_shows_which_servers_answer() {
    let servers = [
        Server::start().await,
        Server::start().await,
        Server::start().await,
    ];
    let urls = servers.each_ref().map(Server::url);
    let Some(mut pty) = start(&urls.join(","), &prefix(), &["--durable"]) else {
        return;
    };
    pty.until("all answer", |screen| {
        screen.matches(": answers in ").count() == 3
    })
    .await;
    servers[1].pause();
    pty.until("one does not", |screen| {
        let line = screen
            .lines()
            .find(|line| line.contains(&format!("{}: ", urls[1])));
        line.is_some_and(|line| line.contains("no answer")) && screen.matches(": answers in ").count() == 2
    })
    .await;
    servers[1].resume();
    pty.until("all answer again", |screen| {
        screen.matches(": answers in ").count() == 3
    })
    .await;
    pty.type_in("q");
    assert_eq!(pty.code().await, Some(0));
}
