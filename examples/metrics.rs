//! Exports the metrics of locks to Prometheus, while a few workers contend for two seconds, or for as long as
//! the second argument says. `curl http://127.0.0.1:9464/metrics` shows what Prometheus scrapes.
//!
//!     cargo run --features metrics --example metrics [redis://127.0.0.1:6379 [seconds]]

use std::net::SocketAddr;
use std::time::Duration;

use fairlock::LockManager;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::time::{Instant, sleep};

/// Seconds, from 1 ms to a minute.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::var("PORT").map_or(Ok(9464), |port| port.parse())?;
    // Before the first lock is used: what is recorded before that is lost.
    PrometheusBuilder::new()
        .set_buckets(&BUCKETS)?
        .with_http_listener(SocketAddr::from(([127, 0, 0, 1], port)))
        .install()?;

    let mut arguments = std::env::args().skip(1);
    let locks = match arguments.next() {
        Some(url) => LockManager::connect(&url).await?,
        None => LockManager::in_memory(),
    };
    let seconds = arguments.next().map_or(Ok(2), |seconds| seconds.parse())?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let workers = (0..4).map(|worker| {
        let lock = locks.lock(format!("invoice:{}", worker % 2)); // both are in the group `invoice`
        tokio::spawn(async move {
            while Instant::now() < until {
                lock.with(async |_token| sleep(Duration::from_millis(20)).await)
                    .await?;
            }
            Ok::<(), fairlock::Error>(())
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await??;
    }
    let stats = locks.stats();
    println!("{} acquired, {} handed over", stats.acquired, stats.handed_over);
    Ok(())
}
