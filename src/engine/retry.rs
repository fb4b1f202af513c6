//! For how long a call is repeated that fails.

use std::time::Duration;

use crate::engine::client::Client;
use crate::error::Result;
use crate::store::Failure;
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;

/// How long failures are put up with: until no server has answered for the `server_timeout`.
#[derive(Debug)]
pub(crate) struct RetryBudget<'a> {
    client: &'a Client,
    /// When the call began that failed first, or may fail next.
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

    /// How long to wait before the next try; or what to tell the caller.
    pub(crate) fn next_delay(&mut self, failure: Failure) -> Result<Duration> {
        if matches!(failure, Failure::Refused(_) | Failure::Closed) {
            return Err(failure.into());
        }
        if self.client.now().since(self.since) >= self.client.options.server_timeout {
            return Err(failure.into());
        }
        Ok(self.backoff.step())
    }

    /// Begins anew: an answer came, or nothing was called for a while.
    pub(crate) fn reset(&mut self) {
        *self = RetryBudget::new(self.client);
    }
}

/// Repeats a call until it is answered, for as long as patience lasts. Returns with the answer whether an earlier attempt
/// may have been executed, whose reply never came.
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
