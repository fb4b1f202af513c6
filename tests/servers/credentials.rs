//! Credentials that change while clients are connected, and nobody notices.

use std::collections::BTreeSet;
use std::future::{Ready, pending, ready};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlock::{Credentials, Error, LockManager, LockManagerBuilder, Quorum};
use fairlock_testkit::{Cluster, History, Proxy, Sentinels, Server, Setup, eventually};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
/// How long a user's credentials are valid in these tests. They are renewed after a second.
const LIFETIME: Duration = Duration::from_millis(1500);
/// Everything that needs no timer happens within this time, also on a busy machine.
const SOON: Duration = Duration::from_secs(1);
const LABEL: &str = "rotating";

fn settings() -> LockManagerBuilder {
    LockManager::builder()
        .prefix("t")
        .label(LABEL)
        .lease(30 * SECOND)
        .claim_window(5 * SECOND)
        .server_timeout(5 * SECOND)
}

/// A user of the server's access control list, with all rights.
async fn create(server: &Server, user: &str) {
    let password = format!(">of-{user}");
    let words = ["ACL", "SETUSER", user, "on", &password, "~*", "&*", "+@all"];
    assert_eq!(server.command(&words).await.text(), "OK");
}

/// What a provider answers.
#[derive(Clone)]
struct Vault {
    user: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
    lifetime: Option<Duration>,
}

impl Vault {
    fn of(user: &str) -> Vault {
        Vault {
            user: Arc::new(Mutex::new(user.to_owned())),
            asked: Arc::default(),
            lifetime: Some(LIFETIME),
        }
    }

    fn turn_to(&self, user: &str) {
        user.clone_into(&mut self.user.lock().unwrap());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn provider(&self) -> impl Fn(String) -> Ready<Result<Credentials, String>> + Send + Sync + 'static {
        let vault = self.clone();
        move |_| {
            vault.asked.fetch_add(1, Ordering::SeqCst);
            let user = vault.user.lock().unwrap().clone();
            let credentials = Credentials::new(&user, format!("of-{user}"));
            ready(Ok(match vault.lifetime {
                Some(lifetime) => credentials.lifetime(lifetime),
                None => credentials,
            }))
        }
    }
}

/// The connections of the client: their numbers, and their users.
async fn connections(server: &Server) -> (BTreeSet<u64>, BTreeSet<String>) {
    let list = server.command(&["CLIENT", "LIST"]).await;
    let name = format!("name={LABEL}");
    let (mut ids, mut users) = (BTreeSet::new(), BTreeSet::new());
    for line in list.text().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if words.contains(&name.as_str()) {
            let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)).unwrap();
            ids.insert(value("id=").parse().unwrap());
            users.insert(value("user=").to_owned());
        }
    }
    (ids, users)
}

async fn subscribed(server: &Server) {
    let is_so = async || server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.text() != "";
    eventually("a subscriber", 10 * SECOND, is_so).await;
}

/// Waits until all connections of the client belong to this user.
async fn all_of(server: &Server, user: &str) {
    let only = BTreeSet::from([user.to_owned()]);
    let is_so = async || connections(server).await.1 == only;
    eventually(&format!("all connections are of {user}"), 20 * SECOND, is_so).await;
}

/// Removes a user. The server closes all connections of it.
async fn remove(server: &Server, user: &str) {
    assert_eq!(server.command(&["ACL", "DELUSER", user]).await.int(), 1);
}

/// What clients do all the time: they take contended locks and others, and try. All of it must succeed.
fn load(clients: &[LockManager], history: &History, stop: &Arc<AtomicBool>) -> JoinSet<u64> {
    let mut tasks = JoinSet::new();
    for (n, locks) in clients.iter().cycle().take(8).enumerate() {
        let (locks, history, stop) = (locks.clone(), history.clone(), Arc::clone(stop));
        tasks.spawn(async move {
            let mut calls = 0;
            while !stop.load(Ordering::Relaxed) {
                let entry = history.asks(n);
                let guard = locks.lock("contended").acquire().await.expect("a guard");
                entry.granted(guard.fence().get());
                sleep(Duration::from_millis(1)).await;
                entry.released();
                guard.release().await.expect("a release");

                let own = locks.lock(format!("own-{n}"));
                let guard = own.try_acquire().await;
                guard.expect("it is free").release().await.expect("a release");
                own.status().await.expect("a status");
                calls += 1;
            }
            calls
        });
    }
    tasks
}

