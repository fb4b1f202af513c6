//! How long a failing call is repeated.

use std::time::Duration;

use crate::engine::client::Client;
use crate::error::Result;
use crate::store::Failure;
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;

/// Limits how long calls are repeated: until no server has answered for the `server_timeout`.
#[derive(Debug)]
pub(crate) struct RetryBudget<'a> {
    client: &'a Client,
    /// The start of the first failed call, or of the next call if none has failed yet.
    since: LocalTime,
    backoff: Backoff,
}

impl RetryBudget<'_> {
    pub(crate) fn new(client: &Client) -> RetryBudget<'_> {
        RetryBudget {
            client,
            since: client.now(),
            backoff: Backoff::new(),
        }
    }

    /// How long to wait before the next attempt, or the error for the caller.
    pub(crate) fn next_delay(&mut self, failure: Failure) -> Result<Duration> {
        if matches!(failure, Failure::Refused(_) | Failure::Closed) {
            return Err(failure.into());
        }
        if self.client.now().since(self.since) >= self.client.options.server_timeout {
            return Err(failure.into());
        }
        Ok(self.backoff.step())
    }

    /// Starts over, because an answer came, or because nothing was called for a while.
    pub(crate) fn reset(&mut self) {
        *self = RetryBudget::new(self.client);
    }
}

/// Repeats a call until it is answered, or until the retry budget is used up. Also returns whether an earlier
/// attempt whose reply never came may have been executed.
pub(crate) async fn until_answered<T, C>(client: &Client, mut call: impl FnMut() -> C) -> Result<(T, bool)>
where
    C: Future<Output = std::result::Result<T, Failure>>,
{
    let mut patience = RetryBudget::new(client);
    let mut unknown = false;
    loop {
        match call().await {
            Ok(answer) => return Ok((answer, unknown)),
            Err(failure) => {
                unknown |= matches!(failure, Failure::Unknown(_));
                tokio::time::sleep(patience.next_delay(failure)?).await;
            }
        }
    }
}
