//! A cache entry that is filled once, though many requests miss it at the same time.
//!
//!     cargo run --package fairlock-examples --bin cache

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fairlock::LockManager;
use fairlock_examples::locks;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

const REQUESTS: u32 = 50;

/// Stands for a cache that all instances share, and for the slow source behind it.
#[derive(Debug, Default)]
struct Cache {
    entries: Mutex<HashMap<String, String>>,
    computed: AtomicU32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = locks().await?;
    let cache = Arc::new(Cache::default());
    let mut requests = JoinSet::new();
    for _ in 0..REQUESTS {
        let (locks, cache) = (locks.clone(), Arc::clone(&cache));
        requests.spawn(async move { get(&locks, &cache, "report").await });
    }
    for value in requests.join_all().await {
        assert_eq!(value?, "the report");
    }
    println!(
        "{REQUESTS} requests, computed {} times",
        cache.computed.load(Ordering::Relaxed)
    );
    Ok(())
}

async fn get(locks: &LockManager, cache: &Cache, key: &str) -> fairlock::Result<String> {
    if let Some(value) = cache.entries.lock().await.get(key) {
        return Ok(value.clone());
    }
    let fill = async |_token| {
        // Another request may have filled it while this one waited.
        if let Some(value) = cache.entries.lock().await.get(key) {
            return value.clone();
        }
        let value = compute(cache, key).await;
        cache.entries.lock().await.insert(key.to_owned(), value.clone());
        value
    };
    match locks
        .lock(format!("cache:{key}"))
        .with_timeout(Duration::from_secs(5), fill)
        .await
    {
        Ok(value) => Ok(value),
        // The lock saves work, and nothing else: without it, each request computes by itself.
        Err(error) if error.is_transient() => Ok(compute(cache, key).await),
        Err(error) => Err(error),
    }
}

async fn compute(cache: &Cache, key: &str) -> String {
    cache.computed.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(100)).await;
    format!("the {key}")
}
