//! The client library alone, with a script that does nothing.

use fred::prelude::*;

use crate::{Outcome, client};

#[derive(Clone, Debug)]
pub(crate) struct Bare {
    client: Client,
    script: String,
}

impl Bare {
    pub(crate) async fn connect(url: &str) -> Outcome<Bare> {
        let client = client::connect(url).await?;
        let script = client.script_load("return 1").await?;
        Ok(Bare { client, script })
    }

    pub(crate) async fn pair(&self) -> Outcome<()> {
        for _ in 0..2 {
            let _: i64 = self.client.evalsha(self.script.as_str(), "bare", "1").await?;
        }
        Ok(())
    }
}
