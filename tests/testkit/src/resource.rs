//! The resource that the locks protect: numbers on a server of their own, which refuses fences smaller than
//! the largest it has seen.
//!
//! A holder reads a number, and later writes that number plus one. The read shows the fence too, so from then
//! on no older holder can write. Therefore the number is exactly the count of accepted writes, whatever
//! happens to leases and clocks. If a stale write were accepted, the number would be smaller.

use crate::{Client, Resp, Server};

/// Shows a fence. Then returns the number, or writes one if it is given. -1: the fence is stale.
const ACCESS: &str = "
local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
local is_write = ARGV[2] ~= ''
if tonumber(ARGV[1]) < seen then
  if is_write then redis.call('HINCRBY', KEYS[1], 'refused', 1) end
  return -1
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
if is_write then
  redis.call('HSET', KEYS[1], 'number', ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'accepted', 1)
end
return tonumber(redis.call('HGET', KEYS[1], 'number') or 0)";

/// A connection to the resource. It never fails, because the faults only affect the locks.
#[derive(Debug)]
pub struct Resource {
    client: Client,
}

/// The writes to one number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    pub number: u64,
    pub accepted: u64,
    pub refused: u64,
}

impl Resource {
    pub async fn connect(port: u16) -> Resource {
        let client = Client::connect(port).await.expect("the resource");
        Resource { client }
    }

    /// The number under that lock, or `None` if the fence is stale.
    pub async fn read(&mut self, lock: usize, fence: u64) -> Option<u64> {
        self.access(lock, fence, "").await
    }

    /// Writes the number, unless the fence is stale.
    pub async fn write(&mut self, lock: usize, fence: u64, number: u64) {
        self.access(lock, fence, &number.to_string()).await;
    }

    async fn access(&mut self, lock: usize, fence: u64, number: &str) -> Option<u64> {
        let (key, fence) = (lock.to_string(), fence.to_string());
        let words = ["EVAL", ACCESS, "1", &key, &fence, number];
        let reply = self.client.command(&words).await.expect("the resource answers");
        u64::try_from(reply.int()).ok()
    }
}

/// The writes under that lock, as the resource counted them.
pub async fn writes(server: &Server, lock: usize) -> Writes {
    let words = ["HMGET", &lock.to_string(), "number", "accepted", "refused"];
    let reply = server.command(&words).await;
    let count = |at: usize| match &reply.array()[at] {
        Resp::Text(text) => text.parse().expect("a number"),
        _ => 0,
    };
    Writes {
        number: count(0),
        accepted: count(1),
        refused: count(2),
    }
}
