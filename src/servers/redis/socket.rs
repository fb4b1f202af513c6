//! Opens what carries the bytes of a connection: a TCP or Unix socket, and TLS over it.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use fred::types::config::Config;
#[cfg(any(unix, feature = "rustls", feature = "native-tls"))]
use fred::types::config::ServerConfig;
use tokio::net::TcpStream;

use super::connection::Stream;
use super::failure;
use crate::protocol::interface::Failure;
use crate::types::error::ServerError;

/// Connects to the server of this configuration, which has this address. The socket must open within this
/// time.
pub(super) async fn open(
    config: &Config,
    address: Option<SocketAddr>,
    within: Duration,
) -> Result<Pin<Box<dyn Stream>>, Failure> {
    match (&config.server, address) {
        #[cfg(unix)]
        (ServerConfig::Unix { path }, _) => {
            let stream = tokio::net::UnixStream::connect(path).await;
            Ok(Box::pin(stream.map_err(failure::of_io)?))
        }
        (_, Some(address)) => {
            let stream = tokio::time::timeout(within, TcpStream::connect(address)).await;
            let stream = stream.map_err(|_| unanswered())?.map_err(failure::of_io)?;
            stream.set_nodelay(true).map_err(failure::of_io)?;
            encrypted(config, stream).await
        }
        _ => Err(unanswered()),
    }
}

pub(super) fn unanswered() -> Failure {
    Failure::Unknown(ServerError::new("no answer to the connection attempt"))
}

/// The name that the certificate of the server must show.
#[cfg(any(feature = "rustls", feature = "native-tls"))]
fn certified_name(config: &Config) -> Option<String> {
    match &config.server {
        ServerConfig::Centralized { server } => {
            let name = server.tls_server_name.as_ref().unwrap_or(&server.host);
            Some(name.to_string())
        }
        _ => None,
    }
}

#[cfg(any(feature = "rustls", feature = "native-tls"))]
async fn encrypted(config: &Config, stream: TcpStream) -> Result<Pin<Box<dyn Stream>>, Failure> {
    use fred::types::config::TlsConnector;

    let (Some(tls), Some(name)) = (&config.tls, certified_name(config)) else {
        return Ok(Box::pin(stream));
    };
    match &tls.connector {
        #[cfg(feature = "rustls")]
        TlsConnector::Rustls(connector) => {
            let name = fred::rustls::pki_types::ServerName::try_from(name.as_str());
            let name = name.map_err(|error| Failure::Refused(ServerError::new(format!("TLS: {error}"))))?;
            let stream = connector.connect(name.to_owned(), stream).await;
            Ok(Box::pin(stream.map_err(failure::of_io)?))
        }
        #[cfg(feature = "native-tls")]
        TlsConnector::Native(connector) => {
            let stream = connector.connect(&name, stream).await;
            let stream = stream.map_err(|error| failure::classify_connecting(&error.into()))?;
            Ok(Box::pin(stream))
        }
    }
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
async fn encrypted(_: &Config, stream: TcpStream) -> Result<Pin<Box<dyn Stream>>, Failure> {
    Ok(Box::pin(stream))
}
