//! Tests of connecting, staying connected, and closing.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

use fred::types::config::{Config, ServerConfig};

use super::super::dial::dial_by_fred;
use super::super::names::Names;
use super::*;
use crate::protocol::{Failure, ServerId};
use crate::servers::redis::pipeline::Why;

#[tokio::test]
async fn a_killed_command_connection_is_replaced() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    server.tell("CLIENT KILL SKIPME yes");
    until("reconnected", || recorder.replacements() > 0).await;
    store.call(Append("a".to_owned())).await.unwrap();
    assert_eq!(server.tell("LRANGE list 0 -1"), "a");
}

/// Race: A connection is lost while it is prepared for the calls.
#[tokio::test]
async fn connection_that_is_lost_as_soon_as_it_is_open_is_replaced_at_once() {
    let url = format!("redis://127.0.0.1:{}", flawed::loses_new_connections());
    let recorder = Arc::new(Recorder::default());
    let at_once = OPTIONS.attempt_timeout / 2;
    let store = open(OPTIONS, &url, &recorder).unwrap();
    let answer = tokio::time::timeout(at_once, store.time())
        .await
        .expect("at once");
    // It is answered, though not with a time.
    assert!(matches!(answer, Err(Failure::Unknown(_))), "{answer:?}");
}

#[tokio::test]
async fn a_connection_whose_ping_is_answered_wrongly_is_replaced() {
    // It answers every PING with OK, and loses no connection after the third one.
    let url = format!("redis://127.0.0.1:{}", flawed::loses_new_connections());
    let recorder = Arc::new(Recorder::default());
    let _store = open(OPTIONS, &url, &recorder).unwrap();
    until("a connection is replaced that the server has not lost", || {
        recorder.replacements() > 3
    })
    .await;
}

/// Race: A server is slow to answer, and loses a connection. A new one takes several calls.
#[tokio::test]
async fn a_slow_server_gets_a_new_connection() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let options = Options {
        attempt_timeout: Duration::from_secs(1),
        ..OPTIONS
    };
    let (store, recorder) = store_with(options, &proxy.url()).await;
    store.subscribe("c".into()).await.unwrap();
    proxy.delay_down(options.attempt_timeout / 2);
    store.call(Append("a".to_owned())).await.unwrap();
    proxy.cut();
    until("the connection is replaced", || recorder.reconnects() > 0).await;
    store.call(Append("b".to_owned())).await.unwrap();
    assert_eq!(server.tell("LRANGE list 0 -1"), "a b");
}

/// Checks, when it hears of a new connection, whether calls already use that connection.
#[derive(Debug, Default)]
struct Gatekeeper {
    store: OnceLock<Weak<RedisStore>>,
    open: Mutex<Vec<bool>>,
}

impl Listener for Gatekeeper {
    fn pushed(&self, _: ServerId, _: &str, _: &str) {}

    fn replaced(&self, _: ServerId) {
        let store = self.store.get().and_then(Weak::upgrade).unwrap();
        self.open.lock().unwrap().push(store.is_up());
    }

    fn reconnected(&self, _: ServerId) {}
}

/// Race: A new connection leads to another server, and a reply arrives before the client knows that.
#[tokio::test]
async fn new_connection_is_reported_before_its_first_reply() {
    let server = Server::start().await;
    let gatekeeper = Arc::new(Gatekeeper::default());
    let weak: Weak<Gatekeeper> = Arc::downgrade(&gatekeeper);
    let connector = Connector::new(&server.url(), None, OPTIONS.attempt_timeout).unwrap();
    let listener: Weak<dyn Listener> = weak;
    let place = (ServerId::default(), PubSubMode::Plain);
    let store = RedisStore::open(connector, OPTIONS, &listener, place, &script::ALL);
    store.time().await.unwrap();
    gatekeeper.store.set(Arc::downgrade(&store)).unwrap();
    server.tell("CLIENT KILL SKIPME yes");
    until("replaced", || !gatekeeper.open.lock().unwrap().is_empty()).await;
    assert_eq!(*gatekeeper.open.lock().unwrap(), [false]);
    until("open", || store.is_up()).await;
}

