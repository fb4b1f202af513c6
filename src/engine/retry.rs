//! How long a failing call is repeated.

use std::time::Duration;

use crate::engine::client::Client;
use crate::protocol::Failure;
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;
use crate::types::error::Result;

/// Limits how long calls are repeated: until no server has answered for so long.
#[derive(Debug)]
pub(crate) struct RetryBudget<'a> {
    client: &'a Client,
    limit: Duration,
    /// The start of the first failed call, or of the next call if none has failed yet.
    since: LocalTime,
    has_failed: bool,
    backoff: Backoff,
}

impl RetryBudget<'_> {
    /// The budget of most calls, the `server_timeout`.
    pub(crate) fn new(client: &Client) -> RetryBudget<'_> {
        RetryBudget::of(client, client.options.server_timeout)
    }

    fn of(client: &Client, limit: Duration) -> RetryBudget<'_> {
        RetryBudget {
            client,
            limit,
            since: client.now(),
            has_failed: false,
            backoff: Backoff::new(),
        }
    }

    /// How long to wait before the next attempt, or the error for the caller. A call that was given up is
    /// no failed one, however long it waited in this process.
    pub(crate) fn next_delay(&mut self, failure: Failure) -> Result<Duration> {
        match failure {
            Failure::Refused(_) | Failure::Closed => return Err(failure.into()),
            Failure::GivenUp => {
                if !self.has_failed {
                    self.reset();
                }
                return Ok(Duration::ZERO);
            }
            Failure::Unknown(_) | Failure::NotExecuted(_) => self.has_failed = true,
        }
        if self.client.now().since(self.since) >= self.limit {
            return Err(failure.into());
        }
        Ok(self.backoff.step())
    }

    /// Starts over, because an answer came, or because nothing was called for a while.
    pub(crate) fn reset(&mut self) {
        *self = RetryBudget::of(self.client, self.limit);
    }
}

/// Repeats a call until it is answered, or until the `server_timeout` is over. Also returns whether an
/// earlier attempt whose reply never came may have been executed.
pub(crate) async fn until_answered<T, C>(client: &Client, call: impl FnMut() -> C) -> Result<(T, bool)>
where
    C: Future<Output = std::result::Result<T, Failure>>,
{
    answered_within(client.options.server_timeout, client, call).await
}

/// The same, until no server has answered for so long.
pub(crate) async fn answered_within<T, C>(
    limit: Duration,
    client: &Client,
    mut call: impl FnMut() -> C,
) -> Result<(T, bool)>
where
    C: Future<Output = std::result::Result<T, Failure>>,
{
    let mut budget = RetryBudget::of(client, limit);
    let mut unknown = false;
    loop {
        match call().await {
            Ok(answer) => return Ok((answer, unknown)),
            Err(failure) => {
                unknown |= matches!(failure, Failure::Unknown(_));
                tokio::time::sleep(budget.next_delay(failure)?).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use crate::tests::scripted_store;
    use crate::types::error::ServerError;

    fn failed() -> Failure {
        Failure::NotExecuted(ServerError::new("LOADING"))
    }

    /// Race: A poll that waits in a saturated client loses the race with the grant of its request, again and
    /// again.
    #[tokio::test(start_paused = true)]
    async fn calls_that_are_given_up_neither_use_up_the_budget_nor_renew_it() {
        let (locks, _) = scripted_store::client(&MemoryStore::new(), &[]);
        let client = locks.shared().waitlists().client();
        let timeout = client.options.server_timeout;
        let mut budget = RetryBudget::new(client);
        tokio::time::sleep(2 * timeout).await;
        assert_eq!(budget.next_delay(Failure::GivenUp).unwrap(), Duration::ZERO);
        tokio::time::sleep(timeout / 2).await;
        assert!(budget.next_delay(failed()).is_ok());
        tokio::time::sleep(timeout / 4).await;
        assert!(budget.next_delay(Failure::GivenUp).is_ok());
        tokio::time::sleep(timeout / 4).await;
        assert!(budget.next_delay(failed()).is_err());
    }
}
