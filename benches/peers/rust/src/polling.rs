//! A semaphore whose waiters ask again and again, as libraries without a queue make it. The documentation of
//! .NET's DistributedLock describes one on Redis. It keeps a sorted set of the holders, with the time at
//! which each expires. A waiter's script removes those that have expired, and adds the waiter if fewer than
//! the capacity are left. Otherwise the waiter asks again after a random pause. No lease is renewed here: all
//! holds are short.

use std::time::Duration;

use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::Outcome;

/// The pauses, which are the defaults of that library.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 10..=800;

const ACQUIRE: &str = "
local holders, capacity, me, lease_ms = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', holders, '-inf', now_ms)
if redis.call('ZCARD', holders) >= capacity then
  return 0
end
redis.call('ZADD', holders, now_ms + lease_ms, me)
redis.call('PEXPIRE', holders, lease_ms)
return 1";

/// A script, so that the command is counted like those of others. A lone ZREM would do.
const RELEASE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";

/// The connection of this process.
#[derive(Clone)]
pub(crate) struct Polling(MultiplexedConnection);

impl Polling {
    pub(crate) async fn connect(url: &str) -> Outcome<Polling> {
        let client = redis::Client::open(url)?;
        Ok(Polling(client.get_multiplexed_async_connection().await?))
    }

    pub(crate) fn permit(&self, name: &str, capacity: u32) -> Permit {
        Permit {
            connection: self.0.clone(),
            name: name.to_owned(),
            capacity,
            token: String::new(),
            scripts: [ACQUIRE, RELEASE].map(Script::new),
        }
    }
}

/// One waiter, or the permit that it has.
pub(crate) struct Permit {
    connection: MultiplexedConnection,
    name: String,
    capacity: u32,
    token: String,
    scripts: [Script; 2],
}

impl Permit {
    pub(crate) async fn acquire(&mut self, lease: Duration) -> Outcome<()> {
        self.token = format!("{:032x}", rand::random::<u128>());
        loop {
            let mut call = self.scripts[0].key(&self.name);
            call.arg(self.capacity).arg(&self.token);
            call.arg(u64::try_from(lease.as_millis())?);
            let granted: bool = call.invoke_async(&mut self.connection).await?;
            if granted {
                return Ok(());
            }
            let pause_ms = rand::random_range(PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }

    pub(crate) async fn release(&mut self) -> Outcome<()> {
        let mut call = self.scripts[1].key(&self.name);
        let _removed: bool = call.arg(&self.token).invoke_async(&mut self.connection).await?;
        Ok(())
    }
}