#[tokio::test]
async fn a_new_connection_has_the_server_learn_the_scripts_before_a_call_misses_them() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    server.tell("SCRIPT FLUSH");
    server.tell("CLIENT KILL SKIPME yes");
    until("replaced", || recorder.replacements() > 0).await;
    store.call(Append("a".to_owned())).await.unwrap();
    let errors = server.tell("INFO errorstats");
    assert!(!errors.contains("NOSCRIPT"), "{errors}");
}

/// Race: A new connection leads to another server, whose messages are missed.
#[tokio::test]
async fn a_new_connection_is_told_once_all_is_subscribed_on_it() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    for channel in ["a", "b", "c"] {
        store.subscribe(channel.into()).await.unwrap();
    }
    for round in 1..=4 {
        server.tell("CLIENT KILL SKIPME yes");
        until("told", || recorder.reconnects() >= round).await;
        assert_eq!((recorder.replacements(), recorder.reconnects()), (round, round));
        for channel in ["a", "b", "c"] {
            assert_eq!(server.tell(&format!("PUBLISH {channel} x")), "1");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!((recorder.replacements(), recorder.reconnects()), (round, round));
    }
}

/// Race: A call on a new connection has its request queued, and its turn comes before the client listens.
#[tokio::test]
async fn a_new_connection_is_subscribed_before_any_call_on_it() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (store, _recorder) = store(&proxy.url()).await;
    store.subscribe("c".into()).await.unwrap();
    proxy.refuse();
    proxy.cut();
    until("down", || !store.is_up()).await;
    let waiting = start(&store, &"x");
    server.tell("CONFIG SET slowlog-log-slower-than 0");
    proxy.heal();
    waiting.await.unwrap();
    let newest_first = server.tell("SLOWLOG GET");
    let [subscribed, called] = ["SUBSCRIBE c", "EVALSHA"].map(|words| newest_first.find(words));
    assert!(called.is_some() && called < subscribed, "{newest_first}");
}

/// Race: A client's calls reach the server, and its messages do not reach the client.
#[tokio::test]
async fn calls_and_messages_share_one_connection() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    store.subscribe("c".into()).await.unwrap();
    let list = server.tell("CLIENT LIST TYPE pubsub");
    assert_eq!(list.lines().count(), 1, "{list}");
    // Servers before 7.0 do not report the protocol.
    assert!(list.contains("resp=3") || !list.contains("resp="), "{list}");
    // The one that lists them, and the store's.
    assert_eq!(server.tell("CLIENT LIST").lines().count(), 2);
    // The messages for a call come after its reply, and before that to a later one.
    store.call(Append("a".to_owned())).await.unwrap();
    server.tell("PUBLISH c x");
    until("pushed", || recorder.has("c x")).await;
}

