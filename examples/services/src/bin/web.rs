//! An HTTP service that charges an invoice once at a time, in the order of the requests.
//! [docs/web.md](../../../../docs/web.md) explains it.
//!
//!     cargo run --package fairlock-examples --bin web
//!     curl -i -X POST localhost:3000/invoices/42/charge
//!     curl -i localhost:3000/ready
//!     curl -s localhost:3000/metrics

use std::error::Error;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fairlock::{Fence, LockManager, MemoryStore};
use fairlock_examples::shutdown;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

/// If this process is killed, its invoices are free after this time.
const LEASE: Duration = Duration::from_secs(5);

/// A charge that hangs is stopped after this time. The provider's client gives up sooner.
const LONGEST_CHARGE: Duration = Duration::from_secs(20);

/// How long a request waits for its turn. Less than clients and proxies wait for the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The instance stays ready while the lock server is away for less than this.
const GRACE: Duration = Duration::from_secs(30);

/// Seconds.
const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0];

#[derive(Clone)]
struct App {
    locks: LockManager,
    charges: TaskTracker,
    metrics: PrometheusHandle,
    /// When the lock server answered last.
    answered: watch::Sender<Option<Instant>>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Before the first lock is used.
    let metrics = PrometheusBuilder::new()
        .set_buckets(&BUCKETS)?
        .install_recorder()?;
    let builder = LockManager::builder().lease(LEASE);
    let app = App {
        locks: match std::env::var("REDIS_URL") {
            // Does not wait: the service starts while its lock server is away, and is not ready until then.
            Ok(url) => builder.connect_lazy(&url)?,
            Err(_) => builder.in_memory(&MemoryStore::new())?,
        },
        charges: TaskTracker::new(),
        metrics,
        answered: watch::Sender::new(None),
    };
    let routes = Router::new()
        .route("/invoices/{id}/charge", post(charge))
        .route("/metrics", get(metrics_text))
        .route("/ready", get(ready))
        .with_state(app.clone());
    let rounds = tokio::spawn(make_rounds(app.clone()));

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    println!("listening on {}", listener.local_addr()?);
    // Until the process is asked to end, and all requests are answered.
    axum::serve(listener, routes)
        .with_graceful_shutdown(shutdown())
        .await?;
    // Charges whose clients have hung up.
    app.charges.close();
    app.charges.wait().await;
    // Releases that the lock server has not confirmed yet.
    app.locks.close().await?;
    rounds.abort();
    println!("closed");
    Ok(())
}

async fn charge(State(app): State<App>, Path(id): Path<u64>) -> Response {
    let lock = app.locks.lock(format!("invoice:{id}")).max_hold(LONGEST_CHARGE);
    // A client that hangs up here leaves the queue: axum drops this future.
    let guard = match lock.acquire_timeout(PATIENCE).await {
        Ok(guard) => guard,
        Err(error) => return refusal(&error),
    };
    // A client that hangs up from here on does not stop the charge.
    let charge = app.charges.spawn(async move {
        // It is stopped if the lease is lost. Dropping the guard releases the lock.
        guard.run(charge_card(id, guard.fence())).await
    });
    match charge.await {
        Ok(Ok(receipt)) => receipt.into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_panic) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Stands for the work. docs/once.md has a real one.
async fn charge_card(id: u64, fence: Fence) -> String {
    println!("charging invoice {id} under fence {fence}");
    sleep(Duration::from_millis(800)).await;
    println!("charged invoice {id}");
    format!("charged under fence {fence}\n")
}

fn refusal(error: &fairlock::Error) -> Response {
    eprintln!("charging failed: {error}");
    if matches!(error, fairlock::Error::Invalid(_) | fairlock::Error::Refused(_)) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    // Soon, and not all at the same time.
    let seconds = 1 + RandomState::new().build_hasher().finish() % 3;
    let headers = [(header::RETRY_AFTER, seconds.to_string())];
    (StatusCode::SERVICE_UNAVAILABLE, headers, "try again\n").into_response()
}

async fn ready(State(app): State<App>) -> StatusCode {
    match *app.answered.borrow() {
        Some(answered) if answered.elapsed() < GRACE => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn metrics_text(State(app): State<App>) -> String {
    app.metrics.render()
}

/// What is done every second.
async fn make_rounds(app: App) {
    loop {
        if app.locks.ping().await.is_ok() {
            app.answered.send_replace(Some(Instant::now()));
        }
        app.metrics.run_upkeep(); // frees what the recorder has collected since
        sleep(Duration::from_secs(1)).await;
    }
}
