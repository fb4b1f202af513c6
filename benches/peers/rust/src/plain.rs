//! The least that a lock costs: two plain commands without a library. A waiter that finds the lock held asks
//! again after a fixed pause, so the figures only mean something with one waiter.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::Outcome;

const PAUSE: Duration = Duration::from_millis(1);

/// One waiter.
pub(crate) struct Plain {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) name: String,
    pub(crate) token: String,
}

impl Plain {
    pub(crate) async fn acquire(&mut self, lease: Duration) -> Outcome<()> {
        self.token = format!("{:032x}", rand::random::<u128>());
        let mut set = redis::cmd("SET");
        set.arg(&self.name).arg(&self.token).arg("NX");
        set.arg("PX").arg(u64::try_from(lease.as_millis())?);
        while !set.query_async::<bool>(&mut self.connection).await? {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    pub(crate) async fn release(&mut self) -> Outcome<()> {
        let mut delete = redis::cmd("DELIFEQ");
        delete.arg(&self.name).arg(&self.token);
        match delete.query_async(&mut self.connection).await? {
            true => Ok(()),
            false => Err("it was not held".into()),
        }
    }
}
