//! The store on real servers, with scripts of its own where only the way to the server matters.

mod server;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::future::join_all;

use self::server::{Server, Wire, free_port};
use super::*;
use crate::key::{ClientId, Keys, Request};
use crate::script::Invocation;
use crate::store::{Mode, ReleaseOutcome, ReleaseWhat};

const OPTIONS: Options = Options {
    attempt_timeout: Duration::from_millis(400),
    server_timeout: Duration::from_millis(1500),
    heartbeat: Duration::from_millis(900),
};
/// In which all that these options bound must have happened, on a busy machine too.
const BOUND: Duration = Duration::from_secs(5);

static APPEND: Script = Script {
    name: "append",
    text: "redis.call('RPUSH', KEYS[1], ARGV[1]) return {1, ARGV[1]}",
};

/// Appends a text to a list.
struct Append(String);

impl Operation for Append {
    type Reply = ();

    fn invocation(&self) -> Invocation {
        Invocation {
            script: &APPEND,
            keys: vec!["list".to_owned()],
            args: vec![self.0.clone()],
        }
    }

    fn read(&self, reply: &[Value]) -> Result<(ServerTime, ()), ReplyError> {
        if self.0 == "misread" || reply.get(1) != Some(&Value::Text(self.0.clone())) {
            return Err(ReplyError::OutOfStep(format!("{reply:?}")));
        }
        Ok((ServerTime::from_ms(0), ()))
    }
}

#[derive(Debug, Default)]
struct Recorder {
    messages: Mutex<Vec<String>>,
    reconnects: AtomicUsize,
}

impl Listener for Recorder {
    fn pushed(&self, channel: &str, message: &str) {
        self.messages.lock().unwrap().push(format!("{channel} {message}"));
    }

    fn reconnected(&self) {
        self.reconnects.fetch_add(1, Ordering::SeqCst);
    }
}

impl Recorder {
    fn reconnects(&self) -> usize {
        self.reconnects.load(Ordering::SeqCst)
    }

    fn has(&self, message: &str) -> bool {
        self.messages.lock().unwrap().iter().any(|m| m == message)
    }
}

async fn store(url: &str) -> (Arc<RedisStore>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    (connect(url, &recorder).await.unwrap(), recorder)
}

