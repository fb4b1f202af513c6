//! Asks for credentials, and renews those of open connections before they expire.
//!
//! The provider is asked before each dial, and by each open connection, which then sends `AUTH`. With a
//! provider, a wrong password is no refusal, because the next answer may be right.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use fred::types::config::Config;
use futures_util::FutureExt;
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::Line;
use crate::protocol::interface::Failure;
use crate::time::backoff::{Backoff, jitter};
use crate::types::credentials::{Credentials, CredentialsProvider};
use crate::types::error::ServerError;

const SHORTEST_LIFETIME: Duration = Duration::from_secs(1);
/// 136 years. Times that are further away are no times.
const LONGEST_LIFETIME: Duration = Duration::from_secs(u32::MAX as u64);

/// How the connections of a client get their credentials.
#[derive(Debug)]
pub(super) struct Login {
    pub(super) provider: CredentialsProvider,
    /// How long the provider may take.
    pub(super) patience: Duration,
}

impl Login {
    /// Asks for the credentials of this server, and returns them with the time for the next ones. A provider
    /// that fails, hangs or panics may do better later.
    async fn ask(&self, server: &str) -> Result<(Credentials, Option<Instant>), Failure> {
        let since = Instant::now();
        // The call may panic as well as its future.
        let asked = AssertUnwindSafe(async { self.provider.ask(server).await }).catch_unwind();
        let why = match timeout(self.patience, asked).await {
            Ok(Ok(Ok(credentials))) => {
                let due = credentials
                    .lifetime
                    .map(|lifetime| since + renewed_after(lifetime));
                return Ok((credentials, due));
            }
            Ok(Ok(Err(error))) => format!("the credentials provider failed: {error}"),
            Ok(Err(_)) => "the credentials provider panicked".to_owned(),
            Err(_) => format!(
                "the credentials provider did not answer within {:?}",
                self.patience
            ),
        };
        Err(Failure::NotExecuted(ServerError::new(format!("{server}: {why}"))))
    }

    /// The configuration with the present credentials, and what renews them.
    pub(super) async fn apply(
        self: &Arc<Self>,
        server: &str,
        config: Config,
    ) -> Result<(Config, Renewal), Failure> {
        let (credentials, due) = self.ask(server).await?;
        let config = Config {
            username: credentials.user,
            password: Some(credentials.password),
            ..config
        };
        let renewal = Renewal {
            login: Arc::clone(self),
            server: server.into(),
            due,
        };
        Ok((config, renewal))
    }
}

/// The last third of the lifetime is left for failures. The jitter keeps connections that were opened
/// together from asking together.
fn renewed_after(lifetime: Duration) -> Duration {
    let lifetime = lifetime.clamp(SHORTEST_LIFETIME, LONGEST_LIFETIME);
    lifetime / 3 * 2 - jitter(lifetime / 12)
}

/// Renews the credentials of one connection.
#[derive(Clone, Debug)]
pub(super) struct Renewal {
    login: Arc<Login>,
    server: Arc<str>,
    /// `None` if the credentials do not expire.
    due: Option<Instant>,
}

impl Renewal {
    /// Waits until new credentials are due.
    async fn is_due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Authenticates the connection of this client again and again, each time before its credentials expire.
    pub(super) async fn keep_up(mut self, line: Line) -> Infallible {
        loop {
            self.is_due().await;
            let mut backoff = Backoff::new();
            let mut is_first = true;
            self.due = loop {
                match self.authenticate(&line).await {
                    Ok(due) => break due,
                    Err(failure) if std::mem::take(&mut is_first) => {
                        tracing::warn!(
                            server = &*self.server,
                            ?failure,
                            "the credentials are not renewed yet"
                        );
                    }
                    Err(failure) => {
                        tracing::debug!(
                            server = &*self.server,
                            ?failure,
                            "the credentials are not renewed yet"
                        );
                    }
                }
                backoff.pause().await;
            };
        }
    }

    /// The calls before this one run with the former credentials, and those behind it with the new ones. If
    /// the server refuses them, the former ones stay.
    async fn authenticate(&self, line: &Line) -> Result<Option<Instant>, Failure> {
        let (credentials, due) = self.login.ask(&self.server).await?;
        let user = credentials.user.as_deref();
        let words: Vec<&str> = ["AUTH"]
            .into_iter()
            .chain(user)
            .chain([&*credentials.password])
            .collect();
        line.call(&words).await?;
        Ok(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_renewed_in_time_and_not_all_at_once() {
        let lifetime = Duration::from_secs(12);
        let after: Vec<_> = (0..100).map(|_| renewed_after(lifetime)).collect();
        let expected = Duration::from_secs(7)..=Duration::from_secs(8);
        assert!(after.iter().all(|after| expected.contains(after)), "{after:?}");
        assert!(after.iter().any(|other| *other != after[0]));
        assert!(renewed_after(Duration::ZERO) > SHORTEST_LIFETIME / 2);
    }

    #[test]
    fn credentials_without_end_are_renewed_in_a_lifetime() {
        let after = renewed_after(Duration::MAX);
        assert!(after > LONGEST_LIFETIME / 2);
        assert!(Instant::now() + after > Instant::now());
    }
}
