//! Tests of the server of a quorum, which gets no scripts while it may have forgotten holds.

use std::net::TcpListener;
use std::time::Duration;

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

use super::*;
use crate::protocol::label::Label;
use crate::protocol::{Acquire, Acquired, Failure};
use crate::servers::redis::Trust;
use crate::servers::redis::script_set::ScriptSet;

/// A server is mute for the first 2.1 s, and in whole seconds for 3.
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(60);
/// The time within which a server is no longer mute by [`SHORT`].
const OLD: Duration = Duration::from_secs(10);

const fn quorum(longest_lease: Duration) -> QuorumServer {
    QuorumServer {
        longest_lease,
        durable: false,
    }
}

pub(super) const fn durable(longest_lease: Duration) -> QuorumServer {
    QuorumServer {
        durable: true,
        ..quorum(longest_lease)
    }
}

/// A client, and what keeps its listener.
pub(super) type Opened = (Store, Arc<Recorder>);

pub(super) fn opened(quorum: QuorumServer, url: &str) -> Opened {
    opened_with(OPTIONS, quorum, url)
}

fn opened_with(options: Options, quorum: QuorumServer, url: &str) -> Opened {
    let recorder = Arc::new(Recorder::default());
    let options = Options {
        quorum: Some(quorum),
        ..options
    };
    let weak: Weak<Recorder> = Arc::downgrade(&recorder);
    let listener: Weak<dyn Listener> = weak;
    let label = Label::new("test").unwrap();
    let connector = connector(url, Trust::default(), label, options).unwrap();
    let connector = connector.among(Some(Arc::default()));
    let place = (ServerId::default(), PubSubMode::Plain);
    let store = RedisStore::open(connector, options, &listener, place, script::for_server(true));
    (Store::Server(store), recorder)
}

/// Whether this server can be one of a quorum. The tests also run on older ones.
pub(super) fn suits_a_quorum(server: &Server) -> bool {
    !server.tell("INFO server").contains("redis_version:6.")
}

/// Asks for a lock, by a request of its own.
pub(super) async fn acquire((store, _): &Opened, name: &str) -> Result<Acquired, Failure> {
    let acquire = Acquire {
        keys: Arc::new(Keys::new("fairlock", name).unwrap()),
        request: RequestId::new(&ClientId::random(), Duration::from_secs(5), 1, None),
        mode: Mode::Ask,
        lease: SHORT,
        not_after: Arc::new(ServerTime::MAX),
        ticket: None,
        floor: None,
    };
    Ok(store.call(acquire).await?.reply)
}

/// Whether a call was answered that the server is mute.
fn is_mute(answer: &Result<Acquired, Failure>) -> bool {
    matches!(answer, Err(Failure::NotExecuted(error)) if error.to_string().contains("started recently"))
}

/// The hashes of the scripts of a quorum.
fn shas(quorum: QuorumServer) -> Vec<String> {
    let set = ScriptSet::new(script::for_server(true), Some(quorum));
    let sha = |script| set.sha(script).to_owned();
    script::for_server(true).iter().copied().map(sha).collect()
}

/// How many of a quorum's scripts the server has.
fn known(server: &Server, quorum: QuorumServer) -> usize {
    let exist = server.tell(&format!("SCRIPT EXISTS {}", shas(quorum).join(" ")));
    exist.matches('1').count()
}