/// The users follow one another, and the server closes the connections of the former ones.
///
/// Race: Credentials expire while locks are in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_change_under_load_and_no_call_fails() {
    let server = Server::start().await;
    create(&server, "user-0").await;
    let vault = Vault::of("user-0");
    let mut clients = Vec::new();
    for _ in 0..2 {
        // Leases that are renewed more often than the credentials.
        let settings = settings().lease(SECOND).claim_window(SECOND);
        let settings = settings.credentials(vault.provider());
        clients.push(settings.connect(&server.url()).await.unwrap());
    }
    let held = clients[0].lock("held").acquire().await.unwrap();
    let (history, stop) = (History::default(), Arc::new(AtomicBool::new(false)));
    let mut load = load(&clients, &history, &stop);
    eventually("the load runs", 20 * SECOND, async || {
        history.grants().len() > 100
    })
    .await;
    let (open, _) = connections(&server).await;
    assert_eq!(open.len(), 2);
    for n in 1..=3 {
        let (former, user) = (format!("user-{}", n - 1), format!("user-{n}"));
        create(&server, &user).await;
        vault.turn_to(&user);
        all_of(&server, &user).await;
        remove(&server, &former).await;
        let grants = history.grants().len();
        eventually("the load goes on", 20 * SECOND, async || {
            history.grants().len() > grants + 100
        })
        .await;
        assert_eq!(connections(&server).await.0, open, "connections were replaced");
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(calls) = load.join_next().await {
        assert!(calls.expect("no call fails") > 0);
    }
    held.check().unwrap();
    held.release().await.unwrap();
    for locks in &clients {
        assert_eq!((crate::lost(locks), locks.stats().timed_out), (0, 0));
    }
    history.assert_no_overlap();
    history.assert_fences_increase();
    // Nobody had to wait for a timer. The lock goes around in some ms.
    let longest = history.grants().iter().filter_map(|hold| hold.wait()).max();
    assert!(longest.unwrap() < SOON, "{longest:?}");
    let denied = server.command(&["ACL", "LOG"]).await;
    assert_eq!(denied.array(), [], "{denied:?}");
}

/// Race: Credentials expire while somebody waits for a message.
#[tokio::test]
async fn a_waiter_keeps_its_place_and_makes_no_call_while_its_credentials_are_renewed() {
    let server = Server::start().await;
    create(&server, "first").await;
    create(&server, "second").await;
    let vault = Vault::of("first");
    let proxy = Proxy::start(server.port());
    let locks = settings().credentials(vault.provider());
    let locks = locks.connect(&proxy.url()).await.unwrap();
    let others = settings().label("others").connect(&server.url()).await.unwrap();
    let guard = others.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").acquire());
    subscribed(&server).await;
    let (former, _) = connections(&server).await;
    // The poll that follows the subscription is done. The next one is due after 4.5 s.
    sleep(Duration::from_millis(200)).await;
    let (calls, began) = (proxy.count("EVALSHA"), Instant::now());
    vault.turn_to("second");
    all_of(&server, "second").await;
    remove(&server, "first").await;
    assert_eq!(connections(&server).await.0, former);
    let (made, took) = (proxy.count("EVALSHA") - calls, began.elapsed());
    guard.release().await.unwrap();
    let granted = timeout(SOON, waiter).await.expect("it heard of its turn");
    granted.unwrap().unwrap().release().await.unwrap();
    assert!(made <= took.as_secs() / 4, "{made} calls in {took:?}");
}

/// Without a lifetime, the provider is asked for each new connection only.
#[tokio::test]
async fn a_password_that_changes_is_shown_by_the_next_connection() {
    let server = Server::start().await;
    create(&server, "locks").await;
    let password = Arc::new(Mutex::new("of-locks"));
    let (shown, asked) = (Arc::clone(&password), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    let provider = move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        ready(Ok::<_, String>(Credentials::new("locks", *shown.lock().unwrap())))
    };
    let locks = settings()
        .credentials(provider)
        .connect(&server.url())
        .await
        .unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    sleep(2 * LIFETIME).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1, "for the connection");

    // First both are valid. Then the server forgets the old one, before the provider does.
    let set = async |word| server.command(&["ACL", "SETUSER", "locks", word]).await;
    assert_eq!(set(">new").await.text(), "OK");
    assert_eq!(set("<of-locks").await.text(), "OK");
    server.kill_clients().await;
    let other = tokio::spawn(locks.lock("b").acquire());
    eventually("the provider is asked again", 5 * SECOND, async || {
        asked.load(Ordering::SeqCst) > 2
    })
    .await;
    *password.lock().unwrap() = "new";
    // Its calls waited, and succeed.
    other.await.unwrap().unwrap().release().await.unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(crate::lost(&locks), 0);
}