async fn connect(url: &str, recorder: &Arc<Recorder>) -> Result<Arc<RedisStore>, Error> {
    let weak: Weak<Recorder> = Arc::downgrade(recorder);
    let scripts = [&script::ALL[..], &[&APPEND]].concat();
    RedisStore::with_scripts(url, OPTIONS, weak, &scripts).await
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls a call once, which sends it.
fn start(store: &RedisStore, text: impl ToString) -> Call<()> {
    let mut call = store.call(Append(text.to_string()));
    assert!(matches!(
        call.as_mut().poll(&mut Context::from_waker(Waker::noop())),
        Poll::Pending
    ));
    call
}

fn numbers(range: std::ops::Range<usize>) -> String {
    range.map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_executed_once_and_in_order_though_the_scripts_vanish() {
    let server = Server::start();
    let (store, _recorder) = store(&server.url()).await;
    let mut calls = Vec::new();
    for n in 0..500 {
        calls.push(tokio::spawn(start(&store, n)));
        if n % 90 == 0 {
            server.tell("SCRIPT FLUSH");
        }
    }
    for call in join_all(calls).await {
        call.unwrap().unwrap();
    }
    assert_eq!(server.tell("LRANGE list 0 -1"), numbers(0..500));
}

#[tokio::test]
async fn all_in_flight_at_once_meet_the_flush_and_keep_their_order() {
    let server = Server::start();
    let (store, _recorder) = store(&server.url()).await;
    server.tell("SCRIPT FLUSH");
    let calls: Vec<_> = (0..500).map(|n| start(&store, n)).collect();
    // In the reverse order, so that the one polled last is not the one sent last.
    for call in join_all(calls.into_iter().rev()).await {
        let at = call.unwrap().at;
        assert!(at.sent < at.received);
    }
    assert_eq!(server.tell("LRANGE list 0 -1"), numbers(0..500));
}

#[tokio::test]
async fn calls_that_are_dropped_or_not_polled_hold_up_nobody() {
    let server = Server::start();
    let (store, _recorder) = store(&server.url()).await;
    for round in 0..3 {
        server.tell("SCRIPT FLUSH");
        let idle = start(&store, "idle");
        let dropped = start(&store, "dropped");
        let call = start(&store, round);
        drop(dropped);
        let started = Instant::now();
        call.await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(1));
        idle.await.unwrap();
    }
    assert_eq!(server.tell("LRANGE list 0 -1"), "0 idle 1 idle 2 idle");
}

#[tokio::test]
async fn a_killed_command_connection_is_replaced() {
    let server = Server::start();
    let (store, recorder) = store(&server.url()).await;
    server.tell("CLIENT KILL TYPE normal");
    until("reconnected", || recorder.reconnects() > 0).await;
    store.call(Append("a".to_owned())).await.unwrap();
    assert_eq!(server.tell("LRANGE list 0 -1"), "a");
}

#[tokio::test]
async fn messages_flow_again_after_the_subscriber_connection_was_killed() {
    let server = Server::start();
    let (store, recorder) = store(&server.url()).await;
    for channel in ["one", "two", "three"] {
        store.subscribe(channel.into()).await.unwrap();
    }
    store.unsubscribe("three");
    for round in 1..=3 {
        assert_eq!(server.tell(&format!("PUBLISH one {round}")), "1");
        until("pushed", || recorder.has(&format!("one {round}"))).await;
        server.tell("CLIENT KILL TYPE pubsub");
        until("reconnected", || recorder.reconnects() == round).await;
        assert_eq!(server.tell("PUBLISH two x"), "1", "told before it was subscribed");
        assert_eq!(server.tell("PUBSUB NUMSUB three"), "three 0");
    }
}

#[tokio::test]
async fn subscriptions_are_confirmed_before_they_are_told() {
    let server = Server::start();
    let (store, recorder) = store(&server.url()).await;
    let tasks: Vec<_> = (0..200)
        .map(|n| tokio::spawn(store.subscribe(format!("c{n}").into())))
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        task.await.unwrap().unwrap();
        assert_eq!(server.tell(&format!("PUBLISH c{n} x")), "1");
    }
    until("all pushed", || recorder.messages.lock().unwrap().len() == 200).await;
    // Again, and changed one's mind.
    store.subscribe("c0".into()).await.unwrap();
    store.unsubscribe("c0");
    store.subscribe("c0".into()).await.unwrap();
    assert_eq!(server.tell("PUBLISH c0 y"), "1");
    assert_eq!(recorder.reconnects(), 0);
}

#[tokio::test]
async fn a_burst_of_messages_arrives_whole_or_is_told_to_have_lost_some() {
    let server = Server::start();
    let (store, recorder) = store(&server.url()).await;
    store.subscribe("c".into()).await.unwrap();
    server.tell("EVAL \"for i = 1, 20000 do redis.call('PUBLISH', 'c', i) end\" 0");
    let all = || recorder.messages.lock().unwrap().len() == 20_000;
    until("all or a warning", || all() || recorder.reconnects() > 0).await;
}

#[tokio::test]
async fn a_refused_subscription_is_told_and_harms_no_other() {
    let server = Server::start();
    server.tell("ACL SETUSER u on >p ~* resetchannels &good:* +@all");
    let (store, recorder) = store(&format!("redis://u:p@127.0.0.1:{}", server.port)).await;
    let good = |n: usize| format!("good:unlock:{{{n}}}:c");
    store.subscribe(good(0).into()).await.unwrap();
    for round in 1..4 {
        // All at once, so that they share one SUBSCRIBE.
        let bad = (0..3).map(|n| store.subscribe(format!("bad:unlock:{{{round}{n}}}:c").into()));
        let new = (0..20).map(|n| store.subscribe(good(round * 20 + n).into()));
        let (bad, new) = tokio::join!(join_all(bad), join_all(new));
        for result in bad {
            let Err(Failure::Refused(error)) = result else {
                panic!("{result:?}")
            };
            assert!(
                error.to_string().contains("NOPERM") && error.to_string().contains("&bad:*"),
                "{error}"
            );
        }
        for result in new {
            result.unwrap();
        }
        until("told", || recorder.reconnects() > 0).await;
        for n in [0, round * 20, round * 20 + 19] {
            assert_eq!(server.tell(&format!("PUBLISH {} {round}", good(n))), "1");
            until("pushed", || recorder.has(&format!("{} {round}", good(n)))).await;
        }
    }
}

