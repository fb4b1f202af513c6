//! The certificates of a TLS connection.

use std::fmt;

/// The certificates that a `rediss://` connection trusts, and those that it shows to the server, as PEM. See
/// [`LockManagerBuilder::tls`](crate::LockManagerBuilder::tls). By default it trusts the system's certificate
/// authorities and shows no certificate.
///
/// # Examples
/// ```no_run
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fairlock::{LockManager, Tls};
///
/// let tls = Tls::new()
///     .ca_certificates(std::fs::read("ca.pem")?)
///     .client_certificate(std::fs::read("client.pem")?, std::fs::read("client.key")?);
/// let locks = LockManager::builder().tls(tls).connect("rediss://redis.internal:6379").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
#[must_use = "it does nothing until it is given to a builder"]
pub struct Tls {
    pub(crate) ca_certificates: Option<Vec<u8>>,
    pub(crate) client: Option<ClientCertificate>,
}

#[derive(Clone)]
pub(crate) struct ClientCertificate {
    pub(crate) certificates: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Tls {
    /// Trusts the system's certificate authorities, and shows no client certificate.
    ///
    /// # Examples
    /// ```
    /// use fairlock::{LockManager, Tls};
    ///
    /// let builder = LockManager::builder().tls(Tls::new()); // as without it
    /// # let _ = builder;
    /// ```
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts these certificate authorities *instead of* those of the system: one or more certificates as
    /// PEM.
    ///
    /// # Examples
    /// ```
    /// use fairlock::Tls;
    ///
    /// let pem = "-----BEGIN CERTIFICATE----- ...";
    /// let tls = Tls::new().ca_certificates(pem); // often the content of a file
    /// # let _ = tls;
    /// ```
    #[doc(alias = "root")]
    pub fn ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Tls {
        self.ca_certificates = Some(pem.into());
        self
    }

    /// Shows this certificate to a server that asks for one (`tls-auth-clients`).
    ///
    /// `certificates` is the certificate, followed by those between it and the authority. `key` is its key in
    /// PKCS#8 (`BEGIN PRIVATE KEY`). Both are PEM.
    ///
    /// # Examples
    /// ```
    /// use fairlock::Tls;
    ///
    /// let (certificate, key) = ("-----BEGIN CERTIFICATE----- ...", "-----BEGIN PRIVATE KEY----- ...");
    /// let tls = Tls::new().client_certificate(certificate, key);
    /// # let _ = tls;
    /// ```
    #[doc(alias = "mtls")]
    pub fn client_certificate(mut self, certificates: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        self.client = Some(ClientCertificate {
            certificates: certificates.into(),
            key: key.into(),
        });
        self
    }
}

/// Shows neither certificates nor keys.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("own_authorities", &self.ca_certificates.is_some())
            .field("client_certificate", &self.client.is_some())
            .finish()
    }
}
