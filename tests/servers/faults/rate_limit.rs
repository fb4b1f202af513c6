//! A rate limit over several processes, one of which stands still again and again, as a provider sees it that
//! counts calls as they arrive.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlock::Error;
use fairlock_testkit::{Process, Proxy, Server, role};
use tokio::time::{sleep, timeout};

use super::scene::{NAME, SECOND, connect, settings};

const MS: Duration = Duration::from_millis(1);
const LIMIT: u32 = 50;
/// How long a call is on its way, at most.
const WAY: Duration = Duration::from_millis(30);
const PROCESSES: usize = 4;

/// Calls the provider again and again, by many callers.
#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn calling_part() {
    let Some(mut role) = role() else { return };
    let locks = connect(&role.arg("url")).await;
    let provider = role.arg("provider");
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    for _ in 0..role.number("callers") {
        let (limit, socket) = (locks.rate_limit(NAME, LIMIT, SECOND), Arc::clone(&socket));
        let provider = provider.clone();
        tokio::spawn(async move {
            loop {
                limit.acquire().await.unwrap();
                let (socket, provider) = (Arc::clone(&socket), provider.clone());
                tokio::spawn(async move {
                    sleep(WAY.mul_f64(fastrand::f64())).await;
                    socket.send_to(b"call", &provider).unwrap();
                });
            }
        });
    }
    role.heard().await;
}

/// Counts the calls that arrive, until it is told to end.
fn provider(ended: &Arc<AtomicBool>) -> (String, std::thread::JoinHandle<Vec<Instant>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(100 * MS)).unwrap();
    let (address, ended) = (socket.local_addr().unwrap().to_string(), Arc::clone(ended));
    let counting = std::thread::spawn(move || {
        let (mut arrived, mut call) = (Vec::new(), [0; 8]);
        while !ended.load(Ordering::Relaxed) {
            if socket.recv(&mut call).is_ok() {
                arrived.push(Instant::now());
            }
        }
        arrived
    });
    (address, counting)
}

/// How many calls of scripts the server has run.
async fn scripts(server: &Server) -> u64 {
    let info = server.info("commandstats").await;
    let of = info.get("cmdstat_evalsha").map_or("", |stats| stats.as_str());
    let calls = of.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or_default()
}

/// Race: A process that waits for turns stands still, and goes on.
#[tokio::test]
async fn a_provider_counts_no_more_calls_than_the_limit_though_processes_stand_still() {
    let seconds = std::env::var("FAIRLOCK_RATE_SECONDS").map_or(8, |seconds| seconds.parse().unwrap());
    let callers = std::env::var("FAIRLOCK_RATE_CALLERS").unwrap_or("25".to_owned());
    let server = Server::start().await;
    let ended = Arc::new(AtomicBool::new(false));
    let (address, counting) = provider(&ended);
    let url = server.url();
    let args = [("url", &*url), ("provider", &*address), ("callers", &*callers)];
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Process::spawn("faults::rate_limit::calling_part", &args))
        .collect();
    sleep(2 * SECOND).await;
    let (began, before) = (Instant::now(), scripts(&server).await);
    while began.elapsed() < seconds * SECOND {
        processes[0].stop();
        sleep(3 * SECOND).await;
        processes[0].cont();
        sleep(if seconds > 10 { 7 * SECOND } else { SECOND }).await;
    }
    let (span, asked) = (began.elapsed(), scripts(&server).await - before);
    ended.store(true, Ordering::Relaxed);
    let arrived = counting.join().unwrap();
    processes.iter_mut().for_each(Process::kill);
    let arrived: Vec<_> = arrived.into_iter().filter(|at| *at >= began).collect();
    let within = |(first, at): (usize, &Instant)| {
        let later = arrived[first..].iter();
        later.take_while(|other| **other < *at + SECOND).count()
    };
    let most = arrived.iter().enumerate().map(within).max().unwrap();
    let average = arrived.len() as f64 / span.as_secs_f64();
    let commands = asked as f64 / arrived.len() as f64;
    println!("at most {most} within a second, {average:.1} on average, {commands:.2} commands a turn");
    // The ways differ by 1.5 calls. A machine that stands still itself, for up to half a second, adds more.
    assert!(most <= 75, "{most}");
    assert!(average >= 0.8 * f64::from(LIMIT), "{average}");
    assert!(commands <= 4.0, "{commands}");
}

/// Race: The server stops for a while, and goes on.
#[tokio::test]
async fn waits_for_turns_outlast_a_server_that_stops_and_end_where_it_stays_away() {
    let server = Server::start().await;
    let patient = settings()
        .server_timeout(60 * SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let limit = patient.rate_limit(NAME, 20, SECOND);
    limit.acquire().await.unwrap();
    server.pause();
    let waits: Vec<_> = (0..5).map(|_| tokio::spawn(limit.acquire())).collect();
    sleep(2 * SECOND).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    server.resume();
    for wait in waits {
        timeout(20 * SECOND, wait)
            .await
            .expect("its turn")
            .unwrap()
            .unwrap();
    }
    let impatient = settings()
        .server_timeout(SECOND)
        .connect(&server.url())
        .await
        .unwrap();
    let limit = impatient.rate_limit(NAME, 20, SECOND);
    server.pause();
    let began = Instant::now();
    assert!(matches!(limit.acquire().await, Err(Error::Unavailable(_))));
    assert!(matches!(limit.try_acquire().await, Err(Error::Unavailable(_))));
    assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
    server.resume();
    timeout(20 * SECOND, limit.acquire())
        .await
        .expect("its turn")
        .unwrap();
}

/// Race: A connection breaks while callers wait for turns.
#[tokio::test]
async fn connections_that_break_cost_some_turns_and_give_none_too_many() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let locks = settings()
        .server_timeout(30 * SECOND)
        .connect(&proxy.url())
        .await
        .unwrap();
    let begun = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (limit, begun) = (locks.rate_limit(NAME, LIMIT, SECOND), Arc::clone(&begun));
        tasks.spawn(async move {
            for _ in 0..10 {
                limit.acquire().await.unwrap();
                begun.lock().unwrap().push(Instant::now());
            }
        });
    }
    while !tasks.is_empty() {
        proxy.cut();
        let _ = timeout(150 * MS, tasks.join_next()).await;
        assert!(begun.lock().unwrap().len() <= 100);
    }
    let mut begun = begun.lock().unwrap().clone();
    begun.sort();
    let span = begun[99] - begun[0];
    assert!(span + 50 * MS >= 99 * SECOND / LIMIT, "{span:?}");
}
