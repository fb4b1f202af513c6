//! What is sent to the server, as fred takes it: the scripts by their hashes, the question for the time, and the wait for
//! replicas.

use std::time::Duration;

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::{ClusterHash, CustomCommand, Value};
use futures_util::future::try_join_all;

use super::failure;
use crate::lease::millis;
use crate::script::{Invocation, Script};
use crate::store::Failure;

#[derive(Debug)]
pub(super) struct Command {
    name: &'static str,
    args: Vec<Value>,
    asking: bool,
}

impl Command {
    /// The server's time, by a command that does nothing else.
    pub(super) fn time() -> Command {
        Command {
            name: "TIME",
            args: Vec::new(),
            asking: false,
        }
    }

    /// Which server of a cluster has which slots.
    pub(super) fn slots() -> Command {
        Command {
            name: "CLUSTER",
            args: vec![Value::from("SLOTS")],
            asking: false,
        }
    }

    /// The same command for a server that is still importing its slot, as an `ASK` demands.
    pub(super) fn asking(self, asking: bool) -> Command {
        Command { asking, ..self }
    }

    /// Waits until so many replicas have what was written on the same connection before, but no longer than `within` (cut to
    /// whole ms; less than one is none, so it lasts at least that). The reply is how many have it.
    pub(super) fn wait(replicas: u32, within: Duration) -> Command {
        // 0 would be for ever.
        let within_ms = millis(within).max(1);
        Command {
            name: "WAIT",
            args: vec![
                Value::from(replicas.to_string()),
                Value::from(within_ms.to_string()),
            ],
            asking: false,
        }
    }

    pub(super) async fn run(self, client: &Client) -> Result<Value, Error> {
        let custom = |name| CustomCommand::new_static(name, ClusterHash::Random, false);
        if !self.asking {
            return client.custom(custom(self.name), self.args).await;
        }
        // ASKING counts for the command right behind it: in a pipeline nothing comes between the two.
        let both = client.pipeline();
        let _: () = both.custom(custom("ASKING"), Vec::<Value>::new()).await?;
        let _: () = both.custom(custom(self.name), self.args).await?;
        both.last().await
    }
}

/// The scripts, with the hashes that the server knows them by.
#[derive(Debug)]
pub(super) struct Scripts(Vec<(&'static Script, Value)>);

impl Scripts {
    pub(super) fn new(scripts: &[&'static Script]) -> Scripts {
        let sha = |script: &Script| Value::from(fred::util::sha1_hash(script.text));
        Scripts(scripts.iter().map(|script| (*script, sha(script))).collect())
    }

    pub(super) fn command(&self, invocation: Invocation) -> Command {
        let mut scripts = self.0.iter();
        let sha = scripts.find(|(script, _)| std::ptr::eq(*script, invocation.script));
        let sha = sha.map_or(Value::Null, |(_, sha)| sha.clone());
        let mut args = Vec::with_capacity(2 + invocation.keys.len() + invocation.args.len());
        args.push(sha);
        args.push(Value::from(invocation.keys.len().to_string()));
        args.extend(invocation.keys.into_iter().map(Value::from));
        args.extend(invocation.args.into_iter().map(Value::from));
        Command {
            name: "EVALSHA",
            args,
            asking: false,
        }
    }

    /// Has the server learn all of them. A failure means that no call was executed.
    pub(super) async fn load(&self, client: &Client) -> Result<(), Failure> {
        let loads = self
            .0
            .iter()
            .map(|(script, _)| client.script_load::<Value, _>(script.text));
        match try_join_all(loads).await {
            Ok(_) => Ok(()),
            Err(error) => Err(failure::of_unsent(failure::of(&error))),
        }
    }
}
