//! An HTTP service that charges an invoice once at a time, in the order of the requests, and shuts down
//! gracefully.
//!
//!     cargo run --package fairlock-examples --bin web
//!     curl -i -X POST localhost:3000/invoices/42/charge

use std::error::Error;
use std::hash::{BuildHasher, Hasher, RandomState};
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
    // Waits for as long as the client does. axum drops this future when the client hangs up: that ends the
    // wait, or stops the work and releases the lock.
    match lock.with(charge_card).await {
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
    eprintln!("charging failed: {error}");
    if matches!(error, fairlock::Error::Invalid(_) | fairlock::Error::Refused(_)) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    // Soon, and not all at the same time.
    let seconds = 1 + RandomState::new().build_hasher().finish() % 3;
    let headers = [(header::RETRY_AFTER, seconds.to_string())];
    (StatusCode::SERVICE_UNAVAILABLE, headers, "try again\n").into_response()
}