#[tokio::test]
async fn a_wrong_password_is_refused_at_once_and_never_shown() {
    let server = Server::start().await;
    server.tell("CONFIG SET requirepass right-one");
    let recorder = Arc::new(Recorder::default());
    for credentials in ["", ":s3cret@", "nobody:s3cret@"] {
        let url = format!("redis://{credentials}127.0.0.1:{}", server.port());
        let error = connect(OPTIONS, &url, &recorder).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
    let url = format!("redis://:right-one@127.0.0.1:{}", server.port());
    let store = connect(OPTIONS, &url, &recorder).await.unwrap();
    store.time().await.unwrap();
    assert!(!format!("{store:?}").contains("right-one"));
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_after_the_bound() {
    let recorder = Arc::new(Recorder::default());
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    for port in [free_port(), mute.local_addr().unwrap().port()] {
        let started = Instant::now();
        let error = connect(HASTY, &format!("redis://127.0.0.1:{port}"), &recorder)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(
            error.to_string().contains(&format!("127.0.0.1:{port}")),
            "{error}"
        );
        let waited = started.elapsed();
        assert!(
            waited >= HASTY.server_timeout && waited < HASTY.server_timeout + BOUND,
            "{waited:?}"
        );
    }
}

#[tokio::test]
async fn client_connects_to_a_server_that_starts_within_the_bound() {
    let server = Server::start().await;
    server.kill();
    let recorder = Arc::new(Recorder::default());
    let url = server.url();
    let connecting = tokio::spawn(async move { connect(OPTIONS, &url, &recorder).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.restart().await;
    connecting.await.unwrap().unwrap().time().await.unwrap();
}

#[tokio::test]
async fn dead_links_are_noticed_and_replaced() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (store, recorder) = store_with(HASTY, &proxy.url()).await;
    store.subscribe("c".into()).await.unwrap();
    // The connection is idle, so only the PINGs can notice.
    proxy.freeze_open();
    until("the connection is replaced", || {
        recorder.replacements() == 1 && recorder.reconnects() == 1
    })
    .await;
    store.call(Append("a".to_owned())).await.unwrap();
    until("pushed", || {
        server.tell("PUBLISH c x");
        recorder.has("c x")
    })
    .await;
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (store, _recorder) = store(&proxy.url()).await;
    proxy.freeze();
    let pending = start(&store, &"x");
    let subscribing = tokio::spawn(store.subscribe("c".into()));
    tokio::task::yield_now().await;
    store.close();
    store.unsubscribe("c");
    assert!(matches!(pending.await, Err(Failure::Closed)));
    assert!(matches!(subscribing.await.unwrap(), Err(Failure::Closed)));
    assert!(matches!(store.time().await, Err(Failure::Closed)));
    assert!(matches!(store.subscribe("d".into()).await, Err(Failure::Closed)));
    proxy.thaw();
    let connected = || server.tell("CLIENT LIST").lines().count() > 1;
    until("disconnected", || !connected()).await;
}

#[test]
fn calls_end_at_once_when_the_connecting_runtime_is_gone() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let server = first.block_on(Server::start());
    let (store, _recorder) = first.block_on(store(&server.url()));
    server.tell("CLIENT PAUSE 3000");
    let pending = second.spawn(store.call(Append("x".to_owned())));
    std::thread::sleep(Duration::from_millis(50));
    drop(first);
    let started = Instant::now();
    second.block_on(async {
        let result = pending.await.unwrap();
        assert!(
            matches!(result, Err(Failure::Closed | Failure::Unknown(_))),
            "{result:?}"
        );
        assert!(matches!(store.time().await, Err(Failure::Closed)));
        assert!(matches!(store.subscribe("c".into()).await, Err(Failure::Closed)));
    });
    store.unsubscribe("c");
    assert!(started.elapsed() < OPTIONS.attempt_timeout);
}

#[tokio::test]
async fn replaced_connections_leave_nothing_behind() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    store.subscribe("c".into()).await.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for n in 1..=5 {
        server.tell("CLIENT KILL SKIPME yes");
        until("the connection is back", || {
            recorder.replacements() == n && server.tell("PUBSUB NUMSUB c") == "c 1"
        })
        .await;
    }
    until("as many tasks as before", || tasks() == before).await;
    until("as many connections as before", || {
        server.tell("CLIENT LIST").lines().count() == 2
    })
    .await;
}

#[tokio::test]
async fn complaints_about_a_connection_do_not_end_the_next_one() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    for _ in 0..10 {
        store.pipeline().replace(1, Why::Desynchronised);
    }
    until("replaced", || recorder.replacements() > 0).await;
    store.call(Append("a".to_owned())).await.unwrap();
    assert_eq!(recorder.replacements(), 1);
}

#[tokio::test]
async fn dropped_store_leaves_no_connection() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    drop(store);
    let connected = || server.tell("CLIENT LIST").lines().count() > 1;
    until("disconnected", || !connected()).await;
}

#[tokio::test]
async fn a_connection_by_fred_that_is_dropped_is_closed() {
    let server = Server::start().await;
    let config = Config {
        server: ServerConfig::new_centralized("127.0.0.1", server.port()),
        ..Config::default()
    };
    let names = Names::default();
    let connection = dial_by_fred(&names, config, OPTIONS.attempt_timeout)
        .await
        .unwrap();
    let connected = || server.tell("CLIENT LIST").lines().count() > 1;
    assert!(connected());
    drop(connection);
    until("disconnected", || !connected()).await;
}
