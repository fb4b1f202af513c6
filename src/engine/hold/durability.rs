//! Durability: a grant counts only when replicas have it.
//!
//! They must have one write: the first renewal of the hold, sent on the connection that then waits for them.
//! The grant itself does not serve for this, because another client's call may have made it. The renewal
//! follows the grant in the order of replication, so a replica that has the renewal has both.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::hold::owned::OwnedHold;
use crate::protocol::Failure;
use crate::time::backoff::Backoff;
use crate::types::error::{Error, Result, ServerError};

/// Returns the hold when as many replicas have it as the client's settings require. Releases it if they do
/// not have it in time, or if that cannot be found out.
pub(in crate::engine) async fn confirmed(client: &Client, held: OwnedHold) -> Result<OwnedHold> {
    match client.options.replicas {
        0 => Ok(held),
        // On the heap, so that sleeping waiters do not carry it along.
        wanted => Box::pin(confirm_or_give_back(client, held, wanted)).await,
    }
}

async fn confirm_or_give_back(client: &Client, held: OwnedHold, wanted: u32) -> Result<OwnedHold> {
    let Err(error) = confirm(client, &held, wanted).await else {
        return Ok(held);
    };
    // The result does not matter, since this grant is not used. A task finishes whatever the release
    // leaves undone.
    let _ = held.release().await;
    Err(error)
}

async fn confirm(client: &Client, held: &OwnedHold, wanted: u32) -> Result<()> {
    let until = client.now().after(patience(client, held));
    let mut backoff = Backoff::new();
    loop {
        let left = until.since(client.now());
        let asked = held.background().confirm(held.hold(), left);
        // Half as much again, because the server reports how many have the write only when the given time is
        // over.
        let failure = match tokio::time::timeout(left * 3 / 2, asked).await {
            Ok(Ok(got)) if got >= wanted => return Ok(()),
            Ok(Ok(got)) => {
                return Err(Error::NotReplicated {
                    name: Arc::default(),
                    wanted,
                    got,
                });
            }
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

/// How long the confirmation may take. It takes no longer than any other call. It also takes at most half of
/// the remaining lease, so that usually the hold is never lost meanwhile, and can still be released.
fn patience(client: &Client, held: &OwnedHold) -> Duration {
    let left = held.hold().lease().remaining;
    client.options.attempt_timeout().min(left / 2)
}
