//! Credentials that may change while a client is connected.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// What a connection shows to its server: a user and a password, and for how long they are valid. See
/// [`LockManagerBuilder::credentials`](crate::LockManagerBuilder::credentials).
///
/// `Debug` shows neither.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use fairlock::Credentials;
///
/// // A token that the server accepts for 15 minutes.
/// let token = Credentials::new("locks", "eyJhbGciOi…").lifetime(Duration::from_secs(900));
/// assert_eq!(format!("{token:?}"), "Credentials { lifetime: Some(900s), .. }");
/// ```
#[derive(Clone)]
#[must_use = "credentials do nothing until a provider returns them"]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
    pub(crate) lifetime: Option<Duration>,
}

impl Credentials {
    /// A user of the server's access control list, and its password or token.
    ///
    /// # Examples
    /// ```
    /// use fairlock::Credentials;
    ///
    /// let credentials = Credentials::new("locks", "a password or a token");
    /// assert!(!format!("{credentials:?}").contains("a password")); // it is never shown
    /// ```
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Credentials {
        Credentials {
            user: Some(user.into()),
            password: password.into(),
            lifetime: None,
        }
    }

    /// The password of the default user (`requirepass`).
    #[doc(alias = "requirepass")]
    pub fn password(password: impl Into<String>) -> Credentials {
        Credentials {
            user: None,
            password: password.into(),
            lifetime: None,
        }
    }

    /// Sets for how long they are valid from now on (at least 1 s; less counts as 1 s). When about two thirds
    /// of this time have passed, the provider is asked for the next ones. Without a lifetime, it is asked for
    /// each new connection only.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use fairlock::Credentials;
    ///
    /// let token = Credentials::password("eyJhbGciOi…").lifetime(Duration::from_secs(3600));
    /// # let _ = token;
    /// ```
    #[doc(alias = "expires_in")]
    pub fn lifetime(self, lifetime: Duration) -> Credentials {
        Credentials {
            lifetime: Some(lifetime),
            ..self
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

type Answer = Result<Credentials, Box<dyn Error + Send + Sync>>;

/// The function of the user that is asked for credentials, with the name of the server.
#[derive(Clone)]
pub(crate) struct CredentialsProvider(Arc<dyn Fn(String) -> BoxFuture<'static, Answer> + Send + Sync>);

impl CredentialsProvider {
    pub(crate) fn new<P, C, E>(provider: P) -> CredentialsProvider
    where
        P: Fn(String) -> C + Send + Sync + 'static,
        C: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        CredentialsProvider(Arc::new(move |server| {
            let asked = provider(server);
            Box::pin(async move { asked.await.map_err(Into::into) })
        }))
    }

    pub(crate) fn ask(&self, server: &str) -> BoxFuture<'static, Answer> {
        (self.0)(server.to_owned())
    }
}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider")
    }
}
