//! A grant that counts only once replicas have it, or the disks of the primary and of replicas.
//!
//! The write that they must have is the hold's first renewal, on the connection that then waits for them: the grant
//! itself may have been somebody else's call. It comes after the grant in the order of replication, so whoever has
//! it has both.

use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::hold::owned::OwnedHold;
use crate::error::{Error, Result, ServerError};
use crate::store::Failure;
use crate::time::backoff::Backoff;

/// Returns the hold once as many servers have it as the client's settings want. If they don't in time, or nobody
/// can say, it is given back.
pub(crate) async fn confirmed(client: &Client, held: OwnedHold) -> Result<OwnedHold> {
    match client.options.durability.wanted() {
        0 => Ok(held),
        // On the heap, so that waiters who sleep don't carry it along.
        wanted => Box::pin(confirm_or_give_back(client, held, wanted)).await,
    }
}

async fn confirm_or_give_back(client: &Client, held: OwnedHold, wanted: u32) -> Result<OwnedHold> {
    let Err(error) = confirm(client, &held, wanted).await else {
        return Ok(held);
    };
    // Whatever comes of it: this grant is not used, and what the release leaves undone is the background task's.
    let _ = held.release().await;
    Err(error)
}

async fn confirm(client: &Client, held: &OwnedHold, wanted: u32) -> Result<()> {
    let until = client.now().after(patience(client, held));
    let mut backoff = Backoff::new();
    loop {
        let left = until.since(client.now());
        let asked = held.background().confirm(held.hold(), left);
        // Half as much again: the server's word on who has it comes at the end of the time that it was given.
        let failure = match tokio::time::timeout(left * 3 / 2, asked).await {
            Ok(Ok(got)) if got >= wanted => return Ok(()),
            Ok(Ok(got)) => return Err(Error::NotReplicated { wanted, got }),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Unknown(ServerError::new("no word in time of who has the grant")),
        };
        let pause = backoff.step();
        let is_final = matches!(failure, Failure::Refused(_) | Failure::Closed);
        if is_final || until.since(client.now()) <= pause {
            return Err(failure.into());
        }
        tokio::time::sleep(pause).await;
    }
}

/// How long they may take: no longer than any other call, and so that most of the time the hold is still there to be
/// given back, and was there all along.
fn patience(client: &Client, held: &OwnedHold) -> Duration {
    let left = held.hold().lease().remaining();
    client.options.attempt_timeout().min(left / 2)
}
