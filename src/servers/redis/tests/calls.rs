//! Tests of the way of a call to the server.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::protocol::{Acquire, Acquired, Failure, Look, Release, Renew, Withdraw};
use crate::servers::redis::commands::RedisCommand;
use crate::servers::redis::pipeline;
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;

const MAX_IN_FLIGHT: usize = pipeline::MAX_IN_FLIGHT as usize;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_executed_once_and_in_order_though_the_scripts_vanish() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    let mut calls = Vec::new();
    for n in 0..500 {
        calls.push(tokio::spawn(start(&store, &n)));
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
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    server.tell("SCRIPT FLUSH");
    let calls: Vec<_> = (0..500).map(|n| start(&store, &n)).collect();
    // The calls are awaited in reverse order, so that the order of the awaits differs from that of the
    // sending.
    for call in join_all(calls.into_iter().rev()).await {
        let at = call.unwrap().at;
        assert!(at.sent < at.received);
    }
    assert_eq!(server.tell("LRANGE list 0 -1"), numbers(0..500));
}

/// Race: A caller runs long after its reply has come, and the server seems slow, or its clock behind.
#[tokio::test]
async fn a_reply_is_received_when_it_is_read_and_not_when_its_caller_runs() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    let call = start(&store, &"x");
    until("executed", || server.tell("LLEN list") == "1").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let runs = store.clock().now();
    assert!(call.await.unwrap().at.received < runs);
}

#[tokio::test]
async fn dropped_and_unpolled_calls_delay_no_other() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    for round in 0..3 {
        server.tell("SCRIPT FLUSH");
        let idle = start(&store, &"idle");
        let dropped = start(&store, &"dropped");
        let call = start(&store, &round);
        drop(dropped);
        let started = Instant::now();
        call.await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(1));
        idle.await.unwrap();
    }
    assert_eq!(server.tell("LRANGE list 0 -1"), "idle 0 idle 1 idle 2");
}

/// Race: A client makes more calls at once than its server can answer in the time limit of one call.
#[tokio::test]
async fn flood_keeps_its_order_and_yields_to_renewals_and_releases() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    let mut calls: Vec<_> = (0..3 * MAX_IN_FLIGHT + 7).map(|n| start(&store, &n)).collect();
    // `ends` is sent as soon as the window has space, and `keeps` at once; its caller need not stay.
    calls.push(start(&store, &"ends"));
    drop(start(&store, &"keeps"));
    for call in join_all(calls.into_iter().rev()).await {
        call.unwrap();
    }
    let (ahead, behind) = (
        numbers(0..MAX_IN_FLIGHT),
        numbers(MAX_IN_FLIGHT..3 * MAX_IN_FLIGHT + 7),
    );
    assert!(server.tell("LRANGE list 0 -1") == format!("{ahead} keeps ends {behind}"));
}

#[tokio::test]
async fn abandoned_backlog_is_not_sent() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    let calls: Vec<_> = (0..2 * MAX_IN_FLIGHT).map(|n| start(&store, &n)).collect();
    // The waiting calls are dropped first, so that none is sent when an earlier one is answered.
    calls.into_iter().rev().for_each(drop);
    store.call(Append("next".to_owned())).await.unwrap();
    let sent = format!("{} next", numbers(0..MAX_IN_FLIGHT));
    assert!(server.tell("LRANGE list 0 -1") == sent);
}

/// Race: A client makes more calls at once than its server can answer in the time limit of one call.
#[tokio::test]
async fn flood_with_unread_answers_delays_no_other_call() {
    let server = Server::start().await;
    let options = Options {
        // No PING of an idle connection helps.
        ping_every: 3 * BOUND,
        ..OPTIONS
    };
    let (store, _recorder) = store_with(options, &server.url()).await;
    let unread: Vec<_> = (0..MAX_IN_FLIGHT).map(|n| start(&store, &n)).collect();
    let more: Vec<_> = (MAX_IN_FLIGHT..3 * MAX_IN_FLIGHT)
        .map(|n| start(&store, &n))
        .collect();
    let last = tokio::time::timeout(BOUND, store.call(Append("last".to_owned())));
    last.await
        .expect("an answer as soon as the server has caught up")
        .unwrap();
    assert!(server.tell("LRANGE list 0 -1") == format!("{} last", numbers(0..3 * MAX_IN_FLIGHT)));
    for call in join_all(unread.into_iter().chain(more)).await {
        call.unwrap();
    }
}