async fn unavailable(settings: LockManagerBuilder, server: &Server) -> String {
    let began = Instant::now();
    let error = settings
        .server_timeout(SECOND)
        .connect(&server.url())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(began.elapsed() < 10 * SECOND);
    error.to_string()
}

#[tokio::test]
async fn a_provider_that_fails_hangs_or_panics_is_named_by_the_error() {
    let server = Server::start().await;
    let failing = settings().credentials(|_| ready(Err::<Credentials, _>("no such file")));
    let error = unavailable(failing, &server).await;
    let port = server.port();
    assert!(
        error.contains(&format!(
            "127.0.0.1:{port}: the credentials provider failed: no such file"
        )),
        "{error}"
    );
    let hanging = settings().credentials(|_| pending::<Result<Credentials, String>>());
    let error = unavailable(hanging, &server).await;
    assert!(
        error.contains("the credentials provider did not answer within 500ms"),
        "{error}"
    );
    let panicking = |_| -> Ready<Result<Credentials, String>> { panic!("on purpose") };
    let error = unavailable(settings().credentials(panicking), &server).await;
    assert!(error.contains("the credentials provider panicked"), "{error}");
    let wrong = settings().credentials(|_| ready(Ok::<_, String>(Credentials::new("locks", "wrong"))));
    let error = unavailable(wrong, &server).await;
    assert!(error.contains("WRONGPASS"), "{error}");
}

