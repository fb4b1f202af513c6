//! The client library alone, configured as fairlock configures it.

use std::time::Duration;

use fred::prelude::*;

use crate::Outcome;

pub async fn connect(url: &str) -> Outcome<Client> {
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

/// Calls a script that does nothing.
#[derive(Clone, Debug)]
pub struct Bare {
    client: Client,
    script: String,
}

impl Bare {
    pub async fn connect(url: &str) -> Outcome<Bare> {
        let client = connect(url).await?;
        let script = client.script_load("return 1").await?;
        Ok(Bare { client, script })
    }

    pub async fn pair(&self) -> Outcome<()> {
        for _ in 0..2 {
            let _: i64 = self.client.evalsha(self.script.as_str(), "bare", "1").await?;
        }
        Ok(())
    }
}