/// Race: A client makes more calls at once than its server can answer in the time limit of one call.
#[tokio::test]
async fn flood_longer_than_an_attempt_is_still_answered() {
    let server = Server::start().await;
    let options = Options {
        // This is many times as long as the server needs for the calls in flight, even on a busy machine.
        attempt_timeout: Duration::from_secs(3),
        ..OPTIONS
    };
    let (store, recorder) = store_with(options, &server.url()).await;
    let flood = async |count| {
        let began = Instant::now();
        let calls = (0..count).map(|n| start(&store, &format!("slow{n}")));
        for call in join_all(calls).await {
            call.unwrap();
        }
        began.elapsed()
    };
    // The count grows until this machine needs longer for all calls than a single call may take.
    let (mut count, mut took) = (MAX_IN_FLIGHT, Duration::ZERO);
    while took <= options.attempt_timeout {
        count *= 4;
        took = flood(count).await;
    }
    assert_eq!(recorder.reconnects(), 0);
}

#[tokio::test]
async fn an_unanswered_call_is_unknown_and_its_connection_replaced() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (store, recorder) = store_with(HASTY, &proxy.url()).await;
    proxy.freeze_open();
    let started = Instant::now();
    // A steady stream of calls without replies.
    let mut calls = Vec::new();
    while recorder.replacements() == 0 {
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
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (store, _recorder) = store(&proxy.url()).await;
    proxy.freeze();
    let call = start(&store, &"x");
    let started = Instant::now();
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.cut();
    let result = call.await;
    assert!(matches!(result, Err(Failure::Unknown(_))), "{result:?}");
    assert!(started.elapsed() < OPTIONS.attempt_timeout);
}

#[tokio::test]
async fn nothing_is_sent_late_and_calls_work_again_after_a_restart() {
    let server = Server::start().await;
    let (store, recorder) = store_with(HASTY, &server.url()).await;
    store.subscribe("c".into()).await.unwrap();
    server.kill();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = Instant::now();
    let result = store.call(Append("late".to_owned())).await;
    assert!(matches!(result, Err(Failure::NotExecuted(_))), "{result:?}");
    assert!(started.elapsed() < HASTY.attempt_timeout + BOUND);
    let gone = start(&store, &"gone");
    drop(gone);
    server.restart().await;
    until("both connections are back", || {
        recorder.replacements() > 0 && recorder.reconnects() > 0
    })
    .await;
    store.call(Append("a".to_owned())).await.unwrap();
    assert_eq!(server.tell("LRANGE list 0 -1"), "a");
    // The subscriber connection is replaced once more if it came back before the command connection.
    until("subscribed", || server.tell("PUBLISH c x") == "1").await;
}

#[tokio::test]
async fn calls_do_not_notice_a_short_break() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (store, recorder) = store(&proxy.url()).await;
    proxy.cut();
    until("a break", || recorder.replacements() > 0 || !store.is_up()).await;
    let calls: Vec<_> = (0..50).map(|n| store.call(Append(n.to_string()))).collect();
    for call in join_all(calls).await {
        call.unwrap();
    }
    assert_eq!(server.tell("LRANGE list 0 -1"), numbers(0..50));
}

#[tokio::test]
async fn a_reply_to_another_call_has_the_connection_replaced() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    let result = store.call(Append("misread".to_owned())).await;
    assert!(matches!(result, Err(Failure::Unknown(_))), "{result:?}");
    until("replaced", || recorder.replacements() == 1).await;
    store.call(Append("a".to_owned())).await.unwrap();
}

#[tokio::test]
async fn a_replica_executes_nothing_and_is_left() {
    let server = Server::start().await;
    let (store, recorder) = store(&server.url()).await;
    server.tell("REPLICAOF 127.0.0.1 1");
    is_left(&store).await;
    assert_eq!(recorder.replacements(), 0, "no other connection is good enough");
    server.tell("REPLICAOF NO ONE");
    store.call(Append("b".to_owned())).await.unwrap();
    assert_eq!(recorder.replacements(), 1);
}