/// Acquires until the server is old enough, and checks that it granted nothing before.
async fn acquire_once_old(client: &Opened, server: &Server) {
    let deadline = Instant::now() + OLD;
    loop {
        match acquire(client, "a").await {
            Ok(_) => break,
            mute if is_mute(&mute) => {}
            // The connection is just being replaced.
            Err(Failure::NotExecuted(_) | Failure::Unknown(_)) => {}
            other => panic!("{other:?}"),
        }
        assert!(Instant::now() < deadline, "the server is mute for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let uptime = &server.info("server").await["uptime_in_seconds"];
    assert!(uptime.parse::<u64>().unwrap() >= 3, "granted after {uptime} s");
}

#[tokio::test]
async fn fresh_server_grants_nothing_and_says_for_how_long() {
    let server = Server::start().await;
    if !suits_a_quorum(&server) {
        return;
    }
    let client = opened(quorum(LONG), &server.url());
    client.0.time().await.unwrap();
    let Err(Failure::NotExecuted(error)) = acquire(&client, "a").await else {
        panic!("the call was executed")
    };
    let error = error.to_string();
    let (words, seconds) = error.rsplit_once("it grants nothing for another ").unwrap();
    assert_eq!(
        words,
        "this server started recently and may have forgotten holds: "
    );
    let seconds: u64 = seconds.strip_suffix(" s").unwrap().parse().unwrap();
    assert!((30..=63).contains(&seconds), "{error}");
    assert_eq!(known(&server, quorum(LONG)), 0);
    for sha in shas(quorum(LONG)) {
        let by_hand = server.command(&["EVALSHA", &sha, "0"]).await.to_string();
        assert!(by_hand.contains("NOSCRIPT"), "{by_hand}");
    }
}

#[tokio::test]
async fn a_call_asks_a_mute_server_once() {
    let server = Server::start().await;
    if !suits_a_quorum(&server) {
        return;
    }
    let client = opened(quorum(LONG), &server.url());
    // Each new connection asks, so both must be open.
    client.0.time().await.unwrap();
    client.0.subscribe("c".into()).await.unwrap();
    let before = server.calls().await;
    let answers = join_all((0..50).map(|n| acquire(&client, if n % 2 == 0 { "a" } else { "b" }))).await;
    assert!(answers.iter().all(is_mute), "{answers:?}");
    let after = server.calls().await;
    let calls = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    assert_eq!(
        (calls("evalsha"), calls("script|load"), calls("eval")),
        (50, 0, 0)
    );
    // One for all calls that were under way, and one by this test.
    assert_eq!(calls("info"), 2);
}

#[tokio::test]
async fn an_old_server_is_given_the_scripts_however_often_it_forgets_them() {
    let server = Server::start().await;
    if !suits_a_quorum(&server) {
        return;
    }
    let client = opened(quorum(SHORT), &server.url());
    assert!(is_mute(&acquire(&client, "a").await));
    acquire_once_old(&client, &server).await;
    assert_eq!(known(&server, quorum(SHORT)), script::for_server(true).len());
    for _ in 0..2 {
        server.tell("SCRIPT FLUSH");
        acquire(&client, "b").await.unwrap();
        assert_eq!(known(&server, quorum(SHORT)), script::for_server(true).len());
    }
    // A new client loads them before any call.
    server.tell("SCRIPT FLUSH");
    opened(quorum(SHORT), &server.url()).0.time().await.unwrap();
    assert_eq!(known(&server, quorum(SHORT)), script::for_server(true).len());
}

#[tokio::test]
async fn a_durable_server_is_given_the_scripts_at_once() {
    let server = Server::start().await;
    if !suits_a_quorum(&server) {
        return;
    }
    let client = opened(durable(LONG), &server.url());
    client.0.time().await.unwrap();
    assert_eq!(known(&server, quorum(LONG)), script::for_server(true).len());
    acquire(&client, "a").await.unwrap();
    // Clients with the same longest lease can use them.
    let other = opened(quorum(LONG), &server.url());
    acquire(&other, "b").await.unwrap();
    let stricter = opened(quorum(2 * LONG), &server.url());
    assert!(is_mute(&acquire(&stricter, "c").await));
}

/// Race: A server comes back with what it had saved, which is not all that it had granted.
#[tokio::test]
async fn a_server_that_kept_its_data_over_a_crash_is_mute_to_old_and_new_clients() {
    let server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start()
        .await;
    if !suits_a_quorum(&server) {
        return;
    }
    let first = opened(durable(SHORT), &server.url());
    acquire(&first, "kept").await.unwrap();
    drop(first);
    let stays = opened(quorum(SHORT), &server.url());
    acquire(&stays, "a").await.unwrap();
    server.kill();
    server.restart().await;
    assert_eq!(server.keys("fairlock:{kept}").await.len(), 1);
    let comes = opened(quorum(SHORT), &server.url());
    assert!(is_mute(&acquire(&comes, "b").await));
    until("the client is back", || stays.1.replacements() > 0).await;
    assert!(is_mute(&acquire(&stays, "a").await));
    assert_eq!(known(&server, quorum(SHORT)), 0);
    let (comes, stays) = (
        acquire_once_old(&comes, &server),
        acquire_once_old(&stays, &server),
    );
    tokio::join!(comes, stays);
}

#[tokio::test]
async fn a_server_whose_scripts_may_outlive_a_restart_is_refused() {
    let server = Server::start().await;
    if suits_a_quorum(&server) {
        return;
    }
    for quorum in [quorum(SHORT), durable(SHORT)] {
        let refused = acquire(&opened(quorum, &server.url()), "a").await;
        assert!(
            matches!(&refused, Err(Failure::Refused(error)) if error.to_string().contains("Redis 7.0")),
            "{refused:?}"
        );
        assert_eq!(known(&server, quorum), 0);
    }
}

/// Race: A server restarts between the question for its age and the loading of the scripts.
#[tokio::test]
async fn a_server_that_restarts_after_it_told_its_age_is_not_given_the_scripts() {
    let (port, told) = flawed::restarts_after_info();
    let url = format!("redis://127.0.0.1:{port}");
    let _client = opened_with(HASTY, quorum(SHORT), &url);
    let asked = || told.lock().unwrap().len();
    until("the server is asked again on a new connection", || asked() >= 2).await;
    // Whatever was still under way is over after this time.
    tokio::time::sleep(HASTY.attempt_timeout).await;
    let told = told.lock().unwrap();
    assert!(told.iter().all(|command| command == "INFO SERVER"), "{told:?}");
}

#[tokio::test]
async fn calls_wait_for_a_server_that_is_not_up_yet() {
    let server = Server::start().await;
    server.kill();
    let (store, _recorder) = opened(quorum(LONG), &server.url());
    let time = tokio::spawn(store.time());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!time.is_finished());
    server.restart().await;
    time.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_refused_user_is_told_at_once() {
    let server = Server::start().await;
    server.tell("CONFIG SET requirepass right-one");
    let (store, _recorder) = opened(quorum(LONG), &server.url_as("nobody", "s3cret"));
    let started = Instant::now();
    let refused = store.time().await;
    assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
    assert!(started.elapsed() < OPTIONS.attempt_timeout);
    assert!(!format!("{refused:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_store_dropped_unused_leaves_nothing_behind() {
    let server = Server::start().await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let local = |port| format!("redis://127.0.0.1:{port}");
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for url in [
        server.url(),
        server.url_as("nobody", "s3cret"),
        local(free_port()),
        local(silent.local_addr().unwrap().port()),
    ] {
        for used_for in [0, 1, 50] {
            let (store, _recorder) = opened(quorum(LONG), &url);
            tokio::time::sleep(Duration::from_millis(used_for)).await;
            assert!(tasks() > before);
            drop(store);
            until("as many tasks as before", || tasks() == before).await;
        }
    }
    until("disconnected", || server.tell("CLIENT LIST").lines().count() == 1).await;
}

#[test]
fn only_urls_of_one_server_are_those_of_a_quorums() {
    for url in [
        "redis-sentinel://:s3cret@host?sentinelServiceName=main",
        "redis-cluster://:s3cret@host",
        "redis://:s3cret@host:port",
    ] {
        let error = server_of(url).unwrap_err();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
    assert_eq!(server_of("redis://:s3cret@Host/2").unwrap(), "host:6379");
}

/// Counts the warnings about servers of a quorum.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: LayerContext<'_, S>) {
        event.record(&mut self.clone());
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").contains("of the quorum grants nothing") {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn a_mute_server_is_logged_once_per_connection() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(warnings.clone()));
    let server = Server::start().await;
    let client = opened(quorum(LONG), &server.url());
    client.0.time().await.unwrap();
    // If a test in another thread was the first to warn, the warning counts as disabled until now.
    tracing::callsite::rebuild_interest_cache();
    let before = warnings.0.load(Ordering::SeqCst);
    for connection in 1..=2 {
        server.tell("CLIENT KILL TYPE normal");
        until("replaced", || client.1.replacements() == connection).await;
        for _ in 0..5 {
            acquire(&client, "a").await.unwrap_err();
        }
        assert_eq!(warnings.0.load(Ordering::SeqCst) - before, connection);
    }
}
