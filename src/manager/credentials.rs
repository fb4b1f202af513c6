//! Where the credentials of a client come from.

use std::error::Error;

use super::LockManagerBuilder;
use crate::credentials::{Credentials, CredentialsProvider};

impl LockManagerBuilder {
    /// Sets a function that returns the credentials of each connection, for passwords and tokens that change
    /// while the client is connected. It gets the address of the server, such as `redis.internal:6379`.
    ///
    /// It is asked each time a connection is opened. If the credentials have a
    /// [lifetime](Credentials::lifetime), it is asked again when about two thirds of that are over. The
    /// command connections, and those that wait for replicas, then authenticate in place, by `AUTH`. The
    /// subscriber connections cannot do that in RESP2: each is replaced by another one that already has its
    /// subscriptions. No call fails, no message is lost, and no waiter misses its turn.
    ///
    /// The function has half of the [`server_timeout`](Self::server_timeout) for its answer. If it fails,
    /// hangs or panics, or if the server calls its password wrong, it is asked again after 10, 20, 40 …
    /// 1,000 ms. Open connections stay as they are meanwhile. Its error text is part of errors and log lines,
    /// so it must not contain a secret. It may be asked for several connections at the same time; if an
    /// answer is expensive, let it keep the answer for a while. It runs on the runtime of the connections, so
    /// it must not block.
    ///
    /// The URL must have neither user nor password. Sentinels keep those of the URL (`sentinelUsername`,
    /// `sentinelPassword`), since every question to one is a new connection. Locks in memory ignore it.
    ///
    /// # Errors
    /// [`connect`](Self::connect) fails with [`Error::Unavailable`](crate::Error::Unavailable), which names
    /// the provider's error, if there was no connection within the [`server_timeout`](Self::server_timeout).
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use std::time::Duration;
    /// use fairlock::{Credentials, LockManager};
    ///
    /// async fn from_file(_server: String) -> std::io::Result<Credentials> {
    ///     let token = tokio::fs::read_to_string("/run/secrets/redis-token").await?;
    ///     Ok(Credentials::new("locks", token.trim()).lifetime(Duration::from_secs(600)))
    /// }
    ///
    /// let locks = LockManager::builder().credentials(from_file).connect("rediss://redis.internal").await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "password")]
    #[doc(alias = "auth")]
    #[doc(alias = "credential_provider")]
    #[doc(alias = "token")]
    pub fn credentials<P, C, E>(mut self, provider: P) -> Self
    where
        P: Fn(String) -> C + Send + Sync + 'static,
        C: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.credentials = Some(CredentialsProvider::new(provider));
        self
    }
}
