//! Converts [`Tls`] for fred: with rustls if it is available, otherwise with the system's library.

use fred::types::config::{TlsConfig, TlsConnector};

use crate::types::error::Invalid;
use crate::types::tls::Tls;

pub(super) fn config(tls: &Tls) -> Result<TlsConfig, Invalid> {
    let connector = connector(tls).map_err(|why| Invalid::new(format!("tls: {why}")))?;
    Ok(connector.into())
}

#[cfg(feature = "rustls")]
fn connector(tls: &Tls) -> Result<TlsConnector, String> {
    use std::sync::Arc;

    use fred::rustls::crypto::ring;
    use fred::rustls::pki_types::pem::PemObject;
    use fred::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use fred::rustls::{ClientConfig, RootCertStore};
    use fred::rustls_native_certs::load_native_certs;

    fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(|error| format!("{what}: {error}"))?;
        if certificates.is_empty() {
            return Err(format!("{what}: no certificate in this PEM"));
        }
        Ok(certificates)
    }

    let mut roots = RootCertStore::empty();
    match &tls.ca_certificates {
        Some(pem) => {
            for certificate in certificates("ca_certificates", pem)? {
                roots
                    .add(certificate)
                    .map_err(|error| format!("ca_certificates: {error}"))?;
            }
        }
        None => {
            let system = load_native_certs();
            // A certificate that cannot be read must not exclude the others.
            let (added, _) = roots.add_parsable_certificates(system.certs);
            if added == 0 {
                return Err(format!(
                    "the system has no certificate authorities: {:?}",
                    system.errors
                ));
            }
        }
    }
    // The provider is explicit, because a program with several providers has no default one.
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match &tls.client {
        None => config.with_no_client_auth(),
        Some(client) => {
            let certificates = certificates("client_certificate", &client.certificates)?;
            let key =
                PrivateKeyDer::from_pem_slice(&client.key).map_err(|error| bad_key(&client.key, error))?;
            config
                .with_client_auth_cert(certificates, key)
                .map_err(|error| format!("client_certificate: {error}"))?
        }
    };
    Ok(config.into())
}

#[cfg(not(feature = "rustls"))]
fn connector(tls: &Tls) -> Result<TlsConnector, String> {
    use fred::native_tls::{Certificate, Identity, TlsConnector as Native};

    let mut builder = Native::builder();
    if let Some(pem) = &tls.ca_certificates {
        let certificates =
            Certificate::stack_from_pem(pem).map_err(|error| format!("ca_certificates: {error}"))?;
        if certificates.is_empty() {
            return Err("ca_certificates: no certificate in this PEM".to_owned());
        }
        builder.disable_built_in_roots(true);
        for certificate in certificates {
            builder.add_root_certificate(certificate);
        }
    }
    if let Some(client) = &tls.client {
        let identity = Identity::from_pkcs8(&client.certificates, &client.key)
            .map_err(|error| bad_key(&client.key, error))?;
        builder.identity(identity);
    }
    builder
        .try_into()
        .map_err(|error: fred::error::Error| error.details().to_owned())
}

/// The error of a client certificate whose key cannot be used.
fn bad_key(key: &[u8], error: impl std::fmt::Display) -> String {
    let has = |words: &str| key.windows(words.len()).any(|part| part == words.as_bytes());
    let what = "key of the client_certificate";
    if has("ENCRYPTED") {
        format!("{what}: it is encrypted. Decrypt it first, as by openssl pkey -in key.pem -out plain.pem")
    } else if !has("PRIVATE KEY-----") {
        format!("{what}: no private key in this PEM")
    } else {
        format!("{what}: {error}")
    }
}
