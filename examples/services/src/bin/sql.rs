//! A payment that a provider takes once, though the process that pays may be killed at any moment.
//! [docs/once.md](../../../../docs/once.md) explains the three steps.
//!
//!     DATABASE_URL=postgres://postgres@127.0.0.1/postgres PROVIDER=127.0.0.1:8080 \
//!         REDIS_URL=redis://127.0.0.1:6379 cargo run --package fairlock-examples --bin sql
//!
//! Any HTTP server that answers `POST /charges` can stand for the provider. It has to know an
//! `Idempotency-Key` again.

use std::error::Error;
use std::time::Duration;

use fairlock::Fence;
use fairlock_examples::locks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::{Client, NoTls};

/// If this process is killed, another one can go on with its payment after at most this time.
const LEASE: Duration = Duration::from_secs(3);

/// Payment 42 stands for one that a customer has ordered.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS payment (
        id         BIGINT PRIMARY KEY,
        amount     BIGINT NOT NULL,
        key        TEXT NOT NULL UNIQUE DEFAULT gen_random_uuid(), -- made once, before any call
        fence      BIGINT NOT NULL DEFAULT 0,
        claimed_at TIMESTAMPTZ, -- for the first time
        paid       BOOLEAN NOT NULL DEFAULT false,
        receipt    TEXT
    );
    INSERT INTO payment (id, amount) VALUES (42, 1999) ON CONFLICT DO NOTHING";

const CLAIM: &str = "
    UPDATE payment SET fence = $2, claimed_at = coalesce(claimed_at, now())
    WHERE id = $1 AND fence <= $2
        AND (paid OR claimed_at IS NULL OR claimed_at > now() - interval '20 hours')
    RETURNING key, amount, paid, receipt";

const CONFIRM: &str = "
    UPDATE payment SET paid = true, receipt = $3
    WHERE id = $1 AND NOT paid AND fence <= $2";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (Ok(url), Ok(provider)) = (std::env::var("DATABASE_URL"), std::env::var("PROVIDER")) else {
        return Err("set DATABASE_URL to a PostgreSQL database, and PROVIDER to an HTTP server".into());
    };
    let (database, connection) = tokio_postgres::connect(&url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let locks = locks().await?;
    let migration = locks.lock("payment:migration");
    migration
        .with(async |_token| database.batch_execute(SCHEMA).await)
        .await??;

    let lock = locks.lock("payment:42").lease(LEASE);
    match lock
        .with(async |token| pay(&database, &provider, 42, token.fence()).await)
        .await??
    {
        Some(receipt) => println!("paid: {receipt}"),
        None => println!("a later holder pays"),
    }
    locks.close().await?;
    drop(database);
    connection.await??;
    Ok(())
}

/// Returns the receipt, also of an earlier holder, or `None` if it is a later holder's turn.
async fn pay(
    database: &Client,
    provider: &str,
    id: i64,
    fence: Fence,
) -> Result<Option<String>, Box<dyn Error>> {
    println!("claiming under fence {fence}");
    // Each statement is a transaction of its own: none is open during the call.
    let Some(claimed) = database.query_opt(CLAIM, &[&id, &fence]).await? else {
        return Ok(None);
    };
    if claimed.get("paid") {
        return Ok(claimed.get("receipt"));
    }
    let receipt = charge(provider, claimed.get("key"), claimed.get("amount")).await?;
    let confirmed = database.execute(CONFIRM, &[&id, &fence, &receipt]).await?;
    Ok((confirmed == 1).then_some(receipt))
}

/// Stands for the provider's own library. The provider answers a key that it knows with the receipt that it
/// has given already.
async fn charge(provider: &str, key: &str, amount: i64) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(provider).await?;
    let body = format!("amount={amount}");
    let request = format!(
        "POST /charges HTTP/1.1\r\nHost: {provider}\r\nIdempotency-Key: {key}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    match response.split_once("\r\n\r\n") {
        Some((head, receipt)) if head.starts_with("HTTP/1.1 200 ") => Ok(receipt.trim().to_owned()),
        _ => Err(format!("the provider says {response:?}").into()),
    }
}