/// Calls on a replica, until there is no connection to it any more.
async fn is_left(store: &RedisStore) {
    let deadline = Instant::now() + BOUND;
    loop {
        match store.call(Append("a".to_owned())).await {
            Err(Failure::NotExecuted(error)) if error.to_string().contains("this server is a replica") => {
                return;
            }
            Err(Failure::NotExecuted(_)) => assert!(Instant::now() < deadline),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn server_errors_are_classified() {
    let server = Server::start().await;
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
async fn a_lock_is_acquired_and_released() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    acquire_and_release(&Store::Server(store)).await;
}

pub(super) async fn acquire_and_release(store: &Store) {
    let client = ClientId::random();
    let keys = Arc::new(Keys::new("fairlock", "orders:42").unwrap());
    let now = store.time().await.unwrap().at.now;
    let seconds = Duration::from_secs;
    let acquire = |n| Acquire {
        keys: Arc::clone(&keys),
        request: RequestId::new(&client, seconds(5), n, None),
        mode: Mode::Ask,
        lease: seconds(30),
        not_after: Arc::new(now.after(seconds(2))),
        ticket: None,
        floor: None,
    };
    let answer = store.call(acquire(1)).await.unwrap();
    let Acquired::Granted { grant, .. } = answer.reply else {
        panic!("{answer:?}")
    };
    assert!(answer.at.now >= now && answer.at.received >= answer.at.sent);
    let answer = store.call(acquire(2)).await.unwrap();
    assert!(matches!(answer.reply, Acquired::Contended(_)), "{answer:?}");
    store.subscribe(keys.channel_of(&client)).await.unwrap();
    let raised = Fence::new(grant.fence.get() + 1).unwrap();
    let renew = Renew {
        keys: Arc::clone(&keys),
        request: grant.request.clone(),
        fence: grant.fence,
        lease: seconds(30),
        cap: ServerTime::MAX,
        on_demand: false,
    };
    let look = Look {
        renew,
        floor: raised,
        ticket: Ticket(u64::MAX >> 11),
    };
    let looked = store.call(look).await.unwrap().reply;
    assert_eq!((looked.fence, looked.earlier), (raised, true), "{looked:?}");
    let release = Release {
        keys: Arc::clone(&keys),
        request: grant.request.clone(),
        what: ReleaseWhat::Grant(raised),
        floor: None,
    };
    let released = store.call(release).await.unwrap().reply;
    assert_eq!(released.outcome, ReleaseOutcome::Released);
    let answer = store.call(acquire(2)).await.unwrap();
    assert!(matches!(answer.reply, Acquired::Granted { .. }), "{answer:?}");
}

#[tokio::test]
async fn server_whose_clock_is_a_day_behind_a_quorum_refuses_its_calls() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    let keys = Arc::new(Keys::new("fairlock", "orders:42").unwrap());
    let request = RequestId::new(&ClientId::random(), Duration::from_secs(5), 1, None);
    let now = store.time().await.unwrap().at.now;
    let days = |days: u64| Fence::new(1_000 * now.ms() + days * 86_400_000_000).unwrap();
    let withdraw = |floor| Withdraw {
        keys: Arc::clone(&keys),
        requests: vec![request.clone()],
        floor: Some(floor),
    };
    let refused = store.call(withdraw(days(2))).await;
    assert!(
        matches!(&refused, Err(Failure::Refused(error)) if error.to_string().contains("more than a day behind")),
        "{refused:?}"
    );
    store.call(withdraw(days(1))).await.unwrap();
}

/// Random faults for two seconds. Each outcome that a call reports must be true.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_of_calls_are_true_under_random_faults() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (store, _recorder) = store_with(HASTY, &proxy.url()).await;
    let done = Instant::now() + Duration::from_secs(2);
    let callers = (0..32).map(|caller| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let mut log = Vec::new();
            while Instant::now() < done {
                let text = format!("{caller}:{}", log.len());
                let result = store.call(Append(text.clone())).await;
                log.push((text, result.map(drop)));
            }
            log
        })
    });
    let callers: Vec<_> = callers.collect();
    for fault in 0.. {
        tokio::time::sleep(Duration::from_millis(37)).await;
        match fault % 7 {
            0 | 2 | 4 => drop(server.tell("SCRIPT FLUSH")),
            1 => drop(server.tell("CLIENT KILL TYPE normal")),
            3 => proxy.cut(),
            5 if fault % 3 == 0 => proxy.freeze_open(),
            _ => {}
        }
        if Instant::now() > done {
            break;
        }
    }
    let logs = join_all(callers).await;
    let list = server.tell("LRANGE list 0 -1");
    let list: Vec<_> = list.split(' ').collect();
    let (mut executed, mut unknown) = (0, 0);
    for (caller, log) in logs.into_iter().enumerate() {
        let log = log.unwrap();
        let prefix = format!("{caller}:");
        let mine: Vec<_> = list.iter().filter(|text| text.starts_with(&prefix)).collect();
        assert!(mine.is_sorted_by_key(|text| text[prefix.len()..].parse::<usize>().unwrap()));
        for (text, result) in &log {
            let times = mine.iter().filter(|mine| **mine == text).count();
            match result {
                Ok(()) => assert_eq!(times, 1, "{text}"),
                Err(Failure::NotExecuted(_)) => assert_eq!(times, 0, "{text}"),
                Err(Failure::Unknown(_)) => assert!(times <= 1, "{text}"),
                Err(failure) => panic!("{text}: {failure:?}"),
            }
            executed += usize::from(result.is_ok());
            unknown += usize::from(matches!(result, Err(Failure::Unknown(_))));
        }
    }
    assert!(
        executed > 100 && unknown > 0,
        "{executed} executed, {unknown} unknown"
    );
}

