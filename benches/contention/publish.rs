//! Publish, then compete, as most libraries do. The holder deletes the lock and sends one message to a
//! channel of the lock. Every waiter that receives it tries again, and one of them wins.
//!
//! This implementation is as good as the idea allows. Each process has one connection for commands, one for
//! messages, and one subscription for all its waiters. A try and a release take one round trip each. Waiters
//! listen before they try, so that no message is missed between the two.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fairlock_benches::Outcome;
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;

/// The lease of the strategies that take one as an argument. It is fairlock's default.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// Deletes the lock if it still belongs to the caller, and tells everybody.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], '1')
return 1";

/// A waiter that has received no message for this time tries anyway: a holder may have died.
const RETRY: Duration = Duration::from_secs(1);

/// Identifies one hold.
pub(crate) type Token = String;

/// One lock, as used by one process.
#[derive(Debug)]
pub(crate) struct Publish {
    client: Client,
    /// Kept only for its connection.
    _subscriber: Client,
    unlocked: Notify,
    release: String,
    key: String,
    channel: String,
    process: uuid::Uuid,
    holds: AtomicU64,
}

impl Publish {
    pub(crate) async fn connect(url: &str, name: &str) -> Outcome<Arc<Publish>> {
        let (client, subscriber) = (connect(url).await?, connect(url).await?);
        let channel = format!("publish:unlock:{{{name}}}");
        let mut messages = subscriber.message_rx();
        subscriber.subscribe(channel.as_str()).await?;
        // Redis answers in order, so the reply to a PING that follows shows that the subscription is up.
        subscriber.ping::<()>(None).await?;
        let lock = Arc::new(Publish {
            release: client.script_load(RELEASE).await?,
            client,
            _subscriber: subscriber,
            unlocked: Notify::new(),
            key: format!("publish:{{{name}}}"),
            channel,
            process: uuid::Uuid::new_v4(),
            holds: AtomicU64::new(0),
        });

        let heard = Arc::downgrade(&lock);
        tokio::spawn(async move {
            while let Ok(_) | Err(RecvError::Lagged(_)) = messages.recv().await {
                let Some(lock) = heard.upgrade() else { return };
                lock.unlocked.notify_waiters();
            }
        });
        Ok(lock)
    }

    pub(crate) async fn acquire(&self) -> Outcome<Token> {
        let token = format!("{}:{}", self.process, self.holds.fetch_add(1, Ordering::Relaxed));
        loop {
            // From here on the waiter receives every message, including those that arrive during the try.
            let unlocked = self.unlocked.notified();
            if self.try_once(&token).await? {
                return Ok(token);
            }
            let _ = tokio::time::timeout(RETRY, unlocked).await;
        }
    }

    async fn try_once(&self, token: &str) -> Outcome<bool> {
        let set = CustomCommand::new_static("SET", ClusterHash::FirstKey, false);
        let lease_ms = LEASE.as_millis().to_string();
        let words = [&self.key, token, "NX", "PX", &lease_ms].map(Value::from);
        let reply: Option<String> = self.client.custom(set, words.to_vec()).await?;
        Ok(reply.is_some())
    }

    pub(crate) async fn release(&self, token: Token) -> Outcome<()> {
        let keys = vec![self.key.as_str(), self.channel.as_str()];
        match self
            .client
            .evalsha::<i64, _, _, _>(self.release.as_str(), keys, token)
            .await?
        {
            1 => Ok(()),
            _ => Err("the lock was not held any more".into()),
        }
    }
}

async fn connect(url: &str) -> Outcome<Client> {
    let client = Builder::from_config(Config::from_url(url)?)
        .with_connection_config(|connection| connection.tcp.nodelay = Some(true))
        .with_performance_config(|performance| performance.broadcast_channel_capacity = 16_384)
        .set_policy(ReconnectPolicy::new_exponential(0, 10, 1_000, 2))
        .build()?;
    client.init().await?;
    Ok(client)
}
