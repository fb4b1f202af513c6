//! A write to a database that refuses holders whose lease is over: the fence goes with the statement.
//!
//!     DATABASE_URL=postgres://postgres@127.0.0.1/postgres cargo run --package fairlock-examples --bin sql

use std::error::Error;
use std::time::Duration;

use fairlock::Fence;
use fairlock_examples::locks;
use tokio_postgres::{Client, NoTls};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Ok(url) = std::env::var("DATABASE_URL") else {
        return Err(
            "set DATABASE_URL to a PostgreSQL database, such as postgres://postgres@127.0.0.1/postgres"
                .into(),
        );
    };
    let (database, connection) = tokio_postgres::connect(&url, NoTls).await?;
    let connection = tokio::spawn(connection);
    database
        .batch_execute(
            "CREATE TEMPORARY TABLE document (id BIGINT PRIMARY KEY, body TEXT NOT NULL, fence BIGINT NOT NULL);
             INSERT INTO document VALUES (7, 'empty', 0)",
        )
        .await?;

    let locks = locks().await?;
    // A fixed lease is not renewed. It stands for a holder that was paused, whose renewals stopped with it.
    let lock = locks
        .lock("document:7")
        .lease(Duration::from_millis(300))
        .renew(false);

    let paused = lock.acquire().await?;
    println!("the first writer has fence {}, and is paused", paused.fence());
    // This waits until the lease of the first writer is over.
    let quick = lock.acquire().await?;
    println!("the second writer has fence {}", quick.fence());
    report("second", write(&database, "new", quick.fence()).await?);

    // The first writer goes on where it was. Its guard would tell, but it does not look.
    report("first", write(&database, "old", paused.fence()).await?);

    let row = database
        .query_one("SELECT body FROM document WHERE id = 7", &[])
        .await?;
    println!("the document says {:?}", row.get::<_, &str>(0));
    drop(database);
    connection.await??;
    Ok(())
}

/// Writes unless a later holder has written. That is one statement, so nothing can come between the check and
/// the write.
async fn write(database: &Client, body: &str, fence: Fence) -> Result<bool, Box<dyn Error>> {
    let fence = i64::try_from(fence.get())?;
    let statement = "UPDATE document SET body = $1, fence = $2 WHERE id = 7 AND fence <= $2";
    Ok(database.execute(statement, &[&body, &fence]).await? == 1)
}

fn report(writer: &str, written: bool) {
    let outcome = if written {
        "accepted"
    } else {
        "refused: a later holder has written"
    };
    println!("write of the {writer} writer: {outcome}");
}