#[tokio::test]
async fn a_replica_is_left_at_its_first_word_once_its_connection_is_of_age() {
    let server = Server::start().await;
    // No PING comes before the connection is replaced.
    let options = Options {
        ping_every: BOUND,
        ..OPTIONS
    };
    let (store, _recorder) = store_with(options, &server.url()).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.tell("REPLICAOF 127.0.0.1 1");
    // This is well before the PING.
    tokio::time::timeout(2 * BOUND, is_left(&store)).await.unwrap();
}

#[tokio::test]
async fn newcomer_in_a_flood_does_not_overtake_waiting_calls() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    let mut calls: Vec<_> = (0..MAX_IN_FLIGHT + 7).map(|n| start(&store, &n)).collect();
    // There is space for one call in the window. The waiting calls are sent only when there is space for
    // many.
    calls.remove(0).await.unwrap();
    calls.push(start(&store, &"newcomer"));
    for call in join_all(calls).await {
        call.unwrap();
    }
    let all = numbers(0..MAX_IN_FLIGHT + 7);
    assert!(server.tell("LRANGE list 0 -1") == format!("{all} newcomer"));
}

#[tokio::test]
async fn flood_keeps_its_order_through_a_script_flush() {
    let server = Server::start().await;
    let (store, _recorder) = store(&server.url()).await;
    server.tell("SCRIPT FLUSH");
    let mut calls: Vec<_> = (0..2 * MAX_IN_FLIGHT).map(|n| start(&store, &n)).collect();
    // The last call that was sent is the first to read that it has met the flush.
    let first = tokio::spawn(calls.remove(MAX_IN_FLIGHT - 1));
    let exists = format!("SCRIPT EXISTS {}", fred::util::sha1_hash(APPEND.text()));
    until("the scripts are loaded again", || server.tell(&exists) == "1").await;
    for call in join_all(calls.into_iter().rev()).await {
        call.unwrap();
    }
    first.await.unwrap().unwrap();
    assert!(server.tell("LRANGE list 0 -1") == numbers(0..2 * MAX_IN_FLIGHT));
}

#[tokio::test]
async fn slow_call_does_not_cost_a_connection_that_answers_others() {
    let server = Server::start().await;
    let (store, recorder) = store_with(HASTY, &server.url()).await;
    // Each call waits in vain, on one connection. So the first one is answered in time, and the second one is
    // not.
    let wait = || {
        let within = HASTY.attempt_timeout * 6 / 10;
        Arc::clone(store.pipeline()).call(RedisCommand::wait(1, within))
    };
    let (first, second) = tokio::join!(wait(), wait());
    first.unwrap();
    assert!(matches!(second, Err(Failure::Unknown(_))), "{second:?}");
    store.call(Append("a".to_owned())).await.unwrap();
    assert_eq!(recorder.reconnects(), 0);
}