#[tokio::test]
async fn refusals_alone_wake_nobody() {
    let server = Server::start();
    server.tell("ACL SETUSER u on >p ~* resetchannels +@all");
    let (store, recorder) = store(&format!("redis://u:p@127.0.0.1:{}", server.port)).await;
    for n in 0..5 {
        let result = store.subscribe(format!("{n}").into()).await;
        assert!(matches!(result, Err(Failure::Refused(_))), "{result:?}");
    }
    assert_eq!(recorder.reconnects(), 0);
    store.time().await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_refused_at_once_and_never_shown() {
    let server = Server::start();
    server.tell("CONFIG SET requirepass right-one");
    let recorder = Arc::new(Recorder::default());
    for credentials in ["", ":s3cret@", "nobody:s3cret@"] {
        let url = format!("redis://{credentials}127.0.0.1:{}", server.port);
        let error = connect(&url, &recorder).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
    let url = format!("redis://:right-one@127.0.0.1:{}", server.port);
    let store = connect(&url, &recorder).await.unwrap();
    store.time().await.unwrap();
    assert!(!format!("{store:?}").contains("right-one"));
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_after_the_bound() {
    let recorder = Arc::new(Recorder::default());
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    for port in [free_port(), mute.local_addr().unwrap().port()] {
        let started = Instant::now();
        let error = connect(&format!("redis://127.0.0.1:{port}"), &recorder)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(
            error.to_string().contains(&format!("127.0.0.1:{port}")),
            "{error}"
        );
        let waited = started.elapsed();
        assert!(
            waited >= OPTIONS.server_timeout && waited < OPTIONS.server_timeout + BOUND,
            "{waited:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_comes_up_within_the_bound_is_connected_to() {
    let port = free_port();
    let recorder = Arc::new(Recorder::default());
    let url = format!("redis://127.0.0.1:{port}");
    let connecting = tokio::spawn(async move { connect(&url, &recorder).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let _server = tokio::task::spawn_blocking(move || Server::start_on(port))
        .await
        .unwrap();
    connecting.await.unwrap().unwrap().time().await.unwrap();
}

#[tokio::test]
async fn dead_links_are_noticed_and_replaced() {
    let server = Server::start();
    let wire = Wire::to(&server).await;
    let (store, recorder) = store(&wire.url()).await;
    store.subscribe("c".into()).await.unwrap();
    // Idle: only the pings notice, on both connections.
    wire.freeze_present();
    until("both replaced", || recorder.reconnects() >= 2).await;
    assert_eq!(
        server.tell("CLIENT KILL TYPE normal").parse::<usize>().unwrap(),
        2
    );
    until("replaced again", || recorder.reconnects() >= 3).await;
    store.call(Append("a".to_owned())).await.unwrap();
    server.tell("PUBLISH c x");
    until("pushed", || recorder.has("c x")).await;
}

#[tokio::test]
async fn an_unanswered_call_is_unknown_and_its_connection_replaced() {
    let server = Server::start();
    let wire = Wire::to(&server).await;
    let (store, recorder) = store(&wire.url()).await;
    wire.freeze_present();
    let started = Instant::now();
    // A steady stream of calls, none of which is answered.
    let mut calls = Vec::new();
    while recorder.reconnects() == 0 {
        assert!(started.elapsed() < BOUND);
        calls.push((Instant::now(), tokio::spawn(store.call(Append("x".to_owned())))));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(matches!(
        calls.remove(0).1.await.unwrap(),
        Err(Failure::Unknown(_))
    ));
    store.call(Append("y".to_owned())).await.unwrap();
}

#[tokio::test]
async fn calls_in_flight_on_a_broken_connection_are_unknown_at_once() {
    let server = Server::start();
    let wire = Wire::to(&server).await;
    let (store, _recorder) = store(&wire.url()).await;
    wire.freeze_all(true);
    let call = start(&store, "x");
    let started = Instant::now();
    tokio::time::sleep(Duration::from_millis(50)).await;
    wire.cut_present();
    let result = call.await;
    assert!(matches!(result, Err(Failure::Unknown(_))), "{result:?}");
    assert!(started.elapsed() < OPTIONS.attempt_timeout);
}

#[tokio::test]
async fn nothing_is_sent_late_and_calls_work_again_after_a_restart() {
    let server = Server::start();
    let port = server.port;
    let (store, recorder) = store(&server.url()).await;
    store.subscribe("c".into()).await.unwrap();
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = Instant::now();
    let result = store.call(Append("late".to_owned())).await;
    assert!(matches!(result, Err(Failure::NotExecuted(_))), "{result:?}");
    assert!(started.elapsed() < OPTIONS.attempt_timeout + BOUND);
    let gone = start(&store, "gone");
    drop(gone);
    let server = tokio::task::spawn_blocking(move || Server::start_on(port))
        .await
        .unwrap()
        .unwrap();
    until("both are back", || recorder.reconnects() >= 2).await;
    store.call(Append("a".to_owned())).await.unwrap();
    assert_eq!(server.tell("LRANGE list 0 -1"), "a");
    assert_eq!(server.tell("PUBLISH c x"), "1");
}

#[tokio::test]
async fn a_short_break_is_not_noticed_by_calls_that_come_in_it() {
    let server = Server::start();
    let wire = Wire::to(&server).await;
    let (store, recorder) = store(&wire.url()).await;
    wire.cut_present();
    until("a break", || recorder.reconnects() > 0 || !store.lane.is_open()).await;
    let calls: Vec<_> = (0..50).map(|n| store.call(Append(n.to_string()))).collect();
    for call in join_all(calls).await {
        call.unwrap();
    }
    assert_eq!(server.tell("LRANGE list 0 -1"), numbers(0..50));
}

#[tokio::test]
async fn a_reply_to_another_call_has_the_connection_replaced() {
    let server = Server::start();
    let (store, recorder) = store(&server.url()).await;
    let result = store.call(Append("misread".to_owned())).await;
    assert!(matches!(result, Err(Failure::Unknown(_))), "{result:?}");
    until("replaced", || recorder.reconnects() == 1).await;
    store.call(Append("a".to_owned())).await.unwrap();
}

#[tokio::test]
async fn a_replica_executes_nothing_and_is_left() {
    let server = Server::start();
    let (store, recorder) = store(&server.url()).await;
    server.tell("REPLICAOF 127.0.0.1 1");
    let deadline = Instant::now() + BOUND;
    while recorder.reconnects() == 0 {
        let result = store.call(Append("a".to_owned())).await;
        assert!(matches!(result, Err(Failure::NotExecuted(_))), "{result:?}");
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.tell("REPLICAOF NO ONE");
    store.call(Append("b".to_owned())).await.unwrap();
}

#[tokio::test]
async fn what_the_server_says_is_sorted() {
    let server = Server::start();
    let (store, _recorder) = store(&server.url()).await;
    let append = || store.call(Append("a".to_owned()));
    server.tell("CONFIG SET maxmemory 1");
    assert!(matches!(append().await, Err(Failure::NotExecuted(_))));
    server.tell("CONFIG SET maxmemory 0");
    server.tell("CONFIG SET min-replicas-to-write 1");
    assert!(matches!(append().await, Err(Failure::NotExecuted(_))));
    server.tell("CONFIG SET min-replicas-to-write 0");
    server.tell("SET list text");
    assert!(matches!(append().await, Err(Failure::Refused(_))));
    server.tell("DEL list");
    append().await.unwrap();
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let server = Server::start();
    let wire = Wire::to(&server).await;
    let (store, _recorder) = store(&wire.url()).await;
    wire.freeze_all(true);
    let pending = start(&store, "x");
    let subscribing = tokio::spawn(store.subscribe("c".into()));
    tokio::task::yield_now().await;
    store.close();
    store.unsubscribe("c");
    assert!(matches!(pending.await, Err(Failure::Closed)));
    assert!(matches!(subscribing.await.unwrap(), Err(Failure::Closed)));
    assert!(matches!(store.time().await, Err(Failure::Closed)));
    assert!(matches!(store.subscribe("d".into()).await, Err(Failure::Closed)));
    let connected = || server.tell("CLIENT LIST").lines().count() > 1;
    until("disconnected", || !connected()).await;
}

#[test]
fn calls_end_at_once_when_the_runtime_that_connected_is_gone() {
    let server = Server::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
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
    let server = Server::start();
    let (store, recorder) = store(&server.url()).await;
    store.subscribe("c".into()).await.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for n in 1..=5 {
        server.tell("CLIENT KILL TYPE normal");
        server.tell("CLIENT KILL TYPE pubsub");
        until("both are back", || recorder.reconnects() >= 2 * n).await;
    }
    until("as many tasks as before", || tasks() == before).await;
    assert_eq!(server.tell("CLIENT LIST").lines().count(), 3);
}

#[tokio::test]
async fn the_least_rights_suffice() {
    let server = Server::start();
    server.tell(
        "ACL SETUSER u on >p resetkeys ~fairlock:* resetchannels &fairlock:* -@all +evalsha +script|load +hello +auth \
         +ping +info +client|id +subscribe +unsubscribe +ssubscribe +sunsubscribe +pubsub|numsub +time +hmget +hset \
         +hget +hgetall +hdel +zcard +zadd +zrem +zscore +zpopmin +zrank +zcount +zremrangebyscore +pexpire +publish \
         +exists +del",
    );
    let (store, _recorder) = store(&format!("redis://u:p@127.0.0.1:{}/0", server.port)).await;
    acquire_and_release(&store).await;
}

#[tokio::test]
async fn a_lock_is_acquired_and_released() {
    let server = Server::start();
    let (store, _recorder) = store(&server.url()).await;
    acquire_and_release(&store).await;
}

async fn acquire_and_release(store: &RedisStore) {
    let client = ClientId::random();
    let keys = Arc::new(Keys::new("fairlock", "orders:42").unwrap());
    let now = store.time().await.unwrap().at.now;
    let seconds = Duration::from_secs;
    let acquire = |n| Acquire {
        keys: Arc::clone(&keys),
        request: Request::new(&client, seconds(5), n, None),
        mode: Mode::Open,
        lease: seconds(30),
        not_after: now.after(seconds(2)),
        ticket: None,
        heartbeat: seconds(15),
    };
    let answer = store.acquire(acquire(1)).await.unwrap();
    let Acquired::Granted(grant) = answer.reply else {
        panic!("{answer:?}")
    };
    assert!(answer.at.now >= now && answer.at.received >= answer.at.sent);
    let answer = store.acquire(acquire(2)).await.unwrap();
    assert!(matches!(answer.reply, Acquired::Contended(_)), "{answer:?}");
    store.subscribe(keys.channel_of(&client)).await.unwrap();
    let release = Release {
        keys: Arc::clone(&keys),
        request: grant.request.clone(),
        what: ReleaseWhat::Grant(grant.fence),
    };
    let released = store.release(release).await.unwrap().reply;
    assert_eq!(released.outcome, ReleaseOutcome::Released);
    let answer = store.acquire(acquire(2)).await.unwrap();
    assert!(matches!(answer.reply, Acquired::Granted(_)), "{answer:?}");
}
