//! An HTTP service that charges an invoice once at a time, answers 503 with `Retry-After` while an invoice is
//! busy, and shuts down gracefully.
//!
//!     cargo run --package fairlock-examples --bin web
//!     curl -i -X POST localhost:3000/invoices/42/charge

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use fairlock::{Fence, LockManager};
use fairlock_examples::{locks, shutdown};
use tokio::net::TcpListener;

/// How long a request waits for its turn. Longer than charging takes, and shorter than clients wait for an
/// answer.
const PATIENCE: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = locks().await?;
    let app = Router::new()
        .route("/invoices/{id}/charge", post(charge))
        .with_state(locks.clone());

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(shutdown())
        .await?;

    // All requests are answered. Now wait until the server knows of every release.
    locks.close().await?;
    println!("closed");
    Ok(())
}

async fn charge(State(locks): State<LockManager>, Path(id): Path<u64>) -> Response {
    let lock = locks.lock(format!("invoice:{id}"));
    // axum drops this future when the client hangs up: that ends the wait, or stops the work and releases the
    // lock.
    match lock.with_timeout(PATIENCE, charge_card).await {
        Ok(receipt) => receipt.into_response(),
        Err(error) => refusal(&error),
    }
}

/// Stands for the work. A real one passes the fence on to whatever it writes to.
async fn charge_card(fence: Fence) -> String {
    tokio::time::sleep(Duration::from_millis(800)).await;
    format!("charged under fence {fence}\n")
}

fn refusal(error: &fairlock::Error) -> Response {
    if error.is_transient() {
        let retry_after = error.retry_after().unwrap_or(Duration::from_secs(1));
        let seconds = retry_after.as_millis().div_ceil(1000).max(1).to_string();
        let headers = [(header::RETRY_AFTER, seconds)];
        (StatusCode::SERVICE_UNAVAILABLE, headers, format!("{error}\n")).into_response()
    } else {
        eprintln!("charging failed: {error}");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
