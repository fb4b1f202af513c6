//! Tests of channels and their messages.

use std::time::Duration;

use fairlock_testkit::BlockingClient;
use tokio::time::Instant;

use super::*;
use crate::protocol::Failure;

#[tokio::test]
async fn messages_flow_again_after_the_connection_was_killed() {
    let server = Server::start().await;
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
        assert_eq!(
            server.tell("PUBLISH two x"),
            "1",
            "the reconnect was reported before all channels were subscribed"
        );
        assert_eq!(server.tell("PUBSUB NUMSUB three"), "three 0");
    }
}

#[tokio::test]
async fn subscriptions_are_confirmed_before_they_are_told() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    let tasks: Vec<_> = (0..200)
        .map(|n| tokio::spawn(store.subscribe(format!("c{n}").into())))
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        task.await.unwrap().unwrap();
        assert_eq!(server.tell(&format!("PUBLISH c{n} x")), "1");
    }
    until("all pushed", || recorder.messages.lock().unwrap().len() == 200).await;
    // Subscribes again, and unsubscribes in between.
    store.subscribe("c0".into()).await.unwrap();
    store.unsubscribe("c0");
    store.subscribe("c0".into()).await.unwrap();
    assert_eq!(server.tell("PUBLISH c0 y"), "1");
    assert_eq!(recorder.reconnects(), 0);
}

/// Runs a script that publishes, and blocks this thread until all of its messages have arrived. So they are
/// read in one go.
fn published_while_nobody_reads(server: &Server, script: &str) {
    let mut client = BlockingClient::connect(("127.0.0.1", server.port())).unwrap();
    assert!(!client.command(&["EVAL", script, "0"]).unwrap().is_error());
    std::thread::sleep(Duration::from_millis(300));
}

/// Race: A message is lost inside the client.
#[tokio::test]
async fn messages_that_nobody_reads_for_a_while_all_arrive() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    store.subscribe("c".into()).await.unwrap();
    published_while_nobody_reads(&server, "for i = 1, 20000 do redis.call('PUBLISH', 'c', i) end");
    until("the last message", || recorder.has("c 20000")).await;
    assert_eq!(recorder.messages.lock().unwrap().len(), 20_000);
    assert_eq!(recorder.reconnects(), 0);
}

/// Race: A message is lost inside the client.
#[tokio::test]
async fn burst_of_a_message_for_each_lock_arrives_whole() {
    const CHANNELS: usize = 20_000;
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    let channel = |n: usize| format!("fairlock:unlock:{{lock-{n:05}}}:{:032}", 7);
    let subscribed = (0..CHANNELS).map(|n| store.subscribe(channel(n).into()));
    join_all(subscribed).await.into_iter().for_each(Result::unwrap);
    let message = format!("1 1700000000000000 1700000000000 {:032}:0000005000:1:", 7);
    let publish = format!("redis.call('PUBLISH', channel, '{message}')");
    let publish = format!("for _, channel in ipairs(redis.call('PUBSUB', 'CHANNELS')) do {publish} end");
    published_while_nobody_reads(&server, &publish);
    until("all messages", || {
        recorder.messages.lock().unwrap().len() >= CHANNELS
    })
    .await;
    assert_eq!(recorder.reconnects(), 0, "messages were lost");
}

/// Race: The channel of one lock is refused, and other locks of the client lose their subscriptions.
#[tokio::test]
async fn a_refused_subscription_is_told_and_harms_no_other() {
    let server = Server::start().await;
    server.tell("ACL SETUSER u on >p ~* resetchannels &good:* +@all");
    let (store, recorder) = store(&format!("redis://u:p@127.0.0.1:{}", server.port())).await;
    let good = |n: usize| format!("good:unlock:{{{n}}}:c");
    store.subscribe(good(0).into()).await.unwrap();
    for round in 1..4 {
        // All are requested at once, so that they share one SUBSCRIBE.
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
        for n in [0, round * 20, round * 20 + 19] {
            assert_eq!(server.tell(&format!("PUBLISH {} {round}", good(n))), "1");
            until("pushed", || recorder.has(&format!("{} {round}", good(n)))).await;
        }
    }
    // No other subscription was lost, and no message was missed.
    assert_eq!(recorder.reconnects(), 0);
    assert_eq!(server.tell("CLIENT LIST TYPE pubsub").lines().count(), 1);
}

