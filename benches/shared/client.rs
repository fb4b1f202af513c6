//! The client library alone, configured as fairlock configures it.

use std::time::Duration;

use fred::prelude::*;

use crate::Outcome;

pub(crate) async fn connect(url: &str) -> Outcome<Client> {
    let client = Builder::from_config(Config::from_url(url)?)
        .with_connection_config(|connection| {
            connection.max_command_attempts = 1;
            connection.tcp.nodelay = Some(true);
        })
        .with_performance_config(|performance| {
            performance.default_command_timeout = Duration::from_secs(2);
        })
        .build()?;
    client.init().await?;
    Ok(client)
}
