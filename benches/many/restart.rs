//! Waiters of one lock whose server dies and comes back, with or without its data: how long until all of them
//! are queued again, and how many calls that takes.

use std::time::{Duration, Instant};

use clap::Args;
use fairlock::{Fence, LockManager};
use fairlock_benches::Outcome;
use fairlock_testkit::{Server, eventually};
use futures_util::FutureExt;
use tokio::sync::mpsc;

const NAME: &str = "restart";
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Waiters
    #[arg(long, default_value_t = 10_000)]
    waiters: usize,
    /// Clients that share the waiters
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// The server loses all its data
    #[arg(long)]
    forgets: bool,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    let server = match arguments.forgets {
        true => Server::start().await,
        false => {
            let builder = Server::builder().config("appendonly", "yes");
            builder.config("appendfsync", "always").start().await
        }
    };
    let connect = async || {
        let builder = LockManager::builder().server_timeout(LIMIT).max_waiters(None);
        builder.connect(&server.url()).await
    };
    let holder = connect().await?;
    let guard = holder.lock(NAME).acquire().await?;
    let mut clients = Vec::new();
    for _ in 0..arguments.clients {
        clients.push(connect().await?);
    }
    let (served, mut order) = mpsc::unbounded_channel();
    for number in 0..arguments.waiters {
        // Each client queues a hundred waiters, whose calls keep their order, and then the next client does.
        // So the order of all waiters is known.
        let lock = clients[number / 100 % clients.len()].lock(NAME);
        let served = served.clone();
        let mut waiting = Box::pin(lock.acquire());
        assert!(waiting.as_mut().now_or_never().is_none(), "it is held");
        if number % 100 == 99 {
            queued(&server, number + 1).await;
        }
        tokio::spawn(async move {
            let guard = waiting.await?;
            let _ = served.send((number, guard.fence()));
            guard.release().await
        });
    }
    queued(&server, arguments.waiters).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let listening = channels(&server).await;

    server.kill();
    let began = Instant::now();
    server.restart().await;
    let back = Instant::now();
    // A server that lost its data grants the lock to the first request, without waiting for all of them to be
    // there.
    if !arguments.forgets {
        queued(&server, arguments.waiters).await;
        eventually("all waiters are reachable", LIMIT, async || {
            channels(&server).await == listening
        })
        .await;
        println!(
            "all waiters queued and reachable {:.2?} after the server was back",
            back.elapsed()
        );
    }
    let calls = server.calls().await;
    let sent = |name: &str| calls.get(name).copied().unwrap_or(0);
    println!(
        "{} waiters of {} clients; the server was away for {:.2?}, and {}",
        arguments.waiters,
        arguments.clients,
        back - began,
        if arguments.forgets {
            "lost all data"
        } else {
            "kept all data"
        }
    );
    println!(
        "until then: {} script calls, {} SUBSCRIBE",
        sent("evalsha"),
        sent("subscribe")
    );
    // The hold may be lost, if the server no longer knows it.
    let _ = guard.release().await;
    let mut grants: Vec<(usize, Fence)> = Vec::new();
    let first = Instant::now();
    while grants.len() < arguments.waiters {
        let next = tokio::time::timeout(LIMIT, order.recv()).await?;
        grants.extend(next);
    }
    grants.sort_unstable_by_key(|(_, fence)| *fence);
    let overtakings = grants.windows(2).filter(|pair| pair[0].0 > pair[1].0).count();
    println!(
        "all served in {:.2?}; {overtakings} out of order",
        first.elapsed()
    );
    Ok(())
}

/// Waits until `count` requests are queued.
async fn queued(server: &Server, count: usize) {
    let key = format!("fairlock:queue:{{{NAME}}}");
    eventually("all are queued", LIMIT, async || {
        let queued = server.command(&["ZCARD", &key]).await.int();
        usize::try_from(queued).is_ok_and(|queued| queued >= count)
    })
    .await;
}

/// How many channels of clients have a subscriber.
async fn channels(server: &Server) -> usize {
    let channels = server.command(&["PUBSUB", "CHANNELS", "fairlock:unlock:*"]).await;
    channels.array().len()
}
