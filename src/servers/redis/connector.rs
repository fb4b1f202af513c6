//! Opens connections: from a URL to a usable server.

use std::sync::Arc;
use std::time::Duration;

use fred::types::config::{Config, Server, ServerConfig};

use super::address::{Address, Node, Target};
use super::connection::{Connection, Messages};
use super::credentials::Login;
use super::dial::{dial, server_of};
use super::failure;
use super::names::Names;
use super::role::{DistinctServers, Expected};
use super::sentinel::Sentinels;
use crate::protocol::interface::Failure;
use crate::protocol::label::Label;
use crate::types::error::{Invalid, ServerError};
use crate::types::tls::Tls;

pub(crate) struct Connector {
    /// The configuration without the server, if sentinels or a cluster name that.
    config: Config,
    sentinels: Option<Arc<Sentinels>>,
    /// The cluster servers in the URL.
    seeds: Vec<Node>,
    /// What the server must say that it is.
    expected: Expected,
    /// The servers of the quorum to which this one belongs.
    distinct: Option<Arc<DistinctServers>>,
    server: String,
    /// The addresses of the servers.
    names: Arc<Names>,
    attempt_timeout: Duration,
    /// What the servers know about this client.
    label: Option<Label>,
    /// Where the credentials come from, if not from the URL.
    login: Option<Arc<Login>>,
}

impl Connector {
    pub(super) fn new(url: &str, tls: Option<&Tls>, attempt_timeout: Duration) -> Result<Connector, Invalid> {
        let address = Address::parse(url)?;
        let server = address.to_string();
        let common = common(&address, tls)?;
        let mut connector = Connector {
            config: Config {
                username: address.username,
                password: address.password,
                database: address.database,
                ..common.clone()
            },
            sentinels: None,
            seeds: Vec::new(),
            expected: Expected::Anything,
            distinct: None,
            server,
            names: Arc::default(),
            attempt_timeout,
            label: None,
            login: None,
        };
        match address.target {
            Target::Server(server) => {
                connector.config.server = server;
                connector.expected = Expected::Alone { in_quorum: false };
            }
            Target::Cluster(nodes) => connector.seeds = nodes,
            Target::Sentinels(group) => {
                let config = |server| Config {
                    server: ServerConfig::Centralized { server },
                    username: group.username.clone(),
                    password: group.password.clone(),
                    ..common.clone()
                };
                let configs = group.hosts.into_iter().map(config).collect();
                let sentinels = Sentinels::new(configs, group.service, attempt_timeout);
                connector.sentinels = Some(Arc::new(sentinels));
                connector.expected = Expected::Primary;
            }
        }
        Ok(connector)
    }

    /// The same connector, which gives its connections this name.
    pub(super) fn labelled(self, label: Label) -> Connector {
        Connector {
            label: Some(label),
            ..self
        }
    }

    /// The same connector, to a server of this quorum.
    pub(crate) fn among(self, servers: Option<Arc<DistinctServers>>) -> Connector {
        let Some(servers) = servers else { return self };
        Connector {
            expected: Expected::Alone { in_quorum: true },
            distinct: Some(servers),
            ..self
        }
    }

    /// The same connector, which asks for the credentials of each connection. The sentinels keep those of the
    /// URL.
    pub(super) fn with_login(self, login: Option<Login>) -> Result<Connector, Invalid> {
        let is_in_url = self.config.username.is_some() || self.config.password.is_some();
        if login.is_some() && is_in_url {
            return Err(Invalid::new(
                "credentials are set, and the URL has a user or a password too: it must have neither",
            ));
        }
        // Without a password, nothing would be sent, and the client would be the server's default user.
        if self.config.username.is_some() && self.config.password.is_none() {
            return Err(Invalid::new(format!(
                "the URL of {} has a user without a password: it must have both, as in \
                 redis://user:password@host, or neither (a user with `nopass` takes any password)",
                self.server
            )));
        }
        Ok(Connector {
            login: login.map(Arc::new),
            ..self
        })
    }

    /// The cluster servers in the URL, or none if the URL names something else.
    pub(super) fn seeds(&self) -> &[Node] {
        &self.seeds
    }

    pub(crate) fn is_for_a_cluster(&self) -> bool {
        !self.seeds.is_empty()
    }

    /// A connector for this server alone, with the same user.
    pub(super) fn at(&self, node: &Node) -> Connector {
        Connector {
            config: self.config_of(Server::new(node.host.as_str(), node.port)),
            sentinels: None,
            seeds: Vec::new(),
            expected: Expected::Anything,
            distinct: None,
            server: node.to_string(),
            names: Arc::clone(&self.names),
            attempt_timeout: self.attempt_timeout,
            label: self.label.clone(),
            login: self.login.clone(),
        }
    }