#[tokio::test]
async fn a_provider_that_fails_at_first_is_asked_again() {
    let server = Server::start().await;
    create(&server, "locks").await;
    let asked = AtomicUsize::new(0);
    let settings = settings().credentials(move |_| {
        ready(match asked.fetch_add(1, Ordering::SeqCst) {
            0..3 => Err("not yet"),
            _ => Ok(Credentials::new("locks", "of-locks")),
        })
    });
    let locks = settings.connect(&server.url()).await.unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

/// While the provider fails, hangs or returns what the server refuses, the open connections stay.
#[tokio::test]
async fn a_renewal_that_fails_is_repeated_and_ends_no_connection() {
    let server = Server::start().await;
    create(&server, "first").await;
    create(&server, "second").await;
    let answers = Arc::new(Mutex::new("first"));
    let (current, asked) = (Arc::clone(&answers), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    let provider = move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let current = *current.lock().unwrap();
        async move {
            match current {
                "hangs" => pending().await,
                "fails" => Err("no such file"),
                user => Ok(Credentials::new(user, format!("of-{user}")).lifetime(LIFETIME)),
            }
        }
    };
    let locks = settings().server_timeout(SECOND).credentials(provider);
    let locks = locks.connect(&server.url()).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").acquire());
    subscribed(&server).await;
    let (open, _) = connections(&server).await;
    for trouble in ["fails", "hangs", "nobody"] {
        *answers.lock().unwrap() = trouble;
        let before = asked.load(Ordering::SeqCst);
        eventually("it is asked again and again", 20 * SECOND, async || {
            asked.load(Ordering::SeqCst) > before + 4
        })
        .await;
        guard.renew().await.unwrap();
        assert_eq!(connections(&server).await.0, open);
    }
    *answers.lock().unwrap() = "second";
    all_of(&server, "second").await;
    assert_eq!(connections(&server).await.0, open);
    remove(&server, "first").await;
    guard.release().await.unwrap();
    drop(timeout(SOON, waiter).await.expect("its turn").unwrap().unwrap());
}

/// The second connection waits for a replica.
#[tokio::test]
async fn the_connection_that_waits_for_replicas_is_renewed_too() {
    let server = Server::builder().config("repl-diskless-sync-delay", "0");
    let server = server.start().await;
    let primary = format!("127.0.0.1 {}", server.port());
    let _replica = Server::builder().config("replicaof", &primary).start().await;
    eventually("a replica", 20 * SECOND, async || {
        let mut client = server.client().await;
        client.command(&["PUBLISH", "in step", ""]).await.unwrap();
        client.command(&["WAIT", "1", "500"]).await.unwrap().int() == 1
    })
    .await;
    create(&server, "first").await;
    create(&server, "second").await;
    let vault = Vault::of("first");
    let locks = settings().replicas(1).credentials(vault.provider());
    let locks = locks.connect(&server.url()).await.unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    let (former, _) = connections(&server).await;
    assert_eq!(former.len(), 2);
    vault.turn_to("second");
    all_of(&server, "second").await;
    remove(&server, "first").await;
    assert_eq!(connections(&server).await.0, former);
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_change_in_a_cluster() {
    let cluster = Cluster::start().await;
    let vault = Vault::of("first");
    for server in &cluster.servers {
        create(server, "first").await;
        create(server, "second").await;
    }
    let settings = settings().credentials(vault.provider());
    let locks = settings.connect(&cluster.url()).await.unwrap();
    // Waiters on each of the masters.
    let names: Vec<String> = (0..12).map(|n| format!("lock-{n}")).collect();
    let (mut guards, mut waiters) = (Vec::new(), Vec::new());
    for name in &names {
        guards.push(locks.lock(name).acquire().await.unwrap());
        waiters.push(tokio::spawn(locks.lock(name).acquire()));
    }
    let masters = &cluster.servers[..3];
    for server in masters {
        subscribed(server).await;
    }
    vault.turn_to("second");
    for server in masters {
        all_of(server, "second").await;
        remove(server, "first").await;
    }
    for (guard, waiter) in guards.into_iter().zip(waiters) {
        guard.check().unwrap();
        guard.release().await.unwrap();
        let granted = timeout(SOON, waiter).await.expect("it heard of its turn");
        granted.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(crate::lost(&locks), 0);
}

/// The provider learns which server it is asked for.
#[tokio::test]
async fn each_server_of_a_quorum_may_have_its_own_password() {
    let servers = [
        Server::start().await,
        Server::start().await,
        Server::start().await,
    ];
    for server in &servers {
        let password = format!(">of-{}", server.port());
        let words = ["ACL", "SETUSER", "locks", "on", &password, "~*", "&*", "+@all"];
        assert_eq!(server.command(&words).await.text(), "OK");
    }
    let provider = async |server: String| {
        let port = server.rsplit(':').next().ok_or("no port")?;
        Ok::<_, &str>(Credentials::new("locks", format!("of-{port}")))
    };
    let quorum = Quorum::of(servers.each_ref().map(Server::url)).durable();
    let settings = settings().credentials(provider);
    let locks = settings
        .connect_quorum(quorum.longest_lease(30 * SECOND))
        .await
        .unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    for server in &servers {
        let is_held = async || !server.keys("t:{a}").await.is_empty();
        eventually("all servers grant it", 10 * SECOND, is_held).await;
        all_of(server, "locks").await;
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn sentinels_keep_the_password_of_the_url() {
    let group = Sentinels::with(Setup {
        passwords: Some(("servers", "sentinels")),
        ..Setup::default()
    })
    .await;
    let url = format!("{}&sentinelPassword=sentinels", group.url());
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let servers = Arc::clone(&asked);
    let settings = settings().credentials(move |server| {
        servers.lock().unwrap().insert(server);
        ready(Ok::<_, String>(
            Credentials::password("servers").lifetime(LIFETIME),
        ))
    });
    let locks = settings.connect(&url).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    sleep(2 * LIFETIME).await;
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    // It is asked for the primary alone.
    let asked = asked.lock().unwrap();
    let is_asked = |server: &&Server| asked.contains(&format!("127.0.0.1:{}", server.port()));
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(group.servers.iter().any(|server| is_asked(&server)), "{asked:?}");
}

#[tokio::test]
async fn credentials_beside_those_of_the_url_are_refused() {
    let vault = Vault::of("locks");
    for url in [
        "redis://locks@127.0.0.1:1",
        "redis://:secret@127.0.0.1:1",
        "redis-cluster://locks:secret@127.0.0.1:1",
        "redis-sentinel://locks:secret@127.0.0.1:1?sentinelServiceName=main",
    ] {
        let error = settings()
            .credentials(vault.provider())
            .connect(url)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains("it must have neither"), "{error}");
    }
    assert_eq!(vault.asked(), 0);
}