/// Race: The channel of one lock is refused, and other locks of the client lose their subscriptions.
#[tokio::test]
async fn a_refusal_is_remembered_and_the_server_not_asked_again() {
    let server = Server::start().await;
    server.tell("ACL SETUSER u on >p ~* resetchannels &good +@all");
    let (store, _recorder) = store(&format!("redis://u:p@127.0.0.1:{}", server.port())).await;
    let subscribe = async || store.subscribe("bad".into()).await;
    let first = subscribe().await;
    assert!(matches!(first, Err(Failure::Refused(_))), "{first:?}");
    // The subscription is allowed now, but for some seconds nothing asks the server.
    server.tell("ACL SETUSER u &bad");
    let again = subscribe().await;
    assert!(matches!(again, Err(Failure::Refused(_))), "{again:?}");
    store.subscribe("good".into()).await.unwrap();
    assert_eq!(server.tell("PUBSUB NUMSUB bad"), "bad 0");
    let deadline = Instant::now() + 2 * BOUND;
    while subscribe().await.is_err() {
        assert!(Instant::now() < deadline, "the refusal is remembered forever");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(server.tell("PUBSUB NUMSUB bad"), "bad 1");
}

#[tokio::test]
async fn a_refused_end_of_a_subscription_harms_no_other() {
    let server = Server::start().await;
    server.tell("ACL SETUSER u on >p ~* &* +@all -unsubscribe");
    let (store, recorder) = store(&format!("redis://u:p@127.0.0.1:{}", server.port())).await;
    store.subscribe("one".into()).await.unwrap();
    store.subscribe("two".into()).await.unwrap();
    store.unsubscribe("one");
    for n in 0..10 {
        store.subscribe(format!("{n}").into()).await.unwrap();
    }
    assert_eq!(server.tell("PUBLISH two x"), "1");
    until("pushed", || recorder.has("two x")).await;
    assert_eq!(recorder.reconnects(), 0);
}

#[tokio::test]
async fn refusals_alone_wake_no_waiter() {
    let server = Server::start().await;
    server.tell("ACL SETUSER u on >p ~* resetchannels +@all");
    let (store, recorder) = store(&format!("redis://u:p@127.0.0.1:{}", server.port())).await;
    for n in 0..5 {
        let result = store.subscribe(format!("{n}").into()).await;
        assert!(matches!(result, Err(Failure::Refused(_))), "{result:?}");
    }
    assert_eq!(recorder.reconnects(), 0);
    store.time().await.unwrap();
}

#[tokio::test]
async fn interrupted_subscription_is_completed_on_the_next_connection() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (store, _recorder) = store(&proxy.url()).await;
    proxy.freeze_open();
    let subscribing = tokio::spawn(store.subscribe("c".into()));
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.cut();
    subscribing.await.unwrap().unwrap();
    until("subscribed", || server.tell("PUBLISH c x") == "1").await;
}

#[tokio::test]
async fn channel_given_up_meanwhile_is_not_subscribed() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    let mut given_up = store.subscribe("given up".into());
    let mut context = Context::from_waker(Waker::noop());
    assert!(given_up.as_mut().poll(&mut context).is_pending());
    store.unsubscribe("given up");
    store.subscribe("c".into()).await.unwrap();
    assert!(matches!(given_up.await, Err(Failure::Unknown(_))));
    assert_eq!(server.tell("PUBSUB CHANNELS"), "c");
}
