//! What is sent to the server, as fred takes it: the scripts by their hashes, the question for the time, and the wait for
//! replicas and disks.

use std::iter;
use std::time::Duration;

use fred::bytes::Bytes;
use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::{ClusterHash, CustomCommand, Value};
use futures_util::future::try_join_all;

use super::failure;
use crate::lease::millis;
use crate::options::Durability;
use crate::script::{Invocation, Script};
use crate::store::Failure;

#[derive(Debug)]
pub(super) struct Command {
    name: &'static str,
    args: Vec<Value>,
    asking: bool,
    /// Whether others go first while the server has much to do: [`Operation::gives_way`](crate::script::Operation::gives_way).
    pub(super) gives_way: bool,
}

impl Command {
    /// The server's time, by a command that does nothing else.
    pub(super) fn time() -> Command {
        Command {
            name: "TIME",
            args: Vec::new(),
            asking: false,
            gives_way: false,
        }
    }

    /// A sign of life, with the nonce in it.
    pub(super) fn ping(nonce: &str) -> Command {
        Command {
            name: "PING",
            args: vec![Value::from(nonce)],
            asking: false,
            gives_way: false,
        }
    }

    /// Which server of a cluster has which slots.
    pub(super) fn slots() -> Command {
        Command {
            name: "CLUSTER",
            args: vec![Value::from("SLOTS")],
            asking: false,
            gives_way: false,
        }
    }

    /// The same command for a server that is still importing its slot, as an `ASK` demands.
    pub(super) fn asking(self, asking: bool) -> Command {
        Command { asking, ..self }
    }

    pub(super) fn giving_way(self, gives_way: bool) -> Command {
        Command { gives_way, ..self }
    }

    /// Waits until these have what was written on the same connection before, but no longer than `within` (cut to whole ms;
    /// less than one is none, so it lasts at least that). The reply is how many have it: [`Command::waited`].
    pub(super) fn wait(durability: Durability, within: Duration) -> Command {
        // 0 would be for ever.
        let within_ms = millis(within).max(1).to_string();
        let replicas = durability.replicas.to_string();
        let (name, args) = match durability.fsynced {
            false => ("WAIT", vec![replicas, within_ms]),
            true => ("WAITAOF", vec!["1".to_owned(), replicas, within_ms]),
        };
        Command {
            name,
            args: args.into_iter().map(Value::from).collect(),
            asking: false,
            gives_way: false,
        }
    }

    /// How many of those that were waited for have it: replicas, or disks, of which the primary's is told apart. `None` for a
    /// reply to something else.
    pub(super) fn waited(durability: Durability, reply: &Value) -> Option<u32> {
        let number = |value: &Value| match value {
            Value::Integer(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        if !durability.fsynced {
            return number(reply);
        }
        let Value::Array(counts) = reply else { return None };
        let [primary, replicas] = &counts[..] else {
            return None;
        };
        // More replicas than are wanted don't stand in for the primary.
        Some(number(primary)?.min(1) + number(replicas)?.min(durability.replicas))
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
        let text = Bytes::from(invocation.text);
        let words = invocation.words.into_iter();
        let words = words.map(|word| Value::Bytes(text.slice(word)));
        let args = iter::once(sha).chain(words).collect();
        Command {
            name: "EVALSHA",
            args,
            asking: false,
            gives_way: false,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_do_not_stand_in_for_the_disk_of_the_primary() {
        let durability = |replicas, fsynced| Durability { replicas, fsynced };
        let pair = |primary, replicas| Value::Array(vec![Value::Integer(primary), Value::Integer(replicas)]);
        for (wanted, reply, got) in [
            (durability(2, false), Value::Integer(1), Some(1)),
            (durability(1, false), Value::Integer(2), Some(2)),
            (durability(0, true), pair(0, 2), Some(0)),
            (durability(1, true), pair(0, 2), Some(1)),
            (durability(1, true), pair(1, 0), Some(1)),
            (durability(1, true), pair(1, 2), Some(2)),
            (durability(1, true), Value::Integer(2), None),
            (durability(1, false), pair(1, 2), None),
            (durability(1, false), Value::Integer(-1), None),
        ] {
            assert_eq!(Command::waited(wanted, &reply), got, "{wanted:?} {reply:?}");
        }
    }
}