    fn config_of(&self, server: Server) -> Config {
        Config {
            server: ServerConfig::Centralized { server },
            ..self.config.clone()
        }
    }

    /// Remembers the host name that a server of the cluster has announced.
    pub(super) fn is_called(&self, node: &Node, name: String) {
        self.names.is_called(&node.host, node.port, name);
    }

    /// The server's address, for people.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// The database, if it is not the one in which every connection begins.
    #[cfg(feature = "diagnose")]
    pub(super) fn database(&self) -> Option<u8> {
        self.config.database
    }

    pub(super) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        self.sentinels.as_ref()
    }

    /// Opens a connection to a server that can serve calls.
    pub(super) async fn open(&self, messages: &Arc<dyn Messages>) -> Result<Connection, Failure> {
        // On the heap, so that the futures of callers are not nested too deeply for the compiler.
        let connection = Box::pin(self.open_unchecked(messages)).await?;
        if let Some(servers) = &self.distinct {
            let checked = servers.check(connection.line(), &self.server).await;
            checked.map_err(|failure| failure::with_server(&self.server, failure))?;
        }
        Ok(connection)
    }

    /// Opens a connection without subscriptions.
    pub(super) async fn open_for_calls(&self) -> Result<Connection, Failure> {
        let nobody: Arc<dyn Messages> = Arc::new(());
        self.open(&nobody).await
    }

    async fn open_unchecked(&self, messages: &Arc<dyn Messages>) -> Result<Connection, Failure> {
        let Some(sentinels) = &self.sentinels else {
            return self.log_in(self.config.clone(), messages).await;
        };
        let primary = sentinels.primary().await?;
        let mut successor = sentinels.successor_of(primary.clone());
        // A primary that hangs is not waited for once it has a successor.
        let opened = tokio::select! {
            biased;
            opened = self.log_in(self.config_of(primary.server.clone()), messages) => opened,
            server = successor.appears() => {
                Err(Failure::NotExecuted(ServerError::new(format!("the primary is {server} now"))))
            }
        };
        match opened {
            Ok(connection) => Ok(connection.until(successor)),
            Err(failure) => {
                sentinels.forget(&primary);
                Err(failure)
            }
        }
    }

    async fn log_in(&self, config: Config, messages: &Arc<dyn Messages>) -> Result<Connection, Failure> {
        let Some(login) = &self.login else {
            return self.dial_as_certified(config, messages).await;
        };
        let (config, renewal) = login.apply(&server_of(&config), config).await?;
        match self.dial_as_certified(config, messages).await {
            Ok(connection) => Ok(connection.renewed_by(renewal)),
            Err(failure) => Err(failure::of_a_rotation(failure)),
        }
    }

    /// Dials the server. A cluster may name its servers by their addresses, while their certificates are for
    /// the host names that they announce. A name that is needed is known from a server that was trusted.
    async fn dial_as_certified(
        &self,
        config: Config,
        messages: &Arc<dyn Messages>,
    ) -> Result<Connection, Failure> {
        let dialled = self.dial(config.clone(), messages).await;
        match (&dialled, self.by_host_name(config)) {
            (Err(Failure::Refused(_)), Some(config)) => self.dial(config, messages).await,
            _ => dialled,
        }
    }

    async fn dial(&self, config: Config, messages: &Arc<dyn Messages>) -> Result<Connection, Failure> {
        let label = self.label.as_ref();
        dial(
            &self.names,
            config,
            self.attempt_timeout,
            self.expected,
            label,
            messages,
        )
        .await
    }

    /// The same configuration, for a certificate for the host name that the server has announced.
    fn by_host_name(&self, config: Config) -> Option<Config> {
        let ServerConfig::Centralized { server } = &config.server else {
            return None;
        };
        certified_as(self.names.announced(&server.host, server.port)?, config)
    }
}

/// The configuration that the server and its sentinels share.
fn common(address: &Address, tls: Option<&Tls>) -> Result<Config, Invalid> {
    if tls.is_some() && !address.tls {
        return Err(Invalid::new(
            "tls is set, and the URL does not ask for it: it must begin with rediss:// (or valkeys://)",
        ));
    }
    Ok(Config {
        #[cfg(any(feature = "rustls", feature = "native-tls"))]
        tls: if address.tls {
            Some(super::tls::config(tls.unwrap_or(&Tls::new()))?)
        } else {
            None
        },
        ..Config::default()
    })
}

/// The same configuration, with this name in place of the host, if a certificate has to show it.
#[cfg(any(feature = "rustls", feature = "native-tls"))]
fn certified_as(name: String, mut config: Config) -> Option<Config> {
    let (ServerConfig::Centralized { server }, Some(_)) = (&mut config.server, &config.tls) else {
        return None;
    };
    server.tls_server_name = Some(name.into());
    Some(config)
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
fn certified_as(_: String, _: Config) -> Option<Config> {
    None
}
